"""The search: enumerate, drop what breaks a rule or cannot fit, predict the candidates, rank what fits."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwise.cluster import Cluster
from shardwise.engines.table import OWN_ENGINE, EngineName
from shardwise.errors import LayoutError, RecipeError
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.predict.offload_time import host_copy_sentence
from shardwise.recipe import Recipe
from shardwise.rules import RANGE_RULES, find_errors, find_refusals
from shardwise.rules.token_batch import assumed_batch
from shardwise.search.bounds import SearchBounds
from shardwise.search.closest import closest_plan
from shardwise.search.clusters import at_most, with_num_nodes
from shardwise.search.one_pass import find
from shardwise.search.ranking import rank, ranked_front
from shardwise.search.records import Objective, RankedPlan, SearchResult, SearchSpace
from shardwise.search.repairs import repairs
from shardwise.search.shown import with_all_stages
from shardwise.search.simplicity import host_moves, moved_words
from shardwise.search.space import Space
from shardwise.search.targets import meeting, missed_targets, require_countable
from shardwise.units import format_gib, format_percent

__all__ = ["question_of", "search"]


def search(
    *,
    model: ModelSpec,
    cluster: Cluster,
    recipe: Recipe,
    engine: EngineName = OWN_ENGINE,
    bounds: SearchBounds | None = None,
    objective: Objective = "step_time",
) -> SearchResult:
    """The layouts of a model on a cluster that fit, in order of preference, or what came closest.

    Args:
        model: what is trained.
        cluster: every GPU of it is used; ``objective="fewest_gpus"`` tries smaller ones first.
        recipe: micro-batch size, recompute and offload are searched unless bounded; the global batch is kept exactly.
        engine: who implements the step; its own limits are rules.
        bounds: axes that are pinned or limited.
        objective: what to make small.
    """
    started_s = time.perf_counter()
    asked = bounds or SearchBounds()
    limits = replace(asked, max_gpus=None)
    used = at_most(cluster, asked.max_gpus)
    question = question_of(model=model, cluster=used, recipe=recipe, engine=engine)
    require_layers(asked, model)
    require_countable(question, limits)
    if objective == "fewest_gpus":
        question = _fewest_nodes(question, limits)
    found = find(question, limits, objective=objective)
    fits, fitting = found.evaluation.fitting, meeting(found.evaluation.fitting, limits)
    ranked = rank(fitting, objective=objective, limit=limits.max_plans)
    shown = with_all_stages((*ranked, *ranked_front(fitting, objective=objective)))
    plans, pareto = shown[: len(ranked)], shown[len(ranked) :]
    is_invalid = not fits and found.space.layouts_invalid == found.space.layouts_considered
    closest = None if fits or is_invalid else closest_plan(question, limits, found, objective=objective)
    is_hopeless = not fits and closest is None
    return SearchResult(
        objective=objective,
        bounds=asked,
        space=replace(found.space, wall_s=time.perf_counter() - started_s),
        plans=plans,
        pareto=pareto,
        rejected=found.rejected,
        closest=closest,
        repairs=repairs(question, limits, rejected=found.rejected, objective=objective) if is_hopeless else (),
        missed=missed_targets(question, limits, fits) if fits and not fitting else None,
        assumptions=_assumptions(question, recipe),
        question=question,
        notes=() if fits and not fitting else (*_notes(plans, found.space), *_unmoved(question, limits)),
    )


def question_of(*, model: ModelSpec, cluster: Cluster, recipe: Recipe, engine: EngineName) -> Plan:
    """The plan whose layout the search fills in, with its global batch written down."""
    question = Plan(model=model, cluster=cluster, recipe=recipe, layout=Layout(), engine=engine)
    if any(rule.breaks(question) for rule in RANGE_RULES):
        refusal = find_errors(question)[0]
        raise RecipeError(refusal.message, code=refusal.rule, fix=refusal.fix)
    if recipe.global_batch_size is not None:
        return question
    batch = assumed_batch(model=model, recipe=recipe, num_gpus=cluster.num_gpus)
    filled = replace(recipe, global_batch_size=batch.num_sequences)
    return replace(question, recipe=filled, open_fields=frozenset(("global_batch_size",)))


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


def _assumptions(question: Plan, recipe: Recipe) -> tuple[str, ...]:
    stated = (*question.model.assumptions, *question.cluster.assumptions)
    if recipe.global_batch_size is not None:
        return stated
    batch = assumed_batch(model=question.model, recipe=recipe, num_gpus=question.cluster.num_gpus)
    return (*stated, batch.sentence)


def _notes(plans: Sequence[RankedPlan], space: SearchSpace) -> tuple[str, ...]:
    if not plans:
        return ("Every layout breaks a rule; each rule below comes with a fix.",) if not space.layouts_too_big else ()
    notes: list[str] = []
    notes += [
        f"The recommended plan carries a warning: {refusal.message} ({refusal.rule})."
        for refusal in find_refusals(plans[0].plan)
    ]
    notes += _host_notes(plans)
    if space.layouts_slower:
        notes.append(
            f"{space.layouts_slower:,} more candidates are valid and not known to be too big, but estimated to be "
            f"slower or variants of the degrees shown; {space.layouts_predicted} were predicted in full."
        )
    return tuple(notes)


def _unmoved(question: Plan, bounds: SearchBounds) -> Iterator[str]:
    """Why no plan moves anything to the host, where that was left open."""
    space = Space(question=question, bounds=bounds)
    is_open = bounds.offload is None and space.offloads == ("none",) and not any(space.activation_offloads)
    if question.cluster.runs_on_cpu and is_open:
        yield "Nothing is offloaded: CPUs compute in the memory of their host, where that frees nothing."


def _without_it(plans: Sequence[RankedPlan]) -> str:
    """How much longer a step of the fastest plan that moves less to the host takes, where one is shown."""
    now = plans[0]
    less = [ranked for ranked in plans if host_moves(ranked.plan) < host_moves(now.plan)]
    if not less:
        return ""
    fastest = min(less, key=lambda ranked: ranked.prediction.time.step_s)
    slower = format_percent(fastest.prediction.time.step_s / now.prediction.time.step_s - 1)
    moves = "less" if host_moves(fastest.plan) else "nothing"
    return f" Plan {fastest.rank} moves {moves} there and takes {slower} longer."


def _host_notes(plans: Sequence[RankedPlan]) -> Iterator[str]:
    """Notes on host memory and on copies for plans that keep tensors on the host."""
    if moved := moved_words(plans[0].plan):
        memory = plans[0].prediction.memory
        known = memory.host_capacity_bytes
        of = f" of {format_gib(known)}" if known else ""
        doubt = "" if known else " (how much the host has is not known: look before anything else)"
        yield (
            f"The recommended plan keeps its {moved} on the host, {format_gib(memory.host_bytes_per_node)}{of} per "
            f"node{doubt}, and waits for what does not hide.{_without_it(plans)}"
        )
    movers = [ranked for ranked in plans if host_moves(ranked.plan)]
    if not movers:
        return
    node = movers[0].plan.cluster.node
    yield f"Plans that move tensors to the host: {host_copy_sentence(node)}."
    if not node.host_memory_bytes:
        most = max(movers, key=lambda ranked: ranked.prediction.memory.host_bytes_per_node)
        needed = format_gib(most.prediction.memory.host_bytes_per_node)
        yield f"How much memory the host has is not known: plan {most.rank} needs most of it, {needed} per node."
