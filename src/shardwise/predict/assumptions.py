"""Sentences for the user: what a prediction takes for granted."""

from collections.abc import Iterator

from shardwise.attention_kernels import ATTENTION_KERNELS
from shardwise.engines.profile import SelectivePolicy
from shardwise.engines.table import ENGINES, EngineName, engine_profile, state_bytes
from shardwise.plan import Plan
from shardwise.predict.group_placement import placement_doubts
from shardwise.predict.kernel_rates import attention_origin, kernel_rates
from shardwise.predict.offload_time import ASSUMED_DRIVES_PER_NODE, host_adam_bytes_per_s, host_copy_sentence
from shardwise.predict.product_rates import (
    DEFAULT_GEMM_FRACTION,
    UNTABLED_FRACTION,
    product_rates,
    sustained_share,
)
from shardwise.predict.time_band import band_sentences, is_attention_doubted
from shardwise.step.attention_kernel import attention_kernel
from shardwise.step.expert_exchange import expert_exchange
from shardwise.step.expert_routing import imbalance_ratio, natural_imbalance_ratio
from shardwise.step.native_engine import is_native_engine, keeps_halves
from shardwise.step.operation_context import SKEWED_ROUTING_RATIO

SELECTIVE_WORDS: dict[SelectivePolicy, str] = {
    "operations": "attention and every second matrix product are kept, the rest is recomputed (torchtitan's policy)",
    "core_attention": "scores and softmax of attention are recomputed, the rest is kept (Megatron's policy)",
}


def plan_assumptions(plan: Plan) -> tuple[str, ...]:
    """Everything assumed about model, cluster and step, the most general first."""
    engine = () if plan.recipe.convention == "seed" else _reinterpretations(plan)
    return (
        *plan.model.assumptions,
        *plan.cluster.assumptions,
        *engine,
        *_step_assumptions(plan),
        *_host_assumptions(plan),
        *band_sentences(plan),
        *_link_assumptions(plan),
    )


def _reinterpretations(plan: Plan) -> Iterator[str]:
    """Fields of the recipe that mean something else to this engine than their names say, one sentence each."""
    recipe, engine = plan.recipe, plan.engine
    if recipe.precision == "bf16" and _keeps_master_in_bf16(engine):
        yield f"precision=bf16 means bf16-mixed to {engine}: it keeps fp32 master weights and moments in bf16 training"
    facts = ENGINES[engine]
    if recipe.precision in facts.precision_notes:
        yield facts.precision_notes[recipe.precision]
    if recipe.compile and not facts.has_compile_switch:
        yield f"compile=true: {engine} has no such switch; its own fused kernels are counted either way"
    yield from facts.assumptions
    if recipe.recompute == "selective" and recipe.recompute_modules is None:
        yield f"recompute=selective: {SELECTIVE_WORDS[engine_profile(engine).selective_policy]}"
    elif recipe.recompute == "selective":
        yield f"recompute_modules={','.join(recipe.recompute_modules or ())} are recomputed, the rest is kept"
        if recipe.precision == "fp8-mixed" and {"layernorm", "moe_act"} & set(recipe.recompute_modules or ()):
            yield "fp8-mixed scales by current or block maxima: Megatron refuses these modules with delayed scaling"
    if is_native_engine(plan) and keeps_halves(layout=plan.layout, recipe=recipe):
        yield (
            "one GPU keeps fp32 weights as two halves of 16 bits; gradients of a single micro-batch stay in bf16, "
            "and gradients of several add up in fp32, which takes 2 bytes per parameter more"
        )
    if recipe.offload == "parameters":
        yield "offload=parameters moves gradients and optimizer states to the host as well"
    if recipe.offload == "nvme":
        yield "offload=nvme moves optimizer states to drives, parameters and gradients to the host"


def _kernel_assumptions(plan: Plan) -> Iterator[str]:
    """Whose kernels stand for this part's, and what power leaves of them."""
    gpu = plan.cluster.gpu
    products, share = product_rates(gpu), sustained_share(gpu)
    if products.is_measured and not products.table:
        yield (
            f"matrix products of {gpu.id}: only the best shape is known, of which real layers are taken to hold "
            f"{UNTABLED_FRACTION:.0%}"
        )
    elif products.table and products.table != gpu.id:
        held = f", held at {share:.0%} of the peak by its power limit" if share < 1 else ""
        yield f"matrix products of {gpu.id} are scaled from those timed on {products.table}{held}"
    yield from _scaled_attention(plan)
    if is_attention_doubted(plan):
        part = attention_origin(attention_kernel(plan), gpu.arch).borrowed_from
        yield (
            f"fused attention was not timed on {gpu.arch}; the shares of the peak it reaches on {part} stand in, "
            "expect a wider band"
        )


def _scaled_attention(plan: Plan) -> Iterator[str]:
    """Names the kernel whose timed figures stand for those of the plan's attention."""
    kernel, arch = attention_kernel(plan), plan.cluster.gpu.arch
    if kernel == "math" or plan.model.attention is None or plan.recipe.precision == "fp32":
        return
    scaled = attention_origin(kernel, arch).scaled
    if scaled is None:
        return
    title, other = ATTENTION_KERNELS[kernel].title, ATTENTION_KERNELS[scaled.of].title
    yield (
        f"attention by {title} has no figures for {arch}: those of {other}, times {scaled.forward_ratio:g} forward and "
        f"{scaled.backward_ratio:g} backward, stand in ({scaled.source})"
    )


