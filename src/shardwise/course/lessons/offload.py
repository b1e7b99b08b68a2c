"""ZeRO-Offload and ZeRO-Infinity: what fits where, on hosts of 512 GB and 2 TB, and what a step then costs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.claims import Claim
from shardwise.course.formulas import scaling
from shardwise.course.lesson import Check, GanttBar, GanttLane, GanttPicture, Lesson, LessonStep, LessonTable, Setting
from shardwise.course.lessons.request import LessonRequest, checked
from shardwise.formulas import offload_time, seed
from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.recipe import Offload
from shardwise.units import GB, GIB, format_decimal_bytes, format_seconds

OPTIONS = ("model", "num_ranks", "seq_len", "global_batch_size")
MODEL, GPU, NUM_GPUS = "70B", "a100-sxm-80", 4
HOST_BYTES = (512 * GB, 2000 * GB)
NVME_TB = 2.0
CHOICES: tuple[tuple[Offload, str], ...] = (
    ("none", "all on the GPUs"),
    ("optimizer", "optimizer on host"),
    ("parameters", "weights on host too"),
    ("nvme", "optimizer on NVMe"),
)
BATCHES = (4, 16, 64, 256, 1024)
SEED_PARAMS = 70e9
SEED_HOST_BYTES = 512e9
SEED_SLOWDOWN = "30-50%"
WORK_KINDS = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "optimizer": "optimizer",
    "exposed_communication": "gather",
    "pipeline_bubble": "bubble",
    "offload": "offload",
    "other": "other",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One place for the states, predicted on one host."""

    offload: Offload
    name: str
    host_bytes: float
    prediction: Prediction

    @property
    def fault(self) -> str:
        """The name of the memory that is too small; empty when everything fits."""
        memory = self.prediction.memory
        faults = []
        if not memory.fits_device:
            faults.append("GPU")
        if memory.host_bytes_per_node > memory.host_capacity_bytes:
            faults.append("host")
        if memory.nvme_bytes_per_node > memory.nvme_capacity_bytes:
            faults.append("NVMe")
        return ", ".join(faults)

    @property
    def update_s(self) -> float:
        """Optimizer and what offloading adds to the step."""
        return self.component_s("optimizer") + self.component_s("offload")

    def component_s(self, name: str) -> float:
        """Time of one component of the step."""
        return sum(entry.duration_s for entry in self.prediction.time.components if entry.component == name)


def make_lesson(request: LessonRequest) -> Lesson:
    """Predict the plan with its states in each place."""
    num_gpus = checked("num_ranks", request.num_ranks, default=NUM_GPUS, low=1, high=8)
    batch = checked("global_batch_size", request.global_batch_size, default=64, low=1, high=2**16)
    plan = _plan(request, num_gpus, batch, host_bytes=HOST_BYTES[0])
    trials = tuple(_trials(request, num_gpus, batch))
    return Lesson(
        name="offload",
        title=f"Offloading {plan.model.name} on {num_gpus} x {plan.cluster.gpu.name}",
        what="A simulation by prediction: the same plan, fully sharded by DeepSpeed with everything recomputed, with "
        "its states on the GPUs, on the host (ZeRO-Offload) or on NVMe (ZeRO-Infinity). A step that does not fit is "
        "timed as if it did, so that the cost of offloading can be told from the cost of fitting.",
        settings=(
            Setting(name="model", value=plan.model.name),
            Setting(name="num-ranks", value=num_gpus, unit="count", meaning="GPUs of one node"),
            Setting(name="seq-len", value=plan.recipe.seq_len, unit="count"),
            Setting(name="global-batch-size", value=batch, unit="count", meaning="sequences of one step"),
        ),
        tables=(_fit_table(trials), _time_table(trials), _batch_table(request, num_gpus), _seed_table()),
        steps=tuple(_step(trial) for trial in trials),
        checks=_checks(),
        claims=_claims(),
        pictures=(_picture(trials),),
        notes=(_verdict(trials),),
    )


