"""Rows measured on BigScience's Megatron-DeepSpeed: the topology sweeps before BLOOM and the 104B V100 runs."""

from functools import lru_cache

from benchmarks.published.parts import Conversion, Reading, cluster_for, measured, unused
from benchmarks.published.rows import MeasurementRow

from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.recipe import Precision, Recipe
from shardwise.validate.records import UnusedRow

BLOOM_VOCAB_SIZE = 250_880
"""The chronicle prints 250k; BLOOM's table has 250,880 rows."""

BLOOM_ASSUMPTIONS = (
    "Mem is nvidia-smi on the first and last node, read by eye: device memory in GB or GiB",
    "fp16 until the BF16 optimizer of 2022-02-28, which accumulates gradients in fp32",
    "the bf16 runs of 2022-02-17 keep the byte sizes of fp16: bf16 gradients, one fp32 copy of the weights",
    "full recomputation of every block, fused softmax but no flash attention, BLOOM's architecture",
)

TR8_ASSUMPTIONS = (
    "Mem is nvidia-smi, read by eye: device memory in GB or GiB",
    "Megatron GPT blocks, 50,257 tokens padded to the tensor-parallel size, full recomputation, ZeRO stage 1",
)

UNEVEN_WITHOUT_EMBEDDING = {(78, 12): (7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 1)}
"""Blocks per stage that the chronicle states for depths the stages do not divide."""

BLOCKING_FROM = "BLOOMT-014"
"""First row after the chronicle's section on hangs: 320 GPUs always hung without the setting, which was therefore kept;
the script that trained BLOOM exports it (``train/tr11-176B-ml/tr11-176B-ml.slurm``)."""

BALANCED_WITH_EMBEDDING_FROM = "BLOOMT-121"
"""First row run with ``--pp-partition-method type:transformer|embedding``."""


def convert_bloom_row(row: MeasurementRow) -> Conversion:
    """A BLOOMT row: GPT of about 200B on up to 384 A100, DeepSpeed pipeline and ZeRO stage 1."""
    if row.id == "BLOOMT-047":
        return unused(row, "65GB printed where a larger micro-batch takes 56GB; a misprint")
    plan = bloom_plan(row)
    if isinstance(plan, UnusedRow):
        return plan
    if row.text("status") == "oom":
        return measured(row, plan, None, outcome="oom", assumptions=BLOOM_ASSUMPTIONS)
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("mem_unit"), scope="device")
    return measured(row, plan, reading, assumptions=BLOOM_ASSUMPTIONS)


def bloom_plan(row: MeasurementRow) -> Plan | UnusedRow:
    """The plan of a BLOOMT row, for its memory and its rate."""
    num_gpus, hidden, tp, pp, dp = (row.integer(name) for name in ("n_gpus", "d_model", "tp", "pp", "dp"))
    micro_batch, global_batch = row.integer("micro_batch"), row.integer("global_batch")
    if not (num_gpus and hidden and tp and pp and dp and micro_batch and global_batch):
        return unused(row, "layout or batch not stated")
    layers = row.integer("n_layers") or layers_of_printed_size(
        size_params=row.number("n_params") or 0, hidden_size=hidden, pp=pp
    )
    if layers is None:
        return unused(row, "depth not stated and not recoverable from the printed size")
    return Plan(
        model=_bloom(hidden_size=hidden, num_layers=layers, num_heads=_heads(row, hidden), vocab_size=BLOOM_VOCAB_SIZE),
        cluster=cluster_for(gpu_label=row.text("gpu"), num_gpus=num_gpus),
        recipe=Recipe(
            seq_len=2048,
            micro_batch_size=micro_batch,
            global_batch_size=global_batch - global_batch % (micro_batch * dp),
            precision=_bloom_precision(row),
            recompute="full",
            attention="eager",
            compile=False,
        ),
        layout=Layout(
            dp_shard=dp,
            zero_stage=0 if row.text("shard").startswith("zero0") else 1,
            tp=tp,
            pp=pp,
            stage_layers=_stage_layers(row.id, layers=layers, pp=pp),
        ),
        engine="deepspeed",
    )


