"""Ours, Calculon, llm-analysis, SimuMax and "FLOPs over one fitted constant" on the same measured rows, in one run.

Usage: python benchmarks/step_time_against_peers.py FOLDER [--python PATH] [--write]

FOLDER, outside this checkout, holds clones named ``calculon`` (calculon-ai/calculon), ``llm-analysis``
(cli99/llm-analysis) and ``SimuMax`` (MooreThreads/SimuMax); a peer that is not there is left out. PATH is a Python
with their requirements (numpy, pandas, psutil, fire, transformers, SimuMax's requirements.txt); by default
``FOLDER/venv/bin/python``. Nothing of theirs is copied; the small drivers in ``benchmarks/peers`` call them.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median

from shardwise.course.formulas.flop_counts import causal_flop_per_token, megatron_2021_flop_per_step
from shardwise.model import DenseSpec
from shardwise.predict.time import predict_time
from shardwise.validate.records import TimedRun
from shardwise.validate.shipped_runs import timed_runs

DRIVERS = Path(__file__).parent / "peers"
GPT_FAMILIES = {
    "KORTH": "Megatron's eight rows, arXiv:2205.05198 table 5 (A100)",
    "MLM21": "Megatron's ten sizes with data parallelism, arXiv:2104.04473 table 1 (A100)",
    "VTRAINS": "Small GPTs on 2 to 8 A100 (vTrain's measurements)",
}
MAX_SHOWN_ROWS = 20
"""Longer tables show only their summary."""
OURS = "shardwise"
CONSTANT = "FLOPs / one constant"
A100_PEAK_FLOP_PER_S = 312e12
B200_PEAK_FLOP_PER_S = 2250e12
RECOMPUTE_ADDS = 4 / 3
SIMUMAX_TABLE = "docs/b200/b200_release_v1.2_summary.json"

Answers = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A peer's clone and the driver that calls it."""

    name: str
    folder: str
    driver: str


PEERS = (
    Peer(name="Calculon", folder="calculon", driver="calculon_rows.py"),
    Peer(name="SimuMax, derived A100", folder="SimuMax", driver="simumax_rows.py"),
    Peer(name="llm-analysis, 0.5", folder="llm-analysis", driver="llm_analysis_rows.py"),
)


def main() -> None:
    """Print a table a family; with ``--write`` record them with today's date."""
    arguments = parse()
    python = arguments.python or arguments.folder / "venv" / "bin" / "python"
    lines = ["# Step time against peers", ""]
    for family, title in GPT_FAMILIES.items():
        runs = [run for run in timed_runs().runs if run.family == family and run.is_faithful and is_in_table(run)]
        answers = {OURS: ours(runs)}
        for peer in PEERS:
            clone = arguments.folder / peer.folder
            if clone.is_dir():
                answers[f"{peer.name} ({commit_of(clone)})"] = ask(peer, clone, python, runs)
        answers[CONSTANT] = fitted_constant({run.id: gpt_hardware_s(run) for run in runs}, runs)
        lines.extend(table_lines(title, runs, answers))
    lines.extend(b200_lines(arguments.folder / "SimuMax"))
    text = "\n".join(lines)
    print(text)
    if arguments.writes:
        path = Path(__file__).parent / "results" / f"step_time_against_peers-{datetime.now(tz=UTC):%Y-%m-%d}.md"
        path.write_text(text + "\n", encoding="utf-8")
        print(f"wrote {path}")


def is_in_table(run: TimedRun) -> bool:
    """Korthikanti's ninth time is no row of table 5: the 530B model on eight times the GPUs, in the text."""
    return run.family != "KORTH" or run.plan.layout.dp_replicate == 1


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the clones")
    parser.add_argument("--python", type=Path, help="interpreter with the peers' requirements")
    parser.add_argument("--write", action="store_true", dest="writes", help="record under benchmarks/results")
    return parser.parse_args()


def ours(runs: Sequence[TimedRun]) -> Answers:
    """Our step times."""
    return {run.id: predict_time(run.plan)[0].step_s for run in runs}


def ask(peer: Peer, clone: Path, python: Path, runs: Sequence[TimedRun]) -> Answers:
    """A peer's step times, from its own code in its own process."""
    answer = subprocess.run(
        [str(python.absolute()), str(DRIVERS / peer.driver)],
        input=json.dumps([run_object(run) for run in runs]),
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(clone.resolve())},
        capture_output=True,
        text=True,
        check=True,
    )
    answers: dict[str, float] = json.loads(answer.stdout)
    return answers


