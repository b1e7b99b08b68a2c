"""Forward operations of a block that run a second time in its backward, by recompute mode."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from shardwise.engines.profile import SelectivePolicy
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, MoeSpec, Weight
from shardwise.recipe import Recipe, RecomputeModule
from shardwise.step import own_host
from shardwise.step.block_operations import FP8_RECAST_BYTES, fp8_casts, host_calls_name
from shardwise.step.eager_operations import adapted_and_packed
from shardwise.step.inventory import Operation, OperationPhase
from shardwise.step.operation_context import OperationContext
from shardwise.step.sequence_copies import SCATTERED_COPIES

_FIRST_AND_AGAIN: tuple[OperationPhase, OperationPhase] = ("forward", "recompute")
_ELEMENTWISE: dict[RecomputeModule, tuple[str, ...]] = {
    "mla_up_proj": ("attention.rotary",),
    "moe_act": ("experts.activation",),
    "mlp": ("mlp.activation",),
    "moe": ("experts.activation", "experts.permute", "router.scores", "shared_experts.activation"),
    "shared_experts": ("shared_experts.activation",),
}


def recomputed_operations(
    operations: tuple[Operation, ...],
    context: OperationContext,
    *,
    layer: LayerSpec,
    recipe: Recipe,
    policy: SelectivePolicy,
) -> tuple[Operation, ...]:
    """The forward operations of a block that run a second time in backward.

    ``full`` repeats everything, but for the last product where torch stops before it. Selectively, ``core_attention``
    repeats the attention core (Korthikanti et al. 2022, section 5) and ``operations`` repeats everything but attention
    and every odd plain product (torchtitan ``distributed/activation_checkpoint.py``; no list of what to keep holds
    grouped products, scattered sums are kept), unless the recipe names modules. What our runtime's host does for it is
    known by itself.
    """
    forward = [operation for operation in operations if operation.phase == "forward"]
    if recipe.recompute == "none":
        chosen = []
    elif recipe.recompute == "full":
        unread = unread_product(layer) if context.stops_recomputing else ""
        chosen = [operation for operation in forward if operation.name != unread]
    elif recipe.recompute_modules is not None:
        chosen = list(_of_modules(forward, layer, context, modules=recipe.recompute_modules))
    elif policy == "core_attention":
        chosen = [operation for operation in forward if operation.kind == "attention"]
    else:
        products = [operation for operation in forward if operation.kind == "matmul"]
        others = [operation for operation in forward if operation.kind in ("memory", "delta_rule", "grouped_matmul")]
        chosen = [operation for operation in others if operation.name != SCATTERED_COPIES] + products[1::2]
    again = [replace(operation, phase="recompute") for operation in chosen]
    if context.has_torch_host:
        adapted, packed = adapted_and_packed(layer, recipe) if context.is_own_eager else (0, 0)
        calls = own_host.recompute_calls(
            recipe, context.layout, computes_on_parts=context.has_own_host, adapted=adapted, packed=packed
        )
        name = host_calls_name(context)
        again = [operation for operation in again if operation.name != name]
        again += [
            context.memory_operation(name, phase, 0, num_kernels=number)
            for phase, number in zip(_FIRST_AND_AGAIN, calls, strict=True)
            if number
        ]
    return tuple(again)


def unread_product(layer: LayerSpec) -> str:
    """The product that ends a block, whose result is added and read by no backward; none where a norm or router weights
    follow.

    >>> from shardwise.families import read_model
    >>> [unread_product(read_model(name).layers[0]) for name in ("llama-3.1-8b", "gemma-2-9b", "mixtral-8x7b")]
    ['mlp.down_proj', '', '']
    """
    if layer.normed != "inputs" or isinstance(layer.feed_forward, MoeSpec):
        return ""
    ends = [weight.name for weight in layer.weights if weight.is_matrix and weight.split == "row"]
    return ends[-1].removesuffix(".weight") if ends else ""


def _of_modules(
    forward: Iterable[Operation], layer: LayerSpec, context: OperationContext, *, modules: Collection[RecomputeModule]
) -> Iterator[Operation]:
    """Operations that recomputing some of Megatron's modules repeats, with the casts its 8-bit products need again."""
    names = {name for module in modules for name in _module_names(layer, module)}
    chosen: list[Operation] = []
    for operation in forward:
        is_core = operation.kind == "attention" and "core_attn" in modules
        if is_core or not names.isdisjoint(_parts(operation.name)):
            chosen.append(operation)
        elif operation.name == "norms":
            chosen += _some_norms(operation, layer, modules)
    yield from chosen
    if context.matmul_dtype == "fp8":
        yield from (cast for cast in fp8_casts(chosen, layer, context) if cast.phase == "forward" and cast.num_bytes)
        yield from _late_casts(forward, layer, context, modules=modules)


