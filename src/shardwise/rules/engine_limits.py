"""Rules about what an engine offers: kinds of parallelism, schedules, optimizers, precisions, recomputation."""

from collections.abc import Iterable
from typing import get_args

from shardwise.engines import accelerate, fsdp1
from shardwise.engines.engine import Axis
from shardwise.engines.table import ENGINES, OWN_ENGINE, engines_that
from shardwise.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from shardwise.plan import Plan
from shardwise.recipe import Precision
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule
from shardwise.schedules.table import CHUNKED_SCHEDULE, DEFAULT_SCHEDULE, SCHEDULE_KINDS

AXES: tuple[Axis, ...] = get_args(Axis)
PRECISIONS: frozenset[Precision] = frozenset(get_args(Precision))


def _breaks_pipeline(plan: Plan) -> bool:
    return plan.layout.pp > 1


def _pipeline_message(plan: Plan) -> str:
    return f"pp={plan.layout.pp}, but {plan.engine} has no pipeline parallelism for training"


PIPELINE_CANDIDATES: tuple[Changes, ...] = (change(pp=1, vpp=1), change(engine=OWN_ENGINE))


def _missing_axis(plan: Plan) -> Axis | None:
    la, offered = plan.layout, ENGINES[plan.engine].axes
    degrees: dict[Axis, int] = {"tp": la.tp, "cp": la.cp, "ep": la.ep}
    return next((axis for axis, degree in degrees.items() if degree > 1 and axis not in offered), None)


def _breaks_axes(plan: Plan) -> bool:
    return _missing_axis(plan) is not None


def _axes_message(plan: Plan) -> str:
    axis = _missing_axis(plan)
    degree = {"tp": plan.layout.tp, "cp": plan.layout.cp, "ep": plan.layout.ep}[axis or "tp"]
    offered = sorted(ENGINES[plan.engine].axes)
    others = f"only {' and '.join(offered)}" if offered else "data parallelism only"
    return f"{axis}={degree}, but {plan.engine} has {others}"


def _axes_candidates(plan: Plan) -> Iterable[Changes]:
    offered = ENGINES[plan.engine].axes
    yield (("engine", OWN_ENGINE),)
    yield tuple((axis, 1) for axis in AXES if axis not in offered)


def _breaks_schedule(plan: Plan) -> bool:
    if plan.layout.pp == 1:
        return False
    offer = ENGINES[plan.engine]
    return (
        "pp" in offer.axes
        and plan.layout.schedule not in offer.schedules
        and plan.layout.schedule not in offer.forked_schedules
    )


def _schedule_message(plan: Plan) -> str:
    offered = ", ".join(sorted(ENGINES[plan.engine].schedules))
    return f"schedule {plan.layout.schedule} is not offered by {plan.engine}, which has {offered}"


def _schedule_candidates(plan: Plan) -> Iterable[Changes]:
    if plan.layout.vpp > 1 and CHUNKED_SCHEDULE in ENGINES[plan.engine].schedules:
        yield (("schedule", CHUNKED_SCHEDULE),)
    yield (("schedule", DEFAULT_SCHEDULE),)
    yield (("schedule", DEFAULT_SCHEDULE), ("vpp", 1))
    for name in sorted(ENGINES[plan.engine].schedules):
        yield (("schedule", name), ("vpp", 1))


def _breaks_forked_schedule(plan: Plan) -> bool:
    return plan.layout.pp > 1 and plan.layout.schedule in ENGINES[plan.engine].forked_schedules


def _forked_schedule_message(plan: Plan) -> str:
    return (
        f"schedule {plan.layout.schedule} is not in {plan.engine}'s main branch but in the fork "
        f"sail-sg/zero-bubble-pipeline-parallelism"
    )


def _breaks_optimizer(plan: Plan) -> bool:
    return plan.recipe.optimizer not in ENGINES[plan.engine].optimizers


def _optimizer_message(plan: Plan) -> str:
    offered = ", ".join(sorted(ENGINES[plan.engine].optimizers))
    return f"optimizer {plan.recipe.optimizer} is not offered by {plan.engine}, which has {offered}"


def _breaks_precision(plan: Plan) -> bool:
    return plan.recipe.precision not in ENGINES[plan.engine].precisions


def _precision_message(plan: Plan) -> str:
    offered = ", ".join(sorted(ENGINES[plan.engine].precisions))
    return f"precision {plan.recipe.precision} is not offered by {plan.engine}, which has {offered}"


def _breaks_compiled_zero_bubble(plan: Plan) -> bool:
    la = plan.layout
    return la.pp > 1 and plan.recipe.compile and SCHEDULE_KINDS[la.schedule].torch_splits_backward


