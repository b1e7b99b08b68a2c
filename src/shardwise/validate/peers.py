"""What other estimators answer for the same plan, as their published rules.

Every rule is written from its equation; nothing is copied. ``benchmarks/results`` records how far each agrees with the
real package.
"""

from dataclasses import dataclass
from math import ceil

from shardwise.model import DenseSpec, LayerSpec, ModelSpec, MoeSpec
from shardwise.plan import Plan
from shardwise.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEstimate:
    """One estimator's answer for one rank, in the parts its source names."""

    name: str
    weights_bytes: Bytes
    gradients_bytes: Bytes
    optimizer_bytes: Bytes
    """Adam moments and fp32 master weights."""
    activation_bytes: Bytes | None
    """``None`` when the estimator leaves activations out."""
    total_bytes: Bytes
    """What the estimator prints; for Accelerate the largest part, not the sum."""

    @property
    def state_bytes(self) -> Bytes:
        """Weights, gradients and optimizer states."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes


def accelerate_training_bytes(*, num_params: int, precision: str) -> Bytes:
    """Accelerate's "Training using Adam": the largest of model, gradients, optimizer and step.

    16 bytes per parameter in fp32, 8 in 16-bit precision (two fp32 Adam states); nothing for activations.

    Source: huggingface/accelerate 1.15.0 src/accelerate/commands/estimate.py, estimate_training_usage.
    Assumes: one device; the estimator knows no sharding.

    >>> accelerate_training_bytes(num_params=7_000_000_000, precision="bf16")
    56000000000
    """
    return num_params * (16 if precision == "fp32" else 8)


def deepspeed_zero2_bytes(*, num_params: int, num_gpus: int) -> Bytes:
    """DeepSpeed's ZeRO stage 2 estimate without offload: ``2 N + 18 N / d``.

    Source: deepspeedai/DeepSpeed@edaa722 deepspeed/runtime/zero/stage_1_and_2.py,
    estimate_zero2_model_states_mem_needs.
    Assumes: model states only.

    >>> deepspeed_zero2_bytes(num_params=7_000_000_000, num_gpus=8)
    29750000000
    """
    return 2 * num_params + 18 * num_params // num_gpus


def deepspeed_zero3_bytes(*, num_params: int, largest_layer_params: int, num_gpus: int) -> Bytes:
    """DeepSpeed's ZeRO stage 3 estimate without offload: ``18 N / d + 4 * largest module``.

    Source: deepspeedai/DeepSpeed@edaa722 deepspeed/runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs.
    Assumes: model states and one gathered module.

    >>> deepspeed_zero3_bytes(num_params=7_000_000_000, largest_layer_params=131_072_000, num_gpus=8)
    16274288000
    """
    return 4 * largest_layer_params + 18 * num_params // num_gpus


def megatron_weight_and_optimizer_bytes(
    *, params_on_shard: float, data_parallel_size: int, uses_distributed_optimizer: bool
) -> Bytes:
    """Megatron-LM's weights, gradients and Adam states of the fullest rank: 18 bytes, or ``6 + 12 / d``.

    Source: NVIDIA/Megatron-LM@d98e8a6 megatron/training/theoretical_memory_usage.py,
    compute_weight_and_optimizer_memory.
    Assumes: bf16 weights, fp32 gradients, fp32 master weights and Adam states.

    >>> megatron_weight_and_optimizer_bytes(params_on_shard=1e9, data_parallel_size=4, uses_distributed_optimizer=True)
    9000000000
    """
    per_param = 6 + 12 / data_parallel_size if uses_distributed_optimizer else 18
    return int(params_on_shard * per_param)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronShape:
    """The numbers Megatron-LM's activation formulas read."""

    seq_len: int
    micro_batch_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    vocab_size: int
    """Tokens in the vocabulary, padded to a multiple of 128 tp."""
    tp: int
    pp: int
    vpp: int
    num_microbatches: int


def megatron_activation_bytes(shape: MegatronShape) -> Bytes:
    """Megatron-LM's activation estimate with sequence parallelism and selective recomputation.

    ``s b h (18 + 4 f / h)`` a layer for all layers, the schedule's in-flight factor, the head on one stage, all over t.

    Source: NVIDIA/Megatron-LM@d98e8a6 megatron/training/theoretical_memory_usage.py, compute_activation_memory;
    Korthikanti et al. 2022, arXiv:2205.05198, table 2.
    Assumes: fused attention, first pipeline stage.
    """
    tokens = shape.seq_len * shape.micro_batch_size
    layer_bytes = tokens * shape.hidden_size * (18 + 4 * shape.intermediate_size / shape.hidden_size)
    total = _in_pipeline(layer_bytes * shape.num_layers + _embedding_bytes(shape), shape)
    if shape.pp == 1:
        total += tokens * shape.hidden_size * 4 * (1 + shape.vocab_size / shape.hidden_size)
    return int(total / shape.tp)