def _late_casts(
    forward: Iterable[Operation], layer: LayerSpec, context: OperationContext, *, modules: Collection[RecomputeModule]
) -> Iterator[Operation]:
    """Casts for weight gradients of products whose 16-bit input is recomputed: they keep no 8 bits of it.

    Source: Megatron-LM ``core/extensions/transformer_engine.py`` (``set_save_original_input``), which recomputing norms
        and experts' activation sets.
    """
    elements, num_casts = 0.0, 0
    if "layernorm" in modules:
        has_shared = isinstance(layer.feed_forward, MoeSpec) and layer.feed_forward.shared_intermediate_size > 0
        num_casts = 2 * _is_latent(layer) + has_shared
        elements = float(num_casts * context.residual_elements)
    if "moe_act" in modules and "moe" not in modules:
        downs = {one.name.removesuffix(".weight") for one in layer.weights if one.is_expert and one.split == "row"}
        products = [one for one in forward if one.kind == "grouped_matmul" and one.name in downs]
        num_casts += len(products)
        elements += sum(product.flop / 2 / product.n for product in products)
    if elements:
        yield context.memory_operation("fp8 casts", "forward", FP8_RECAST_BYTES * elements, num_kernels=num_casts)


def _parts(name: str) -> Iterator[str]:
    """The names of all products that were joined to one: ``mlp.gate_proj+up_proj`` is two."""
    module, dot, joined = name.rpartition(".")
    return (f"{module}{dot}{part}" for part in joined.split("+"))


def _module_names(layer: LayerSpec, module: RecomputeModule) -> Iterator[str]:
    """Operations inside a module, but for the attention core and norms."""
    kinds = {"mlp": DenseSpec, "moe": MoeSpec}
    if module == "mla_up_proj" and not _is_latent(layer):
        return
    yield from _ELEMENTWISE.get(module, ())
    mixer = _mixer_matrices(layer)
    matrices = [weight for weight in layer.weights if weight.is_matrix and weight not in mixer]
    if module == "mla_up_proj":
        matrices = [weight for weight in mixer if weight.split == "column"]
    elif module == "shared_experts":
        matrices = [weight for weight in matrices if "shared_expert" in weight.name]
    elif module not in kinds or not isinstance(layer.feed_forward, kinds[module]):
        return
    yield from (weight.name.removesuffix(".weight") for weight in matrices)


def _is_latent(layer: LayerSpec) -> bool:
    return isinstance(layer.mixer, AttentionSpec) and layer.mixer.kind == "mla"


def _mixer_matrices(layer: LayerSpec) -> list[Weight]:
    """Matrices up to the row-parallel one that ends the last mixer."""
    left = (layer.mixer is not None) + (layer.cross_attention is not None)
    found: list[Weight] = []
    for weight in layer.weights:
        if weight.is_matrix and left:
            found.append(weight)
            left -= weight.split == "row"
    return found


def _some_norms(norms: Operation, layer: LayerSpec, modules: Collection[RecomputeModule]) -> Iterator[Operation]:
    """Norms that are modules of their own, and the one inside a dense feed-forward that is recomputed."""
    again = num_separate_norms(layer) if "layernorm" in modules else 0
    if isinstance(layer.feed_forward, DenseSpec) and "mlp" in modules and not layer.is_parallel:
        again += 1
    if again and layer.num_norms:
        share = min(1.0, again / layer.num_norms)
        kernels = max(1, round(share * norms.num_kernels))
        yield replace(norms, num_bytes=round(share * norms.num_bytes), num_kernels=kernels)


def num_separate_norms(layer: LayerSpec) -> int:
    """Full-width norms that Megatron does not fuse into the product behind them: before MLA and before experts."""
    return _is_latent(layer) + isinstance(layer.feed_forward, MoeSpec)
