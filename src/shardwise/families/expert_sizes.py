"""A typical mixture of experts for two parameter counts, such as the 30B in all and 3B active of ``30B-A3B``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import log

from shardwise.errors import ModelError
from shardwise.units import format_count

TOTAL_TOLERANCE_FRACTION = 0.01
ACTIVE_TOLERANCE_FRACTION = 0.03
"""How far the made shape may be from the asked counts; names round active ones to one or two digits."""
VOCAB_SIZE = 151_936
HEAD_DIM = 128
NUM_KEY_VALUE_HEADS = 4
HIDDEN_PER_HEAD = 64
"""Qwen3-30B-A3B and Qwen3-235B-A22B have a query head of 128 for every 64 of hidden size."""
HIDDEN_SIZES = range(1_024, 16_385, 512)
NUM_EXPERTS = (8, 16, 32, 64, 128, 256, 512)
NUM_ACTIVE = (8, 4, 2)
WIDTH_STEP = 32
TYPICAL_WIDTH_PER_LAYER, TYPICAL_EXPERT_RATIO, TYPICAL_NUM_EXPERTS = 44.0, 0.375, 128
"""Proportions of Qwen3's mixtures of experts: hidden size by layers, width of an expert by hidden
size, and experts of a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """The sizes that decide the parameter counts of a decoder with Qwen3's blocks and experts in every block."""

    hidden_size: int
    num_hidden_layers: int
    moe_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int

    @property
    def num_attention_heads(self) -> int:
        """Query heads."""
        return self.hidden_size // HIDDEN_PER_HEAD

    @property
    def num_params_outside(self) -> int:
        """Tables, attention, norms and routers: ``2 V h + L (4 h h + 2 h k d + 2 h + 2 d + h E) + h``."""
        return 2 * VOCAB_SIZE * self.hidden_size + self.num_hidden_layers * _layer_params(self) + self.hidden_size

    def num_params(self, num_experts: int) -> int:
        """Parameters with so many experts of each layer: all of them, or those that see a token."""
        expert = 3 * self.hidden_size * self.moe_intermediate_size
        return self.num_params_outside + self.num_hidden_layers * num_experts * expert

    def config(self) -> Mapping[str, object]:
        """The fields of a ``config.json``."""
        return {
            "model_type": "qwen3_moe",
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "moe_intermediate_size": self.moe_intermediate_size,
            "intermediate_size": self.num_experts_per_tok * self.moe_intermediate_size,
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.num_experts_per_tok,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": NUM_KEY_VALUE_HEADS,
            "head_dim": HEAD_DIM,
            "vocab_size": VOCAB_SIZE,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131_072,
        }


def expert_shape(num_params: float, num_active_params: float) -> ExpertShape:
    """A typical shape within 1 % of all parameters and 3 % of the active ones.

    >>> shape = expert_shape(67e9, 2e9)
    >>> round(shape.num_params(shape.num_experts) / 1e9, 1), round(shape.num_params(shape.num_experts_per_tok) / 1e9, 2)
    (66.4, 1.99)

    Raises:
        ModelError: no such shape is near the counts.
    """
    shapes = list(_candidates(num_params, num_active_params))
    if not shapes:
        raise ModelError(
            f"no typical mixture of experts has {format_count(num_params)} parameters of which "
            f"{format_count(num_active_params)} are active",
            code="model-size-range",
            fix='give sizes such as "30B-A3B", or describe the model with a config',
        )
    return min(shapes, key=_strangeness)


def expert_assumption(shape: ExpertShape) -> str:
    """The sentence that tells the user which shape was assumed."""
    total, active = shape.num_params(shape.num_experts), shape.num_params(shape.num_experts_per_tok)
    return (
        f"assumed a mixture of experts like Qwen3's of {format_count(total)} parameters, "
        f"{format_count(active)} active: "
        f"{shape.num_hidden_layers} layers, hidden_size {shape.hidden_size}, {shape.num_experts} experts of "
        f"moe_intermediate_size {shape.moe_intermediate_size} in each, {shape.num_experts_per_tok} for a token, "
        f"{shape.num_attention_heads} heads, {NUM_KEY_VALUE_HEADS} key-value heads, vocab_size {VOCAB_SIZE} (untied)"
    )


def _candidates(total: float, active: float) -> Iterator[ExpertShape]:
    """Shapes near both counts: layers from what lies outside experts, widths from what lies inside them."""
    for hidden, experts, used in product(HIDDEN_SIZES, NUM_EXPERTS, NUM_ACTIVE):
        if used >= experts:
            continue
        one_expert = (total - active) / (experts - used)
        plain = ExpertShape(
            hidden_size=hidden,
            num_hidden_layers=0,
            moe_intermediate_size=0,
            num_experts=experts,
            num_experts_per_tok=used,
        )
        layers = round((active - used * one_expert - plain.num_params_outside) / _layer_params(plain))
        if layers < 2:
            continue
        width = round(one_expert / (3 * hidden * layers) / WIDTH_STEP) * WIDTH_STEP
        shape = ExpertShape(
            hidden_size=hidden,
            num_hidden_layers=layers,
            moe_intermediate_size=width,
            num_experts=experts,
            num_experts_per_tok=used,
        )
        if width > 0 and _is_near(shape, total, active):
            yield shape


def _is_near(shape: ExpertShape, total: float, active: float) -> bool:
    has_total = abs(shape.num_params(shape.num_experts) / total - 1) <= TOTAL_TOLERANCE_FRACTION
    return has_total and abs(shape.num_params(shape.num_experts_per_tok) / active - 1) <= ACTIVE_TOLERANCE_FRACTION


def _layer_params(shape: ExpertShape) -> int:
    """Parameters of one block outside its experts."""
    hidden = shape.hidden_size
    heads = hidden // HIDDEN_PER_HEAD + NUM_KEY_VALUE_HEADS
    return 2 * hidden * heads * HEAD_DIM + 2 * hidden + 2 * HEAD_DIM + hidden * shape.num_experts


def _strangeness(shape: ExpertShape) -> float:
    """How far a shape is from Qwen3's proportions."""
    return (
        abs(log(shape.hidden_size / shape.num_hidden_layers / TYPICAL_WIDTH_PER_LAYER))
        + abs(log(shape.moe_intermediate_size / shape.hidden_size / TYPICAL_EXPERT_RATIO))
        + abs(log(shape.num_experts / TYPICAL_NUM_EXPERTS)) / 2
        + abs(log(shape.num_experts_per_tok / NUM_ACTIVE[0]))
    )
