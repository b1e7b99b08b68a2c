"""Rules about modules that are recomputed by themselves, and about what is kept in fewer bits."""

from collections.abc import Iterable

from shardwise.engines.table import ENGINES, engine_profile, engines_that
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, MoeSpec
from shardwise.plan import Plan
from shardwise.recipe import RecomputeModule
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule
from shardwise.step.recomputed_operations import num_separate_norms

MODULE_ENGINES = engines_that(lambda engine: engine.recomputes_modules)
REPOSITORY = "NVIDIA/Megatron-LM@d98e8a6"


def _names(modules: Iterable[RecomputeModule]) -> str:
    return ",".join(modules)


def _without_modules(_plan: Plan) -> Iterable[Changes]:
    yield (("recompute_modules", None),)


def _breaks_engine(plan: Plan) -> bool:
    return plan.recipe.recompute_modules is not None and plan.engine not in MODULE_ENGINES


def _engine_message(plan: Plan) -> str:
    return (
        f"recompute_modules={_names(plan.recipe.recompute_modules or ())}, but {plan.engine} cannot recompute modules "
        f"by name; {MODULE_ENGINES[0]} can"
    )


def _engine_candidates(plan: Plan) -> Iterable[Changes]:
    yield from _without_modules(plan)
    yield (("engine", MODULE_ENGINES[0]),)


def _breaks_idle(plan: Plan) -> bool:
    return plan.recipe.recompute_modules is not None and plan.recipe.recompute != "selective"


def _idle_message(plan: Plan) -> str:
    modules = _names(plan.recipe.recompute_modules or ())
    return f"recompute_modules={modules} changes nothing with recompute={plan.recipe.recompute}"


def _breaks_layers(plan: Plan) -> bool:
    return plan.recipe.recompute == "selective" and plan.recipe.recompute_layers is not None


def _layers_message(plan: Plan) -> str:
    return (
        f"recompute_layers={plan.recipe.recompute_layers}, but {plan.engine} recomputes selectively in every layer; "
        "recompute_layers counts layers that are recomputed whole"
    )


def _has_latent_attention(layer: LayerSpec) -> bool:
    return isinstance(layer.mixer, AttentionSpec) and layer.mixer.kind == "mla"


def _has_module(layer: LayerSpec, module: RecomputeModule) -> bool:
    block = layer.feed_forward
    if module == "core_attn":
        return isinstance(layer.mixer, AttentionSpec)
    if module == "mla_up_proj":
        return _has_latent_attention(layer)
    if module == "layernorm":
        return num_separate_norms(layer) > 0
    if module == "mlp":
        return isinstance(block, DenseSpec)
    return isinstance(block, MoeSpec) and (module != "shared_experts" or block.shared_intermediate_size > 0)


def _absent(plan: Plan) -> tuple[RecomputeModule, ...]:
    layers = tuple(layer for layer, _ in plan.model.layer_runs)
    asked = plan.recipe.recompute_modules or ()
    return tuple(module for module in asked if not any(_has_module(layer, module) for layer in layers))


def _breaks_absent(plan: Plan) -> bool:
    return plan.recipe.recompute_modules is not None and bool(_absent(plan))


def _absent_message(plan: Plan) -> str:
    reasons: dict[RecomputeModule, str] = {
        "mla_up_proj": "multi-head latent attention",
        "layernorm": "norm outside the product that reads it (only before MLA and before experts)",
        "mlp": "dense feed-forward",
        "moe": "routed experts",
        "moe_act": "routed experts",
        "shared_experts": "shared experts",
        "core_attn": "attention",
    }
    absent = _absent(plan)
    missing = ", no ".join(reasons[one] for one in absent)
    return f"recompute_modules={_names(absent)}, but {plan.model.name} has no {missing}"


def _absent_candidates(plan: Plan) -> Iterable[Changes]:
    left = tuple(module for module in plan.recipe.recompute_modules or () if module not in _absent(plan))
    yield (("recompute_modules", left or None),)
    yield (("recompute", "none"), ("recompute_modules", None))


def _has_gate(plan: Plan) -> bool:
    blocks = (layer.feed_forward for layer, _ in plan.model.layer_runs)
    return all(block.is_gated for block in blocks if block is not None)


def _breaks_fp8_store(plan: Plan) -> bool:
    return plan.recipe.activation_func_fp8_input_store is True and (
        plan.engine not in MODULE_ENGINES or not _has_gate(plan)
    )


