"""The figures of an answer on one line each: memory with its verdict, speed, and the whole run."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shardwise.ledger import TimeComponent
from shardwise.plan import Plan
from shardwise.predict.published import published_below
from shardwise.prediction import CostPrediction, MemoryPrediction, Prediction, RunningCost, Throughput, TimePrediction
from shardwise.render.names import gib_number
from shardwise.units import (
    Dollars,
    format_band,
    format_count,
    format_days,
    format_gib,
    format_percent,
    format_seconds,
    format_usd,
    format_utilisation,
)

if TYPE_CHECKING:  # a prediction is answered without the search
    from shardwise.search.what_if import WhatIf

AS_NOW = "as now"
SHORT_RATE = 10_000
"""Tokens per second below which every one is printed."""
MILLION_USD = 1e6
FITTING: Mapping[TimeComponent, str] = {"recompute": "recomputing", "offload": "waiting for the host"}
"""Parts of a step that nobody would spend on a GPU with more memory."""
NOTABLE_FITTING_FRACTION = 0.05
NOTABLE_ATTENTION_FRACTION = 0.5
"""From this share of the FLOP on, a sequence a tenth longer costs over 5 % of the tokens per second."""


def memory_words(prediction: Prediction) -> str:
    """GiB of GiB with the verdict; at the edge, by how much a prediction of memory may be too low."""
    memory = prediction.memory
    more = f" (may need {format_percent(memory.high_fraction - 1)} more)" if prediction.fit == "at the edge" else ""
    device = f"{gib_number(memory.needed_bytes)} of {format_gib(memory.capacity_bytes)} on the fullest GPU"
    return f"{device}{_host_words(memory)}: {prediction.fit}{more}"


def _host_words(memory: MemoryPrediction) -> str:
    """What is offloaded to each host, of what the host has where that is known."""
    if not memory.host_bytes_per_node:
        return ""
    capacity = f" of {format_gib(memory.host_capacity_bytes)}" if memory.host_capacity_bytes else ""
    return f" and {gib_number(memory.host_bytes_per_node)}{capacity or ' GiB'} on each host"


def shown_words(prediction: Prediction) -> str:
    """Why nvidia-smi shows more than a plan that fits needs; empty where it does not."""
    memory = prediction.memory
    if not (prediction.fits and memory.shows_cached_blocks):
        return ""
    shown = format_gib(memory.worst.device_used_bytes)
    return f"nvidia-smi would show {shown}: it counts freed blocks as well"


def speed_words(prediction: Prediction) -> str:
    """Step with its band, tokens per second of all GPUs and of one, MFU, and what the hardware costs."""
    throughput, time = prediction.throughput, prediction.time
    step, rate = format_seconds(time.step_s), throughput.tokens_per_s
    is_one = rate == throughput.tokens_per_s_per_gpu
    per_gpu = "" if is_one else f", {throughput.tokens_per_s_per_gpu:,.0f} per GPU"
    words = f"{rate:,.0f}" if is_one or rate < SHORT_RATE else format_count(rate)
    mfu = format_utilisation(throughput.mfu_fraction)
    more = f"{_attention_words(throughput)}{_fitting_words(prediction)}{_running_words(prediction)}"
    return f"{step} a step ({_band_words(time)}), {words} tokens/s{per_gpu}, MFU {mfu}{more}"


def published_words(plan: Plan, prediction: Prediction, *, is_short: bool = False) -> str:
    """The best published run of the same kind where the whole band of the prediction is faster; empty otherwise.

    The run is named as ``judge`` names it; in short without its source.
    """
    best = published_below(plan, prediction)
    if best is None:
        return ""
    named = best.id if is_short else f"{best.id}: {best.source}"
    return f"the best published run of its kind has MFU {format_percent(best.mfu_fraction)} ({named})"


def _attention_words(throughput: Throughput) -> str:
    """Attention's share of the work where it decides how many tokens a second are trained: with longer sequences it
    grows, and the rate falls though nothing else gets worse."""
    share = throughput.attention_fraction
    return f"; attention is {format_percent(share)} of the FLOP" if share >= NOTABLE_ATTENTION_FRACTION else ""


def _fitting_words(prediction: Prediction) -> str:
    """The price of needing no more memory, where it decides how many tokens a second are trained."""
    time = prediction.time
    spent = [entry.component for entry in time.components if entry.component in FITTING and entry.duration_s]
    share = time.share_of(spent)
    if not prediction.fits or share < NOTABLE_FITTING_FRACTION:
        return ""
    return f"; {' and '.join(FITTING[name] for name in spent)} to fit: {format_percent(share)} of the step"


def _running_words(prediction: Prediction) -> str:
    """Dollars of an hour and of 1B tokens; nothing where the cost of a whole run says the price."""
    running = prediction.running_cost
    if running is None or prediction.cost is not None:
        return ""
    each, all_gpus = format_usd(running.usd_per_gpu_hour), format_usd(running.usd_per_hour)
    hour = f"{each} an hour" if each == all_gpus else f"{all_gpus} an hour at {each} a GPU"
    return f"; {hour} ({running.price_source}), {_tokens_words(running)}"


def _tokens_words(running: RunningCost) -> str:
    return f"{format_usd(running.usd_per_billion_tokens)} per 1B tokens"


def hardware_words(running: RunningCost, *, beside: RunningCost | None) -> tuple[str, ...]:
    """Dollars of other hardware, the fullest first, and whose price it is where another's stands beside it."""
    is_other = beside is not None and beside.price_source != running.price_source
    whose = f" ({running.price_source})" if is_other else ""
    hour, tokens = f"{format_usd(running.usd_per_hour)} an hour", f"{_tokens_words(running)}{whose}"
    short = tokens.replace(" tokens", "")
    return f"{hour}, {tokens}", f"{hour}, {short}", tokens, short


