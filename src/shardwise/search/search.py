"""The search: enumerate, drop what breaks a rule or cannot fit, predict the most promising, rank what fits."""

import time
from collections.abc import Sequence
from dataclasses import replace

from shardwise.cluster import Cluster
from shardwise.errors import LayoutError, RecipeError
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.plan import EngineName, Plan
from shardwise.recipe import Recipe
from shardwise.rules import RANGE_RULES, find_errors, find_refusals
from shardwise.search.bounds import SearchBounds
from shardwise.search.closest import closest_plan
from shardwise.search.clusters import at_most, with_num_nodes
from shardwise.search.evaluation import Evaluated
from shardwise.search.one_pass import find
from shardwise.search.ranking import pareto_front, rank
from shardwise.search.records import Objective, RankedPlan, SearchResult, SearchSpace
from shardwise.search.repairs import repairs
from shardwise.search.targets import meeting, missed_targets, require_countable
from shardwise.search.team import ALONE, Team

__all__ = ["assumed_global_batch_size", "question_of", "search"]

ASSUMED_TOKENS_PER_STEP = 4 * 2**20
"""Used when no global batch is given: what Llama 3 405B started with (arXiv:2407.21783, section 3.4.1)."""


def search(
    *,
    model: ModelSpec,
    cluster: Cluster,
    recipe: Recipe,
    engine: EngineName = "native",
    bounds: SearchBounds | None = None,
    objective: Objective = "step_time",
    team: Team = ALONE,
) -> SearchResult:
    """The layouts of a model on a cluster that fit, in order of preference, or what came closest.

    Args:
        model: what is trained.
        cluster: every GPU of it is used; ``objective="fewest_gpus"`` tries smaller ones first.
        recipe: micro-batch size, recompute and offload are searched unless bounded; the global batch is kept exactly.
        engine: who implements the step; its own limits are rules.
        bounds: axes that are pinned or limited.
        objective: what to make small.
        team: the processes that share the work, inside :func:`in_team`.
    """
    started_s = time.perf_counter()
    asked = bounds or SearchBounds()
    limits = replace(asked, max_gpus=None)
    used = at_most(cluster, asked.max_gpus)
    question = question_of(model=model, cluster=used, recipe=recipe, engine=engine)
    require_layers(asked, model)
    require_searched_schedules(asked)
    require_countable(question, limits)
    if objective == "fewest_gpus":
        question = _fewest_nodes(question, limits)
    found = find(question, limits, objective=objective, team=team)
    fits, fitting = found.evaluation.fitting, meeting(found.evaluation.fitting, limits)
    plans = rank(fitting, objective=objective, limit=limits.max_plans)
    is_invalid = not fits and found.space.layouts_invalid == found.space.layouts_considered
    return SearchResult(
        objective=objective,
        bounds=asked,
        space=replace(found.space, wall_s=time.perf_counter() - started_s),
        plans=plans,
        pareto=_pareto(fitting, plans, objective),
        rejected=found.rejected,
        closest=None if fits or is_invalid else closest_plan(question, limits, found),
        repairs=repairs(question, limits) if is_invalid else (),
        missed=missed_targets(question, limits, fits) if fits and not fitting else None,
        assumptions=_assumptions(question, recipe),
        notes=() if fits and not fitting else _notes(plans, found.space),
    )


def assumed_global_batch_size(*, seq_len: int, num_gpus: int) -> int:
    """Sequences per step when none are given: the multiple of the GPUs nearest to four million tokens.

    >>> assumed_global_batch_size(seq_len=8192, num_gpus=64)
    512
    """
    return max(1, round(ASSUMED_TOKENS_PER_STEP / seq_len / num_gpus)) * num_gpus


def question_of(*, model: ModelSpec, cluster: Cluster, recipe: Recipe, engine: EngineName) -> Plan:
    """The plan whose layout the search fills in, with its global batch written down."""
    question = Plan(model=model, cluster=cluster, recipe=recipe, layout=Layout(), engine=engine)
    if any(rule.breaks(question) for rule in RANGE_RULES):
        refusal = find_errors(question)[0]
        raise RecipeError(refusal.message, code=refusal.rule, fix=refusal.fix)
    if recipe.global_batch_size is not None:
        return question
    size = assumed_global_batch_size(seq_len=recipe.seq_len, num_gpus=cluster.num_gpus)
    return replace(question, recipe=replace(recipe, global_batch_size=size))


