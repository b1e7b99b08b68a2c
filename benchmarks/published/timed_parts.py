"""Parts every source of rates needs: machines by name, the measured step time, and the record of a run."""

from functools import lru_cache

from benchmarks.published.parts import GPU_IDS, DecoderShape, decoder, unused
from benchmarks.published.rows import MeasurementRow

from shardwise.catalog import read_cluster
from shardwise.cluster import Cluster
from shardwise.plan import Plan
from shardwise.units import TERA, Seconds
from shardwise.validate.records import TimedRun, UnusedRow

TimedConversion = TimedRun | UnusedRow
"""What becomes of a row: the run with its plan, or the reason it cannot be repeated."""


@lru_cache
def machines(
    *, gpu_label: str, num_gpus: int, network: str, gpus_per_node: int = 8, node_gbit_per_s: float | None = None
) -> Cluster:
    """``num_gpus`` parts with a source's label in nodes of ``gpus_per_node``, joined by a network of the catalogue.

    Args:
        gpu_label: the part as the source prints it.
        num_gpus: of the whole job; fewer than a node leaves the rest of the node out.
        network: id of the catalogue's network.
        gpus_per_node: GPUs of one server.
        node_gbit_per_s: all NICs of one server where there are fewer than GPUs.
    """
    per_node = min(num_gpus, gpus_per_node)
    fields: dict[str, object] = {
        "gpu": GPU_IDS[gpu_label],
        "gpus_per_node": per_node,
        "num_nodes": -(-num_gpus // per_node),
        "network": network,
    }
    if node_gbit_per_s is not None:
        fields["network_gbit_per_s_per_node"] = node_gbit_per_s
    return read_cluster(fields)


def selene(num_gpus: int) -> Cluster:
    """NVIDIA's Selene: DGX A100 80GB with eight HDR InfiniBand adapters a node (arXiv:2104.04473, section 5)."""
    return machines(gpu_label="A100-SXM-80GB", num_gpus=num_gpus, network="ib-hdr")


def megatron_gpt(
    *, hidden_size: int, num_layers: int, num_heads: int, vocab_size: int = 51_200, seq_len: int = 2048
) -> DecoderShape:
    """Megatron's GPT: four times wide feed-forward parts, learned positions, tied table, dropout 0.1."""
    return DecoderShape(
        model_type="gpt2",
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        vocab_size=vocab_size,
        max_position_embeddings=seq_len,
        tie_word_embeddings=True,
        dropout_fraction=0.1,
    )


def printed_gpt(row: MeasurementRow, *, vocab_size: int = 51_200) -> DecoderShape | None:
    """The GPT a row prints; ``None`` when its depth, width or heads are missing."""
    layers, hidden, heads = (row.integer(name) for name in ("n_layers", "d_model", "n_heads"))
    if not (layers and hidden and heads):
        return None
    return megatron_gpt(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        vocab_size=row.integer("vocab") or vocab_size,
        seq_len=row.integer("seq_len") or 2048,
    )


__all__ = [
    "TimedConversion",
    "decoder",
    "machines",
    "measured_step_s",
    "megatron_gpt",
    "printed_gpt",
    "selene",
    "timed",
    "unused",
]


def measured_step_s(row: MeasurementRow, plan: Plan) -> tuple[Seconds, str] | None:
    """Seconds of one step of ``plan`` at the printed rate, and what is printed; ``None`` when there is no rate.

    A plan's batch may be a whole number of micro-batches short of the printed one; the rate is kept.
    """
    step_s, global_batch = row.number("step_time_s"), row.number("global_batch")
    if step_s:
        printed = global_batch or plan.global_batch_size
        return step_s * plan.global_batch_size / printed, "step time"
    rate = row.number("tokens_per_s") or (row.number("tokens_per_s_per_gpu") or 0) * plan.layout.world_size
    if rate:
        return plan.tokens_per_step / rate, "tokens/s"
    samples = row.number("samples_per_s")
    return (plan.global_batch_size / samples, "samples/s") if samples else None


def step_s_of_rate(*, flop_per_step: float, tflop_per_s_per_gpu: float, num_gpus: int) -> Seconds:
    """Seconds of a step from TFLOP/s per GPU and the FLOP its source counts for the step."""
    return flop_per_step / (tflop_per_s_per_gpu * TERA * num_gpus)


def timed(
    row: MeasurementRow,
    plan: Plan,
    *,
    assumptions: tuple[str, ...] = (),
    gaps: tuple[str, ...] = (),
    step_s: Seconds | None = None,
    variant: str = "",
) -> TimedConversion:
    """The run of ``row`` repeated by ``plan`` at its printed rate, or at ``step_s`` derived from another figure."""
    found = (step_s, "TFLOP/s") if step_s is not None else measured_step_s(row, plan)
    if found is None:
        return unused(row, "neither step time nor tokens/s printed")
    measured_s, figure = found
    machine = f"{plan.cluster.num_gpus} x {row.text('gpu')}"
    return TimedRun(
        id=row.id,
        family=row.family,
        plan=plan,
        measured_s=measured_s,
        figure=figure,
        sweep=" / ".join((row.text("source_table"), row.text("model"), machine)),
        gaps=gaps,
        assumptions=assumptions,
        variant=variant,
        source=row.text("source"),
        date=row.text("source_date"),
    )
