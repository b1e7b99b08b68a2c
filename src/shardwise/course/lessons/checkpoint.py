"""Activation checkpointing: memory against compute for every k-th layer, for selective recomputation, and predicted."""

from dataclasses import replace
from math import isqrt

from shardwise.claims import Claim
from shardwise.course.checkpointing import CheckpointRun, best_interval, run_checkpointed
from shardwise.course.formulas import activations, flop_counts
from shardwise.course.lesson import (
    Check,
    Column,
    Curve,
    CurvePicture,
    GanttBar,
    GanttLane,
    GanttPicture,
    Lesson,
    LessonStep,
    LessonTable,
    Setting,
)
from shardwise.course.lessons.request import LessonRequest, checked
from shardwise.formulas import seed
from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict import predict

OPTIONS = ("num_hidden_layers", "hidden_size", "seq_len", "micro_batch_size", "num_attention_heads", "model", "cluster")
MOST_LAYERS = 256
MODEL, CLUSTER = "llama-3.1-8b", "8xh100-sxm"
WEEK_REDUCTION_RATIO, WEEK_EXTRA_FRACTION = 3.0, 0.30
FULL_EXTRA_FRACTION = 1 / 3
"""One forward more, beside a forward and a backward that costs two."""
DRAWN = (0, 1)
ROUNDING = 1e-12


def make_lesson(request: LessonRequest) -> Lesson:
    """Hold, free and recompute the activations of every layer; then predict a real plan under each choice."""
    shape = _Shape(request)
    best = best_interval(
        num_hidden_layers=shape.num_layers, layer_bytes=shape.flash_bytes, input_bytes=shape.input_bytes
    )
    intervals = sorted({0, 1, 2, 4, 8, 16, best, isqrt(shape.num_layers), shape.num_layers})
    runs = {every: shape.run(every) for every in intervals if every <= shape.num_layers}
    drawn = {every: runs[every] for every in sorted({*DRAWN, best, isqrt(shape.num_layers)})}
    return Lesson(
        name="checkpoint",
        title=f"Activation checkpointing over {shape.num_layers} layers",
        what="A simulation of one forward and backward: only the input of every k-th layer is kept, and in the "
        "backward pass the k layers after it run again. Held bytes are counted at every layer; k = 1 recomputes every "
        "layer by itself. The last table is a prediction of a real plan.",
        settings=shape.settings,
        tables=(_interval_table(runs, shape), _kind_table(shape), _prediction_table(request)),
        steps=_steps(runs[best], best),
        checks=_checks(runs, shape),
        claims=_claims(),
        pictures=(_lanes(drawn), _curve(shape)),
        notes=(
            f"The lowest peak is at k = {best}, near sqrt(L x input / layer): sqrt(L) = {isqrt(shape.num_layers)} "
            "is the best k only for layers that keep no more than their input. A transformer layer keeps "
            f"{shape.flash_bytes / shape.input_bytes:.0f} times its input, so long segments cost more than they save, "
            "and frameworks checkpoint every layer.",
            "When to use it: when activations, not states, are what does not fit, or when a larger micro-batch is "
            "worth a third more compute. Selective recomputation comes first: most of the memory for little of the "
            "compute.",
        ),
    )


