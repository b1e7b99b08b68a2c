"""GPU-hours, days, dollars and energy of a whole run: from a predicted plan, or from a model and an assumed MFU."""

from dataclasses import dataclass, replace
from math import isfinite

from shardwise.cluster import Dtype, Gpu, Price
from shardwise.errors import RecipeError
from shardwise.formulas import run_cost
from shardwise.formulas.flop_counts import six_n_flop_per_token
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.predict.cost_sensitivity import (
    Spread,
    goodput_spread,
    mfu_spread,
    price_spread,
    published_mfu,
    sensitivities,
    step_time_spread,
    tuning_spread,
)
from shardwise.predict.goodput import (
    GOOD,
    POOR,
    TYPICAL,
    Goodput,
    other_losses_sentence,
    predict_goodput,
)
from shardwise.predict.model_flop import mfu_convention, model_flop_per_token
from shardwise.predict.time_band import independent_ratios
from shardwise.prediction import CostPrediction, RunningCost, Throughput, TimePrediction
from shardwise.recipe import MAX_SEQ_LEN
from shardwise.units import Dollars, FlopPerSecond

TOKENS_FIX = "set tokens=1e12"
LOWEST_SHARE = 0.001
"""Smallest MFU and goodput accepted: no run is slower, and smaller shares make years that no number holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRequest:
    """A run to be priced without a layout: its FLOP, hardware and the share of the hardware's peak that is reached."""

    model: ModelSpec
    tokens: float
    gpu: Gpu
    num_gpus: int
    mfu_fraction: float | None = None
    """The user's MFU; ``None`` takes the middle of published runs on such parts and says how far others lie from it."""
    seq_len: int | None = None
    """Sequence length with which causal attention is counted too; ``None`` counts ``6 N``."""
    usd_per_gpu_hour: Dollars | None = None
    """The user's price; it takes precedence over ``prices``."""
    prices: tuple[Price, ...] = ()
    """The price book of the GPU, the one that is used first; how far apart they are is a part of the answer."""
    goodput_fraction: float | None = None
    """The user's goodput; ``None`` predicts a band from published failure rates."""


def estimate_cost(request: CostRequest) -> CostPrediction:
    """Cost of a run from its FLOP and an assumed MFU.

    Raises:
        RecipeError: a figure that cannot be: tokens, MFU, goodput, price or number of GPUs out of range.
    """
    _check(request)
    if request.seq_len is None:
        per_token = six_n_flop_per_token(num_params=request.model.num_active_params)
        convention = "6N with every active parameter"
    else:
        per_token = model_flop_per_token(request.model, seq_len=request.seq_len)
        convention = f"{mfu_convention(request.model)} of {request.seq_len:,} tokens a sequence"
    dtype, peak = training_peak(request.gpu)
    published = published_mfu(request.gpu)
    mfu_fraction = published.typical_fraction if request.mfu_fraction is None else request.mfu_fraction
    ideal_hours = run_cost.gpu_hours(
        total_flop=per_token * request.tokens, peak_flop_per_s=peak, mfu_fraction=mfu_fraction
    )
    origin = f", the middle of {published.runs}" if request.mfu_fraction is None else ""
    sentence = (
        f"MFU {mfu_fraction:.1%} of the dense {dtype} peak ({peak / 1e12:.0f} TFLOP/s) is assumed{origin}; "
        f"FLOP are counted as {convention}"
    )
    spread = mfu_spread(published) if request.mfu_fraction is None else None
    return _priced(request, ideal_hours, rate=spread, assumptions=(sentence,))


