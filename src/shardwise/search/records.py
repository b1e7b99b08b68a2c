"""Records of a search. ``render`` writes them as ``shardwise.search/1``."""

from dataclasses import dataclass
from typing import Literal, get_args

from shardwise.ledger import TimeComponent
from shardwise.plan import Plan
from shardwise.prediction import Prediction, RunningCost
from shardwise.rules import Changes
from shardwise.search.bounds import SearchBounds
from shardwise.units import Bytes, Dollars, Seconds

__all__ = [
    "OBJECTIVES",
    "ClosestPlan",
    "Difference",
    "MissedTargets",
    "Objective",
    "RankedPlan",
    "Rejection",
    "Relief",
    "SearchResult",
    "SearchSpace",
    "TargetChange",
]

Objective = Literal["step_time", "cost", "cost_and_time", "memory", "fewest_gpus"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """How many layouts were looked at, and where each of them went.

    Every number counts candidates: one layout with one micro-batch size, one choice of what is recomputed (no block, k
    of each stage's, or all) and one of what is offloaded.
    ``layouts_considered = layouts_invalid + layouts_too_big + layouts_slower + layouts_predicted``.
    """

    layouts_considered: int
    layouts_invalid: int
    """Break a rule of validity; see ``SearchResult.rejected``."""
    layouts_too_big: int
    """Cannot fit: the bytes they certainly hold already exceed the device, or a layout that holds less was predicted
    not to fit."""
    layouts_slower: int
    """Valid, but slower than the layouts that were predicted, by their estimate or by a bound; not predicted."""
    layouts_evaluated: int
    """Candidates whose memory was computed one by one. Every other one lies in a block of candidates that a rule or a
    bound excludes as a whole."""
    layouts_predicted: int
    layouts_feasible: int
    """Considered, valid and not known to be too big: ``layouts_slower`` plus those predicted to fit."""
    wall_s: Seconds
    """Clock time; the only figure that differs between two equal searches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One component of the step in which a plan differs from the winner."""

    component: TimeComponent
    slower_s: Seconds
    """Positive where this plan spends more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan:
    """A plan that fits, its prediction, and how it compares with the best."""

    rank: int
    """1 is the recommended plan."""
    plan: Plan
    prediction: Prediction
    objective_value: float
    ratio_to_best: float
    """Objective over the best objective found; 1.0 for the best, which may stand behind the recommended plan."""
    is_tie: bool
    """Whether the difference to the recommended plan is inside the error of the prediction."""
    num_axes: int
    """Axes of parallelism in use; fewer is simpler to run and to debug."""
    price_fraction: float = 0.0
    """Sum of the plan's prices (``search/price_list.py``), as a share of the step time."""
    differences: tuple[Difference, ...]
    """Against the recommended plan, the largest loss first; empty for the recommended plan itself."""
    why: str
    """Why it is recommended, or why it lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A group of layouts that one rule excludes."""

    rule: str
    count: int
    example: str
    """One of them, with what is wrong with it."""
    fix: str
    changes: Changes = ()
    """The fix as fields of a plan; empty where it is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """A change that makes a search find something, verified by searching again."""

    change: str
    """What to change, such as ``num_nodes=16`` or ``offload=optimizer``."""
    plan: Plan
    device_used_bytes: Bytes
    """Memory that would be allocated and cached on the fullest device, at most its capacity."""
    needed_bytes: Bytes
    """Memory the plan needs on its fullest device; a search compares this figure with the capacity."""
    step_s: Seconds
    caution: str = ""
    running_cost: RunningCost | None = None
    """Dollars of an hour and of 1B tokens; ``None`` where no price is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosestPlan:
    """The plan that comes closest to fitting when none does."""

    plan: Plan
    prediction: Prediction
    missing_bytes: Bytes
    """Memory the fullest device lacks; 0 where only its host lacks some."""
    lacks: str
    """The missing memory in words: of the device, or of the host or its drives where the device holds its part."""
    because: str
    """The reason in words: which tensors fill the device, or the host."""
    reliefs: tuple[Relief, ...]
    """Smallest change first; empty when none was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChange:
    """A changed input under which a run meets what it missed, verified by a prediction."""

    change: str
    """What to change, such as ``deadline_days=41.5`` or ``num_nodes=16``."""
    plan: Plan
    days: float
    usd: Dollars | None
    """``None`` when no price is known."""
    caution: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedTargets:
    """Plans fit, but none ends by the deadline and within the budget."""

    plan: Plan
    """The fastest, which is also the cheapest on its cluster."""
    prediction: Prediction
    because: str
    changes: tuple[TargetChange, ...]
    """One of each input, where one was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The answer of a search: plans in order of preference, or what came closest."""

    objective: Objective
    bounds: SearchBounds
    space: SearchSpace
    plans: tuple[RankedPlan, ...]
    pareto: tuple[RankedPlan, ...]
    """Plans that no predicted plan beats in both step time and memory, fastest first."""
    rejected: tuple[Rejection, ...]
    closest: ClosestPlan | None
    """The plan that comes closest to fitting, where nothing fits; ``None`` otherwise."""
    missed: MissedTargets | None = None
    """The missed deadline or budget, where plans fit and none meets them; ``None`` otherwise."""
    repairs: tuple[Relief, ...] = ()
    """Changes of the question under which a plan was found, where every layout breaks a rule; empty otherwise."""
    assumptions: tuple[str, ...] = ()
    question: Plan | None = None
    """The question with its batch, whose open fields are those that nobody gave; a search fills in its layout."""
    asked_tokens: float | None = None
    """Tokens of a step that were asked for, to which the batch of the question is near; ``None`` where it was given in
    sequences or not at all."""
    notes: tuple[str, ...] = ()
    """Sentences about ties, the simplest choice and what was left out."""
