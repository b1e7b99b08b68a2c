"""A plan as a Python recipe of newer torchtitan versions: the function that ``--config`` names."""

from collections.abc import Mapping

from shardwise.exchange.facts import FactValue
from shardwise.exchange.model_name import flavor_of
from shardwise.plan import Plan

__all__ = ["RECIPE_FUNCTION", "RECIPE_MODULE", "recipe_text"]

RECIPE_MODULE = "torchtitan_recipe"
RECIPE_FUNCTION = "train"
SECTIONS = {"training": "TrainingConfig", "parallelism": "ParallelismConfig", "compile": "CompileConfig"}
"""Parts of the config whose class is always the same."""
MODULES = {
    "CheckpointManager": "torchtitan.components.checkpointer",
    "ConcatThenSplitPackingConfig": "torchtitan.components.data",
    "GrainDataLoader": "torchtitan.components.data",
    "ChunkedLossWrapper": "torchtitan.components.loss",
    "CrossEntropyLoss": "torchtitan.components.loss",
    "default_adamw": "torchtitan.components.optimizer",
    "Float8LinearConverter": "torchtitan.components.quantization",
    "CompileConfig": "torchtitan.config",
    "ParallelismConfig": "torchtitan.config",
    "TrainingConfig": "torchtitan.config",
    "FullAC": "torchtitan.distributed.activation_checkpoint",
    "SelectiveAC": "torchtitan.distributed.activation_checkpoint",
    "DATASETS": "torchtitan.hf_datasets.text_datasets",
    "decoder_vocab_size": "torchtitan.models.common.config_utils",
    "Trainer": "torchtitan.trainer",
}
"""Modules in which main of 2026-08 (b5bcd76c) keeps the names that a recipe uses."""


def recipe_text(plan: Plan, keys: Mapping[str, FactValue]) -> str:
    """The module whose only function returns the config of the plan.

    Args:
        plan: what is trained.
        keys: of the config, each with its section before it.
    """
    family, flavor = flavor_of(plan.model)
    has_float8 = plan.recipe.precision == "fp8-mixed"
    converters = f"Float8LinearConverter.Config(model_compile_enabled={plan.recipe.compile})"
    exchange, attention = (keys.get(f"model_spec.{part}_backend") for part in ("moe_comm", "attn"))
    model = [
        repr(str(flavor)),
        *([f"attn_backend={attention!r}"] if attention is not None else []),
        *([f"moe_comm_backend={exchange!r}"] if exchange is not None and plan.model.is_moe else []),
        *([f"converters=[{converters}]"] if has_float8 else []),
    ]
    vocabulary = "global_vocab_size=decoder_vocab_size(model_spec)"
    loss = f"CrossEntropyLoss.Config({vocabulary})"
    if plan.recipe.loss_chunks > 1:
        loss = f"ChunkedLossWrapper.Config(num_chunks={plan.recipe.loss_chunks}, loss_fn={loss})"
    kind = keys.get("activation_checkpoint.kind")
    parts = {
        "model_spec": "model_spec",
        "hf_assets_path": repr("./assets/hf/MODEL"),
        "loss": loss,
        "optimizer": "default_adamw(lr=3e-4)",
        **{name: _section(name, keys) for name in SECTIONS},
        "activation_checkpoint": "None" if kind is None else f"{kind}()",
        "dataloader": "GrainDataLoader.Config(dataset=ConcatThenSplitPackingConfig(dataset=DATASETS['c4']))",
        "checkpoint": "CheckpointManager.Config(enable=True)",
    }
    body = "".join(f"        {name}={text},\n" for name, text in parts.items())
    code = (
        f"def {RECIPE_FUNCTION}() -> Trainer.Config:\n    model_spec = model_registry({', '.join(model)})\n"
        f"    return Trainer.Config(\n{body}    )\n"
    )
    return f"{_imports(code, family)}\n\n{code}"


def _section(name: str, keys: Mapping[str, FactValue]) -> str:
    """One dataclass of settings, a setting a line."""
    prefix = f"{name}."
    lines = "".join(
        f"            {key.removeprefix(prefix)}={_written(value)},\n"
        for key, value in keys.items()
        if key.startswith(prefix) and value is not None
    )
    return f"{SECTIONS[name]}(\n{lines}        )" if lines else f"{SECTIONS[name]}()"


def _written(value: FactValue) -> str:
    return repr(_lists(value))


def _lists(value: FactValue) -> object:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value


def _imports(code: str, family: str) -> str:
    """The imports of the names that the code uses, by module."""
    used = [name for name in MODULES if f"{name}." in code or f"{name}(" in code or f"{name}[" in code]
    modules = sorted({MODULES[name] for name in used} | {f"torchtitan.models.{family}"})
    named = {**{name: MODULES[name] for name in used}, "model_registry": f"torchtitan.models.{family}"}
    return "".join(
        f"from {module} import {', '.join(sorted(name for name in named if named[name] == module))}\n"
        for module in modules
    )
