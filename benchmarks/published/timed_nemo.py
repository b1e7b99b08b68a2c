"""Rates that NVIDIA publishes for NeMo AutoModel and Megatron-Bridge."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from benchmarks.published.bridge_modules import recomputed_modules
from benchmarks.published.parts import unused
from benchmarks.published.rows import MeasurementRow, read_rows
from benchmarks.published.timed_parts import TimedConversion, timed

from shardwise.catalog import read_cluster
from shardwise.cluster import Cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.recipe import Adapter, Recipe, Recompute

NODES = {
    "H100-SXM-80GB": "dgx-h100",
    "B200": "dgx-b200",
    "B300": "dgx-b300",
    "GB200": "gb200-nvl72-tray",
    "GB300": "gb300-nvl72-tray",
}
"""Catalogue id of the server behind a label; GB200 and GB300 trays hold four GPUs of an NVL72 rack."""

MODELS = {
    "Llama-3-8B": "llama-3.1-8b",
    "Llama-3-70B": "llama-3.1-70b",
    "Llama-3.1-405B": "llama-3.1-405b",
    "Qwen2.5-7B": "qwen2.5-7b",
    "Qwen2.5-32B": "qwen2.5-32b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "DeepSeek-V3": "deepseek-v3-671b",
    "GPT-OSS-120B": "gpt-oss-120b",
    "Kimi-K2": "kimi-k2",
    "Nemotron_3_Nano": "nemotron-3-nano-30b-a3b",
    "Nemotron_3_Super": "nemotron-3-super-120b-a12b",
    "Nemotron V3 Ultra 550B (26.04)": "nemotron-3-ultra-550b-a55b",
}
"""Catalogue name of a printed model."""


@lru_cache
def _model(name: str) -> ModelSpec:
    return read_model(MODELS[name])


MAX_SEGMENT_NODES = 18
"""Trays of one NVL72 rack."""


@lru_cache
def nvidia_cluster(gpu_label: str, num_gpus: int) -> Cluster:
    """The machines of a row; jobs on NVL72 racks are placed in equal segments of at most a rack.

    Source: NVIDIA-NeMo/Megatron-Bridge@067f987 scripts/performance/utils/executors.py: the largest number of trays up
    to 18 that divides the job is the segment that Slurm keeps inside one rack.
    """
    node = NODES[gpu_label]
    if not node.endswith("tray"):
        per_node = min(num_gpus, 8)
        return read_cluster({"node": node, "num_nodes": -(-num_gpus // per_node), "gpus_per_node": per_node})
    trays = -(-num_gpus // 4)
    segment = max(size for size in range(1, MAX_SEGMENT_NODES + 1) if trays % size == 0)
    return read_cluster({"node": node, "num_nodes": trays, "scale_up_domain_gpus": 4 * segment})


@dataclass(frozen=True, slots=True, kw_only=True)
class _AutoModelRun:
    """What a benchmark configuration of AutoModel sets beyond its row."""

    recompute: Recompute
    is_compiled: bool
    hides_tensor_parallel: bool = False


AUTOMODEL_RUNS = {
    ("Llama-3-70B", "pretrain"): _AutoModelRun(recompute="full", is_compiled=True),
    ("Llama-3-8B", "LoRA"): _AutoModelRun(recompute="none", is_compiled=False),
    ("Qwen2.5-7B", "LoRA"): _AutoModelRun(recompute="none", is_compiled=False),
    ("Llama-3-70B", "LoRA"): _AutoModelRun(recompute="full", is_compiled=True, hides_tensor_parallel=True),
    ("Qwen2.5-32B", "LoRA"): _AutoModelRun(recompute="full", is_compiled=True, hides_tensor_parallel=True),
    ("Qwen3-30B-A3B", "pretrain"): _AutoModelRun(recompute="full", is_compiled=False),
    ("DeepSeek-V3", "pretrain"): _AutoModelRun(recompute="full", is_compiled=False),
    ("Kimi-K2", "pretrain"): _AutoModelRun(recompute="full", is_compiled=False),
    ("Nemotron V3 Ultra 550B (26.04)", "pretrain"): _AutoModelRun(recompute="full", is_compiled=False),
}
"""NVIDIA-NeMo/Automodel@36044ad examples/llm_benchmark/*/*.yaml: activation_checkpointing, enable_compile and
enable_async_tensor_parallel. Configurations of experts are named after DeepEP
(``qwen/qwen3_moe_30b_te_deepep.yaml``)."""

AUTOMODEL_ASSUMPTIONS = (
    "weights, gradients and Adam in bf16 (torch_dtype: bf16); LoRA rank 16 on every projection",
    "recomputation and compilation of the benchmark configuration at the repository's head",
    "routing forced even by a fake balanced gate",
)


def convert_automodel(row: MeasurementRow) -> TimedConversion:
    """An AUTOMODEL row: FSDP2 with pipeline and expert parallelism on H100."""
    task: str = "LoRA" if row.text("task").startswith("LoRA") else "pretrain"
    run = AUTOMODEL_RUNS.get((row.text("model"), task))
    if run is None:
        return unused(row, "no benchmark configuration states recomputation, or the expert degree is not printed")
    if run.recompute == "full" and row.text("recompute") != "full":
        return unused(row, "an older layout whose recomputation is not stated")
    num_gpus, micro_batch, global_batch = (row.integer(name) for name in ("n_gpus", "micro_batch", "global_batch"))
    dp, tp, pp, cp, ep = (row.integer(name) or 1 for name in ("dp", "tp", "pp", "cp", "ep"))
    if not (num_gpus and micro_batch and global_batch):
        return unused(row, "batch not stated")
    vpp = (row.integer("vpp") or 1) if pp > 1 else 1
    adapter: Adapter = "lora" if task == "LoRA" else "none"
    plan = Plan(
        model=_model(row.text("model")),
        cluster=nvidia_cluster(row.text("gpu"), num_gpus),
        recipe=Recipe(
            seq_len=row.integer("seq_len") or 4096,
            micro_batch_size=micro_batch,
            global_batch_size=global_batch,
            precision="bf16",
            recompute=run.recompute,
            attention="flash",
            compile=run.is_compiled,
            adapter=adapter,
            lora_targets="all-linear",
            fused_loss=False,
            fused_optimizer=False,
        ),
        layout=Layout(
            dp_shard=dp,
            zero_stage=3 if dp > 1 else 0,
            tp=tp,
            pp=pp,
            cp=cp,
            ep=ep,
            vpp=vpp,
            schedule="interleaved" if vpp > 1 else "1f1b",
            sequence_parallel=tp > 1,
            reshard_after_forward=pp == 1,
            async_tensor_parallel=run.hides_tensor_parallel and tp > 1,
            expert_exchange="deepep" if ep > 1 else None,
        ),
        engine="torchtitan",
    )
    return timed(row, plan, assumptions=AUTOMODEL_ASSUMPTIONS)


BRIDGE_PRECISIONS = {
    "BF16": "bf16",
    "FP8": "fp8cs",
    "FP8-CS": "fp8cs",
    "FP8 (headline recipe)": "fp8cs",
    "FP8 (precision column absent in this release)": "fp8cs",
    "MXFP8": "fp8mx",
    "FP8-MX": "fp8mx",
    "FP8 (parenthesised recipe: other quantisation granularity)": "fp8mx",
}
"""Printed precision as the recipe files name it; NVFP4 is not a precision of a plan."""

BRIDGE_ASSUMPTIONS = (
    "recomputation and offload of the recipe file with this layout at the repository's head",
    "gradients reduced in bf16 (src/megatron/bridge/perf_recipes/_common.py: grad_reduce_in_fp32 = False)",
    "distributed optimizer; per-tensor and block-scaled fp8 are one precision to a plan",
)

CUDA_GRAPHS = "parts of the step are replayed as CUDA graphs, which hides launches"
WHOLE_GRAPHS = (
    "the whole step is one CUDA graph, with a fused kernel for experts and exchanges under other micro-batches"
)
WHOLE_GRAPHS_SINCE = "26.06"
"""First release whose recipes did (branch r0.5.0, pulls 4187, 4241 and 4249, 2026-06: ``set_full_iter_cg_configs``)."""
HIDDEN_EXCHANGE = "NCCL's exchange of experts runs under other micro-batches (overlap_moe_expert_parallel_comm)"
"""Since release 25.11 (v0.3.0 ``scripts/performance/configs/qwen``: ``moe_a2a_overlap=True`` and no flex backend)."""


def convert_bridge(row: MeasurementRow) -> TimedConversion:
    """An MBRIDGE row, when a recipe file of the repository has its layout and states the rest."""
    precision = BRIDGE_PRECISIONS.get(row.text("precision"))
    if precision is None:
        return unused(row, "NVFP4 is not a precision a recipe knows")
    if row.text("model") not in MODELS:
        return unused(row, "model not in the catalogue")
    recipe = _recipe_of(row, precision)
    if recipe is None:
        return unused(row, "no recipe file at the repository's head has this layout; recomputation is not printed")
    num_gpus, micro_batch, global_batch, dp = (
        row.integer(name) for name in ("n_gpus", "micro_batch", "global_batch", "dp")
    )
    if not (num_gpus and micro_batch and global_batch and dp):
        return unused(row, "batch not stated")
    return timed(
        row,
        _bridge_plan(row, recipe),
        assumptions=(*BRIDGE_ASSUMPTIONS, *((CUDA_GRAPHS,) if recipe.text("cuda_graphs") else ())),
        gaps=tuple(_bridge_gaps(row, recipe)),
        variant=row.text("precision"),
    )


def _bridge_gaps(row: MeasurementRow, recipe: MeasurementRow) -> Iterator[str]:
    """What the recipe of a row does that no plan says."""
    if recipe.text("offloaded_layers"):
        yield "activations of some layers are offloaded"
    if recipe.text("cuda_graphs") == "full_iteration" and row.text("source_date") >= WHOLE_GRAPHS_SINCE:
        yield WHOLE_GRAPHS
    if recipe.text("expert_exchange").endswith("hidden"):
        yield HIDDEN_EXCHANGE


def printed_layout(row: MeasurementRow, *, has_user_buffers: bool = False) -> Layout:
    """The layout of a row as NVIDIA's tables print it: Megatron's, with an optimizer or everything divided."""
    tp, pp, cp, ep = (row.integer(name) or 1 for name in ("tp", "pp", "cp", "ep"))
    vpp = (row.integer("vpp") or 1) if pp > 1 else 1
    return Layout(
        dp_shard=row.integer("dp") or 1,
        zero_stage=3 if row.text("shard").startswith("zero3") else 1,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        vpp=vpp,
        schedule="interleaved" if vpp > 1 else "1f1b",
        sequence_parallel=tp > 1,
        async_tensor_parallel=has_user_buffers and tp > 1,
    )


def _bridge_layout(row: MeasurementRow, recipe: MeasurementRow) -> Layout:
    layout = printed_layout(row, has_user_buffers=recipe.text("hides_tensor_parallel") == "yes")
    return replace(layout, expert_exchange="alltoall") if recipe.text("expert_exchange") else layout


def _bridge_plan(row: MeasurementRow, recipe: MeasurementRow) -> Plan:
    adapter: Adapter = "lora" if row.text("task") == "lora" else "none"
    modules = recomputed_modules(recipe.text("recompute"))
    recompute: Recompute = "full" if recipe.text("recompute") == "full" else "selective" if modules else "none"
    return Plan(
        model=_model(row.text("model")),
        cluster=nvidia_cluster(row.text("gpu"), row.integer("n_gpus") or 1),
        recipe=Recipe(
            seq_len=row.integer("seq_len") or 4096,
            micro_batch_size=row.integer("micro_batch") or 1,
            global_batch_size=row.integer("global_batch"),
            precision="bf16-mixed" if row.text("precision") == "BF16" else "fp8-mixed",
            recompute=recompute,
            recompute_layers=_recomputed_of_stage(row, recipe),
            recompute_modules=modules or None,
            attention="flash",
            compile=False,
            adapter=adapter,
            lora_targets="all-linear",
            fused_loss=True,
            reduce_dtype="bf16",
        ),
        layout=_bridge_layout(row, recipe),
        engine="megatron",
    )


def _recomputed_of_stage(row: MeasurementRow, recipe: MeasurementRow) -> int | None:
    """Blocks of a stage: ``recompute_num_layers`` counts those of each chunk (Megatron-LM ``transformer_block.py``)."""
    of_chunk = recipe.integer("recompute_layers")
    return None if of_chunk is None else of_chunk * printed_layout(row).vpp


def _recipe_of(row: MeasurementRow, precision: str) -> MeasurementRow | None:
    """The recipe file with the row's model, part, precision and layout."""
    gpu = row.text("gpu").split("-")[0].lower()
    same = ("model", "task", "tp", "pp", "micro_batch")
    for recipe in read_rows("recipes"):
        if recipe.text("gpu") != gpu or recipe.text("precision") != precision or recipe.text("variant"):
            continue
        layouts = (
            (recipe.integer("vpp") or 1, row.integer("vpp") or 1),
            (recipe.integer("cp") or 1, row.integer("cp")),
        )
        if all(recipe.text(name) == row.text(name) for name in same) and all(a == (b or 1) for a, b in layouts):
            return recipe
    return None