def _plan(request: LessonRequest, num_gpus: int, batch: int, *, host_bytes: float) -> Plan:
    return read_plan(
        {
            "model": request.model or MODEL,
            "cluster": {
                "gpu": GPU,
                "gpus_per_node": num_gpus,
                "num_nodes": 1,
                "host_memory_gib": host_bytes / GIB,
                "nvme_tb": NVME_TB,
            },
            "recipe": {
                "seq_len": request.seq_len or 2048,
                "global_batch_size": -(-batch // num_gpus) * num_gpus,
                "recompute": "full",
            },
            "layout": {"dp_shard": num_gpus, "zero_stage": 3},
            "engine": "deepspeed",
        }
    )


def _trials(request: LessonRequest, num_gpus: int, batch: int) -> Iterator[_Trial]:
    for host_bytes in HOST_BYTES:
        plan = _plan(request, num_gpus, batch, host_bytes=host_bytes)
        for offload, name in CHOICES:
            recipe = replace(plan.recipe, offload=offload)
            yield _Trial(
                offload=offload, name=name, host_bytes=host_bytes, prediction=predict(replace(plan, recipe=recipe))
            )


def _fit_table(trials: tuple[_Trial, ...]) -> LessonTable:
    rows = []
    for trial in trials:
        memory = trial.prediction.memory
        rows.append(
            (
                trial.name,
                trial.host_bytes,
                memory.needed_bytes,
                memory.host_bytes_per_node,
                memory.nvme_bytes_per_node,
                f"no: {trial.fault}" if trial.fault else "yes",
            )
        )
    capacity = format_decimal_bytes(trials[0].prediction.memory.capacity_bytes)
    return LessonTable(
        title="What fits",
        head=(
            "where states are | host has: decimal_bytes | a GPU needs: decimal_bytes | host needs: decimal_bytes | "
            "NVMe needs: decimal_bytes | fits"
        ),
        rows=tuple(rows),
        note=f"a GPU has {capacity}, the drives {NVME_TB:g} TB",
    )


def _time_table(trials: tuple[_Trial, ...]) -> LessonTable:
    base = trials[0]
    first = trials[: len(CHOICES)]
    return LessonTable(
        title="What a step costs",
        head="where states are | step: s | update: s | update, slower: ratio | step, slower: ratio",
        rows=tuple(
            (
                trial.name,
                trial.prediction.time.step_s,
                trial.update_s,
                trial.update_s / base.update_s,
                trial.prediction.time.step_s / base.prediction.time.step_s,
            )
            for trial in first
        ),
        note="update: the optimizer and the copies around it that nothing hides",
    )


def _batch_table(request: LessonRequest, num_gpus: int) -> LessonTable:
    """The update is paid once a step: larger batches dilute it."""
    rows = []
    for batch in BATCHES:
        plan = _plan(request, num_gpus, batch, host_bytes=HOST_BYTES[1])
        steps = [
            predict(replace(plan, recipe=replace(plan.recipe, offload=offload))).time.step_s for offload, _ in CHOICES
        ]
        rows.append((batch, *(step / steps[0] for step in steps[1:])))
    return LessonTable(
        title="How much slower a step is, by its batch",
        head="sequences: count | optimizer on host: ratio | weights too: ratio | NVMe: ratio",
        rows=tuple(rows),
        note="over the same step with everything on the GPUs, if it fitted",
    )


def _seed_table() -> LessonTable:
    """The exercise with the lesson's own bytes, and with the master copy that it leaves out."""
    gpus = NUM_GPUS
    rows = (
        ("moments alone (2+2+8)", seed.optimizer_bytes(num_params=SEED_PARAMS),
         scaling.offloaded_gpu_bytes(num_params=SEED_PARAMS, num_gpus=gpus)),
        ("moments and master (2+2+12)", 12 * SEED_PARAMS,
         scaling.offloaded_gpu_bytes(num_params=SEED_PARAMS, num_gpus=gpus)),
        ("gradients on the host too", 12 * SEED_PARAMS + seed.gradient_bytes(num_params=SEED_PARAMS),
         scaling.offloaded_gpu_bytes(num_params=SEED_PARAMS, num_gpus=gpus, offloads_gradients=True)),
    )  # fmt: skip
    return LessonTable(
        title="The exercise of the scaling lesson by counting: 70B on 4 GPUs, states alone",
        head=("counted | host needs: decimal_bytes | a GPU keeps: decimal_bytes | host of 512 GB | NVMe of 2 TB"),
        rows=tuple(
            (
                name,
                host,
                gpu,
                "fits" if host <= SEED_HOST_BYTES else "does not fit",
                "fits" if host <= NVME_TB * 1e12 else "does not fit",
            )
            for name, host, gpu in rows
        ),
        note="two hosts of 512 GB hold the moments, and the moments with the master copy",
    )


def _step(trial: _Trial) -> LessonStep:
    memory = trial.prediction.memory
    verdict = f"too small: {trial.fault}" if trial.fault else "everything fits"
    return LessonStep(
        title=f"{trial.name}, host of {format_decimal_bytes(trial.host_bytes)}",
        text=f"each GPU needs {format_decimal_bytes(memory.needed_bytes)} of "
        f"{format_decimal_bytes(memory.capacity_bytes)}, the host {format_decimal_bytes(memory.host_bytes_per_node)}, "
        f"the drives {format_decimal_bytes(memory.nvme_bytes_per_node)}; {verdict}. "
        f"A step takes {format_seconds(trial.prediction.time.step_s)}, of it {format_seconds(trial.update_s)} for the "
        "update.",
    )


def _checks() -> tuple[Check, ...]:
    """Counts that can be done by hand: 8, 12 and 2 bytes a parameter."""
    return (
        Check(
            what="moments of 70B against 8 bytes a parameter",
            difference=abs(seed.optimizer_bytes(num_params=SEED_PARAMS) / 560e9 - 1),
            limit=0.0,
        ),
        Check(
            what="weights and gradients left on each of 4 GPUs against 4 x 70 / 4 GB",
            difference=abs(scaling.offloaded_gpu_bytes(num_params=SEED_PARAMS, num_gpus=4) / 70e9 - 1),
            limit=0.0,
        ),
    )


def _claims() -> tuple[Claim, ...]:
    request = LessonRequest()
    trials = tuple(_trials(request, NUM_GPUS, 64))
    on_gpu, on_host = trials[0], trials[1]
    fitting = [trial for trial in trials if not trial.fault]
    smallest = ", ".join(f"{trial.name} with a host of {format_decimal_bytes(trial.host_bytes)}" for trial in fitting)
    update_ratio = on_host.update_s / on_gpu.update_s
    step_ratio = on_host.prediction.time.step_s / on_gpu.prediction.time.step_s
    return (
        Claim(
            says="offloading the optimizer to a 512 GB host trains 70B on 4 GPUs",
            source="scaling lesson, exercise 5",
            said="512 GB",
            computed=format_decimal_bytes(seed.optimizer_bytes(num_params=SEED_PARAMS)),
            verdict="wrong",
            note="560 GB of moments do not fit 512 GB, and with the master copy they are 840 GB; DeepSpeed needs "
            f"{format_decimal_bytes(on_host.prediction.memory.host_bytes_per_node)}. What fits: {smallest}",
        ),
        Claim(
            says="without offload 70B needs 16 GPUs",
            source="scaling lesson, exercise 5",
            said=16,
            computed=scaling.min_gpus(total_bytes=scaling.model_state_bytes(num_params=SEED_PARAMS)),
            unit="count",
            verdict="loose",
            note="11 cards of 80 GB hold the states at 12 bytes a parameter, 14 at 16; 16 leave room for activations",
        ),
        Claim(
            says="optimizer steps become 30-50% slower",
            source="scaling lesson, exercise 5",
            said=SEED_SLOWDOWN,
            computed=f"the update {update_ratio:.0f} times, the step of 64 sequences {step_ratio - 1:.0%}",
            verdict="wrong",
            note="the host's memory is that much slower than four GPUs'; a whole step is only 30 to 50% slower when "
            "enough computation surrounds the update",
        ),
        Claim(
            says="the update of 70B on a host with 100 to 400 GB/s of memory bandwidth, in seconds",
            source="DeepSpeed issues 6834 and 7474: about 50 times slower, 0.2 s against 10 s",
            said="about 10 s",
            computed=", ".join(
                format_seconds(offload_time.cpu_adam_s(num_params=SEED_PARAMS, host_bandwidth_bytes_per_s=rate))
                for rate in (100e9, 200e9, 400e9)
            ),
            verdict="right",
        ),
    )


def _picture(trials: tuple[_Trial, ...]) -> GanttPicture:
    """The components of a step laid end to end."""
    lanes = []
    for trial in trials[: len(CHOICES)]:
        bars, now = [], 0.0
        for entry in trial.prediction.time.components:
            if entry.duration_s:
                end = now + entry.duration_s
                bars.append(GanttBar(kind=WORK_KINDS[entry.component], start=now, end=end))
                now = end
        lanes.append(GanttLane(name=trial.offload, bars=tuple(bars)))
    return GanttPicture(
        title="Where the time of a step goes (components end to end, not a timeline)",
        unit="s",
        lanes=tuple(lanes),
        note="gather: communication that nothing hides",
    )


def _verdict(trials: tuple[_Trial, ...]) -> str:
    fitting = [trial for trial in trials if not trial.fault]
    if not fitting:
        return "Nothing fits here: use more GPUs, a larger host or an 8-bit optimizer."
    best = min(fitting, key=lambda trial: trial.prediction.time.step_s)
    return (
        f"The fastest that fits: {best.name}, with a host of {format_decimal_bytes(best.host_bytes)}: "
        f"{format_seconds(best.prediction.time.step_s)} a step. Offloading buys capacity with the bandwidth of the "
        "host: use it when there are no more GPUs to be had, and with batches large enough to hide the update."
    )
