"""A lab by hand: three real runs of two processes each, and what they keep for backward beside what was predicted.

`shardwise lab checkpointing` shows the same with times and pictures. Runs are kept in the folder that is named; without
one they are removed. Times differ from run to run and are left out here; what is kept does not.
"""

import sys
import tempfile
from pathlib import Path

from shardwise.labs import find_lab, lab_setting, run_lab
from shardwise.labs.quantities import ACTIVATIONS
from shardwise.labs.run import planned_trials
from shardwise.labs.settings import LabRequest
from shardwise.units import MIB

lab = find_lab("checkpointing")
setting = lab_setting(LabRequest(device="cpu", num_steps=5, recipe={"seq_len": 128}))
print(lab.question)

with tempfile.TemporaryDirectory() as removed:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else removed)
    planned = planned_trials(lab, setting, folder=folder)
    outcomes = list(run_lab(planned, setting, on_step=lambda _: None))

print(f"\n{ACTIVATIONS.title}\n{'':12} {'predicted':>10} {'measured':>10}")
for outcome in outcomes:
    predicted, measured = ACTIVATIONS.predicted(outcome), ACTIVATIONS.measured(outcome)
    print(f"{outcome.trial.name:12} {predicted / MIB:6.1f} MiB {measured / MIB:6.1f} MiB")

memory = next(claim for claim in lab.claims(outcomes) if "activations" in claim.says)
print(f"\n{memory.says}: said {memory.said:.0f}x, measured {memory.computed:.1f}x")
