"""Rules about frozen and quantised weights, and about optimizers that need whole matrices."""

from shardwise.engines.table import ENGINES, OWN_ENGINE
from shardwise.optimizers import OPTIMIZERS
from shardwise.plan import Plan
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule
from shardwise.step.held_weights import idle_targets, target_words


def _breaks_adapter(plan: Plan) -> bool:
    return plan.recipe.adapter not in ENGINES[plan.engine].adapters


def _adapter_message(plan: Plan) -> str:
    return f"adapter {plan.recipe.adapter} is not offered by {plan.engine}, which has no 4-bit base weights"


def _breaks_targets(plan: Plan) -> bool:
    return plan.recipe.adapter != "none" and bool(idle_targets(plan.model.layers, plan.recipe.lora_targets))


def _targets_message(plan: Plan) -> str:
    targets = plan.recipe.lora_targets
    idle = idle_targets(plan.model.layers, targets)
    if len(idle) < len(target_words(targets)):
        return f"lora_targets={targets}: {', '.join(idle)} fits no matrix of {plan.model.name}"
    return f"lora_targets={targets} names no matrix of {plan.model.name}, so nothing would train"


def _breaks_mixed_grad(plan: Plan) -> bool:
    return plan.recipe.adapter != "none" and plan.layout.zero_stage > 0


def _mixed_grad_message(plan: Plan) -> str:
    return (
        f"adapter {plan.recipe.adapter} on fsdp1 flattens frozen and trainable weights together: with "
        f"use_orig_params=False torch raises 'Must flatten tensors with uniform requires_grad'"
    )


def _breaks_integer_storage(plan: Plan) -> bool:
    return plan.recipe.adapter == "qlora" and plan.layout.zero_stage > 0


def _integer_storage_message(plan: Plan) -> str:
    storage = "float32" if plan.recipe.precision == "fp32" else plan.recipe.precision.split("-")[0]
    return (
        f"adapter qlora on fsdp1: 4-bit weights stored as uint8 raise 'Cannot flatten integer dtype tensors'; their "
        f"storage must be the compute dtype ({storage})"
    )


OTHER_ENGINE: tuple[Changes, ...] = (change(engine=OWN_ENGINE),)


def _breaks_flat_shards(plan: Plan) -> bool:
    return OPTIMIZERS[plan.recipe.optimizer].is_factored and plan.layout.zero_stage > 0


def _breaks_muon(plan: Plan) -> bool:
    return OPTIMIZERS[plan.recipe.optimizer].orthogonalises_matrices and plan.layout.zero_stage > 0


def _flat_shards_message(plan: Plan) -> str:
    return f"optimizer {plan.recipe.optimizer} works on whole matrices, but fsdp1 leaves it one-dimensional shards"


def _breaks_fp8_base(plan: Plan) -> bool:
    return plan.recipe.adapter == "qlora" and plan.recipe.precision == "fp8-mixed"


def _fp8_base_message(_plan: Plan) -> str:
    return "precision fp8-mixed with adapter qlora: products in 8 bits do not take weights of 4 bits"


RULES = (
    Rule(
        name="recipe-fp8-quantised-base",
        why="A weight of 4 bits is unpacked to 16 bits and multiplied there; no engine multiplies it in 8.",
        source="bitsandbytes nn/modules.py (Linear4bit, compute_dtype)",
        reads=("precision", "adapter"),
        breaks=_breaks_fp8_base,
        message=_fp8_base_message,
        candidates=tuple(change(precision=name) for name in ("bf16-mixed", "fp16-mixed", "fp32")),
    ),
    Rule(
        name="recipe-lora-targets",
        why="An adapter without a matrix to stand beside has no parameter to train.",
        source="huggingface/peft tuners/tuners_utils.py (target modules not found in the base model)",
        reads=("adapter", "lora_rank", "lora_targets"),
        breaks=_breaks_targets,
        message=_targets_message,
        candidates=(change(lora_targets="attention"), change(lora_targets="all-linear")),
    ),
    Rule(
        name="engine-adapter",
        engines=("torchtitan", "megatron"),
        why="torchtitan and Megatron train LoRA on unquantised base weights.",
        source="torchtitan components/lora.py; no 4-bit weights anywhere in Megatron-LM",
        reads=("adapter",),
        breaks=_breaks_adapter,
        message=_adapter_message,
        candidates=(change(adapter="lora"),),
    ),
    Rule(
        name="engine-fsdp1-mixed-requires-grad",
        engines=("fsdp1",),
        severity="warning",
        why="FSDP1 flattens the weights of a unit into one; without use_orig_params all of them must train or none.",
        source="huggingface/peft issue 1702; torch 2.13 FlatParamHandle, run",
        breaks=_breaks_mixed_grad,
        message=_mixed_grad_message,
        candidates=OTHER_ENGINE,
        advice="or keep fsdp1 with use_orig_params=True, or wrap the trainable leaf modules separately",
    ),
    Rule(
        name="engine-fsdp1-integer-storage",
        engines=("fsdp1",),
        severity="warning",
        why="A flattened unit has one floating dtype; quantised weights take part only when they are stored in it.",
        source="axolotl-ai-cloud/axolotl issue 2250; torch 2.13 FlatParamHandle, run",
        breaks=_breaks_integer_storage,
        message=_integer_storage_message,
        candidates=OTHER_ENGINE,
        advice="or keep fsdp1 with bnb_4bit_quant_storage equal to the compute dtype; int8 is not supported",
    ),
    Rule(
        name="engine-fsdp1-flat-shards",
        engines=("fsdp1",),
        severity="warning",
        why="Adafactor factors whole matrices; on a slice of a flattened unit it keeps the full second moment.",
        source="torch distributed/fsdp/_flat_param.py; Shazeer and Stern 2018, arXiv:1804.04235",
        breaks=_breaks_flat_shards,
        message=_flat_shards_message,
        candidates=OTHER_ENGINE,
    ),
    Rule(
        name="engine-fsdp1-muon",
        engines=("fsdp1",),
        why="Muon orthogonalises whole matrices; torch's refuses the one-dimensional slices of a flattened unit.",
        source="torch 2.13 optim/_muon.py, run; distributed/fsdp/_flat_param.py",
        reads=("optimizer", "zero_stage"),
        breaks=_breaks_muon,
        message=_flat_shards_message,
        candidates=OTHER_ENGINE,
    ),
)