def megatron_activation_bytes_without_sp(shape: MegatronShape) -> Bytes:
    """Megatron-LM's activation estimate without sequence parallelism: ``s b h (10 + 24 / t)`` a layer, plus 5 %.

    Source: NVIDIA/Megatron-LM@d98e8a6 megatron/training/theoretical_memory_usage.py,
    compute_activation_memory_without_sp.
    Assumes: a feed-forward width of four times the hidden size, fused attention, first pipeline stage.
    """
    tokens = shape.seq_len * shape.micro_batch_size
    layer_bytes = tokens * shape.hidden_size * (10 + 24 / shape.tp)
    total = _in_pipeline(layer_bytes * shape.num_layers + _embedding_bytes(shape), shape)
    if shape.pp == 1:
        total += 2 * (tokens * shape.vocab_size / shape.tp + tokens * shape.hidden_size)
    return int(total * 1.05)


def _embedding_bytes(shape: MegatronShape) -> float:
    """Token ids and the dropout mask after the table, for every micro-batch in flight."""
    return shape.seq_len * shape.micro_batch_size * shape.pp * (8 + shape.hidden_size)


def _in_pipeline(one_stage_of_all_layers: float, shape: MegatronShape) -> float:
    if shape.vpp > 1:
        return one_stage_of_all_layers * (1 + (shape.pp - 1) / (shape.pp * shape.vpp))
    if shape.pp > 1:
        return one_stage_of_all_layers * min(1, shape.num_microbatches / shape.pp)
    return one_stage_of_all_layers


def peer_estimates(plan: Plan) -> tuple[PeerEstimate, ...]:
    """What Accelerate, DeepSpeed and Megatron-LM answer for a plan that trains every weight.

    Accelerate and DeepSpeed know no model parallelism: they are given the parameters of one tp * pp shard, the kindest
    reading. Accelerate knows no sharding either: its figure is divided over the ranks of ZeRO stage 3.
    """
    return (
        accelerate_estimate(plan),
        deepspeed_estimate(plan),
        megatron_estimate(plan, with_sequence_parallelism=True),
        megatron_estimate(plan, with_sequence_parallelism=False),
    )


def accelerate_estimate(plan: Plan) -> PeerEstimate:
    """Accelerate's parts: fp32 model 4, gradients 4 or 6, optimizer 8 bytes per parameter; the largest is printed.

    Source: huggingface/accelerate 1.15.0 src/accelerate/commands/estimate.py, estimate_training_usage.
    """
    is_fp32 = plan.recipe.precision == "fp32"
    num_params = _shard_params(plan) // (plan.layout.dp_shard if plan.layout.zero_stage == 3 else 1)
    return PeerEstimate(
        name="accelerate estimate-memory",
        weights_bytes=4 * num_params,
        gradients_bytes=(4 if is_fp32 else 6) * num_params,
        optimizer_bytes=8 * num_params,
        activation_bytes=None,
        total_bytes=accelerate_training_bytes(num_params=num_params, precision=plan.recipe.precision),
    )


def deepspeed_estimate(plan: Plan) -> PeerEstimate:
    """DeepSpeed's parts as its comment names them: 2 weights, 2 + 4 gradients, 4 master weights, 8 moments.

    Source: deepspeedai/DeepSpeed@edaa722 deepspeed/runtime/zero/stage_1_and_2.py and stage3.py. Stage 3 sums 18 without
    naming parts; they are read as 2 weights, 4 gradients and 12 states, with the gathered module among the weights.
    """
    num_params, ranks = _shard_params(plan), plan.layout.state_shard_size
    if plan.layout.zero_stage < 3:
        return PeerEstimate(
            name="deepspeed estimator",
            weights_bytes=2 * num_params,
            gradients_bytes=6 * num_params // ranks,
            optimizer_bytes=12 * num_params // ranks,
            activation_bytes=None,
            total_bytes=deepspeed_zero2_bytes(num_params=num_params, num_gpus=ranks),
        )
    largest = largest_module_params(plan.model) // plan.layout.tp
    return PeerEstimate(
        name="deepspeed estimator",
        weights_bytes=2 * num_params // ranks + 4 * largest,
        gradients_bytes=4 * num_params // ranks,
        optimizer_bytes=12 * num_params // ranks,
        activation_bytes=None,
        total_bytes=deepspeed_zero3_bytes(num_params=num_params, largest_layer_params=largest, num_gpus=ranks),
    )


