"""Rules about what runs beside computation, and when gradients are reduced."""

from collections.abc import Iterable

from shardwise.engines.table import ENGINES, engine_profile, engines_that
from shardwise.optimizers import OPTIMIZERS
from shardwise.plan import Plan
from shardwise.rules.degrees import divisors, nearest_first
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule
from shardwise.step.attention_kernel import writes_scores
from shardwise.step.loss import has_loss_kernels


def _breaks_async_engine(plan: Plan) -> bool:
    return plan.layout.async_tensor_parallel and not ENGINES[plan.engine].has_async_tensor_parallel


def _async_engine_message(plan: Plan) -> str:
    return f"async_tensor_parallel is not offered by {plan.engine}, only by native, torchtitan and megatron"


def _breaks_async_layout(plan: Plan) -> bool:
    return plan.layout.async_tensor_parallel and (plan.layout.tp == 1 or not plan.layout.sequence_parallel)


def _async_layout_message(plan: Plan) -> str:
    la = plan.layout
    has = "lacks sequence_parallel" if la.tp > 1 else "has no collectives"
    return f"async_tensor_parallel cuts gathers and reduce-scatters into pieces, but tp={la.tp} {has}"


def _async_layout_candidates(plan: Plan) -> Iterable[Changes]:
    if plan.layout.tp > 1:
        yield (("sequence_parallel", True),)
    yield (("async_tensor_parallel", False),)


def _breaks_async_eager(plan: Plan) -> bool:
    return plan.layout.async_tensor_parallel and not plan.recipe.compile


def _async_eager_message(_plan: Plan) -> str:
    return "async_tensor_parallel is a pass of torch.compile, but compile is off"


def _breaks_overlap(plan: Plan) -> bool:
    asked = plan.recipe.overlap_grad_reduce
    profile = engine_profile(plan.engine)
    if profile.is_torch:
        return asked is False
    return profile.sharding == "deepspeed" and asked is True and (plan.layout.pp > 1 or plan.layout.zero_stage == 0)


def _overlap_message(plan: Plan) -> str:
    if engine_profile(plan.engine).sharding == "deepspeed":
        return (
            f"overlap_grad_reduce with pp={plan.layout.pp} and zero_stage={plan.layout.zero_stage}: DeepSpeed reduces "
            "whole gradients when all backward passes are done"
        )
    return f"overlap_grad_reduce=false, but torch's data parallelism, which {plan.engine} uses, always overlaps"


def _breaks_fused_optimizer(plan: Plan) -> bool:
    is_choice = ENGINES[plan.engine].has_optimizer_switch and OPTIMIZERS[plan.recipe.optimizer].has_fused_kernel
    return plan.recipe.fused_optimizer is not None and not is_choice


def _fused_optimizer_message(plan: Plan) -> str:
    asked, optimizer = str(plan.recipe.fused_optimizer).lower(), plan.recipe.optimizer
    return f"fused_optimizer={asked}, but how {plan.engine} updates with {optimizer} is no choice"


def _breaks_liger(plan: Plan) -> bool:
    return plan.recipe.liger_kernels and (not ENGINES[plan.engine].has_liger_kernels or plan.layout.tp > 1)


def _liger_message(plan: Plan) -> str:
    if not ENGINES[plan.engine].has_liger_kernels:
        return f"liger_kernels, but {plan.engine} has kernels of its own"
    return f"liger_kernels with tp={plan.layout.tp}: Liger's head and loss want the whole vocabulary"


def _breaks_broadcast(plan: Plan) -> bool:
    is_divided = engine_profile(plan.engine).sharding == "deepspeed" and plan.layout.zero_stage in (1, 2)
    return plan.recipe.broadcast_weights is not None and not is_divided


