"""How our own trainer holds states and units: facts of ``shardwise/train``, which reads some of them from here.

A search asks them about columns of layouts (:mod:`shardwise.columns`).
"""

from shardwise.columns import is_among, most, negated
from shardwise.engines.table import OWN_ENGINE
from shardwise.layout import Layout
from shardwise.model import AttentionSpec, ModelSpec
from shardwise.optimizers import OPTIMIZERS
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.schedules.table import SPLITTING_SCHEDULES

SUMS_BYTES = 32
"""Loss, tokens, squared gradient norm and requests to stop: four fp64 numbers in one sum over all ranks."""


def is_native_engine(plan: Plan) -> bool:
    """Whether our trainer runs the plan."""
    return plan.engine == OWN_ENGINE


def splits_backward(layout: Layout) -> bool:
    """Whether the gradients of inputs and of weights are computed apart."""
    return (layout.pp > 1) & is_among(layout.schedule, SPLITTING_SCHEDULES)


def is_replicated(layout: Layout) -> bool:
    """Whether every data-parallel rank keeps whole states."""
    return (layout.zero_stage == 0) | (layout.state_shard_size == 1)


def is_alone(layout: Layout) -> bool:
    """Whether one rank sees all tokens of its weights, so that no gradient is added up over ranks."""
    return (layout.data_parallel_size * layout.cp) == 1


def uses_ddp(*, layout: Layout, recipe: Recipe) -> bool:
    """Whether torch's DDP serves: whole states, nothing cast and no part of a matrix.

    Frozen weights are kept in what they are computed with, and adapters cast themselves. Otherwise whole states are
    units of FSDP2 over an axis of one rank, cast and reduced unit by unit, or of one rank halves.
    """
    is_cast = recipe.precision not in ("fp32", "bf16") and recipe.adapter == "none"
    is_plain = (layout.tp == 1) & (layout.ep == 1) & (not is_cast)
    return is_replicated(layout) & is_plain & (recipe.offload == "none")


def keeps_halves(*, layout: Layout, recipe: Recipe) -> bool:
    """Whether a run of one rank keeps fp32 weights as bf16, which it computes with, and the 16 bits rounded off.

    Nothing is gathered or cast, and gradients of a single micro-batch stay in bf16. Our AdamW alone updates halves.
    """
    is_bf16 = recipe.precision in ("bf16-mixed", "fp8-mixed") and recipe.adapter == "none"
    is_adamw = OPTIMIZERS[recipe.optimizer].updates_halves and recipe.offload == "none"
    return (layout.world_size == 1) & is_bf16 & is_adamw


def uses_units(*, layout: Layout, recipe: Recipe) -> bool:
    """Whether units of FSDP2 hold the states, over an axis of one rank where each rank keeps whole ones."""
    return negated(uses_ddp(layout=layout, recipe=recipe) | keeps_halves(layout=layout, recipe=recipe))


BF16_PRECISIONS = ("bf16", "bf16-mixed", "fp8-mixed")
"""Precisions whose blocks keep activations in bf16."""


def compiles_experts(*, layout: Layout, recipe: Recipe) -> bool:
    """Whether blocks with routed experts are compiled as a whole; otherwise their attention alone is.

    How many rows another rank sends depends on the tokens, and a compiler wants to know. torch 2.11 compiles grouped
    products in bf16 alone.
    """
    return (layout.ep == 1) & (recipe.precision in BF16_PRECISIONS) & recipe.compile


def weighs_expert_inputs(*, layout: Layout, recipe: Recipe, model: ModelSpec) -> bool:
    """Whether one function multiplies experts' activations by router weights and makes them again in backward.

    Where experts are divided, weights stay where their tokens are and multiply what comes back; what transformers
    builds multiplies the experts' output (``integrations/moe.py``, ``grouped_mm_experts_forward``).
    """
    return (layout.ep == 1) & (recipe.precision in BF16_PRECISIONS) & has_own_decoder(model)


def frees_after_forward(*, layout: Layout, recipe: Recipe) -> bool:
    """Whether blocks and the token table are freed after forward and gathered again; the last block stays."""
    return gathers_every_micro_batch(layout=layout, recipe=recipe) & layout.reshard_after_forward


def gathers_every_micro_batch(*, layout: Layout, recipe: Recipe) -> bool:
    """Whether whole parameters are freed when a micro-batch has gone backward, not when the step is done.

    Parameters on the host come to the device for every pass, also where one rank has them all.
    """
    is_elsewhere = negated(is_replicated(layout)) | (recipe.offload == "parameters")
    return is_elsewhere & (layout.zero_stage == 3) & (layout.pp == 1)


def reduces_every_micro_batch(layout: Layout) -> bool:
    """Whether gradients are reduced and scattered in every micro-batch, not once a step."""
    keeps_whole = is_replicated(layout) | (layout.zero_stage == 1) | (layout.pp > 1)
    return negated(keeps_whole) & (not layout.defer_grad_reduce)


OWN_DECODER_TYPES = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")
"""Models that our own decoder computes; transformers builds the others (``train/decoder/config.py``)."""
MAX_EXCHANGING_RANKS = 8
"""Ranks of one NVSwitch domain: an all-to-all over more ranks sends small messages between hosts."""


