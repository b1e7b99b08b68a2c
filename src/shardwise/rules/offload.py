"""Rules about what is moved to host memory or drives."""

from collections.abc import Iterable

from shardwise.engines.table import ENGINES, engines_that
from shardwise.plan import Plan
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule
from shardwise.step.reduction_policy import defers_reductions


def _breaks_offload(plan: Plan) -> bool:
    return plan.recipe.offload not in ENGINES[plan.engine].offloads and not _breaks_planned_offload(plan)


def _offload_message(plan: Plan) -> str:
    offered = ", ".join(sorted(ENGINES[plan.engine].offloads - {"none"}))
    return f"offload {plan.recipe.offload} is not offered by {plan.engine}, which has {offered}"


def _offload_candidates(plan: Plan) -> Iterable[Changes]:
    for offload in ("parameters", "optimizer", "none"):
        if offload in ENGINES[plan.engine].offloads:
            yield (("offload", offload),)


def _breaks_planned_offload(plan: Plan) -> bool:
    return plan.recipe.offload in ENGINES[plan.engine].planned_offloads


def _planned_offload_message(_plan: Plan) -> str:
    return "offload nvme is planned here and exported to DeepSpeed, but not run by the native engine"


def _planned_offload_candidates(_plan: Plan) -> Iterable[Changes]:
    for name in engines_that(lambda engine: "nvme" in engine.offloads):
        yield (("engine", name),)
    yield (("offload", "parameters"),)


def needed_zero_stage(plan: Plan) -> int:
    """The lowest ZeRO stage under which the plan's offload takes effect."""
    if plan.recipe.offload == "none":
        return 0
    return ENGINES[plan.engine].optimizer_offload_stage if plan.recipe.offload == "optimizer" else 3


def _breaks_offload_stage(plan: Plan) -> bool:
    if plan.recipe.offload == "none" or ENGINES[plan.engine].offloads_undivided:
        return False
    return plan.layout.zero_stage < needed_zero_stage(plan)


def _offload_stage_message(plan: Plan) -> str:
    return (
        f"offload {plan.recipe.offload} needs zero_stage={needed_zero_stage(plan)} or more on {plan.engine}, but "
        f"zero_stage={plan.layout.zero_stage} would ignore it"
    )


def _offload_stage_candidates(plan: Plan) -> Iterable[Changes]:
    yield (("zero_stage", needed_zero_stage(plan)),)
    if plan.layout.zero_stage >= 1 and "optimizer" in ENGINES[plan.engine].offloads:
        yield (("offload", "optimizer"),)
    yield (("offload", "none"),)


def _breaks_fsdp1_accumulation(plan: Plan) -> bool:
    return plan.recipe.offload == "parameters" and plan.num_microbatches > 1 and not defers_reductions(plan)


def _fsdp1_accumulation_message(plan: Plan) -> str:
    return (
        f"offload parameters with {plan.num_microbatches} micro-batches on fsdp1: every reduction overwrites the "
        "gradient on the host, so that only the last micro-batch would train"
    )


RULES = (
    Rule(
        name="engine-fsdp1-offload-accumulation",
        engines=("fsdp1",),
        why="With parameters on the host FSDP1 copies each newly reduced gradient over the one that was there; it "
        "accumulates on the GPU alone, in no_sync.",
        source="torch 2.13 distributed/fsdp/fully_sharded_data_parallel.py (limitations of cpu_offload)",
        reads=("offload", "num_microbatches", "pp", "zero_stage", "defer_grad_reduce"),
        breaks=_breaks_fsdp1_accumulation,
        message=_fsdp1_accumulation_message,
        candidates=(change(engine="fsdp2"), change(offload="none")),
        advice="or keep whole gradients on every GPU (defer_grad_reduce=true)",
    ),
    Rule(
        name="engine-offload",
        why="Each engine moves certain tensors to the host: FSDP parameters, gradients and optimizer states together, "
        "Megatron optimizer states, DeepSpeed each of them, also to drives.",
        source="shardwise/engines, each file with those it was read in",
        reads=("offload",),
        breaks=_breaks_offload,
        message=_offload_message,
        candidates=_offload_candidates,
    ),
    Rule(
        name="engine-native-nvme",
        engines=engines_that(lambda engine: bool(engine.planned_offloads)),
        severity="warning",
        why="The native engine offloads to host memory; drives are planned and exported.",
        source="definition of the native engine",
        breaks=_breaks_planned_offload,
        message=_planned_offload_message,
        candidates=_planned_offload_candidates,
    ),
    Rule(
        name="engine-offload-zero-stage",
        why="Offloading applies to what ZeRO divides: optimizer states from stage 1, parameters at stage 3 only.",
        source="DeepSpeed runtime/zero/config.py (offload_param, offload_optimizer); torch CPUOffloadPolicy",
        reads=("offload", "zero_stage"),
        breaks=_breaks_offload_stage,
        message=_offload_stage_message,
        candidates=_offload_stage_candidates,
    ),
)