def _compiled_zero_bubble_message(plan: Plan) -> str:
    return f"schedule {plan.layout.schedule} splits backward in two, which torch refuses for compiled modules"


def _breaks_recompute_layers(plan: Plan) -> bool:
    layers = plan.recipe.recompute_layers
    return layers is not None and (layers > plan.model.num_hidden_layers or _recomputes_no_layer(plan))


def _recomputes_no_layer(plan: Plan) -> bool:
    return plan.recipe.recompute_layers == 0 and plan.recipe.recompute != "none"


def _recompute_layers_message(plan: Plan) -> str:
    if _recomputes_no_layer(plan):
        return f"recompute_layers=0 recomputes nothing, and recompute={plan.recipe.recompute} asks for it"
    return (
        f"recompute_layers={plan.recipe.recompute_layers} exceeds the {plan.model.num_hidden_layers} layers of "
        f"{plan.model.name}"
    )


def _recompute_layers_candidates(plan: Plan) -> Iterable[Changes]:
    if _recomputes_no_layer(plan):
        yield (("recompute", "none"), ("recompute_layers", None))
    yield (("recompute_layers", None),)


def _breaks_vendor(plan: Plan) -> bool:
    return plan.cluster.gpu.vendor in ENGINES[plan.engine].foreign_vendors


RUNS_THERE = {
    "Google": "torch_xla's FSDP and JAX's MaxText do",
    "Intel": "DeepSpeed does, in Intel's fork that Optimum Habana launches",
}
"""The programs that train on a maker's accelerators: huggingface.co/docs/optimum-tpu/reference/fsdp_v2 and
huggingface.co/docs/optimum-habana/en/tutorials/distributed, read on 2026-11-30."""


def _vendor_message(plan: Plan) -> str:
    gpu = plan.cluster.gpu
    others = f"; {RUNS_THERE[gpu.vendor]}" if gpu.vendor in RUNS_THERE else ""
    return f"{plan.engine} runs on no {gpu.name}: it drives no accelerator of {gpu.vendor}{others}"


def _vendor_candidates(plan: Plan) -> Iterable[Changes]:
    for name in engines_that(lambda engine: plan.cluster.gpu.vendor not in engine.foreign_vendors):
        yield (("engine", name),)


def _breaks_xla(plan: Plan) -> bool:
    la = plan.layout
    divides = la.tp > 1 or la.cp > 1 or (la.dp_replicate > 1 and la.zero_stage > 0)
    return plan.cluster.gpu.vendor == "Google" and divides


def _xla_message(plan: Plan) -> str:
    la = plan.layout
    return (
        f"tp={la.tp}, cp={la.cp} and dp_replicate={la.dp_replicate} divide work on {plan.cluster.gpu.name}, where "
        "Accelerate has torch_xla's FSDP over all chips and nothing else"
    )