def megatron_estimate(plan: Plan, *, with_sequence_parallelism: bool) -> PeerEstimate:
    """Megatron-LM's parts: bf16 weights 2, fp32 gradients 4, fp32 weights and moments 12 bytes per parameter.

    Source: NVIDIA/Megatron-LM@d98e8a6 megatron/training/theoretical_memory_usage.py.
    """
    ranks, is_distributed = plan.layout.state_shard_size, plan.layout.zero_stage > 0
    held = megatron_params_on_fullest_shard(plan)
    states = megatron_weight_and_optimizer_bytes(
        params_on_shard=held, data_parallel_size=ranks, uses_distributed_optimizer=is_distributed
    )
    shape = megatron_shape(plan)
    formula = megatron_activation_bytes if with_sequence_parallelism else megatron_activation_bytes_without_sp
    activations = formula(shape)
    return PeerEstimate(
        name="megatron-lm, SP formula" if with_sequence_parallelism else "megatron-lm, formula without SP",
        weights_bytes=round(2 * held),
        gradients_bytes=round(4 * held),
        optimizer_bytes=states - round(2 * held) - round(4 * held),
        activation_bytes=activations,
        total_bytes=states + activations,
    )


def _shard_params(plan: Plan) -> int:
    return plan.model.num_params // (plan.layout.tp * plan.layout.pp)


def largest_module_params(model: ModelSpec) -> int:
    """Parameters of the largest single module, which is what DeepSpeed calls the largest layer."""
    outside = model.embedding_weights + model.final_weights + model.head_weights
    inside = tuple(weight for layer in model.layers for weight in layer.weights)
    return max(weight.num_params for weight in outside + inside)


def megatron_params_on_fullest_shard(plan: Plan) -> float:
    """Megatron-LM's parameter count of the fullest rank: ``1 / pp`` of the blocks and one table.

    Source: NVIDIA/Megatron-LM@d98e8a6 megatron/training/theoretical_memory_usage.py.
    Assumes: biases are not counted; norms, router and final norm are replicated over tp.
    """
    model, layout = plan.model, plan.layout
    sharded = sum(_megatron_sharded_params(layer) for layer in model.layers) / layout.tp
    routed = model.num_routed_params / (layout.ep * layout.expert_tp)
    replicated = sum(_megatron_replicated_params(layer) for layer in model.layers) + _norm_params(model)
    table = _padded_vocab_size(plan) * model.hidden_size / layout.tp
    tables = 2 if not model.tie_word_embeddings and layout.pp == 1 else 1
    return (sharded + routed + replicated) / layout.pp + tables * table


def _megatron_sharded_params(layer: LayerSpec) -> int:
    return sum(w.num_params for w in layer.weights if w.role == "matrix" and not w.is_expert)


def _megatron_replicated_params(layer: LayerSpec) -> int:
    return sum(
        w.num_params for w in layer.weights if w.role in ("norm", "router") or (w.role == "bias" and "norm" in w.name)
    )


def _norm_params(model: ModelSpec) -> int:
    return sum(weight.num_params for weight in model.final_weights)


def megatron_shape(plan: Plan) -> MegatronShape:
    """The numbers of a plan that Megatron-LM's activation formulas read.

    The formulas know no context parallelism; they are given the tokens of one rank, the kindest reading.
    """
    feed_forward = next((layer.feed_forward for layer in plan.model.layers if layer.feed_forward), None)
    return MegatronShape(
        seq_len=plan.recipe.seq_len // plan.layout.cp,
        micro_batch_size=plan.recipe.micro_batch_size,
        hidden_size=plan.model.hidden_size,
        intermediate_size=_intermediate_size(feed_forward, plan.model.hidden_size),
        num_layers=plan.model.num_hidden_layers,
        vocab_size=_padded_vocab_size(plan),
        tp=plan.layout.tp,
        pp=plan.layout.pp,
        vpp=plan.layout.vpp,
        num_microbatches=plan.num_microbatches,
    )


def _intermediate_size(feed_forward: DenseSpec | MoeSpec | None, hidden_size: int) -> int:
    if isinstance(feed_forward, DenseSpec):
        return feed_forward.intermediate_size
    if isinstance(feed_forward, MoeSpec):
        return feed_forward.moe_intermediate_size
    return 4 * hidden_size


def _padded_vocab_size(plan: Plan) -> int:
    """Vocabulary padded to a multiple of 128 tp, as Megatron-LM pads it."""
    multiple = 128 * plan.layout.tp
    return ceil(plan.model.vocab_size / multiple) * multiple
