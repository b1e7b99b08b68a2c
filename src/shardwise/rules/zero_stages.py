"""Rules about ZeRO stages and how each engine combines them with pipelines, replicas and tied weights."""

from collections.abc import Iterable

from shardwise.engines import accelerate
from shardwise.engines.table import ENGINES
from shardwise.layout import ZeroStage
from shardwise.plan import Plan
from shardwise.rules.degrees import nearest_first
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule


def _breaks_zero_stage(plan: Plan) -> bool:
    la = plan.layout
    if la.dp_shard * la.cp == 1:
        return False
    return la.zero_stage not in _divided_stages(plan)


def _divided_stages(plan: Plan) -> frozenset[ZeroStage]:
    """Stages in which the engine divides anything over ``dp_shard``, or takes it for ranks that divide nothing."""
    engine = ENGINES[plan.engine]
    return engine.zero_stages - {0} if engine.names_replicas else engine.zero_stages


def _zero_stage_message(plan: Plan) -> str:
    la = plan.layout
    named = ", ".join(map(str, sorted(_divided_stages(plan))))
    return f"zero_stage={la.zero_stage} over dp_shard={la.dp_shard} is not offered by {plan.engine}, which has {named}"


def _zero_stage_candidates(plan: Plan) -> Iterable[Changes]:
    la = plan.layout
    if la.zero_stage == 2:
        yield (("zero_stage", 3), ("reshard_after_forward", False))
    for stage in nearest_first([stage for stage in ENGINES[plan.engine].zero_stages if stage], max(1, la.zero_stage)):
        yield (("zero_stage", stage),)


def _breaks_deepspeed_pipeline(plan: Plan) -> bool:
    return plan.layout.pp > 1 and plan.layout.zero_stage >= 2


def _deepspeed_pipeline_message(plan: Plan) -> str:
    la = plan.layout
    return (
        f"zero_stage={la.zero_stage} with pp={la.pp}: DeepSpeed's pipeline accumulates whole gradients over many "
        f"backward passes, and dividing them would mean reducing after every micro-batch"
    )


def _breaks_megatron_tied(plan: Plan) -> bool:
    return plan.layout.zero_stage == 3 and plan.model.tie_word_embeddings and plan.model.has_head


def _megatron_tied_message(plan: Plan) -> str:
    return (
        f"zero_stage=3 with tied embeddings: Megatron's FSDP2 path asserts untied ones, and untying {plan.model.name} "
        f"would add {plan.model.num_embedding_params} parameters"
    )


MEGATRON_ZERO_ONE: tuple[Changes, ...] = (change(zero_stage=1),)


def _breaks_megatron_fsdp_pipeline(plan: Plan) -> bool:
    return plan.layout.pp > 1 and plan.layout.zero_stage >= 2


def _megatron_fsdp_pipeline_message(plan: Plan) -> str:
    la = plan.layout
    return f"zero_stage={la.zero_stage} with pp={la.pp}: Megatron's FSDP2 path refuses it, only Megatron-FSDP takes it"


def _breaks_accelerate_replicas(plan: Plan) -> bool:
    la = plan.layout
    return la.tp * la.cp > 1 and la.dp_replicate > 1 and la.dp_shard == 1


def _accelerate_replicas_message(plan: Plan) -> str:
    la = plan.layout
    return (
        f"tp={la.tp} and cp={la.cp} with dp_replicate={la.dp_replicate} and dp_shard=1: accelerate combines them with "
        f"sharded data parallelism only"
    )


def _accelerate_replicas_candidates(plan: Plan) -> Iterable[Changes]:
    yield (("dp_replicate", 1), ("dp_shard", plan.layout.dp_replicate))


RULES = (
    Rule(
        name="engine-zero-stage",
        engines=("torchtitan", "fsdp2", "fsdp1", "accelerate"),
        why="FSDP divides parameters whenever nothing computes with them. What its users call ZeRO-2 (SHARD_GRAD_OP, "
        "no resharding after forward) keeps gathered copies until backward: zero_stage 3 with reshard_after_forward "
        "false. Beside it torch has ZeRO-1 alone, for a loop of one's own. torchtitan names unsharded data "
        "parallelism dp_replicate.",
        source="torch ShardingStrategy, distributed/fsdp/_fully_shard (post_backward); torchtitan config/configs.py",
        reads=("zero_stage", "dp_shard", "cp"),
        breaks=_breaks_zero_stage,
        message=_zero_stage_message,
        candidates=_zero_stage_candidates,
    ),
    Rule(
        name="engine-deepspeed-zero-with-pipeline",
        engines=("deepspeed",),
        why="DeepSpeed's PipelineModule asserts ZeRO-0 or 1. It is a rule of the engine, not a law: torch runs FSDP2 "
        "inside pipeline stages.",
        source="DeepSpeed runtime/pipe/engine.py; DeepSpeed issues 823, 1629, 3589",
        reads=("zero_stage", "pp"),
        breaks=_breaks_deepspeed_pipeline,
        message=_deepspeed_pipeline_message,
        candidates=(change(zero_stage=1), change(zero_stage=1, offload="optimizer"), change(pp=1, vpp=1)),
        advice="or engine=native, which runs FSDP2 inside pipeline stages",
    ),
    Rule(
        name="engine-megatron-fsdp-tied-embeddings",
        engines=("megatron",),
        why="Megatron with torch's FSDP2 requires untied embedding and output weights; untying changes the model.",
        source="Megatron-LM training/arguments.py (--use-torch-fsdp2); NVIDIA/Megatron-LM issue 1447",
        reads=("zero_stage",),
        breaks=_breaks_megatron_tied,
        message=_megatron_tied_message,
        candidates=MEGATRON_ZERO_ONE,
        advice="or untie the embeddings (tie_word_embeddings=false in the model config), which makes another model",
    ),
    Rule(
        name="engine-megatron-fsdp-with-pipeline",
        engines=("megatron",),
        severity="warning",
        why="Megatron offers two FSDP paths, and only its own combines with pipelines.",
        source="Megatron-LM training/arguments.py (--use-torch-fsdp2, --use-megatron-fsdp)",
        breaks=_breaks_megatron_fsdp_pipeline,
        message=_megatron_fsdp_pipeline_message,
        candidates=MEGATRON_ZERO_ONE,
    ),
    Rule(
        name="engine-accelerate-replicas",
        engines=("accelerate",),
        why="Accelerate combines tp and cp with FSDP or HSDP, not with pure replication.",
        source=accelerate.ENGINE.source,
        reads=("tp", "cp", "dp_replicate", "dp_shard"),
        breaks=_breaks_accelerate_replicas,
        message=_accelerate_replicas_message,
        candidates=_accelerate_replicas_candidates,
    ),
)
