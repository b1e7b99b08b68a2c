"""A lab by hand: three real runs of two processes each, and what they keep for backward beside what was predicted.

`shardwise lab checkpointing` shows the same with times and pictures. Runs are kept in the folder that is named; without
one they are removed. Times differ from run to run and are left out here; what is kept differs by a percent, by how fast
gloo's threads let go of what they have sent.
"""

import sys
import tempfile
from pathlib import Path

from shardwise.course.labs import find_lab, lab_setting, run_lab
from shardwise.course.labs.quantities import ACTIVATIONS
from shardwise.course.labs.run import planned_trials
from shardwise.course.labs.settings import LabRequest
from shardwise.units import MIB

lab = find_lab("checkpointing")
setting = lab_setting(LabRequest(device="cpu", num_steps=5, recipe={"seq_len": 128}))
print(lab.question)

with tempfile.TemporaryDirectory() as removed:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else removed)
    planned = planned_trials(lab, setting, folder=folder)
    outcomes = list(run_lab(planned, setting, on_step=lambda _: None))

print(f"\n{ACTIVATIONS.title}\n{'':12} {'predicted':>10}   measured within 5 %")
for outcome in outcomes:
    predicted, measured = ACTIVATIONS.predicted(outcome), ACTIVATIONS.measured(outcome)
    is_met = abs(measured / predicted - 1) < 0.05
    print(f"{outcome.trial.name:12} {predicted / MIB:6.1f} MiB   {'yes' if is_met else 'no'}")

memory = next(claim for claim in lab.claims(outcomes) if "activations" in claim.says)
print(f"\n{memory.says}: said {memory.said:.0f}x, measured about {memory.computed:.0f}x")