def _broadcast_message(plan: Plan) -> str:
    asked = str(plan.recipe.broadcast_weights).lower()
    if engine_profile(plan.engine).sharding == "deepspeed":
        return (
            f"broadcast_weights={asked} with zero_stage={plan.layout.zero_stage}, where no optimizer alone is divided"
        )
    return f"broadcast_weights={asked}, but how {plan.engine} returns updated weights is no choice"


def _breaks_defer(plan: Plan) -> bool:
    asked, la = plan.layout.defer_grad_reduce, plan.layout
    if asked is False:
        return la.pp > 1 or ENGINES[plan.engine].always_defers_reductions
    return asked is True and engine_profile(plan.engine).sharding == "deepspeed" and la.zero_stage >= 2


def _defer_message(plan: Plan) -> str:
    la = plan.layout
    if la.defer_grad_reduce:
        return (
            f"defer_grad_reduce with zero_stage={la.zero_stage}: DeepSpeed divides gradients in every micro-batch, and "
            "its no_sync refuses ZeRO 2 and 3"
        )
    who = f"stages of pp={la.pp} reduce" if la.pp > 1 else "Megatron reduces"
    return f"defer_grad_reduce=false, but {who} whole gradients in the last micro-batch"


def _breaks_reshard(plan: Plan) -> bool:
    la, size = plan.layout, plan.layout.reshard_size
    if size is None:
        return False
    fits = 1 < size < la.state_shard_size and la.state_shard_size % size == 0
    has_second = la.zero_stage == 3 and la.pp == 1 and la.reshard_after_forward
    return not ENGINES[plan.engine].has_small_shards or not fits or not has_second


def _reshard_message(plan: Plan) -> str:
    la, size = plan.layout, plan.layout.reshard_size
    if not ENGINES[plan.engine].has_small_shards:
        return f"reshard_size={size} is not offered by {plan.engine}, only by FSDP2 itself and by DeepSpeed"
    if la.zero_stage != 3 or la.pp > 1 or not la.reshard_after_forward:
        return f"reshard_size={size} needs parameters that are gathered a second time: zero_stage 3, no pipeline"
    return f"reshard_size={size} is no group between 1 and the {la.state_shard_size} ranks that divide the parameters"


def _reshard_candidates(plan: Plan) -> Iterable[Changes]:
    shards = plan.layout.state_shard_size
    for size in nearest_first([size for size in divisors(shards) if 1 < size < shards], plan.layout.reshard_size or 1):
        yield (("reshard_size", size),)
    yield (("reshard_size", None),)


def _breaks_prefetch(plan: Plan) -> bool:
    is_sharded = plan.layout.zero_stage == 3
    return plan.layout.prefetch_units != 1 and not (is_sharded and ENGINES[plan.engine].has_prefetch_units)


def _prefetch_message(plan: Plan) -> str:
    la = plan.layout
    return (
        f"prefetch_units={la.prefetch_units} asks FSDP2 to gather not one unit ahead, but {plan.engine} with "
        f"zero_stage={la.zero_stage} does not"
    )


def _breaks_wrap(plan: Plan) -> bool:
    profile = engine_profile(plan.engine)
    is_choice = profile.sharding == "fsdp2" and profile.wraps_ends is not None
    return plan.recipe.wrap_ends is not None and not (is_choice and plan.layout.zero_stage == 3)


def _wrap_message(plan: Plan) -> str:
    asked = str(plan.recipe.wrap_ends).lower()
    stage = plan.layout.zero_stage
    return f"wrap_ends={asked} is about units of FSDP2, which {plan.engine} with zero_stage={stage} has not"


def _breaks_repeated_heads(plan: Plan) -> bool:
    profile = engine_profile(plan.engine)
    return plan.recipe.repeat_kv_heads and (profile.sharding != "fsdp2" or profile.wraps_ends is None)


def _repeated_heads_message(plan: Plan) -> str:
    return f"repeat_kv_heads: {plan.engine} tells its attention kernel of groups"