def _link_assumptions(plan: Plan) -> Iterator[str]:
    """Assumptions about links that are not known, and about how tokens reach experts of other hosts."""
    yield from placement_doubts(plan.cluster)
    crosses = plan.layout.ep > 1 and plan.cluster.num_gpus > plan.cluster.node.scale_up_domain_gpus
    if crosses and plan.model.is_moe and plan.layout.expert_exchange is None:
        yield (
            "a token crosses the network once for every host with experts of its own, as with Megatron's flex "
            "dispatcher (DeepEP, HybridEP); expert_exchange=alltoall sends one copy per expert"
            if expert_exchange(plan) == "deepep"
            else "every copy of a token crosses the network by NCCL's all-to-all; expert_exchange=deepep sends a token "
            "once to every host, where the engine has it"
        )


def _keeps_master_in_bf16(engine: EngineName) -> bool:
    pure, mixed = (state_bytes(engine=engine, precision=precision) for precision in ("bf16", "bf16-mixed"))
    return pure == mixed


def _routing_assumption(plan: Plan) -> str:
    given, ratio = plan.recipe.routing_imbalance_ratio, imbalance_ratio(plan)
    if plan.layout.ep == 1 and (given is None or given == 1):
        return (
            "every rank holds all experts, so no rank waits for another; uneven shares slow their products by up to "
            f"{SKEWED_ROUTING_RATIO - 1:.0%} (routing_imbalance_ratio)"
        )
    if plan.layout.ep == 1:
        return (
            f"every rank holds all experts: uneven routing slows their products by "
            f"{min(ratio, SKEWED_ROUTING_RATIO) - 1:.0%} at most, whatever routing_imbalance_ratio is"
        )
    if given is None and plan.model.moe is not None and plan.recipe.adapter == "none":
        new = natural_imbalance_ratio(plan.model.moe, ep=plan.layout.ep, is_trained=False)
        return (
            f"a loss or biases even out the loads of experts, as in nearly all steps of a run; new routers begin with "
            f"{new:.2g} times the mean on the fullest of {plan.layout.ep} ranks, and every layer waits for it "
            f"(routing_imbalance_ratio={new:.2g})"
        )
    if given is None:
        return (
            f"tokens go where trained routers send them: the fullest of {plan.layout.ep} ranks of experts has "
            f"{ratio:.2f} times the mean, and every layer waits for it (routing_imbalance_ratio)"
        )
    if ratio == 1:
        return "tokens are routed evenly over experts, as where a benchmark balances them by force"
    return (
        f"every layer waits for a rank with {ratio:g} times the mean number of tokens, in the experts' products and in "
        "the exchanges around them; memory is that of even routing"
    )


def _step_assumptions(plan: Plan) -> Iterator[str]:
    gpu, recipe, layout = plan.cluster.gpu, plan.recipe, plan.layout
    profile = engine_profile(plan.engine)
    if not kernel_rates(gpu=gpu, profile=profile, head_dim=128).is_measured:
        yield (
            f"no matrix-product measurement is known for {gpu.id}; "
            f"{DEFAULT_GEMM_FRACTION:.0%} of its peak stands in (torch's own estimator)"
        )
    yield from _kernel_assumptions(plan)
    if recipe.precision == "bf16-mixed" and gpu.is_bf16_peak_unpublished:
        yield f"the bf16 peak of {gpu.id} is not published; its fp32 rate stands in, so steps may be much faster"
    elif recipe.precision == "bf16-mixed" and not gpu.peak_flop_per_s("bf16"):
        yield f"{gpu.id} has no bf16 matrix units; products run at the fp32 rate"
    if recipe.precision == "fp8-mixed" and not gpu.peak_flop_per_s("fp8"):
        yield f"{gpu.id} has no fp8 matrix units; products run in bf16"
    if plan.model.is_moe:
        yield _routing_assumption(plan)
    if plan.model.num_side_params:
        yield "towers and other attachments beside the blocks are counted in memory and left out of the step time"
    overlaps = profile.sharding == "megatron" and recipe.overlap_grad_reduce is None
    if overlaps and layout.zero_stage in (1, 2) and layout.data_parallel_size > 1:
        yield "Megatron runs with --overlap-grad-reduce and --overlap-param-gather"


def _host_assumptions(plan: Plan) -> Iterator[str]:
    """Assumed rates of host copies, CPU Adam and drives, for plans that offload."""
    recipe = plan.recipe
    if recipe.offload != "none" or recipe.activation_offload:
        yield host_copy_sentence(plan.cluster.node)
    if recipe.offload != "none":
        rate = host_adam_bytes_per_s(plan.cluster.node) / 1e9
        yield f"CPU Adam reaches {rate:.0f} GB/s of host memory bandwidth per node"
    if recipe.offload == "nvme":
        yield f"{ASSUMED_DRIVES_PER_NODE} NVMe drives per node share the optimizer states"