def predict_cost(
    *,
    plan: Plan,
    time: TimePrediction,
    throughput: Throughput,
    usd_per_gpu_hour: Dollars | None = None,
    goodput_fraction: float | None = None,
    origin: str = "",
) -> CostPrediction | None:
    """Cost of the tokens a plan names at its predicted rate; ``None`` when it names none.

    ``origin`` says in a sentence where the plan comes from, for one that nobody gave; what its tuning is worth is then
    a part of the answer.
    """
    tokens = plan.recipe.tokens
    if tokens is None:
        return None
    request = CostRequest(
        model=plan.model,
        tokens=tokens,
        gpu=plan.cluster.gpu,
        num_gpus=plan.layout.world_size,
        usd_per_gpu_hour=usd_per_gpu_hour,
        prices=plan.cluster.node.prices,
        goodput_fraction=goodput_fraction,
    )
    _check(request)
    ideal_hours = run_cost.token_gpu_hours(tokens=tokens, tokens_per_s_per_gpu=throughput.tokens_per_s_per_gpu)
    return _priced(
        request,
        ideal_hours,
        rate=step_time_spread(time),
        tuning=_tuning(plan, throughput) if origin else None,
        assumptions=(*((origin,) if origin else ()), "the predicted step time holds for the whole run"),
    )


def _tuning(plan: Plan, throughput: Throughput) -> Spread | None:
    """The costs of the run between this plan, which nobody has run yet, and the speed that most people reach."""
    share = throughput.mfu_fraction
    return None if share is None else tuning_spread(share, published_mfu(plan.cluster.gpu))


def running_cost(plan: Plan, throughput: Throughput) -> RunningCost | None:
    """The dollars that a plan's GPUs cost in an hour and for a million tokens; ``None`` where no price is known."""
    price, num_gpus = plan.cluster.price, plan.layout.world_size
    rate = throughput.tokens_per_s_per_gpu
    if price is None or not rate:  # a plan that no rule has checked may train nothing
        return None
    hours = run_cost.token_gpu_hours(tokens=1e6, tokens_per_s_per_gpu=rate)
    return RunningCost(
        usd_per_gpu_hour=price.usd_per_gpu_hour,
        usd_per_hour=run_cost.run_usd(gpu_hours=num_gpus, usd_per_gpu_hour=price.usd_per_gpu_hour),
        usd_per_million_tokens=run_cost.run_usd(gpu_hours=hours, usd_per_gpu_hour=price.usd_per_gpu_hour),
        price_source=_offer(price),
    )


def require_figures(request: CostRequest) -> None:
    """Return when every figure of a request can be, and a rate of its part is known.

    Raises:
        RecipeError: one cannot.
    """
    _check(request)
    training_peak(request.gpu)


def training_peak(gpu: Gpu) -> tuple[Dtype, FlopPerSecond]:
    """The rate that an MFU is a share of: bf16 where the part has it.

    Raises:
        RecipeError: no rate is known, or the part multiplies bf16 and nobody published how fast.
    """
    if gpu.is_bf16_peak_unpublished:
        raise RecipeError(
            f"no source of the catalogue publishes the bf16 peak of {gpu.id}, so an MFU is a share of nothing",
            code="cost-no-peak",
            fix="give its rate as bf16_flop_per_s in a cluster file and name that as CLUSTER",
        )
    candidates: tuple[Dtype, ...] = ("bf16", "fp16", "tf32", "fp32")
    for dtype in candidates:
        if peak := gpu.peak_flop_per_s(dtype):
            return dtype, peak
    raise RecipeError(
        f"no peak rate is known for {gpu.id}, so GPU-hours cannot follow from an MFU",
        code="cost-no-peak",
        fix="name a GPU of the catalogue (shardwise catalog gpus)",
    )


def _check(request: CostRequest) -> None:
    problem = _problem(request)
    if problem is not None:
        code, message, fix = problem
        raise RecipeError(message, code=code, fix=fix)


def _problem(request: CostRequest) -> tuple[str, str, str] | None:
    """The first impossible figure of the request, as code, message and fix."""
    if not (isfinite(request.tokens) and 0 < request.tokens <= 1e18):
        return "cost-tokens", f"tokens={request.tokens:g} is not a positive count below 1e18", "set tokens=1e12"
    if request.seq_len is not None and not 0 < request.seq_len <= MAX_SEQ_LEN:
        return "cost-seq-len", f"seq_len={request.seq_len} is outside 1 to {MAX_SEQ_LEN}", "set seq_len=8192"
    if request.num_gpus < 1:
        return "cost-gpus", f"{request.num_gpus} GPUs cannot train", "name at least 1 GPU"
    price = request.usd_per_gpu_hour
    if price is not None and not (isfinite(price) and 0 <= price <= 1e6):
        return "cost-price", f"{price:g} USD per GPU-hour is not a price", "set a price such as 2.5"
    return _share_problem(request)


