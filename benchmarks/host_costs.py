"""What our runtime's Python does around the kernels of one block, by technique: ``host_costs.py [--record]``.

Blocks too small to compute anything are trained by the runtime's own code in a process group whose other ranks do not
exist, so that all that is timed is the host: torch's dispatch, autograd, FSDP2's hooks, DTensor, checkpointing. The
cost of a block is the difference between a deep and a shallow model; times are those this thread computed, the least
of many, the cases taken in turn so that what else the machine does meets all of them alike.

The last column says what a technique adds in proportion to what an FSDP2 unit over one rank adds, which was timed on
H100 (2.89 ms, as much as 82 kernels): that is what ``step/own_host.py`` takes from here, since CPUs differ in
pace.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwise.launch.request import TrainRequest, make_job
from shardwise.plan_file import read_plan
from shardwise.train.data_parallel import begin_micro_batch
from shardwise.train.job import DataSpec
from shardwise.train.loop import Trainer, make_trainer
from shardwise.train.mesh import make_mesh
from shardwise.train.tracing.run_rank import FakeFeed

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")
SHALLOW, DEEP = 3, 9
ONE_RANK_KERNELS = 82
SHARDED = {"dp_shard": 2}
REPLICATED = {"dp_shard": 2, "zero_stage": 0}
DIVIDED = {"tp": 2, "dp_shard": 1, "sequence_parallel": True}
LORA = {"adapter": "lora", "lora_targets": "all-linear"}
QLORA = {**LORA, "adapter": "qlora"}
CASES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "kernels alone (DDP)": (REPLICATED, {"precision": "bf16"}),
    "FSDP2": (SHARDED, {}),
    "FSDP2, one rank": (REPLICATED, {}),
    "kept gathered, between": ({"dp_shard": 2, "zero_stage": 1}, {}),
    "FSDP2, full": (SHARDED, {"recompute": "full"}),
    "FSDP2, selective": (SHARDED, {"recompute": "selective"}),
    "one rank, selective": (REPLICATED, {"recompute": "selective"}),
    "tp 2, sequence parallel": (DIVIDED, {}),
    "tp 2, full": (DIVIDED, {"recompute": "full"}),
    "tp 2, selective": (DIVIDED, {"recompute": "selective"}),
    "cp 2": ({"cp": 2, "dp_shard": 1}, {}),
    "kernels alone, selective": (REPLICATED, {"precision": "bf16", "recompute": "selective"}),
    "LoRA": (REPLICATED, LORA),
    "LoRA, full": (REPLICATED, {**LORA, "recompute": "full"}),
    "LoRA, selective": (REPLICATED, {**LORA, "recompute": "selective"}),
    "QLoRA": (REPLICATED, QLORA),
    "QLoRA, full": (REPLICATED, {**QLORA, "recompute": "full"}),
    "QLoRA, selective": (REPLICATED, {**QLORA, "recompute": "selective"}),
}


@dataclass(slots=True, kw_only=True)
class Bench:
    """One model of one case, and the least seconds of its passes."""

    trainer: Trainer
    is_between: bool = False
    """Neither the first nor the last micro-batch: parameters are there already, gradients are not reduced yet."""
    forward_s: float = field(default=float("inf"))
    backward_s: float = field(default=float("inf"))

    def run(self) -> None:
        """Both passes once."""
        trainer = self.trainer
        passes = trainer.passes
        ids, labels = passes.placed.place(trainer.source.next_step()[0])  # type: ignore[attr-defined]
        begin_micro_batch(passes.model, trainer.job.layout, is_last=not self.is_between)  # type: ignore[attr-defined]
        started = time.thread_time()
        loss = passes.model(ids, labels)  # type: ignore[attr-defined]
        forward_s = time.thread_time() - started
        started = time.thread_time()
        loss.backward()
        backward_s = time.thread_time() - started
        if not self.is_between:
            trainer._drop_gradients()
        self.forward_s, self.backward_s = min(self.forward_s, forward_s), min(self.backward_s, backward_s)


def bench(name: str, depth: int) -> Bench:
    """The trainer of one case."""
    layout, settings = CASES[name]
    model = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": depth,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 128,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    recipe = {"seq_len": 32, "micro_batch_size": 1, "precision": "bf16-mixed", "compile": False, **settings}
    recipe["global_batch_size"] = layout["dp_shard"]
    plan = read_plan({"model": model, "cluster": "2xh100-sxm", "recipe": recipe, "layout": layout})
    request = TrainRequest(num_steps=1, device="cpu", data=DataSpec(source="synthetic"))
    job = make_job(plan, request, prediction=None, run_folder="unused")
    mesh = make_mesh(job.layout, device_type="cpu")
    trainer = make_trainer(job, mesh, device=CPU, source=FakeFeed(job, num_waiting=0))  # type: ignore[arg-type]
    return Bench(trainer=trainer, is_between="between" in name)


def lines(costs: dict[str, tuple[float, float]]) -> Iterator[str]:
    """A table of microseconds a block."""
    plain = costs["kernels alone (DDP)"]
    unit_s = (sum(costs["FSDP2, one rank"]) - sum(plain)) / ONE_RANK_KERNELS
    yield "| case | forward us | backward us | kernels of host time beyond the block's own |"
    yield "| --- | ---: | ---: | ---: |"
    for name, passes in costs.items():
        more = [(one - alone) / unit_s for one, alone in zip(passes, plain, strict=True)]
        yield f"| {name} | {1e6 * passes[0]:.0f} | {1e6 * passes[1]:.0f} | {more[0]:.0f} + {more[1]:.0f} |"


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    benches = {(name, depth): bench(name, depth) for name in CASES for depth in (SHALLOW, DEEP)}
    for _ in range(arguments.rounds):
        for one in benches.values():
            one.run()
    costs = {}
    for name in CASES:
        shallow, deep = benches[name, SHALLOW], benches[name, DEEP]
        blocks = DEEP - SHALLOW
        costs[name] = (
            (deep.forward_s - shallow.forward_s) / blocks,
            (deep.backward_s - shallow.backward_s) / blocks,
        )
    table = "\n".join(lines(costs))
    print(table)
    if arguments.record:
        day = date.today().isoformat()
        path = ROOT / "benchmarks" / "results" / f"host_costs-{day}.md"
        head = (
            f"# Host time of a block by technique, {day}\n\n`python benchmarks/host_costs.py --rounds "
            f"{arguments.rounds} --record`, torch {torch.__version__}, one thread of the machine that runs the tests.\n"
        )
        path.write_text(f"{head}\n{table}\n", encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