class _Shape:
    """Sizes of one layer, in bytes."""

    def __init__(self, request: LessonRequest) -> None:
        self.num_layers = checked("num_hidden_layers", request.num_hidden_layers, default=32, low=1, high=MOST_LAYERS)
        self.hidden_size = checked("hidden_size", request.hidden_size, default=4096, low=1, high=2**17)
        self.seq_len = checked("seq_len", request.seq_len, default=2048, low=1, high=2**20)
        self.micro_batch_size = checked("micro_batch_size", request.micro_batch_size, default=1, low=1, high=2**16)
        self.num_heads = checked("num_attention_heads", request.num_attention_heads, default=32, low=1, high=2**12)
        sizes = {
            "seq_len": self.seq_len,
            "micro_batch_size": self.micro_batch_size,
            "hidden_size": self.hidden_size,
        }
        self.input_bytes = float(activations.full_recompute_activation_bytes(**sizes))
        self.flash_bytes = float(activations.selective_recompute_activation_bytes(**sizes))
        self.eager_bytes = activations.block_activation_bytes(num_attention_heads=self.num_heads, **sizes)
        self.seed_bytes = float(seed.activation_bytes_per_layer(**sizes))

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The sizes as a lesson lists them."""
        return (
            Setting(name="num-hidden-layers", value=self.num_layers, unit="count"),
            Setting(name="hidden-size", value=self.hidden_size, unit="count"),
            Setting(name="seq-len", value=self.seq_len, unit="count"),
            Setting(name="micro-batch-size", value=self.micro_batch_size, unit="count"),
            Setting(name="num-attention-heads", value=self.num_heads, unit="count"),
        )

    def run(self, every: int) -> CheckpointRun:
        """One step of layers that keep 34 s b h bytes, as with flash attention."""
        return run_checkpointed(
            num_hidden_layers=self.num_layers,
            every=every,
            layer_bytes=self.flash_bytes,
            input_bytes=self.input_bytes,
        )


def _interval_table(runs: dict[int, CheckpointRun], shape: _Shape) -> LessonTable:
    whole = runs[0].peak_bytes
    return LessonTable(
        title="Keep the input of every k-th layer",
        head=(
            "k | peak: decimal_bytes | of keeping all: fraction | run twice: count | extra compute: fraction | "
            "thin layers: count"
        ),
        rows=tuple(
            (
                "keep all" if every == 0 else str(every),
                run.peak_bytes,
                run.peak_bytes / whole,
                run.num_recomputed,
                run.extra_compute_fraction,
                _thin_peak(shape, every),
            )
            for every, run in runs.items()
        ),
        note=f"a layer keeps {shape.flash_bytes / 1e6:,.0f} MB, its input {shape.input_bytes / 1e6:,.1f} MB; "
        "thin layers: the peak, in inputs, of layers that keep nothing but their input, lowest near sqrt(L)",
    )


def _thin_peak(shape: _Shape, every: int) -> float:
    return run_checkpointed(
        num_hidden_layers=shape.num_layers, every=every, layer_bytes=1.0, input_bytes=1.0
    ).peak_bytes


def _kind_table(shape: _Shape) -> LessonTable:
    """Tabulate what one layer keeps under each choice, by the published counts."""
    step_flop = flop_counts.korthikanti_flop_per_step(
        global_batch_size=shape.micro_batch_size,
        seq_len=shape.seq_len,
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        vocab_size=0,  # layers alone
    )
    core_flop = 4 * shape.micro_batch_size * shape.num_layers * shape.seq_len**2 * shape.hidden_size
    score_fraction = core_flop / step_flop
    kept = (
        ("four tensors, as the scaling lesson counts", shape.seed_bytes, 0.0),
        ("attention scores kept (eager)", shape.eager_bytes, 0.0),
        ("selective: scores recomputed", shape.flash_bytes, score_fraction),
        ("full: only the input", shape.input_bytes, FULL_EXTRA_FRACTION),
    )
    return LessonTable(
        title="What one layer keeps",
        head=(
            "choice | a layer: decimal_bytes | all layers: decimal_bytes | less than eager: ratio | "
            "extra compute: fraction"
        ),
        rows=tuple(
            (name, num_bytes, num_bytes * shape.num_layers, shape.eager_bytes / num_bytes, extra)
            for name, num_bytes, extra in kept
        ),
        note=(
            "Korthikanti et al. 2022, arXiv:2205.05198; selective runs the forward of the attention core once more, "
            "the paper's closed form adds three; flash attention does what selective recomputation does"
        ),
    )


def _prediction_table(request: LessonRequest) -> LessonTable:
    plan = read_plan(
        {
            "model": request.model or MODEL,
            "cluster": request.cluster or CLUSTER,
            "recipe": {"seq_len": request.seq_len or 8192, "global_batch_size": 64, "micro_batch_size": 2},
        }
    )
    plan = replace(plan, layout=replace(plan.layout, dp_shard=plan.cluster.num_gpus, zero_stage=3))
    if plan.global_batch_size % plan.layout.dp_shard:
        plan = replace(plan, recipe=replace(plan.recipe, global_batch_size=2 * plan.layout.dp_shard))
    quarter = plan.model.num_hidden_layers // 4
    choices = [("none", plan)]
    choices.append(("selective", _with(plan, recompute="selective")))
    choices += [(f"full, {n} layers", _with(plan, recompute="full", layers=n)) for n in (quarter, 2 * quarter)]
    choices.append(("full", _with(plan, recompute="full")))
    rows = []
    for name, one in choices:
        prediction = predict(one)
        rows.append(
            (
                name,
                prediction.memory.worst.component_bytes("activations"),
                prediction.memory.needed_bytes,
                "yes" if prediction.fits else "no",
                prediction.time.step_s,
            )
        )
    return LessonTable(
        title=f"Predicted: {plan.model.name} on {plan.cluster.num_gpus} x {plan.cluster.gpu.name}, fully sharded",
        head="recompute | activations: bytes | needed a GPU: bytes | fits | step: s",
        rows=tuple(rows),
        note=f"{plan.recipe.seq_len:,} tokens, {plan.recipe.micro_batch_size} sequences at once",
    )


def _with(plan: Plan, *, recompute: str, layers: int | None = None) -> Plan:
    recipe = replace(plan.recipe, recompute=recompute, recompute_layers=layers)  # type: ignore[arg-type]
    return replace(plan, recipe=recipe)


def _steps(run: CheckpointRun, every: int) -> tuple[LessonStep, ...]:
    words = {
        "forward": "runs; its input is kept if it is the first of a segment, the rest is freed",
        "recompute": "runs again and keeps what its backward needs",
        "backward": "runs backward; its activations are freed afterwards",
    }
    return tuple(
        LessonStep(
            title=f"layer {moment.layer}: {moment.work} (k = {every})",
            text=f"layer {moment.layer} {words[moment.work]}; {moment.held_bytes / 1e6:,.0f} MB are held",
        )
        for moment in run.moments
    )


def _checks(runs: dict[int, CheckpointRun], shape: _Shape) -> tuple[Check, ...]:
    """Peaks and extra compute against the closed forms."""
    num_layers, size, start = shape.num_layers, shape.flash_bytes, shape.input_bytes
    faults = [abs(runs[0].peak_bytes / (num_layers * size) - 1)]
    for every, run in runs.items():
        if every and num_layers % every == 0:
            faults.append(abs(run.peak_bytes / (num_layers / every * start + every * size) - 1))
    return (
        Check(what="peak against L / k inputs and k layers", difference=max(faults), limit=ROUNDING),
        Check(
            what="extra compute of k = 1 against one forward of three",
            difference=abs(runs[1].extra_compute_fraction - (flop_counts.recompute_flop_ratio() - 1)),
            limit=ROUNDING,
        ),
    )


def _claims() -> tuple[Claim, ...]:
    sizes = {"seq_len": 2048, "micro_batch_size": 1, "hidden_size": 4096}
    flash = activations.selective_recompute_activation_bytes(**sizes)
    kept = activations.full_recompute_activation_bytes(**sizes)
    eager = activations.block_activation_bytes(num_attention_heads=32, **sizes)
    full = run_checkpointed(num_hidden_layers=32, every=1, layer_bytes=flash, input_bytes=kept)
    states = seed.per_gpu_memory(num_params=70e9, num_gpus=8, zero_stage=3, activation_bytes=0)
    return (
        Claim(
            says="full checkpointing costs roughly 33% more compute",
            source="scaling lesson, exercise 1",
            said=FULL_EXTRA_FRACTION,
            computed=full.extra_compute_fraction,
            unit="fraction",
            verdict="right",
            note="in FLOP; a step that communicates or waits loses less",
        ),
        Claim(
            says="checkpointing at block boundaries needs about 3 times less activation memory",
            source="week 14 page, mechanical detail",
            said=WEEK_REDUCTION_RATIO,
            computed=flash / kept,
            unit="ratio",
            verdict="loose",
            note=f"what a layer keeps shrinks 17 times with flash attention and {eager / kept:.0f} times without; the "
            "peak shrinks less, because the layer that is recomputed is held whole",
        ),
        Claim(
            says="a layer's activations are about 64 MB (2,048 tokens, width 4,096)",
            source="scaling lesson, the problem",
            said=64e6,
            computed=float(flash),
            unit="decimal_bytes",
            verdict="loose",
            note=f"64 MiB are four tensors; a layer keeps 17 of that width, {eager / 1e6:,.0f} MB with its scores",
        ),
        Claim(
            says="FSDP with activation checkpointing brings 70B on 8 GPUs under 80 GB",
            source="scaling lesson, FSDP",
            said="fits",
            computed=f"{states.state_bytes / 1e9:g} GB of states alone",
            verdict="wrong",
            note="checkpointing divides activations, and these 105 GB hold none; 11 GPUs are the fewest",
        ),
    )


def _lanes(runs: dict[int, CheckpointRun]) -> GanttPicture:
    """A lane for each k: a backward takes two forwards."""
    return GanttPicture(
        title="One step: forward, recomputation and backward, with the activations held",
        unit="time_units",
        lanes=tuple(_lane(every, run) for every, run in runs.items()),
        held_name="activations held",
        held_unit="decimal_bytes",
        numbered="layer, where it has room",
    )


def _lane(every: int, run: CheckpointRun) -> GanttLane:
    bars, held, now = [], [], 0.0
    for moment in run.moments:
        end = now + (2.0 if moment.work == "backward" else 1.0)
        bars.append(GanttBar(kind=moment.work, start=now, end=end, label=str(moment.layer)))
        held.append((now, moment.held_bytes))
        now = end
    held.append((now, 0.0))
    return GanttLane(name="keep all" if every == 0 else f"k = {every}", bars=tuple(bars), held=tuple(held))


def _curve(shape: _Shape) -> CurvePicture:
    points = tuple((float(every), shape.run(every).peak_bytes) for every in range(1, shape.num_layers + 1))
    whole = shape.run(0).peak_bytes
    return CurvePicture(
        title="Peak of the activations by k",
        x=Column(name="k", unit="count"),
        y=Column(name="peak", unit="decimal_bytes"),
        curves=(
            Curve(name="every k-th input kept", points=points),
            Curve(name="everything kept", points=((1.0, whole), (float(shape.num_layers), whole))),
        ),
    )
