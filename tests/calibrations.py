"""Calibrations written by hand, of machines with round figures."""

from dataclasses import replace

from shardwise.calibration import (
    AttentionPoint,
    BlockPoint,
    Calibration,
    GroupTable,
    MachineFacts,
    ProductPoint,
    Residual,
    TablesPoint,
    TimedBytes,
)

H100 = MachineFacts(
    device_kind="cuda",
    device="NVIDIA H100 80GB HBM3",
    gpu_id="h100-sxm",
    num_processes=8,
    host="node-7",
    processor="a processor",
    versions=(("torch", "2.11.0"), ("nccl", "2.28.9")),
    clocks_mhz=(("sm", 1980.0),),
    power_limit_w=700.0,
    command="shardwise calibrate",
)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def calibration(**parts):
    """A calibration of H100 with the parts that a test is about; equal to another of the same parts."""
    machine = parts.pop("machine", H100)
    return Calibration(digest=repr((machine, parts)), date="2026-11-28", machine=machine, **parts)


def timed_core(**changes):
    """Attention of 32 heads over 8,192 tokens, of which a test says at least how long it took."""
    sizes = {"num_sequences": 1, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "seq_len": 8192}
    return AttentionPoint(**{**sizes, "dtype": "bf16", **changes})


def tables(*, bytes_per_s, latency_s=20e-6, sizes=(2, 4, 8)):
    """Every collective of every size of group at one rate of payload."""
    return tuple(
        GroupTable(
            kind=kind,
            group_size=size,
            stride=1,
            points=tuple(
                TimedBytes(num_bytes=2**exponent, duration_s=latency_s + 2**exponent / bytes_per_s)
                for exponent in (12, 16, 20, 24, 28)
            ),
        )
        for kind in KINDS
        for size in sizes
    )


def full():
    """One of everything."""
    return calibration(
        products=(ProductPoint(product_pass="forward", dtype="bf16", m=4096, n=4096, k=4096, duration_s=250e-6),),
        attention=(timed_core(forward_s=2e-3, backward_s=5e-3),),
        moves=(TimedBytes(num_bytes=2**20, duration_s=2e-6), TimedBytes(num_bytes=2**30, duration_s=500e-6)),
        optimizer=(TimedBytes(num_bytes=2**30, duration_s=450e-6),),
        collectives=tables(bytes_per_s=200e9),
        blocks=(BLOCK, replace(BLOCK, is_sharded=True, forward_s=6e-3)),
        tables=(TablesPoint(hidden_size=2048, vocab_size=32000, num_tokens=4096, dtype="bf16", duration_s=20e-3),),
        kernel_launch_s=8e-6,
        overlap_slowdown_ratio=1.25,
        meeting_s=12e-6,
        host_to_device_bytes_per_s=25e9,
        disk_write_bytes_per_s=1e9,
        residuals=(Residual(name="compute", ratio=1.05, num_runs=3),),
    )


BLOCK = BlockPoint(
    hidden_size=2048,
    intermediate_size=8192,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    seq_len=4096,
    num_sequences=1,
    dtype="bf16",
    is_sharded=False,
    forward_s=5e-3,
    backward_s=11e-3,
)