def _breaks_eager_packing(plan: Plan) -> bool:
    return plan.recipe.document_len < plan.recipe.seq_len and writes_scores(plan)


def _eager_packing_message(plan: Plan) -> str:
    return (
        f"mean_document_len={plan.recipe.mean_document_len} with eager attention: every score of the packed sequence "
        "is computed and then masked"
    )


def _breaks_loss_kernel(plan: Plan) -> bool:
    recipe = plan.recipe
    is_idle = recipe.fused_loss is False or not has_loss_kernels(engine_profile(plan.engine))
    return recipe.fused_loss_kernel is not None and is_idle


def _loss_kernel_message(plan: Plan) -> str:
    recipe = plan.recipe
    why = (
        "the loss is not fused"
        if recipe.fused_loss is False
        else f"{plan.engine} has no choice of kernels for its loss"
    )
    return f"fused_loss_kernel={recipe.fused_loss_kernel}, but {why}"


RULES = (
    Rule(
        name="engine-async-tensor-parallel",
        why="Pieces of a collective under pieces of its product need fused operators, which these engines have.",
        source="torch _inductor/fx_passes/micro_pipeline_tp.py; Megatron-LM training/arguments.py (--tp-comm-overlap)",
        reads=("async_tensor_parallel",),
        breaks=_breaks_async_engine,
        message=_async_engine_message,
        candidates=(change(async_tensor_parallel=False),),
    ),
    Rule(
        name="layout-async-tensor-parallel",
        why="Only gathers before and reduce-scatters after a product can be cut into pieces, and those come from "
        "sequence parallelism.",
        source="torch _inductor/fx_passes/micro_pipeline_tp.py; Megatron-LM core/model_parallel_config.py",
        reads=("async_tensor_parallel",),
        breaks=_breaks_async_layout,
        message=_async_layout_message,
        candidates=_async_layout_candidates,
    ),
    Rule(
        name="engine-async-without-compile",
        engines=engines_that(lambda engine: engine.has_async_tensor_parallel and engine.profile.is_torch),
        why="torch finds the products to fuse in the graph that torch.compile makes.",
        source="torch _inductor/config.py (_micro_pipeline_tp); torchtitan distributed/tensor_parallel.py",
        reads=("async_tensor_parallel",),
        breaks=_breaks_async_eager,
        message=_async_eager_message,
        candidates=(change(compile=True), change(async_tensor_parallel=False)),
    ),
    Rule(
        name="engine-overlap-grad-reduce",
        why="torch's DDP and FSDP always reduce beside the backward pass; Megatron and DeepSpeed have a switch, which "
        "DeepSpeed's pipeline and its stage 0 ignore.",
        source="torch distributed; Megatron-LM --overlap-grad-reduce; DeepSpeed runtime/pipe/engine.py",
        reads=("overlap_grad_reduce", "pp", "zero_stage"),
        breaks=_breaks_overlap,
        message=_overlap_message,
        candidates=(change(overlap_grad_reduce=None),),
    ),
    Rule(
        name="engine-fused-optimizer",
        why="torch's AdamW has both ways; Megatron, DeepSpeed and our trainer always run a fused kernel, and other "
        "optimizers have one way each.",
        source="torch optim/adamw.py (fused, foreach); torchtitan components/optimizer.py (optimizer.implementation)",
        reads=("fused_optimizer", "optimizer"),
        breaks=_breaks_fused_optimizer,
        message=_fused_optimizer_message,
        candidates=(change(fused_optimizer=None),),
    ),
    Rule(
        name="engine-fused-loss-kernel",
        why="Megatron has two kernels for its fused loss; the fused losses of others are one.",
        source="Megatron-LM training/arguments.py (--cross-entropy-fusion-impl)",
        reads=("fused_loss_kernel", "fused_loss"),
        breaks=_breaks_loss_kernel,
        message=_loss_kernel_message,
        candidates=(change(fused_loss_kernel=None),),
    ),
    Rule(
        name="engine-liger-kernels",
        why="Liger replaces modules of transformers' models; Megatron, torchtitan and our trainer do not run these, "
        "and its fused head and loss know nothing of a divided vocabulary.",
        source="linkedin/Liger-Kernel src/liger_kernel/transformers/monkey_patch.py",
        reads=("liger_kernels", "tp"),
        breaks=_breaks_liger,
        message=_liger_message,
        candidates=(change(liger_kernels=False),),
    ),
    Rule(
        name="engine-broadcast-weights",
        why="torch's ZeRO 1 broadcasts, Megatron gathers; where only the optimizer is divided DeepSpeed's stages 1 and "
        "2 also stand for trainers that broadcast.",
        source="InternLM/InternEvo internlm/solver/optimizer/hybrid_zero_optim.py (broadcast_params)",
        reads=("broadcast_weights", "zero_stage"),
        breaks=_breaks_broadcast,
        message=_broadcast_message,
        candidates=(change(broadcast_weights=None),),
    ),
    Rule(
        name="engine-defer-grad-reduce",
        why="Whole gradients that wait for the last micro-batch cannot be reduced before; divided ones cannot wait.",
        source="torch pipelining/stage.py; Megatron-LM core/distributed; DeepSpeed runtime/engine.py (no_sync)",
        reads=("defer_grad_reduce",),
        breaks=_breaks_defer,
        message=_defer_message,
        candidates=(change(defer_grad_reduce=None),),
    ),
    Rule(
        name="layout-reshard-size",
        why="Parameters that stay divided over a smaller group need a group that divides the larger one, and a second "
        "gather to use it for.",
        source="torch distributed/fsdp/_fully_shard (reshard_after_forward: int); DeepSpeed zero_hpz_partition_size",
        reads=("reshard_size",),
        breaks=_breaks_reshard,
        message=_reshard_message,
        candidates=_reshard_candidates,
    ),
    Rule(
        name="engine-prefetch-units",
        why="How far ahead units are gathered is set module by module on FSDP2; others prefetch one unit or by size.",
        source="torch distributed/fsdp/_fully_shard (set_modules_to_forward_prefetch)",
        reads=("prefetch_units", "zero_stage"),
        breaks=_breaks_prefetch,
        message=_prefetch_message,
        candidates=(change(prefetch_units=1),),
    ),
    Rule(
        name="engine-wrap-ends",
        why="Which modules are units of their own is a choice of whoever calls FSDP2: torchtitan, accelerate's policy "
        "or a loop of one's own.",
        source="pytorch/torchtitan@83e6941 torchtitan/models/llama3/infra/parallelize.py (apply_fsdp)",
        reads=("wrap_ends", "zero_stage"),
        breaks=_breaks_wrap,
        message=_wrap_message,
        candidates=(change(wrap_ends=None),),
    ),
    Rule(
        name="engine-repeat-kv-heads",
        why="Whether keys and values are repeated is written in the model that torchtitan, FSDP2 or accelerate trains; "
        "Megatron, DeepSpeed and our trainer tell their kernels of groups.",
        source="pytorch/torchtitan@ff0829c (2026-01-27), from which its models tell the kernel of groups",
        reads=("repeat_kv_heads",),
        breaks=_breaks_repeated_heads,
        message=_repeated_heads_message,
        candidates=(change(repeat_kv_heads=False),),
    ),
    Rule(
        name="recipe-packing-with-eager-attention",
        severity="warning",
        why="Kernels for packed documents skip the scores between them; a mask does not.",
        source="FlashAttention (variable lengths); torch scaled_dot_product_attention with a mask",
        breaks=_breaks_eager_packing,
        message=_eager_packing_message,
        candidates=(
            change(attention="flash"),
            change(attention="flash", attention_kernel=None),
            change(mean_document_len=None),
        ),
    ),
)