def spreads_vocabulary(plan: Plan) -> bool:
    """Whether data-parallel ranks divide token table and head by row, and tokens travel instead of matrices.

    By itself our trainer does so where the tokens of all ranks are no more than the rows of the matrix that is not
    gathered, so that what travels, and what a rank holds of it, is never larger.
    """
    layout, model = plan.layout, plan.model
    asked = layout.spread_vocabulary
    if asked is False or not is_native_engine(plan) or not has_own_vocabulary(model):
        return False
    can = can_spread_vocabulary(layout=layout, recipe=plan.recipe, vocab_size=model.vocab_size)
    is_small = layout.dp_shard * plan.recipe.tokens_per_micro_batch <= model.vocab_size
    return can & (bool(asked) | (is_small & is_in_one_domain(plan)))


def exchanges_gradients(plan: Plan) -> bool:
    """Whether gradients travel in the dtype they were made in and are added up in fp32 where they arrive."""
    asked = plan.layout.exchange_gradients
    if asked is False or not is_native_engine(plan):
        return False
    return can_exchange_gradients(plan.layout, plan.recipe) & (bool(asked) | is_in_one_domain(plan))


def clips_in_update(plan: Plan) -> bool:
    """Whether clipping is no pass over gradients of its own: our AdamW kernel on GPUs multiplies what it reads."""
    recipe = plan.recipe
    is_ours = is_native_engine(plan) and OPTIMIZERS[recipe.optimizer].clips_in_update and recipe.offload == "none"
    return is_ours and not plan.cluster.runs_on_cpu


def has_own_decoder(model: ModelSpec) -> bool:
    """Whether our own decoder computes the model, whose inside it can divide."""
    windows = (layer.mixer.sliding_window for layer, _ in model.layer_runs if isinstance(layer.mixer, AttentionSpec))
    return model.model_type in OWN_DECODER_TYPES and not any(windows)


def axes_inside(layout: Layout) -> tuple[str, ...]:
    """The axes of a layout that divide the inside of a model, which our trainer does to its own decoder alone.

    >>> axes_inside(Layout(dp_shard=4, tp=2, pp=2))
    ('tp', 'pp')
    """
    degrees = (("tp", layout.tp), ("cp", layout.cp), ("pp", layout.pp), ("ep", layout.ep))
    return tuple(name for name, degree in degrees if degree > 1)


DIVIDED_FAMILIES = (
    *OWN_DECODER_TYPES,
    *(
        "apertus",
        "arcee",
        "cwm",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "dots1",
        "ernie4_5",
        "exaone",
        "exaone4",
    ),
    *("exaone_moe", "gemma", "gemma3_text", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_neox", "granite"),
    *("granitemoe", "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "internlm3", "jais2"),
    *("ministral", "ministral3", "nemotron", "olmo", "smollm3", "solar_open", "starcoder2"),
)
"""Families whose inside tensor and expert parallelism divide where transformers builds them, by the splits of their
weights in ``families``; ``tests/train/test_divided_families.py`` holds each to one process."""
DIVIDED_AXES = ("tp", "ep")


def undivided_axes(layout: Layout, *, model_type: str) -> tuple[str, ...]:
    """The axes of a layout along which our trainer would have to divide what transformers builds, and does not.

    >>> undivided_axes(Layout(tp=2, pp=2), model_type="gemma3_text")
    ('pp',)
    """
    offered = DIVIDED_AXES if model_type in DIVIDED_FAMILIES else ()
    return tuple(axis for axis in axes_inside(layout) if axis not in offered)


def has_own_vocabulary(model: ModelSpec) -> bool:
    """Whether token table and head are two matrices of our own decoder."""
    return has_own_decoder(model) and model.has_head and not model.tie_word_embeddings


def can_spread_vocabulary(*, layout: Layout, recipe: Recipe, vocab_size: int) -> bool:
    """Whether a vocabulary may be divided so: by data-parallel ranks alone, each with tokens of its own.

    Other axes already divide the vocabulary (tp) or the model (pp), or need a second reduction (dp_replicate).
    """
    others = layout.tp * layout.pp * layout.cp * layout.ep * layout.dp_replicate
    return (
        (layout.zero_stage == 3)
        & (layout.dp_shard > 1)
        & (others == 1)
        & (vocab_size % most(1, layout.dp_shard) == 0)
        & (recipe.offload == "none")
        & (recipe.adapter == "none")
    )


def can_exchange_gradients(layout: Layout, recipe: Recipe) -> bool:
    """Whether gradients are in 16 bits when they are reduced, and by all ranks that divide them at once.

    Not where they add up over micro-batches first, in fp32, nor where experts are divided over other groups.
    """
    is_halved = recipe.precision in ("bf16-mixed", "fp8-mixed") and (recipe.reduce_dtype or "fp32") == "fp32"
    return (
        (is_halved and recipe.adapter == "none")
        & (layout.zero_stage >= 2)
        & (layout.ep == 1)
        & (layout.state_shard_size > 1)
        & (layout.state_shard_size <= MAX_EXCHANGING_RANKS)
        & reduces_every_micro_batch(layout)
    )


def is_in_one_domain(plan: Plan) -> bool:
    """Whether the ranks that divide states are few and joined by fast links."""
    layout, node = plan.layout, plan.cluster.node
    within = layout.tp * layout.state_shard_size
    return (layout.state_shard_size <= MAX_EXCHANGING_RANKS) & (within <= node.scale_up_domain_gpus)
