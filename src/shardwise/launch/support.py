"""What a plan may ask for that the native runtime does not carry out: refused before anything starts."""

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.attention_kernels import ATTENTION_KERNELS
from shardwise.errors import PlanError
from shardwise.launch.surroundings import uses_gpus
from shardwise.launch.transformers_models import (
    ATTENTION_DROPOUT,
    SEES_LATER,
    WITHOUT_BLOCK_MASKS,
    carries_across_documents,
    has_class,
    has_moved_adapters,
    is_wrapped,
    needs_eager_attention,
    sees_too_much,
)
from shardwise.plan import Plan
from shardwise.schedules.table import SCHEDULE_KINDS
from shardwise.step.held_weights import adapts_feed_forward
from shardwise.step.native_engine import OWN_DECODER_TYPES
from shardwise.train.decoder.config import is_supported, left_out
from shardwise.train.job import Job, uses_transformers


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A field of a plan with values the runtime would have to ignore."""

    what: str
    """In words; ``{model_type}`` stands for the family."""
    is_asked: Callable[[Plan], bool]
    fix: str


TIED_IN_V = "tied embeddings in a V-shaped pipeline, whose first rank would hold both ends"


NF4_BLOCK = 64
"""Weights of a row that share a scale (``train/nf4.py``)."""


def _cuts_blocks(plan: Plan) -> bool:
    rows = (weight for layer, _ in plan.model.layer_runs for weight in layer.weights if weight.split == "row")
    tp = plan.layout.tp
    return tp > 1 and any(w.shape[-1] % (tp * NF4_BLOCK) for w in rows if w.is_matrix and not w.is_expert)


def _ties_ends_of_a_v(plan: Plan) -> bool:
    is_v = SCHEDULE_KINDS[plan.layout.schedule].doubles_chunks
    return plan.layout.pp > 1 and plan.model.tie_word_embeddings and is_v


GAPS = (
    Gap(
        what="training of {model_type}, a language model with parts for images or sound around it",
        is_asked=lambda plan: is_wrapped(plan.model),
        fix="set the model to a config.json that holds its text_config alone",
    ),
    Gap(
        what="training of {model_type}, of which transformers has no causal language model",
        is_asked=lambda plan: not has_class(plan.model),
        fix="set the model to a decoder that AutoModelForCausalLM builds",
    ),
    Gap(
        what="training of {model_type}, whose tokens see those that they are to predict",
        is_asked=lambda plan: sees_too_much(plan.model),
        fix="set the model to a decoder whose attention is causal",
    ),
    Gap(
        what="fused attention for {model_type}, which transformers builds without it",
        is_asked=lambda plan: plan.recipe.attention == "flash" and needs_eager_attention(plan.model),
        fix="set attention to eager (--attention eager)",
    ),
    *(
        Gap(
            what=f"attention by {ATTENTION_KERNELS[name].title}",
            is_asked=lambda plan, name=name: plan.recipe.attention_kernel == name,  # type: ignore[misc]
            fix="set attention_kernel to null (leave out --attention-kernel)",
        )
        for name in ("fa1", "fa3", "fa4", "flex")
    ),
    Gap(
        what="choice of kernels under context parallelism, which FlashAttention-2 computes",
        is_asked=lambda plan: plan.layout.cp > 1 and plan.recipe.attention_kernel not in (None, "fa2"),
        fix="set attention_kernel to null (leave out --attention-kernel)",
    ),
    Gap(
        what="use for attention_kernel with eager attention, which is no kernel of SDPA",
        is_asked=lambda plan: plan.recipe.attention == "eager" and plan.recipe.attention_kernel is not None,
        fix="set attention_kernel to null (leave out --attention-kernel)",
    ),
    Gap(
        what="use for fused_loss, whose loss is always made in pieces, and fused where it is compiled",
        is_asked=lambda plan: plan.recipe.fused_loss is not None,
        fix="set fused_loss to null (leave out --fused-loss and --no-fused-loss)",
    ),
    Gap(
        what="use for Liger's kernels, which replace modules of transformers",
        is_asked=lambda plan: plan.recipe.liger_kernels,
        fix="set liger_kernels to false (leave out --liger-kernels)",
    ),
    Gap(
        what="use for whole state dicts: every rank loads and saves its part",
        is_asked=lambda plan: {plan.recipe.load_state_dict, plan.recipe.save_state_dict} != {"sharded"},
        fix="set load_state_dict and save_state_dict to sharded",
    ),
    Gap(
        what="states of the textbook's sizes, which convention=seed predicts",
        is_asked=lambda plan: plan.recipe.convention == "seed",
        fix="set convention to engine",
    ),
    Gap(
        what="offload to NVMe",
        is_asked=lambda plan: plan.recipe.offload == "nvme",
        fix="set offload to optimizer or parameters",
    ),
    Gap(
        what="4-bit weights whose rows tensor parallelism divides within the 64 that share a scale",
        is_asked=lambda plan: plan.recipe.adapter == "qlora" and _cuts_blocks(plan),
        fix="set tp lower, or adapter to lora",
    ),
    Gap(
        what="adapters beside every matrix of {model_type}, of which peft would load some as those of experts",
        is_asked=lambda plan: (
            plan.recipe.adapter != "none"
            and adapts_feed_forward(plan.model.layers, plan.recipe.lora_targets)
            and has_moved_adapters(plan.model)
        ),
        fix="set lora_targets to attention (--lora-targets attention)",
    ),
    Gap(
        what="4-bit experts",
        is_asked=lambda plan: plan.recipe.adapter == "qlora" and plan.model.is_moe,
        fix="set adapter to lora",
    ),
    Gap(
        what="tensor parallelism inside experts",
        is_asked=lambda plan: plan.layout.expert_tp > 1,
        fix="set expert_tp to 1",
    ),
    Gap(
        what="asynchronous tensor parallelism",
        is_asked=lambda plan: plan.layout.async_tensor_parallel,
        fix="set async_tensor_parallel to false",
    ),
    Gap(
        what=TIED_IN_V,
        is_asked=lambda plan: _ties_ends_of_a_v(plan) and plan.layout.vpp == 1,
        fix="set schedule to 1f1b",
    ),
    Gap(
        what=TIED_IN_V,
        is_asked=lambda plan: _ties_ends_of_a_v(plan) and plan.layout.vpp > 1,
        fix="set schedule to interleaved",
    ),
    Gap(
        what="experts over tensor-parallel ranks without sequence parallelism",
        is_asked=lambda plan: plan.layout.ep > 1 and plan.layout.tp > 1 and not plan.layout.sequence_parallel,
        fix="set sequence_parallel to true",
    ),
)


def require_supported(plan: Plan) -> None:
    """Return when the runtime carries out every field of a plan.

    Raises:
        PlanError: it would have to ignore one.
    """
    asked = [gap for gap in GAPS if gap.is_asked(plan)]
    if asked:
        what = asked[0].what.format(model_type=plan.model.model_type)
        more = f" (and {len(asked) - 1} more)" if len(asked) > 1 else ""
        raise PlanError(f"the native runtime has no {what}{more}", code="train-not-supported", fix=asked[0].fix)


def packages_of(job: Job) -> tuple[str, ...]:
    """What ranks of the job import besides the package itself; adapters are our own, and ``peft`` only reads them."""
    is_model_exported = job.checkpoint.export_folder is not None and job.recipe.adapter == "none"
    return ("torch", "safetensors", *(("transformers",) if uses_transformers(job) or is_model_exported else ()))


def require_base(job: Job) -> None:
    """Return when adapters stand beside weights that were named, or random ones were asked for.

    Raises:
        PlanError: nobody said what the adapters adapt, so they would learn beside noise, with losses like any others.
    """
    recipe, spec = job.recipe, job.checkpoint
    if recipe.adapter != "none" and spec.initial_weights is None and not spec.accepts_random_weights:
        raise PlanError(
            f"adapter {recipe.adapter} has no weights to adapt: without --weights they are random"
            + (", also in a run that goes on from adapters" if spec.resume_from else ""),
            code="train-random-weights",
            fix="add --weights FOLDER with the model's checkpoint, or --random-weights to try speed and memory alone",
        )


def require_documents(job: Job) -> None:
    """Return when documents are kept apart as the plan and the data say.

    Raises:
        PlanError: a plan that counts on packed documents is run with some that see each other, which takes more time
            than was predicted; or the model cannot keep them apart.
    """
    length = job.recipe.mean_document_len
    if length is not None and not job.data.masks_documents:
        raise PlanError(
            f"the plan has documents of {length} tokens that do not see each other, and this run keeps none apart",
            code="train-documents",
            fix="add --data PATH --mask-documents, or set mean_document_len to null in the plan",
        )
    if job.data.masks_documents and uses_transformers(job):
        _require_documents_apart(job)


def _require_documents_apart(job: Job) -> None:
    fields = job.model_config
    model_type = fields["model_type"]
    if carries_across_documents(fields):
        raise PlanError(
            f"{model_type}, as transformers computes it, reads on from one packed document into the next: it has a"
            " state, or takes no places or no mask of documents",
            code="train-documents",
            fix="take --packing rows, or --packing stream without --mask-documents, or train another family",
        )
    if job.recipe.attention == "eager" or not uses_gpus(job.device):
        return
    if model_type in WITHOUT_BLOCK_MASKS:
        raise PlanError(
            f"on GPUs flex_attention keeps packed documents apart, and transformers builds {model_type} without it",
            code="train-documents",
            fix="set attention to eager (--attention eager)",
        )
    dropout = next((name for name in ATTENTION_DROPOUT if fields.get(name)), None)
    if dropout is not None:
        raise PlanError(
            f"on GPUs flex_attention keeps packed documents apart, which drops nothing, and the config has {dropout} "
            f"{fields[dropout]}",
            code="train-documents",
            fix=f"set {dropout} to 0 in config.json, or attention to eager (--attention eager)",
        )


def require_generation(job: Job) -> None:
    """Return when the layout can continue the prompts of a job, or there are none.

    Raises:
        PlanError: no rank sees whole sequences through the whole model.
    """
    layout = job.layout
    axis = "pp" if layout.pp > 1 else "cp" if layout.cp > 1 else None
    if job.validation.prompts is not None and axis is not None:
        raise PlanError(
            f"the native runtime writes nothing after prompts under {axis}={getattr(layout, axis)}: no rank has whole "
            "sequences and the whole model",
            code="train-generate",
            fix=f"leave out --generate, or set {axis} to 1",
        )


def require_attention(job: Job) -> None:
    """Return when whoever builds the model computes attention as the recipe and the config say, and causally.

    Raises:
        PlanError: our own decoder would have to write scores out, which it never does, or to compute what it cannot;
            or tokens would see those that they are to predict.
    """
    fields = job.model_config
    asked = next((name for name, values in SEES_LATER.items() if fields.get(name) in values), None)
    if asked is not None:
        raise PlanError(
            f"the config has {asked} {str(fields[asked]).lower()}: tokens would see those that they are to predict",
            code="train-not-supported",
            fix=f"leave {asked} out of config.json",
        )
    if job.implementation == "shardwise" and not is_supported(fields):
        name = left_out(fields) if fields["model_type"] in OWN_DECODER_TYPES else "model_type"
        raise PlanError(
            f"the native runtime's own decoder does not compute what {name} says in this config of "
            f"{fields['model_type']}",
            code="train-not-supported",
            fix="leave out --implementation, so that transformers builds the model",
        )
    if job.recipe.attention == "eager" and not uses_transformers(job):
        raise PlanError(
            "the native runtime has no eager attention in its own decoder",
            code="train-not-supported",
            fix="set attention to flash, or let transformers build the model: --implementation transformers",
        )
