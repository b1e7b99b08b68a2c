"""Fully sharded data parallelism: gather a block, compute, free it; gather again, compute, reduce-scatter, free."""

from shardwise.claims import Claim
from shardwise.course.lesson import Column, Curve, CurvePicture, Lesson, LessonTable, Setting
from shardwise.course.lessons.request import LessonRequest, checked, checked_seed
from shardwise.course.lessons.tiny_run import (
    TinyRun,
    exchange_picture,
    held_table,
    tiny_plan,
    tiny_run,
    tiny_width,
    traffic_table,
    walk,
)
from shardwise.course.numerics.tiny_model import tiny_model
from shardwise.course.numerics.world import Event
from shardwise.formulas.seed import per_gpu_memory
from shardwise.layout import Layout
from shardwise.ledger import MemoryComponent

OPTIONS = ("num_ranks", "num_hidden_layers", "hidden_size", "seq_len", "num_microbatches", "seed")
SHOWN: tuple[MemoryComponent, ...] = (
    "parameters",
    "gathered_parameters",
    "gradients",
    "communication_buffers",
    "optimizer",
    "activations",
)
SEED_PARAMS, SEED_GPUS = 70e9, 8


def make_lesson(request: LessonRequest) -> Lesson:
    """Train sharded, sharded with replicas, and kept gathered."""
    num_ranks = checked("num_ranks", request.num_ranks, default=4, low=2, high=16)
    layers = checked("num_hidden_layers", request.num_hidden_layers, default=4, low=1, high=16)
    hidden = tiny_width(request.hidden_size, default=32)
    seq_len = checked("seq_len", request.seq_len, default=16, low=2, high=512)
    micro_batches = checked("num_microbatches", request.num_microbatches, default=1, low=1, high=8)
    seed = checked_seed(request)
    model = tiny_model(num_hidden_layers=layers, hidden_size=hidden, intermediate_size=2 * hidden, vocab_size=64)
    layouts = _layouts(num_ranks)
    runs = {
        name: tiny_run(
            tiny_plan(model, layout, seq_len=seq_len, num_microbatches=micro_batches), seed=seed, num_steps=2
        )
        for name, layout in layouts.items()
    }
    sharded = runs["FSDP"]
    return Lesson(
        name="fsdp",
        title=f"Fully sharded data parallelism over {num_ranks} ranks",
        what="A simulation in numbers: each rank keeps 1/n of every block's weights, gradients and optimizer states, "
        "gathers one block at a time to compute with it, and frees it again. Two training steps with clipping by the "
        "global norm and a sharded AdamW; the walk shows the first.",
        settings=(
            Setting(name="num-ranks", value=num_ranks, unit="count"),
            Setting(name="num-hidden-layers", value=layers, unit="count"),
            Setting(name="hidden-size", value=hidden, unit="count"),
            Setting(name="num-microbatches", value=micro_batches, unit="count"),
            Setting(name="seq-len", value=seq_len, unit="count"),
        ),
        tables=(_ways_table(runs), traffic_table(sharded.counted), held_table(sharded.counted)),
        steps=walk(sharded.counted),
        checks=tuple(check for run in runs.values() for check in run.checks),
        claims=_claims(),
        pictures=(
            _held_picture(sharded),
            exchange_picture(sharded.counted, title=f"One step of {num_ranks} fully sharded ranks"),
        ),
        notes=(
            "Tables, final norm and head are one unit: it is gathered first, stays until the backward is over, and "
            "with a large vocabulary it, not a block, sets the peak.",
            "A sharded AdamW is the whole AdamW, element by element. Clipping is not: each rank knows the norm of its "
            "shard only, so one all-reduce of a single number makes it the norm of the model.",
        ),
    )


def _layouts(num_ranks: int) -> dict[str, Layout]:
    ways = {
        "FSDP": Layout(dp_shard=num_ranks, zero_stage=3),
        "FSDP, kept gathered": Layout(dp_shard=num_ranks, zero_stage=3, reshard_after_forward=False),
        "DDP": Layout(dp_shard=num_ranks, zero_stage=0),
    }
    if num_ranks % 2 == 0 and num_ranks > 2:
        ways["HSDP, 2 replicas"] = Layout(dp_replicate=2, dp_shard=num_ranks // 2, zero_stage=3)
    return ways


def _ways_table(runs: dict[str, TinyRun]) -> LessonTable:
    rows = []
    for name, run in runs.items():
        rank = run.counted.ranks[0]
        inside = sum(one.sent_bytes for one in rank.messages if one.axis == "dp_shard")
        across = sum(one.sent_bytes for one in rank.messages if one.axis == "dp_replicate")
        peak = rank.held.peak
        states = peak["parameters"] + peak["gradients"] + peak["optimizer"]
        rows.append((name, states, peak["gathered_parameters"], inside, across, run.checks[1].difference))
    return LessonTable(
        title="What rank 0 holds and sends in one step",
        head=(
            "way | states: bytes | gathered at worst: bytes | sent among shards: bytes | "
            "sent among replicas: bytes | error of the weights: number"
        ),
        rows=tuple(rows),
        note="in fp32, where weights and gradients have the same size: 3 units sent for DDP's 2",
    )


def _held_picture(run: TinyRun) -> CurvePicture:
    """Draw what rank 0 holds from one event of the first step to the next."""
    events = run.counted.ranks[0].events
    curves = []
    for component in SHOWN:
        points = tuple((float(number), float(held_of(event, component))) for number, event in enumerate(events))
        if any(value for _, value in points):
            curves.append(Curve(name=component.replace("_", " "), points=points))
    return CurvePicture(
        title="What rank 0 holds from one event to the next",
        x=Column(name="event", unit="count"),
        y=Column(name="held", unit="bytes"),
        curves=tuple(curves),
        note="gathered weights rise and fall with every block; shards stay",
    )


def held_of(event: Event, component: MemoryComponent) -> int:
    """Bytes of a component after an event."""
    return next((num_bytes for name, num_bytes in event.held if name == component), 0)


def _claims() -> tuple[Claim, ...]:
    whole = per_gpu_memory(num_params=SEED_PARAMS, activation_bytes=0.0)
    sharded = per_gpu_memory(num_params=SEED_PARAMS, num_gpus=SEED_GPUS, zero_stage=3, activation_bytes=0.0)
    return (
        Claim(
            says="70B on 8 GPUs: 105 GB of states per GPU instead of 840",
            source="scaling lesson, FSDP",
            said=105e9,
            computed=sharded.state_bytes,
            unit="decimal_bytes",
            verdict="right",
            note=f"of {whole.state_bytes / 1e9:.0f} GB, without master weights",
        ),
        Claim(
            says="a GPU holds 1/N of everything",
            source="scaling lesson, FSDP",
            said="1/N",
            computed="1/N and one gathered block",
            verdict="loose",
            note="the unit that is being computed with is whole; it does not shrink with more GPUs",
        ),
    )