def commit_of(clone: Path) -> str:
    """Short commit of a clone."""
    command = ["git", "-C", str(clone), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_object(run: TimedRun) -> dict[str, object]:
    """What a driver needs to know of a run."""
    plan, attention = run.plan, run.plan.model.attention
    return {
        "id": run.id,
        "num_layers": plan.model.num_hidden_layers,
        "hidden_size": plan.model.hidden_size,
        "num_heads": attention.num_attention_heads if attention else 0,
        "intermediate_size": intermediate_size(run),
        "vocab_size": plan.model.vocab_size,
        "seq_len": plan.recipe.seq_len,
        "micro_batch_size": plan.recipe.micro_batch_size,
        "global_batch_size": plan.global_batch_size,
        "num_microbatches": plan.num_microbatches,
        "tp": plan.layout.tp,
        "pp": plan.layout.pp,
        "vpp": plan.layout.vpp,
        "dp": plan.layout.data_parallel_size,
        "num_gpus": plan.layout.world_size,
        "recompute": plan.recipe.recompute,
        "sequence_parallel": plan.layout.sequence_parallel,
    }


def intermediate_size(run: TimedRun) -> int:
    """Width of the dense feed-forward part."""
    feed_forward = run.plan.model.layers[0].feed_forward
    return feed_forward.intermediate_size if isinstance(feed_forward, DenseSpec) else 0


def gpt_hardware_s(run: TimedRun) -> float:
    """Seconds at peak of the FLOP a GPT row executes: equation 3, less the recomputation it does not do."""
    plan = run.plan
    flop = megatron_2021_flop_per_step(
        global_batch_size=plan.global_batch_size,
        seq_len=plan.recipe.seq_len,
        num_hidden_layers=plan.model.num_hidden_layers,
        hidden_size=plan.model.hidden_size,
        vocab_size=plan.model.vocab_size,
    )
    executed = flop if plan.recipe.recompute == "full" else flop / RECOMPUTE_ADDS
    return executed / (plan.layout.world_size * A100_PEAK_FLOP_PER_S)


def model_s(run: TimedRun) -> float:
    """Seconds at peak of the model FLOP of a B200 row, causal attention counted once."""
    plan, attention = run.plan, run.plan.model.attention
    if attention is None:
        return 0.0
    per_token = causal_flop_per_token(
        num_params=plan.model.num_params,
        num_input_embedding_params=plan.model.vocab_size * plan.model.hidden_size,
        num_hidden_layers=plan.model.num_hidden_layers,
        num_attention_heads=attention.num_attention_heads,
        qk_plus_v_dim=attention.head_dim + attention.v_head_dim,
        seq_len=plan.recipe.seq_len,
    )
    return per_token * plan.tokens_per_step / (plan.layout.world_size * B200_PEAK_FLOP_PER_S)


def fitted_constant(at_peak: Answers, runs: Sequence[TimedRun]) -> Answers:
    """Times at peak over the one utilisation that fits the measured rows best: as kind to the baseline as can be."""
    measured = {run.id: run.measured_s for run in runs}

    def mean_error(utilisation: float) -> float:
        return mean(abs(at_peak[key] / utilisation / measured[key] - 1) for key in at_peak)

    best = min((step / 1000 for step in range(50, 1000)), key=mean_error)
    return {key: seconds / best for key, seconds in at_peak.items()}


def b200_lines(simumax: Path) -> Iterator[str]:
    """The B200 rows that are shipped, with the figures SimuMax itself publishes beside them."""
    runs = [run for run in timed_runs().runs if run.family == "SIMUB200"]
    answers = {OURS: ours(runs)}
    if (simumax / SIMUMAX_TABLE).is_file():
        answers["SimuMax, its own table"] = simumax_published(simumax / SIMUMAX_TABLE, runs)
    answers[CONSTANT] = fitted_constant({run.id: model_s(run) for run in runs}, runs)
    yield from table_lines("Truncated Llama 3 on 8 B200 (SimuMax's measurements)", runs, answers)


def simumax_published(path: Path, runs: Sequence[TimedRun]) -> Answers:
    """SimuMax's published prediction of each run, joined by its measured time."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    by_measured = {round(row["real_ms"], 2): row["perf_ms"] / 1000 for row in rows}
    return {run.id: by_measured[key] for run in runs if (key := round(run.measured_s * 1000, 2)) in by_measured}


def table_lines(title: str, runs: Sequence[TimedRun], answers: Mapping[str, Answers]) -> Iterator[str]:
    """Signed errors in percent, row by row, and their mean and maximum."""
    yield f"## {title}"
    yield ""
    yield f"| row | measured s | {' | '.join(answers)} |"
    yield "|---|---:|" + "---:|" * len(answers)
    for run in runs if len(runs) <= MAX_SHOWN_ROWS else ():
        cells = [error_text(answer.get(run.id), run.measured_s) for answer in answers.values()]
        yield f"| {run.id} | {run.measured_s:.4g} | {' | '.join(cells)} |"
    errors = [[answer[run.id] / run.measured_s - 1 for run in runs if run.id in answer] for answer in answers.values()]
    yield f"| **rows predicted** | | {' | '.join(str(len(own)) for own in errors)} |"
    for name, pick in (("mean", mean), ("median", median), ("largest", max)):
        cells = [f"{pick([abs(error) for error in own]) * 100:.2f}%" if own else "-" for own in errors]
        yield f"| **{name} absolute error** | | {' | '.join(cells)} |"
    cells = [f"{median(own) * 100:+.2f}%" if own else "-" for own in errors]
    yield f"| **bias (median signed)** | | {' | '.join(cells)} |"
    yield ""


def error_text(predicted_s: float | None, measured_s: float) -> str:
    """Signed error in percent."""
    return "-" if predicted_s is None else f"{(predicted_s / measured_s - 1) * 100:+.1f}%"


if __name__ == "__main__":
    main()