def _share_problem(request: CostRequest) -> tuple[str, str, str] | None:
    shares = (
        ("cost-mfu", "mfu", request.mfu_fraction, 0.4),
        ("cost-goodput", "goodput", request.goodput_fraction, 0.9),
    )
    for code, name, share, usual in shares:
        if share is not None and not LOWEST_SHARE <= share <= 1:
            return code, f"{name}={share:g} is outside {LOWEST_SHARE:g} to 1", f"set {name}={usual:g}"
    return None


def _priced(
    request: CostRequest,
    ideal_hours: float,
    *,
    rate: Spread | None,
    tuning: Spread | None = None,
    assumptions: tuple[str, ...],
) -> CostPrediction:
    """Divide by goodput, multiply by price and power, and take every assumption to its ends.

    The band is that of speed and goodput, which err independently. A price is paid and not predicted, and a plan that
    is tuned less is another plan.
    """
    goodput, goodput_sentence = _goodput(request)
    hours = ideal_hours / goodput.fraction
    usd_per_hour, price_source = _price(request)
    power_w = request.gpu.tdp_w
    energy_sentence = (
        f"energy counts {power_w:.0f} W per GPU all the time, without hosts, network and cooling"
        if power_w
        else f"the power of {request.gpu.id} is unknown, so energy is not counted"
    )
    lost = goodput_spread(goodput) if request.goodput_fraction is None else None
    asked = price_spread(request.prices) if request.usd_per_gpu_hour is None else None
    low, high = independent_ratios([(1.0, 1.0), *(one.ratios for one in (rate, lost) if one is not None)])
    return CostPrediction(
        tokens=request.tokens,
        gpu_hours=hours,
        low_gpu_hours=hours * low,
        high_gpu_hours=hours * high,
        days=run_cost.run_days(gpu_hours=hours, num_gpus=request.num_gpus),
        usd=None if usd_per_hour is None else run_cost.run_usd(gpu_hours=hours, usd_per_gpu_hour=usd_per_hour),
        usd_per_gpu_hour=usd_per_hour,
        price_source=price_source,
        goodput_fraction=goodput.fraction,
        goodput_low_fraction=goodput.low_fraction,
        goodput_high_fraction=goodput.high_fraction,
        energy_mwh=run_cost.energy_mwh(gpu_hours=hours, gpu_power_w=power_w) if power_w else None,
        assumptions=(*assumptions, goodput_sentence, energy_sentence),
        sensitivities=sensitivities(
            tuple(one for one in (rate, tuning, lost, asked) if one is not None),
            gpu_hours=hours,
            usd_per_gpu_hour=usd_per_hour,
        ),
    )


def _goodput(request: CostRequest) -> tuple[Goodput, str]:
    predicted = predict_goodput(num_gpus=request.num_gpus)
    given = request.goodput_fraction
    if given is not None:
        same = replace(predicted, fraction=given, low_fraction=given, high_fraction=given)
        return same, f"goodput {given:.1%} was given"
    rates = f"{TYPICAL.description}; best case {GOOD.description}; worst case {POOR.description}"
    return predicted, f"goodput: {rates}; {other_losses_sentence()}"


SUMMARIES = {
    "specialist_median": "specialist median",
    "market_median": "market median",
    "market_low": "market low",
    "market_high": "market high",
    "assumed": "assumed",
    "user": "given",
}
"""Kinds of prices that no single provider asks, in words."""


def _price(request: CostRequest) -> tuple[Dollars | None, str]:
    if request.usd_per_gpu_hour is not None:
        return request.usd_per_gpu_hour, "given"
    if not request.prices:
        return None, "no price is known"
    price = request.prices[0]
    contract = price.source if price.kind == "user" and price.source != "user" else ""
    date = "" if price.date == "undated" else price.date
    return price.usd_per_gpu_hour, ", ".join(filter(None, (_offer(price), contract, date)))


def _offer(price: Price) -> str:
    """Who asks a price, in words."""
    return SUMMARIES.get(price.kind) or f"{price.provider}, {price.kind.replace('_', ' ')}"
