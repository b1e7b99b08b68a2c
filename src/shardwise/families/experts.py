"""Routed experts: where they sit, what the router and the shared experts beside them hold."""

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.errors import ModelError
from shardwise.families.assembly import num_layers, per_layer
from shardwise.families.blocks import (
    LLAMA_MLP,
    MlpNames,
    Weights,
    expert_weights,
    mlp_weights,
    projection,
    router_weights,
    vector,
)
from shardwise.families.config import Flag, ModelConfig
from shardwise.families.decoder import FeedForward, Sparse
from shardwise.model import MoeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedExpert:
    """The expert every token passes through."""

    name: str
    width: Callable[[ModelConfig], int]
    """Summed width of all shared experts; 0 when the config has none."""
    names: MlpNames = LLAMA_MLP
    bias: Flag = False
    gate: str = ""
    """A one-row gate of this name that scales the shared expert's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertStyle:
    """One family's layout of a mixture-of-experts part."""

    prefix: str = "mlp"
    router: str = "gate"
    router_bias: bool = False
    correction_bias: str = ""
    """A trained load-balancing vector of this name (buffers are not weights and are not listed)."""
    width: str = "moe_intermediate_size"
    """The config field of one routed expert's width."""
    is_gated: bool = True
    expert_bias: bool = False
    shared: SharedExpert | None = None


def expert_part(config: ModelConfig, style: ExpertStyle) -> FeedForward:
    """Router, routed experts and shared experts of one block."""
    hidden_size, width = config.count("hidden_size"), config.count(style.width)
    num_experts, top_k = config.count("num_experts"), config.count("num_experts_per_tok")
    if not config.is_given("num_experts_per_tok"):
        top_k = min(top_k, num_experts)
    if top_k > num_experts:
        raise ModelError(
            f"a token cannot pass through {top_k} of {num_experts} experts",
            code="model-field-range",
            fix=f"set {config.path}num_experts_per_tok to at most {num_experts}",
        )
    groups = config.count_or("n_group", 1)
    kept = min(groups, config.count_or("topk_group", groups))
    router, prefix = f"{style.prefix}.{style.router}", f"{style.prefix}.experts"
    weights = router_weights(router, num_experts, hidden_size, bias=style.router_bias)
    weights += expert_weights(prefix, num_experts, hidden_size, width, is_gated=style.is_gated, bias=style.expert_bias)
    if style.correction_bias:
        weights += vector(f"{style.prefix}.{style.correction_bias}", num_experts, role="bias")
    shared_width = style.shared.width(config) if style.shared else 0
    spec = MoeSpec(
        num_experts=num_experts,
        num_experts_per_tok=top_k,
        num_groups=groups,
        num_groups_per_tok=kept,
        moe_intermediate_size=width,
        shared_intermediate_size=shared_width,
        hidden_act=config.text("hidden_act"),
        is_gated=style.is_gated,
    )
    return FeedForward(spec, weights + shared_expert_weights(config, style))


def shared_expert_weights(config: ModelConfig, style: ExpertStyle) -> Weights:
    """The shared experts as one feed-forward part, with its gate where there is one."""
    shared = style.shared
    width = shared.width(config) if shared else 0
    if shared is None or not width:
        return ()
    hidden_size = config.count("hidden_size")
    name = f"{style.prefix}.{shared.name}" if style.prefix else shared.name
    weights = mlp_weights(name, hidden_size, width, names=shared.names, bias=config.flag(shared.bias))
    if shared.gate:
        weights += projection(f"{style.prefix}.{shared.gate}", (1, hidden_size), "replicated")
    return weights


def every_layer(config: ModelConfig) -> tuple[bool, ...]:
    """All blocks are sparse."""
    return (True,) * num_layers(config)


def after_first_dense(config: ModelConfig) -> tuple[bool, ...]:
    """DeepSeek's rule: ``first_k_dense_replace`` dense blocks, then one sparse block in ``moe_layer_freq``.

    A list ``mlp_layer_types`` of ``dense`` and ``sparse`` words overrides it.
    """
    types = config.words("mlp_layer_types")
    if types is not None:
        return tuple(word == "sparse" for word in per_layer(config, "mlp_layer_types", types))
    first, frequency = config.count_or_zero("first_k_dense_replace"), config.count_or("moe_layer_freq", 1)
    return tuple(index >= first and index % frequency == 0 for index in range(num_layers(config)))


def by_sparse_step(config: ModelConfig) -> tuple[bool, ...]:
    """Qwen's rule: every ``decoder_sparse_step``-th block that is not in ``mlp_only_layers``."""
    dense = frozenset(config.counts("mlp_only_layers") or ())
    step = config.count_or("decoder_sparse_step", 1)
    return tuple(index not in dense and (index + 1) % step == 0 for index in range(num_layers(config)))


def n_shared_width(config: ModelConfig) -> int:
    """``n_shared_experts`` experts as wide as a routed one."""
    return config.count_or_zero("n_shared_experts") * config.count("moe_intermediate_size")


def sparse(style: ExpertStyle, rule: Callable[[ModelConfig], tuple[bool, ...]] = every_layer) -> Sparse:
    """Experts of one style in the blocks the rule names."""
    return Sparse(layers=rule, experts=lambda config: expert_part(config, style))
