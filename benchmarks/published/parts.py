"""Parts every source needs: the model of a shape, the machines of a GPU label, and the interval a figure stands for."""

from dataclasses import dataclass
from functools import lru_cache

from benchmarks.published.rows import MeasurementRow

from shardwise.catalog import read_cluster
from shardwise.cluster import Cluster
from shardwise.families import read_model
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.units import GB, GIB, MB, MIB, Bytes
from shardwise.validate.records import MeasuredRun, Outcome, Scope, UnusedRow

Conversion = tuple[MeasuredRun, ...] | UnusedRow
"""What becomes of a row: the readings it publishes, each with its plan, or the reason it cannot be repeated."""

GPU_IDS = {
    "A100-SXM-80GB": "a100-sxm-80",
    "A100-SXM4-80GB": "a100-sxm-80",
    "A100-80GB": "a100-sxm-80",
    "a100-80GB": "a100-sxm-80",
    "A100-40GB": "a100-sxm-40",
    "A100-SXM-40GB": "a100-sxm-40",
    "a100-40GB": "a100-sxm-40",
    "A800-80GB": "a800-sxm-80",
    "B200-SXM": "b200-sxm",
    "B200": "b200-sxm",
    "H200-141GB": "h200-sxm",
    "B200-180GB": "b200-sxm",
    "H100-SXM-80GB": "h100-sxm",
    "h100-80GB": "h100-sxm",
    "H100-80GB (DGX)": "h100-sxm",
    "H100-96GB-HBM2e-500W": "h100-96-hbm2e",
    "H100-95GB-HBM2e": "h100-96-hbm2e",
    "H100-95GB-HBM2e (lower TDP)": "h100-96-hbm2e",
    "MI300X": "mi300x",
    "V100-SXM2-32GB": "v100-sxm2-32",
    "RTX 4090": "rtx-4090",
    "RTX4090-24GB": "rtx-4090",
    "RTX3090-24GB": "rtx-3090",
    "RTX A6000": "rtx-a6000",
    "A10G-24GB": "a10g",
    "A100 (variant not stated)": "a100-sxm-80",
}
"""Catalogue id of the part behind a source's GPU label."""


@lru_cache
def cluster_for(*, gpu_label: str, num_gpus: int, gpus_per_node: int = 8) -> Cluster:
    """The cluster of ``num_gpus`` parts with a source's label, in nodes of at most ``gpus_per_node``."""
    per_node = min(num_gpus, gpus_per_node)
    return read_cluster(
        {
            "gpu": GPU_IDS[gpu_label],
            "gpus_per_node": per_node,
            "num_nodes": -(-num_gpus // per_node),
            "network": "ib-ndr",
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """The numbers that fix a dense decoder of a known model type."""

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = False
    dropout_fraction: float = 0.0


@lru_cache
def decoder(shape: DecoderShape) -> ModelSpec:
    """The model of a shape, read the way a user's ``config.json`` is read."""
    if shape.model_type == "gpt2":
        return read_model(_gpt2_config(shape))
    return read_model(
        {
            "model_type": shape.model_type,
            "num_hidden_layers": shape.num_hidden_layers,
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "num_attention_heads": shape.num_attention_heads,
            "num_key_value_heads": shape.num_key_value_heads,
            "vocab_size": shape.vocab_size,
            "max_position_embeddings": shape.max_position_embeddings,
            "tie_word_embeddings": shape.tie_word_embeddings,
        }
    )


def _gpt2_config(shape: DecoderShape) -> dict[str, object]:
    return {
        "model_type": "gpt2",
        "n_layer": shape.num_hidden_layers,
        "n_embd": shape.hidden_size,
        "n_inner": shape.intermediate_size,
        "n_head": shape.num_attention_heads,
        "vocab_size": shape.vocab_size,
        "n_positions": shape.max_position_embeddings,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "attn_pdrop": shape.dropout_fraction,
        "resid_pdrop": shape.dropout_fraction,
        "embd_pdrop": shape.dropout_fraction,
    }


def row_shape(row: MeasurementRow) -> DecoderShape | None:
    """The Llama-like shape a ``memory.csv`` row states; ``None`` when a number of it is missing."""
    columns = ("n_layers", "d_model", "d_ffn", "n_heads", "n_kv_heads", "vocab")
    layers, hidden, ffn, heads, kv_heads, vocab = (row.integer(column) for column in columns)
    if not (layers and hidden and ffn and heads and kv_heads and vocab):
        return None
    return DecoderShape(
        model_type="llama",
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
    )


def figure_interval_bytes(*, figure: str, unit: str) -> tuple[Bytes, Bytes]:
    """Lowest and highest byte count that a printed memory figure can stand for.

    "GiB" and "MiB" are taken at their word; "GB" may be 1e9 bytes or, as many tools print it, GiB; "MB" likewise.
    Rounding of the last printed digit is not forgiven.

    >>> figure_interval_bytes(figure="30", unit="GB")
    (30000000000, 32212254720)
    """
    low_unit, high_unit = UNIT_BYTES[unit]
    return round(float(figure) * low_unit), round(float(figure) * high_unit)


UNIT_BYTES = {
    "GiB": (GIB, GIB),
    "MiB": (MIB, MIB),
    "GB": (GB, GIB),
    "MB": (MB, MIB),
    "G (as printed)": (GB, GIB),
    "GB (1e9)": (GB, GB),
    "bytes": (1, 1),
}
"""Bytes of a unit as printed: the smallest and the largest thing the word is used for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A published figure of one row."""

    figure: str
    unit: str
    scope: Scope


def measured(
    row: MeasurementRow,
    plan: Plan,
    reading: Reading | None,
    *,
    outcome: Outcome = "fits",
    assumptions: tuple[str, ...] = (),
) -> tuple[MeasuredRun, ...]:
    """The run of ``row`` repeated by ``plan``, with the figure it publishes, if any."""
    low, high = figure_interval_bytes(figure=reading.figure, unit=reading.unit) if reading else (None, None)
    return (
        MeasuredRun(
            id=row.id,
            family=row.family,
            plan=plan,
            measured_low_bytes=low,
            measured_high_bytes=high,
            scope=reading.scope if reading else "unknown",
            outcome=outcome,
            decides_outcome=True,
            assumptions=assumptions,
            source=row.text("source"),
            date=row.text("source_date"),
            split=row.text("split"),
        ),
    )


def unused(row: MeasurementRow, reason: str) -> UnusedRow:
    """``row`` with the reason why no plan repeats it."""
    return UnusedRow(id=row.id, family=row.family, reason=reason)