def _band_words(time: TimePrediction) -> str:
    """The band of a step, in the unit of the step."""
    return format_band(time.step_low_s, time.step_high_s, of_s=time.step_s)


def run_words(cost: CostPrediction) -> str:
    """Days and dollars of the whole run with their bands: what is billed, with failures and restarts, at which price;
    then what its steps alone take."""
    start = f"{format_count(cost.tokens)} tokens: {with_band(cost, cost.days, format_days)}"
    goodput, best = f"goodput {format_percent(cost.goodput_fraction)}", f"steps alone {format_days(cost.best_days)}"
    if cost.usd is None or cost.usd_per_gpu_hour is None or cost.best_usd is None:
        return f"{start}; no price known ({best}; {goodput})"
    price = f"{format_usd(cost.usd_per_gpu_hour)} per GPU and hour ({cost.price_source})"
    billed = f"{with_band(cost, cost.usd, _usd_words)} billed at {price}"
    return f"{start}, {billed}; {best}, {_usd_words(cost.best_usd)}, {goodput}"


def with_band(cost: CostPrediction, amount: float, words: Callable[[float], str]) -> str:
    """An amount that follows from GPU-hours, with its band; without where speed and goodput were both given."""
    told, low, high = words(amount), *map(words, cost.ends(amount))
    unit = "".join(told.rpartition(" ")[1:])
    return told if low == high else f"{told} ({low.removesuffix(unit) if high.endswith(unit) else low} to {high})"


def _usd_words(amount_usd: Dollars) -> str:
    """Dollars, millions as ``$66.09M``: no prediction knows them to the dollar."""
    return f"${format_count(amount_usd)}" if amount_usd >= MILLION_USD else format_usd(amount_usd)


def change_words(change: "WhatIf") -> str:
    """How much longer or shorter the step is; where it is other work, how many tokens each GPU trains instead."""
    if change.is_same_work:
        return _percent_words(change.step_ratio, less="less")
    rate = _percent_words(change.rate_ratio, less="fewer")
    return f"tokens/s per GPU {rate}" if rate == AS_NOW else f"{rate} tokens/s per GPU"


def _percent_words(ratio: float, *, less: str) -> str:
    share = format_percent(abs(1 - ratio))
    return AS_NOW if share == format_percent(0) else f"{share} {less if ratio < 1 else 'more'}"
