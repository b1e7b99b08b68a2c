"""The simulations that have a name, in the order in which they are best read."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from typing import Protocol, cast

from shardwise.course.lesson import Lesson
from shardwise.course.lessons.request import LessonRequest, given_names, option_text
from shardwise.errors import SimulationError

ALL = "all"
ZERO_STAGES = (0, 1, 2, 3)


class LessonModule(Protocol):
    """The interface of every file in ``course/lessons/`` that is named after a lesson."""

    OPTIONS: tuple[str, ...]
    """The fields of :class:`LessonRequest` that it takes."""

    def make_lesson(self, request: LessonRequest) -> Lesson:
        """Simulate and tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonEntry:
    """A name of ``shardwise simulate``."""

    name: str
    summary: str
    synonyms: tuple[str, ...] = ()
    """Other names that are understood: those of degrees and of engines."""

    def load(self) -> LessonModule:
        """Import the file of the lesson."""
        return cast("LessonModule", import_module(f"shardwise.course.lessons.{self.name}"))


LESSONS = (
    LessonEntry(name="data", summary="data parallelism over uneven parts of a batch", synonyms=("dp", "ddp")),
    LessonEntry(
        name="accumulate", summary="gradient accumulation: when ranks communicate, and what is divided by what"
    ),
    LessonEntry(name="fsdp", summary="gather, compute, free, reduce-scatter; with replicas"),
    LessonEntry(
        name="zero",
        summary="ZeRO stage by stage, and clipping by the global norm",
        synonyms=tuple(f"zero{separator}{stage}" for separator in ("", "-") for stage in ZERO_STAGES),
    ),
    LessonEntry(
        name="tensor",
        summary="column and row parallel, whole blocks, sequence parallel, divided vocabulary",
        synonyms=("tp", "sp"),
    ),
    LessonEntry(name="pipeline", summary="every schedule with its bubbles and what is in flight", synonyms=("pp",)),
    LessonEntry(
        name="context",
        summary="ring attention, gathered keys, exchanged heads; balanced by zig-zag",
        synonyms=("cp",),
    ),
    LessonEntry(
        name="expert",
        summary="route, dispatch, compute, combine; capacity and dropped tokens",
        synonyms=("ep", "moe"),
    ),
    LessonEntry(name="ring", summary="ring all-reduce, all-gather and reduce-scatter, chunk by chunk"),
    LessonEntry(name="tree", summary="trees, halving-doubling, nodes first, all-to-all; when a ring beats a tree"),
    LessonEntry(name="precision", summary="bf16, fp16 and fp8 bit by bit: underflow, loss scaling, master weights"),
    LessonEntry(name="checkpoint", summary="memory against compute: every k-th layer, selective, predicted"),
    LessonEntry(name="offload", summary="ZeRO-Offload and Infinity: 70B on 4 GPUs, what fits and what it costs"),
    LessonEntry(name="figures", summary="every figure of the course texts, reproduced, and judged"),
)


def find_lesson(name: str) -> LessonEntry:
    """The lesson called ``name``."""
    asked = name.lower()
    entry = next((entry for entry in LESSONS if asked in (entry.name, *entry.synonyms)), None)
    if entry is not None:
        return entry
    names = [*(entry.name for entry in LESSONS), ALL]
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    raise SimulationError(
        f"there is no simulation '{name[:40]}'; there are {', '.join(names)}",
        code="simulate-name",
        fix=f"shardwise simulate {close[0] if close else ALL}",
    )


def make_lessons(name: str, request: LessonRequest) -> tuple[Lesson, ...]:
    """The lesson of a name, or all of them with their own defaults.

    Raises:
        SimulationError: an unknown name, an option the lesson does not take, or sizes that cannot be simulated.
    """
    if name == ALL:
        _require_taken(name, request, taken=())
        return tuple(entry.load().make_lesson(request) for entry in LESSONS)
    entry = find_lesson(name)
    module = entry.load()
    _require_taken(entry.name, request, taken=module.OPTIONS)
    return (module.make_lesson(_with_stage(name, entry, request)),)


def _with_stage(name: str, entry: LessonEntry, request: LessonRequest) -> LessonRequest:
    """The request with the stage that a name such as ``zero2`` asks for.

    Raises:
        SimulationError: an option asks for another one.
    """
    stage = name[-1]
    if name.lower() == entry.name or "zero_stage" not in entry.load().OPTIONS or not stage.isdigit():
        return request
    if request.zero_stage not in (None, int(stage)):
        raise SimulationError(
            f"simulate {name} is stage {stage}, and --zero-stage says {request.zero_stage}",
            code="simulate-option",
            fix="leave out --zero-stage",
        )
    return replace(request, zero_stage=int(stage))


def _require_taken(name: str, request: LessonRequest, *, taken: Iterable[str]) -> None:
    """Refuse options that would be silently ignored."""
    options = tuple(taken)
    unused = next((field for field in given_names(request) if field not in options), None)
    if unused is None:
        return
    offered = f"it takes {', '.join(map(option_text, options))}" if options else "it takes no options"
    raise SimulationError(
        f"simulate {name} has no option {option_text(unused)}; {offered}",
        code="simulate-option",
        fix=f"leave out {option_text(unused)}",
    )
