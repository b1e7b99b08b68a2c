"""One transformer block of one rank: grouped-query attention and a gated feed-forward or experts, each after a norm.

``y = x + attention(norm(x))``, then ``z = y + feed_forward(norm(y))``. What the forward keeps is exactly what the
inventory lists for fused norms, fused activations and flash attention.

Shapes: B sequences, S tokens of this rank (s where sequence parallelism divides them), D hidden size, H query heads, K
key-value heads and F feed-forward width of this rank, E elements of a head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from shardwise.course.numerics.arrays import Array, Arrays, Integers, Named, distinct
from shardwise.course.numerics.context_parallel import AttentionKept, attend, attend_backward
from shardwise.course.numerics.expert_parallel import ExpertsKept, experts_backward, experts_forward, stacked
from shardwise.course.numerics.layers import (
    Product,
    gate,
    gate_backward,
    rms_norm,
    rms_norm_backward,
    rotate,
)
from shardwise.course.numerics.tensor_parallel import complete_sums, gather_sequence
from shardwise.course.numerics.world import Program, Rank
from shardwise.model import AttentionSpec, LayerSpec, MoeSpec

INPUT_NORM, POST_NORM = "input_layernorm.weight", "post_attention_layernorm.weight"
QUERY, KEY, VALUE = "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"
OUTPUT = "self_attn.o_proj.weight"
GATE, UP, DOWN = "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one rank needs to know of a block besides its weights."""

    layer: LayerSpec
    places: tuple[Integers, ...]
    """Positions of the tokens of every context-parallel member."""
    capacity_ratio: float | None = None
    """Tokens that an expert takes at most, over its even share; ``None`` for experts that are never full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBranch:
    """What the attention half keeps for its backward."""

    x_BsD: Array
    scale_Bs1: Array
    normed_BSD: Array
    """The input of the products: gathered, or this rank's part where it is gathered again for backward."""
    attention: AttentionKept
    output_BSF: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseBranch:
    """What a feed-forward half keeps for its backward."""

    x_BsD: Array
    scale_Bs1: Array
    normed_BSD: Array
    gate_BSF: Array
    up_BSF: Array
    hidden_BSF: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsBranch:
    """What a mixture of experts keeps for its backward."""

    x_BsD: Array
    scale_Bs1: Array
    normed_BsD: Array
    experts: ExpertsKept


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKept:
    """Everything a block keeps for its backward."""

    attention: AttentionBranch
    feed_forward: DenseBranch | ExpertsBranch

    @property
    def arrays(self) -> Arrays:
        """Every tensor that is kept, once."""
        first, second = self.attention, self.feed_forward
        kept = [first.x_BsD, first.scale_Bs1, first.normed_BSD, *first.attention.arrays, first.output_BSF]
        if isinstance(second, DenseBranch):
            kept += [second.normed_BSD, second.gate_BSF, second.up_BSF, second.hidden_BSF]
        else:
            kept += [second.normed_BsD, *second.experts.arrays]
        return distinct((*kept, second.x_BsD, second.scale_Bs1))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGradient:
    """The first half of a block's backward: the input's gradient, and what the weights' gradients follow from."""

    dx_BsD: Array
    norms: Named
    products: tuple[Product, ...]

    def weight_gradients(self, layer: LayerSpec, ep: int) -> Named:
        """The second half: the gradient of every weight of this rank."""
        gradients = dict(self.norms)
        if isinstance(layer.feed_forward, MoeSpec):
            gradients |= stacked(list(self.products), layer.feed_forward.num_experts // ep)
        gradients |= {one.name: one.weight_gradient() for one in self.products if not one.name.endswith("]")}
        return gradients


def block_forward(rank: Rank, block: Block, weights: Named, x_BsD: Array) -> Program[tuple[Array, BlockKept]]:
    """The output of a block, and what its backward needs."""
    added_BsD, attention = yield from _attention_forward(rank, block, weights, x_BsD)
    y_BsD = x_BsD + added_BsD
    feed_forward: DenseBranch | ExpertsBranch
    moe = block.layer.feed_forward
    if isinstance(moe, MoeSpec):
        added_BsD, feed_forward = yield from _experts_forward(rank, moe, weights, y_BsD, block.capacity_ratio)
    else:
        added_BsD, feed_forward = yield from _dense_forward(rank, weights, y_BsD)
    return y_BsD + added_BsD, BlockKept(attention=attention, feed_forward=feed_forward)


def block_backward(rank: Rank, block: Block, weights: Named, kept: BlockKept, dz_BsD: Array) -> Program[BlockGradient]:
    """The gradient of the input; weight gradients are left as products."""
    norms: Named = {}
    products: list[Product] = []
    if isinstance(kept.feed_forward, ExpertsBranch):
        dnormed_BsD = yield from _experts_backward(rank, weights, kept.feed_forward, dz_BsD, products)
    else:
        dnormed_BsD = yield from _dense_backward(rank, weights, kept.feed_forward, dz_BsD, products)
    branch: AttentionBranch | DenseBranch | ExpertsBranch = kept.feed_forward
    dx_BsD, norms[POST_NORM] = rms_norm_backward(dnormed_BsD, branch.x_BsD, weights[POST_NORM], branch.scale_Bs1)
    dy_BsD = dz_BsD + dx_BsD
    dnormed_BsD = yield from _attention_backward(rank, block, weights, kept.attention, dy_BsD, products)
    branch = kept.attention
    dx_BsD, norms[INPUT_NORM] = rms_norm_backward(dnormed_BsD, branch.x_BsD, weights[INPUT_NORM], branch.scale_Bs1)
    return BlockGradient(dx_BsD=dy_BsD + dx_BsD, norms=norms, products=tuple(products))


def _attention_forward(
    rank: Rank, block: Block, weights: Named, x_BsD: Array
) -> Program[tuple[Array, AttentionBranch]]:
    normed_BsD, scale_Bs1 = rms_norm(x_BsD, weights[INPUT_NORM])
    normed_BSD = yield from gather_sequence(rank, normed_BsD)
    positions_S = block.places[rank.index_in(rank.groups.context)]
    q_BSHE, k_BSKE, v_BSKE = (_heads(normed_BSD @ weights[name].T, block.layer) for name in (QUERY, KEY, VALUE))
    qkv = (rotate(q_BSHE, positions_S), rotate(k_BSKE, positions_S), v_BSKE)
    output_BSHE, attention = yield from attend(rank, qkv, block.places)
    output_BSF = output_BSHE.reshape(*output_BSHE.shape[:2], -1)
    added_BsD = yield from complete_sums(rank, output_BSF @ weights[OUTPUT].T)
    kept = AttentionBranch(
        x_BsD=x_BsD,
        scale_Bs1=scale_Bs1,
        normed_BSD=normed_BSD if rank.profile.saves_gathered_input else normed_BsD,
        attention=attention,
        output_BSF=output_BSF,
    )
    return added_BsD, kept


def _attention_backward(
    rank: Rank, block: Block, weights: Named, kept: AttentionBranch, dadded_BsD: Array, products: list[Product]
) -> Program[Array]:
    dadded_BSD = yield from gather_sequence(rank, dadded_BsD)
    products.append(Product(name=OUTPUT, inputs=kept.output_BSF, output_gradient=dadded_BSD))
    do_BSHE = _heads(dadded_BSD @ weights[OUTPUT], block.layer)
    dq_BSHE, dk_BSKE, dv_BSKE = yield from attend_backward(rank, do_BSHE, kept.attention, block.places)
    positions_S = block.places[rank.index_in(rank.groups.context)]
    rotated = (
        rotate(dq_BSHE, positions_S, backwards=True),
        rotate(dk_BSKE, positions_S, backwards=True),
        dv_BSKE,
    )
    flat = {name: x.reshape(*x.shape[:2], -1) for name, x in zip((QUERY, KEY, VALUE), rotated, strict=True)}
    return (yield from _columns_backward(rank, weights, kept.normed_BSD, flat, products))


def _dense_forward(rank: Rank, weights: Named, x_BsD: Array) -> Program[tuple[Array, DenseBranch]]:
    normed_BsD, scale_Bs1 = rms_norm(x_BsD, weights[POST_NORM])
    normed_BSD = yield from gather_sequence(rank, normed_BsD)
    gate_BSF, up_BSF = normed_BSD @ weights[GATE].T, normed_BSD @ weights[UP].T
    hidden_BSF = gate(gate_BSF, up_BSF)
    added_BsD = yield from complete_sums(rank, hidden_BSF @ weights[DOWN].T)
    kept = DenseBranch(
        x_BsD=x_BsD,
        scale_Bs1=scale_Bs1,
        normed_BSD=normed_BSD if rank.profile.saves_gathered_input else normed_BsD,
        gate_BSF=gate_BSF,
        up_BSF=up_BSF,
        hidden_BSF=hidden_BSF,
    )
    return added_BsD, kept


def _dense_backward(
    rank: Rank, weights: Named, kept: DenseBranch, dadded_BsD: Array, products: list[Product]
) -> Program[Array]:
    dadded_BSD = yield from gather_sequence(rank, dadded_BsD)
    products.append(Product(name=DOWN, inputs=kept.hidden_BSF, output_gradient=dadded_BSD))
    dgate_BSF, dup_BSF = gate_backward(dadded_BSD @ weights[DOWN], kept.gate_BSF, kept.up_BSF)
    return (yield from _columns_backward(rank, weights, kept.normed_BSD, {GATE: dgate_BSF, UP: dup_BSF}, products))


def _columns_backward(
    rank: Rank, weights: Named, normed: Array, gradients: Mapping[str, Array], products: list[Product]
) -> Program[Array]:
    """The backward of column-parallel products that read one input, gathered again for them where it was not kept."""
    if not rank.profile.saves_gathered_input:
        normed = yield from gather_sequence(rank, normed)
    products += [Product(name=name, inputs=normed, output_gradient=dy) for name, dy in gradients.items()]
    partial_BSD = reduce(np.add, [dy @ weights[name] for name, dy in gradients.items()])
    return (yield from complete_sums(rank, partial_BSD))


def _experts_forward(
    rank: Rank, moe: MoeSpec, weights: Named, x_BsD: Array, capacity_ratio: float | None
) -> Program[tuple[Array, ExpertsBranch]]:
    normed_BsD, scale_Bs1 = rms_norm(x_BsD, weights[POST_NORM])
    rows_TD = normed_BsD.reshape(-1, normed_BsD.shape[-1])
    added_TD, experts = yield from experts_forward(rank, weights, rows_TD, moe, capacity_ratio)
    kept = ExpertsBranch(x_BsD=x_BsD, scale_Bs1=scale_Bs1, normed_BsD=normed_BsD, experts=experts)
    return added_TD.reshape(x_BsD.shape), kept


def _experts_backward(
    rank: Rank, weights: Named, kept: ExpertsBranch, dadded_BsD: Array, products: list[Product]
) -> Program[Array]:
    width = dadded_BsD.shape[-1]
    rows_TD, dadded_TD = kept.normed_BsD.reshape(-1, width), dadded_BsD.reshape(-1, width)
    dnormed_TD, added = yield from experts_backward(rank, weights, rows_TD, dadded_TD, kept.experts)
    products += added
    return dnormed_TD.reshape(dadded_BsD.shape)


def _heads(x_BSF: Array, layer: LayerSpec) -> Array:
    """The last dim cut into heads."""
    spec = layer.mixer
    width = spec.head_dim if isinstance(spec, AttentionSpec) else x_BSF.shape[-1]
    return x_BSF.reshape(*x_BSF.shape[:2], -1, width)