def _xla_candidates(plan: Plan) -> Iterable[Changes]:
    yield (
        ("tp", 1),
        ("cp", 1),
        ("dp_replicate", 1),
        ("dp_shard", plan.layout.world_size // plan.layout.pp),
        ("sequence_parallel", False),
        ("zero_stage", 3),
    )


RULES = (
    Rule(
        name="engine-accelerator",
        engines=engines_that(lambda engine: bool(engine.foreign_vendors)),
        why="Our own trainer drives CUDA and ROCm devices and CPUs, Megatron-LM CUDA and, in AMD's fork, ROCm; "
        "HAI-LLM is known on NVIDIA's. DeepSpeed picks one of a fixed list: CUDA and ROCm, CPU, XPU, NPU, MPS, Gaudi "
        "(HPU), MLU and SDAA; a TPU is none of them. On TPUs torch_xla has FSDP classes of its own, which the Trainer "
        "wraps models in, and not torch's.",
        source="torch 2.13 cuda and hip builds; NVIDIA/Megatron-LM and ROCm/Megatron-LM README; arXiv:2412.19437, "
        "section 3.1; deepspeedai/DeepSpeed@0769c13 accelerator/real_accelerator.py (SUPPORTED_ACCELERATOR_LIST); "
        "docs.pytorch.org/xla/release/r2.8/perf/fsdp_spmd.html; transformers 5.24 integrations/tpu.py "
        "(wrap_model_xla_fsdp)",
        reads=(),
        breaks=_breaks_vendor,
        message=_vendor_message,
        candidates=_vendor_candidates,
    ),
    Rule(
        name="engine-accelerate-xla",
        engines=("accelerate",),
        why="On TPUs transformers' Trainer wraps the model in torch_xla's own FSDP class, over one mesh of all chips; "
        "Accelerate refuses its parallelism config there, which has tensor and context parallelism and HSDP.",
        source="transformers 5.24 trainer.py (is_fsdp_xla_v2_enabled) and integrations/tpu.py (wrap_model_xla_fsdp); "
        "huggingface/accelerate@16cb6eb parallelism_config.py (_validate_accelerator); "
        "docs.pytorch.org/xla/release/r2.8/perf/fsdp_spmd.html",
        reads=("tp", "cp", "dp_replicate", "zero_stage"),
        breaks=_breaks_xla,
        message=_xla_message,
        candidates=_xla_candidates,
    ),
    Rule(
        name="engine-accelerate-no-pipeline",
        engines=("accelerate",),
        why="Accelerate pipelines inference only; its parallelism config has no pipeline axis.",
        source=accelerate.ENGINE.source,
        reads=("pp",),
        breaks=_breaks_pipeline,
        message=_pipeline_message,
        candidates=PIPELINE_CANDIDATES,
    ),
    Rule(
        name="engine-fsdp1-no-pipeline",
        engines=("fsdp1",),
        why="FSDP1 wraps a whole model; pipeline stages need FSDP2 or another engine.",
        source=fsdp1.ENGINE.source,
        reads=("pp",),
        breaks=_breaks_pipeline,
        message=_pipeline_message,
        candidates=PIPELINE_CANDIDATES,
    ),
    Rule(
        name="engine-axes",
        engines=engines_that(lambda engine: not {"tp", "cp", "ep"} <= engine.axes),
        why="Each engine implements some kinds of parallelism; the rest of a plan would be ignored.",
        source="shardwise/engines, each file with those it was read in",
        reads=("tp", "cp", "ep"),
        breaks=_breaks_axes,
        message=_axes_message,
        candidates=_axes_candidates,
    ),
    Rule(
        name="engine-schedule",
        why="Each engine implements some pipeline schedules.",
        source="shardwise/engines, each file with those it was read in",
        reads=("pp", "schedule"),
        breaks=_breaks_schedule,
        message=_schedule_message,
        candidates=_schedule_candidates,
    ),
    Rule(
        name="engine-forked-schedule",
        engines=engines_that(lambda engine: bool(engine.forked_schedules)),
        severity="warning",
        why="Zero-bubble schedules for Megatron live in a fork by their authors.",
        source="sail-sg/zero-bubble-pipeline-parallelism README",
        breaks=_breaks_forked_schedule,
        message=_forked_schedule_message,
        candidates=_schedule_candidates,
    ),
    Rule(
        name="engine-optimizer",
        engines=engines_that(lambda engine: not engine.optimizers >= OPTIMIZERS.keys()),
        why="torchtitan and Megatron build their optimizers from a fixed list; of HAI-LLM AdamW is known.",
        source="torchtitan components/optimizer/optimizer.py; Megatron-LM training/arguments.py (--optimizer); "
        "arXiv:2412.19437, section 4.2",
        reads=("optimizer",),
        breaks=_breaks_optimizer,
        message=_optimizer_message,
        candidates=(change(optimizer=DEFAULT_OPTIMIZER),),
    ),
    Rule(
        name="engine-precision",
        engines=engines_that(lambda engine: not engine.precisions >= PRECISIONS),
        why="torchtitan has no loss scaler, so no fp16; of HAI-LLM bf16 and fp8 with fp32 masters are known.",
        source="torchtitan config/configs.py (dtype, mixed_precision_param); arXiv:2412.19437, section 3.3",
        reads=("precision",),
        breaks=_breaks_precision,
        message=_precision_message,
        candidates=(change(precision="bf16-mixed"), change(engine=OWN_ENGINE), change(precision="fp32")),
    ),
    Rule(
        name="engine-torch-zero-bubble-compile",
        engines=engines_that(lambda engine: engine.runs_torch_pipelines),
        why="torch's zero-bubble schedules compute input and weight gradients apart, which a compiled backward cannot "
        "do: torch refuses every stage that holds a module wrapped by torch.compile.",
        source="torch 2.13 distributed/pipelining/schedules.py (_check_torch_compile_compatibility)",
        reads=("compile", "pp", "schedule"),
        breaks=_breaks_compiled_zero_bubble,
        message=_compiled_zero_bubble_message,
        candidates=(change(compile=False),),
    ),
    Rule(
        name="recipe-recompute-layers",
        why="recompute_layers counts the layers of one stage that are recomputed: at least one, and at most the "
        "model's.",
        source="definition of recompute_layers",
        reads=("recompute", "recompute_layers"),
        breaks=_breaks_recompute_layers,
        message=_recompute_layers_message,
        candidates=_recompute_layers_candidates,
    ),
)
