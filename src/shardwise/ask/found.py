"""The first screen of a search, and the error that says why it found no plan."""

from collections.abc import Sequence

from shardwise.errors import NoPlanError
from shardwise.render.first_screen import ScreenContext, plan_screen
from shardwise.render.no_plan_screen import no_plan_screen
from shardwise.search import Relief, SearchResult, TargetChange
from shardwise.search.shortlist import shortlist


def what_is_missing(result: SearchResult) -> tuple[str, Sequence[TargetChange | Relief]]:
    """Why a search has no plan, and the nearest questions that have one."""
    if result.missed is not None:
        return result.missed.because, result.missed.changes
    if result.closest is not None:
        return f"nothing fits, the closest layout lacks {result.closest.lacks}", result.closest.reliefs
    return "every layout breaks a rule", result.repairs


def no_plan(result: SearchResult) -> NoPlanError:
    """The error for a caller who asks for the plan of a search that found none."""
    because, changes = what_is_missing(result)
    fix = f"set {changes[0].change}" if changes else "read the answer's text() for what came closest"
    return NoPlanError(f"there is no plan: {because.rstrip('.')}", code="search-no-plan", fix=fix)


def search_screen(result: SearchResult, *, assumed: frozenset[str] = frozenset()) -> str:
    """The first screen of a search."""
    chosen, context = shortlist(result), ScreenContext(assumed=assumed, asked_tokens=result.asked_tokens)
    return no_plan_screen(result, context) if chosen is None else plan_screen(chosen, context)