def layers_of_printed_size(*, size_params: float, hidden_size: int, pp: int) -> int | None:
    """Depth of a GPT whose printed size in whole billions counts its blocks with or without the token table.

    Only depths that the pipeline stages divide are tried, as the chronicle says they were chosen.

    >>> layers_of_printed_size(size_params=1.94e11, hidden_size=14400, pp=6)
    78
    >>> layers_of_printed_size(size_params=1.83e11, hidden_size=14400, pp=12)
    72
    """
    per_layer = 12 * hidden_size**2 + 13 * hidden_size
    table = BLOOM_VOCAB_SIZE * hidden_size
    billions = round(size_params / 1e9)
    candidates = [
        layers
        for layers in range(pp, 200, pp)
        if billions in (round(layers * per_layer / 1e9), round((layers * per_layer + table) / 1e9))
    ]
    if candidates:
        return candidates[0]
    nearest = round(size_params / per_layer / pp) * pp
    return nearest if abs(nearest * per_layer / size_params - 1) < 0.02 else None


def _heads(row: MeasurementRow, hidden: int) -> int:
    """Heads of the row; the tables of 2022-02-20 do not print them and head size only moves fused-softmax scratch."""
    stated = row.integer("n_heads")
    return stated if stated else (96 if hidden == 14400 else 64)


def _bloom_precision(row: MeasurementRow) -> Precision:
    return "bf16-mixed" if row.text("precision").startswith("bf16, fp32") else "fp16-mixed"


def _stage_layers(row_id: str, *, layers: int, pp: int) -> tuple[int, ...] | None:
    if row_id >= BALANCED_WITH_EMBEDDING_FROM and (layers + 2) % pp == 0 and pp > 1:
        per_stage = (layers + 2) // pp
        return (per_stage - 1, *([per_stage] * (pp - 2)), per_stage - 1)
    return UNEVEN_WITHOUT_EMBEDDING.get((layers, pp))


def has_blocking_launches(row_id: str) -> bool:
    """Whether a row was run after the chronicle met the hangs of large jobs with ``CUDA_LAUNCH_BLOCKING=1``."""
    return row_id >= BLOCKING_FROM


@lru_cache
def _bloom(*, hidden_size: int, num_layers: int, num_heads: int, vocab_size: int) -> ModelSpec:
    return read_model(
        {
            "model_type": "bloom",
            "hidden_size": hidden_size,
            "n_layer": num_layers,
            "n_head": num_heads,
            "vocab_size": vocab_size,
            "hidden_dropout": 0.1,
            "attention_dropout": 0.1,
            "seq_length": 2048,
        }
    )


def convert_tr8_row(row: MeasurementRow) -> Conversion:
    """A TR8 row: the wide 104B on 128 V100-32GB, with apex Adam or 8-bit Adam."""
    dp, tp, pp, micro_batch = (row.integer(name) for name in ("dp", "tp", "pp", "micro_batch"))
    layers, hidden, heads = (row.integer(name) for name in ("n_layers", "d_model", "n_heads"))
    if not (dp and tp and pp and micro_batch and layers and hidden and heads):
        return unused(row, "layout or shape not stated")
    if layers % pp:
        return unused(row, f"{layers} blocks cannot fill {pp} stages; the printed layout is impossible")
    plan = Plan(
        model=_megatron_gpt(hidden_size=hidden, num_layers=layers, num_heads=heads),
        cluster=cluster_for(gpu_label=row.text("gpu"), num_gpus=dp * tp * pp, gpus_per_node=4),
        recipe=Recipe(
            seq_len=2048,
            micro_batch_size=micro_batch,
            global_batch_size=2048,
            precision="fp16-mixed",
            optimizer="adamw-8bit" if "8-bit" in row.text("optimizer") else "adamw",
            recompute="full",
            attention="eager",
            compile=False,
        ),
        layout=Layout(dp_shard=dp, zero_stage=1, tp=tp, pp=pp),
        engine="deepspeed",
    )
    if row.text("status") == "oom":
        return measured(row, plan, None, outcome="oom", assumptions=TR8_ASSUMPTIONS)
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("mem_unit"), scope="device")
    return measured(row, plan, reading, assumptions=TR8_ASSUMPTIONS)


@lru_cache
def _megatron_gpt(*, hidden_size: int, num_layers: int, num_heads: int) -> ModelSpec:
    return read_model(
        {
            "model_type": "gpt2",
            "n_layer": num_layers,
            "n_embd": hidden_size,
            "n_inner": 4 * hidden_size,
            "n_head": num_heads,
            "vocab_size": 50_257,
            "n_positions": 2048,
            "attn_pdrop": 0.1,
            "resid_pdrop": 0.1,
            "embd_pdrop": 0.1,
        }
    )