def require_layers(bounds: SearchBounds, model: ModelSpec) -> None:
    """Return when stages that are pinned hold the model's layers.

    Raises:
        LayoutError: they hold more or fewer.
    """
    stages = bounds.stage_layers
    if stages is not None and sum(stages) != model.num_hidden_layers:
        raise LayoutError(
            f"stage_layers sums to {sum(stages)} layers, but {model.name} has {model.num_hidden_layers}",
            code="search-bounds",
            fix=f"write stages that sum to {model.num_hidden_layers}, or leave stage_layers out",
        )


def require_searched_schedules(bounds: SearchBounds) -> None:
    """Return when no schedule is pinned that estimates know nothing of.

    Raises:
        LayoutError: DualPipe is, whose ranks hold the model twice.
    """
    if bounds.schedule is not None and "dualpipe" in bounds.schedule:
        raise LayoutError(
            "a search estimates one copy of the model in a pipeline, and schedule dualpipe holds two",
            code="search-bounds",
            fix="leave dualpipe out, or ask `shardwise predict plan.json` about a plan that has it",
        )


def _fewest_nodes(question: Plan, bounds: SearchBounds) -> Plan:
    """The question on the fewest nodes, out of divisors of the cluster's, on which something fits."""
    num_nodes = question.cluster.num_nodes
    few = replace(bounds, max_predictions=8)
    for nodes in range(1, num_nodes):
        if num_nodes % nodes == 0:
            smaller = replace(question, cluster=with_num_nodes(question.cluster, nodes))
            if meeting(find(smaller, few, is_brief=True).evaluation.fitting, few):
                return smaller
    return question


def _pareto(fitting: Sequence[Evaluated], plans: Sequence[RankedPlan], objective: Objective) -> tuple[RankedPlan, ...]:
    """The front as ranked plans, compared with the recommended one."""
    if not plans:
        return ()
    winner = Evaluated(family=(), plan=plans[0].plan, prediction=plans[0].prediction)
    front = pareto_front(fitting)
    return tuple(_ranked_against(winner, found, position, objective) for position, found in enumerate(front, start=1))


def _ranked_against(winner: Evaluated, found: Evaluated, position: int, objective: Objective) -> RankedPlan:
    pair = rank([found, winner], objective=objective, limit=2)
    mine = next((ranked for ranked in pair if ranked.plan == found.plan), pair[0])
    return replace(mine, rank=position)


def _assumptions(question: Plan, recipe: Recipe) -> tuple[str, ...]:
    stated = (*question.model.assumptions, *question.cluster.assumptions)
    if recipe.global_batch_size is not None:
        return stated
    return (
        *stated,
        f"no global batch was given: {question.global_batch_size:,} sequences of {recipe.seq_len:,} tokens "
        f"({question.tokens_per_step:,} tokens) per step are assumed, the same for every layout",
    )


def _notes(plans: Sequence[RankedPlan], space: SearchSpace) -> tuple[str, ...]:
    if not plans:
        return ("Every layout breaks a rule; each rule below comes with a fix.",) if not space.layouts_too_big else ()
    notes: list[str] = []
    ties = sum(ranked.is_tie for ranked in plans)
    if ties > 1:
        chosen = (
            "the simplest of them is recommended, none fits safely"
            if plans[0].prediction.memory.is_borderline
            else "the simplest of them that fits safely is recommended"
        )
        notes.append(
            f"{ties} of these plans differ by less than a prediction can tell apart; {chosen}. Start there, and add an "
            "axis only when a measurement asks for it."
        )
    notes += [
        f"The recommended plan carries a warning: {refusal.message} ({refusal.rule})."
        for refusal in find_refusals(plans[0].plan)
    ]
    if moved := _moved(plans[0].plan):
        notes.append(f"The recommended plan keeps its {moved} on the host, and waits for what does not hide.")
    if space.layouts_slower:
        notes.append(
            f"{space.layouts_slower:,} more candidates are valid and not known to be too big, but estimated to be "
            f"slower or variants of the degrees shown; {space.layouts_predicted} were predicted in full."
        )
    return tuple(notes)


def _moved(plan: Plan) -> str:
    """What a plan offloads, in words."""
    words = {"none": "", "optimizer": "optimizer states", "parameters": "parameters and optimizer states"}
    states = words.get(plan.recipe.offload, "optimizer states (on drives)")
    parts = [states, "activations" if plan.recipe.activation_offload else ""]
    return " and ".join(part for part in parts if part)