def _fp8_store_message(plan: Plan) -> str:
    if plan.engine not in MODULE_ENGINES:
        return f"activation_func_fp8_input_store: {plan.engine} keeps what activations read in 16 bits"
    return f"activation_func_fp8_input_store is for SwiGLU, and {plan.model.name} has feed-forward parts without a gate"


def _breaks_moments(plan: Plan) -> bool:
    recipe = plan.recipe
    if recipe.moment_dtype is None or recipe.moment_dtype == "fp32":
        return recipe.moment_dtype == "fp32" and recipe.precision == "bf16" and not _keeps_master(plan)
    return recipe.optimizer not in ENGINES[plan.engine].narrow_moments or plan.layout.zero_stage == 0


def _keeps_master(plan: Plan) -> bool:
    return engine_profile(plan.engine).sharding in ("megatron", "deepspeed")


def _moments_message(plan: Plan) -> str:
    recipe = plan.recipe
    if recipe.moment_dtype == "fp32":
        return f"moment_dtype=fp32, but {plan.engine} keeps moments in the parameters' dtype, bf16 with precision=bf16"
    if plan.engine not in MODULE_ENGINES:
        return f"moment_dtype=bf16, but {plan.engine} keeps moments in the dtype of its parameters or in fp32"
    return (
        f"moment_dtype=bf16 needs the distributed optimizer with Adam, and there is optimizer={recipe.optimizer} with "
        f"zero_stage={plan.layout.zero_stage}"
    )


RULES = (
    Rule(
        name="engine-recompute-modules",
        why="Which parts of a block can be recomputed by themselves is a choice of Megatron; other engines have one "
        "policy, which recompute=selective means.",
        source=f"{REPOSITORY} core/transformer/transformer_config.py (recompute_modules)",
        reads=("recompute_modules",),
        breaks=_breaks_engine,
        message=_engine_message,
        candidates=_engine_candidates,
    ),
    Rule(
        name="recipe-recompute-modules-idle",
        severity="warning",
        why="Which modules are recomputed matters only with selective recomputation.",
        source=f"{REPOSITORY} core/transformer/transformer_config.py (recompute_granularity)",
        breaks=_breaks_idle,
        message=_idle_message,
        candidates=(change(recompute="selective"), change(recompute_modules=None)),
    ),
    Rule(
        name="engine-recompute-layers",
        engines=MODULE_ENGINES,
        why="Megatron refuses recompute_num_layers beside selective recomputation, which repeats the same modules of "
        "every layer.",
        source=f"{REPOSITORY} core/transformer/transformer_config.py (recompute_num_layers must be None)",
        reads=("recompute", "recompute_layers"),
        breaks=_breaks_layers,
        message=_layers_message,
        candidates=(change(recompute_layers=None), change(recompute="full", recompute_modules=None)),
    ),
    Rule(
        name="recipe-recompute-modules",
        engines=MODULE_ENGINES,
        why="A module that the model does not have cannot be recomputed: Megatron refuses some and ignores the others. "
        "A norm that Transformer Engine fuses into the product behind it is none.",
        source=f"{REPOSITORY} core/transformer/transformer_config.py, core/models/gpt/gpt_layer_specs.py",
        reads=("recompute_modules",),
        breaks=_breaks_absent,
        message=_absent_message,
        candidates=_absent_candidates,
    ),
    Rule(
        name="engine-fp8-input-store",
        why="Only Megatron's SwiGLU casts what it keeps for backward to 8 bits.",
        source=f"{REPOSITORY} core/fusions/fused_bias_swiglu.py, core/transformer/transformer_config.py",
        reads=("activation_func_fp8_input_store",),
        breaks=_breaks_fp8_store,
        message=_fp8_store_message,
        candidates=(change(activation_func_fp8_input_store=None), change(engine=MODULE_ENGINES[0])),
    ),
    Rule(
        name="engine-moment-dtype",
        why="Moments narrower than the engine's need an optimizer that widens them while it steps: Megatron's "
        "precision-aware one, which is a distributed Adam.",
        source=f"{REPOSITORY} core/optimizer/optimizer_config.py (use_precision_aware_optimizer)",
        reads=("moment_dtype", "precision", "optimizer", "zero_stage"),
        breaks=_breaks_moments,
        message=_moments_message,
        candidates=(change(moment_dtype=None), change(engine=MODULE_ENGINES[0]), change(zero_stage=1)),
    ),
)
