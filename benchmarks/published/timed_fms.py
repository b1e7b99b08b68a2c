"""Rates of fms-fsdp's table: Llama 2 under FSDP 1 with torch.compile on A100 and H100."""

from benchmarks.published.parts import decoder, row_shape, unused
from benchmarks.published.rows import MeasurementRow
from benchmarks.published.timed_parts import TimedConversion, machines, timed

from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe

NETWORKS = {"400 Gb/s per node": ("roce-100", 400.0), "800 Gb/s per node": ("roce-400", 800.0)}
"""Catalogue id for the latency, and all adapters of a node, by the printed network."""

ASSUMPTIONS = (
    "the printed Gbps are those of a node over RoCE; 4,096 tokens, the default of fms_fsdp/config/training.py",
    "parameters in fp32, computed and reduced in bf16 (fms_fsdp/policies/mixed_precision.py)",
)


def convert_fms(row: MeasurementRow) -> TimedConversion:
    """An FMSFSDP row; HSDP divides inside a node and repeats between nodes."""
    if row.text("recompute") != "none":
        return unused(
            row, "which share of the blocks is recomputed is not printed; its MFU and HFU contradict each other"
        )
    shape = row_shape(row)
    num_gpus, micro_batch, seq_len = (row.integer(name) for name in ("n_gpus", "micro_batch", "seq_len"))
    if shape is None or not (num_gpus and micro_batch and seq_len):
        return unused(row, "shape or batch not stated")
    network, node_gbit_per_s = NETWORKS[row.text("interconnect")]
    dp_shard = 8 if row.text("shard").startswith("HSDP") else num_gpus
    plan = Plan(
        model=decoder(shape),
        cluster=machines(
            gpu_label=row.text("gpu"), num_gpus=num_gpus, network=network, node_gbit_per_s=node_gbit_per_s
        ),
        recipe=Recipe(
            seq_len=seq_len,
            micro_batch_size=micro_batch,
            global_batch_size=micro_batch * num_gpus,
            precision="bf16-mixed",
            attention="flash",
            compile=True,
            reduce_dtype="bf16",
        ),
        layout=Layout(dp_replicate=num_gpus // dp_shard, dp_shard=dp_shard, zero_stage=3),
        engine="fsdp1",
    )
    return timed(row, plan, assumptions=ASSUMPTIONS)
