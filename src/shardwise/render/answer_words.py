"""The figures of an answer on one line each: memory with its verdict, speed, and the whole run."""

from shardwise.prediction import CostPrediction, Prediction
from shardwise.render.names import gib_number
from shardwise.units import format_count, format_gib, format_percent, format_seconds, format_usd, format_utilisation


def memory_words(prediction: Prediction) -> str:
    """GiB of GiB with the verdict; at the edge, by how much a prediction of memory may be too low."""
    memory = prediction.memory
    said = f"{gib_number(memory.needed_bytes)} of {format_gib(memory.capacity_bytes)} on the fullest GPU: "
    if prediction.fit == "at the edge":
        return f"{said}at the edge (may need {format_percent(memory.high_fraction - 1)} more)"
    return f"{said}{prediction.fit}"


def speed_words(prediction: Prediction) -> str:
    """Step, tokens per second of all GPUs and of one, and MFU."""
    throughput = prediction.throughput
    return (
        f"{format_seconds(prediction.time.step_s)} a step, {format_count(throughput.tokens_per_s)} tokens/s, "
        f"{throughput.tokens_per_s_per_gpu:,.0f} per GPU, MFU {format_utilisation(throughput.mfu_fraction)}"
    )


def run_words(cost: CostPrediction) -> str:
    """Days and dollars of the whole run, failures and restarts included."""
    money = "no price known" if cost.usd is None else f"{format_usd(cost.usd)} billed"
    goodput = format_percent(cost.goodput_fraction)
    return f"{format_count(cost.tokens)} tokens: {cost.days:,.1f} days, {money} (goodput {goodput})"
