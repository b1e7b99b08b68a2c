"""Why a run is slower or faster than predicted: the likely causes in the order in which an engineer checks them.

Settings that people leave wrong or unsaid are predicted, each alone. What no setting of a plan says, input data and
clocks, is told by how much of it the gap would take.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log

from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import Prediction, TimePrediction
from shardwise.rules import Changes, apply_changes, describe_changes, find_errors
from shardwise.units import Seconds, format_percent, format_seconds

__all__ = ["LikelyCause", "likely_causes"]

NEAR_FRACTION = 0.05
"""A rate this near the prediction needs no cause."""
LEAST_SHARE = 0.1
"""A setting that explains less of the gap is no cause of it."""
COMPUTING = ("forward", "backward", "recompute")
KERNELS: tuple[tuple[Changes, str], ...] = (
    ((("compile", False),), "the blocks are not compiled"),
    ((("attention", "eager"),), "attention writes out its scores"),
    ((("attention_kernel", "fa2"),), "attention runs FlashAttention-2"),
    ((("precision", "fp32"),), "the products run in fp32 or TF32"),
    ((("precision", "bf16"),), "everything is held in bf16"),
    ((("precision", "fp8-mixed"),), "the products run in 8 bits"),
    ((("adapter", "lora"),), "only adapters are trained"),
    ((("micro_batch_size", 1),), "a GPU runs one sequence at a time"),
    ((("recompute", "full"),), "everything is recomputed"),
    ((("recompute", "none"),), "nothing is recomputed"),
)
"""Settings of the kernels and of what they are given, checked first: a line of the log or of the script says them."""
MOVES: tuple[tuple[Changes, str], ...] = (
    ((("zero_stage", 3), ("reshard_after_forward", True)), "parameters are gathered twice in a step"),
    ((("overlap_grad_reduce", False),), "gradients are reduced after the backward pass"),
    ((("offload", "optimizer"),), "the optimizer runs on the host"),
)
"""Settings of what moves between GPUs and to the host, checked next: a profile shows them."""
DEBUGGING: tuple[tuple[Changes, str], ...] = (
    ((("blocking_launches", True),), "every kernel waits for the host (CUDA_LAUNCH_BLOCKING=1)"),
)
"""Flags of debugging, checked last: few leave them on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyCause:
    """A setting that would move the prediction towards the report, or what else would have to be so."""

    setting: str
    """Fields as they are typed, or what to look at where no field of a plan says it."""
    words: str
    tokens_per_s_per_gpu: float | None
    """Predicted with this setting and nothing else changed; ``None`` where nothing predicts it."""
    left_ratio: float | None
    """Reported over predicted rate with this setting."""


def likely_causes(plan: Plan, prediction: Prediction, tokens_per_s_per_gpu: float) -> tuple[LikelyCause, ...]:
    """Causes that would explain a rate, in the order of checking them; none within 5 % of the predicted rate."""
    predicted = prediction.throughput.tokens_per_s_per_gpu
    if abs(log(tokens_per_s_per_gpu / predicted)) < NEAR_FRACTION:
        return ()
    step_s, reported_s = prediction.time.step_s, prediction.time.step_s * predicted / tokens_per_s_per_gpu
    communicating = _with_bare_communication(prediction, tokens_per_s_per_gpu)
    is_slower = reported_s > step_s
    causes = (
        *_settings(KERNELS, plan, tokens_per_s_per_gpu),
        *((communicating,) if communicating is not None else ()),
        *_settings(MOVES, plan, tokens_per_s_per_gpu),
        *(_unpredicted(plan, prediction.time, reported_s=reported_s) if is_slower else ()),
        *_settings(DEBUGGING, plan, tokens_per_s_per_gpu),
    )
    return tuple(cause for cause in causes if _explains(cause, tokens_per_s_per_gpu, predicted))


def _explains(cause: LikelyCause, reported: float, predicted: float) -> bool:
    """Whether a cause brings the prediction nearer to the report by a share of the gap that is worth a line."""
    if cause.tokens_per_s_per_gpu is None:
        return True
    gap, left = (abs(log(reported / rate)) for rate in (predicted, cause.tokens_per_s_per_gpu))
    return left <= (1 - LEAST_SHARE) * gap


def _settings(settings: tuple[tuple[Changes, str], ...], plan: Plan, reported: float) -> Iterator[LikelyCause]:
    """Each setting that the plan can have and has not, predicted."""
    for changes, words in settings:
        changed = apply_changes(plan, changes)
        if changed != plan and not find_errors(changed):
            rate = predict(changed).throughput.tokens_per_s_per_gpu
            yield _cause(describe_changes(changes).removeprefix("set "), words, rate, reported)


def _cause(setting: str, words: str, rate: float, reported: float) -> LikelyCause:
    return LikelyCause(setting=setting, words=words, tokens_per_s_per_gpu=rate, left_ratio=reported / rate)


def _with_bare_communication(prediction: Prediction, reported: float) -> LikelyCause | None:
    """Every collective waited for: what computation is predicted to hide of them is added to the step."""
    time = prediction.time
    hidden_s = sum(entry.total_s - entry.exposed_s for entry in time.communication)
    if hidden_s <= 0:
        return None
    rate = prediction.throughput.tokens_per_s_per_gpu * time.step_s / (time.step_s + hidden_s)
    words = f"nothing hides communication: {format_seconds(hidden_s)} a step are predicted to be hidden"
    return _cause("overlap in a profile", words, rate, reported)


def _unpredicted(plan: Plan, time: TimePrediction, *, reported_s: Seconds) -> Iterator[LikelyCause]:
    """How slow input data or clocks would have to be for either to be the whole gap."""
    lost_s = reported_s - time.step_s
    sequences = plan.global_batch_size / reported_s
    waits = f"the step waits for data: {format_seconds(lost_s)} of {format_seconds(reported_s)}, "
    yield _unmeasured("data loading", f"{waits}a loader of {sequences:,.3g} sequences/s")
    computing_s = sum(entry.duration_s for entry in time.components if entry.component in COMPUTING)
    share = format_percent(computing_s / (computing_s + lost_s))
    yield _unmeasured("clocks, heat and power", f"the GPUs would compute at {share} of their speed (nvidia-smi -q)")


def _unmeasured(setting: str, words: str) -> LikelyCause:
    return LikelyCause(setting=setting, words=words, tokens_per_s_per_gpu=None, left_ratio=None)
