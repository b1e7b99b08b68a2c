"""Check a plan against all rules."""

from collections.abc import Callable

from shardwise.errors import LayoutError, RecipeError
from shardwise.plan import Plan
from shardwise.rules.book import RANGE_RULES, error_rules, rules_of
from shardwise.rules.changes import describe_changes
from shardwise.rules.neighbours import nearest_neighbour
from shardwise.rules.refusal import Changes, Refusal
from shardwise.rules.rule import Rule


def find_refusals(plan: Plan) -> tuple[Refusal, ...]:
    """Every rule the plan breaks, errors first, each with a neighbour that keeps it."""
    broken = [rule for rule in RANGE_RULES if rule.breaks(plan)] or [
        rule for rule in rules_of(plan.engine) if rule.breaks(plan)
    ]
    broken.sort(key=lambda rule: rule.severity)
    return tuple(_refusal(plan, rule) for rule in broken)


def find_errors(plan: Plan) -> tuple[Refusal, ...]:
    """The refusals that keep the plan from running as written."""
    return tuple(_refusal(plan, rule) for rule in _broken_errors(plan))


def require_valid(plan: Plan) -> None:
    """Return when the plan breaks no rule of severity error.

    Raises:
        LayoutError: the first broken rule is about the layout or the engine.
        RecipeError: the first broken rule is about the recipe.
    """
    broken = _broken_errors(plan)
    if not broken:
        return
    refusal = _refusal(plan, broken[0])
    others = ", ".join(rule.name for rule in broken[1:])
    more = f" ({len(broken) - 1} more: {others})" if others else ""
    error = RecipeError if refusal.rule.startswith("recipe-") else LayoutError
    raise error(refusal.message + more, code=refusal.rule, fix=refusal.fix)


def _broken_errors(plan: Plan) -> list[Rule]:
    out_of_range = [rule for rule in RANGE_RULES if rule.breaks(plan)]
    return out_of_range or [rule for rule in error_rules(plan.engine) if rule.breaks(plan)]


def refusal_within(plan: Plan, rule: Rule, *, allows: Callable[[Changes], bool]) -> Refusal:
    """The refusal of one broken rule, with a fix that is allowed wherever such a fix mends the rule.

    Args:
        plan: breaks the rule.
        rule: that is broken.
        allows: fixes that may be proposed.
    """
    return _refusal(plan, rule, allows=allows)


def _refusal(plan: Plan, rule: Rule, *, allows: Callable[[Changes], bool] | None = None) -> Refusal:
    neighbour = nearest_neighbour(plan, rule, allows=allows)
    advice = f", {rule.advice}" if rule.advice else ""
    return Refusal(
        rule=rule.name,
        message=rule.message(plan),
        fix=describe_changes(neighbour) + advice,
        severity=rule.severity,
        neighbour=neighbour,
    )
