"""The JSON answers of commands: the schema of each, and what stands in it beside the keys of its records."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shardwise.render.json_records import json_object, json_value

if TYPE_CHECKING:  # a command imports the records of its own answer
    from shardwise.explain.judgement import Judgement
    from shardwise.explain.records import Explanation, Finding, Quantity, Source
    from shardwise.plan import Plan
    from shardwise.reconcile.calibration import LearnedCalibration
    from shardwise.reconcile.totals import Reconciliation
    from shardwise.render.run_cost import RunCost
    from shardwise.search import RankedPlan, SearchResult, SweepResult
    from shardwise.search.what_if import Sensitivity

__all__ = [
    "batch_object",
    "explanation_object",
    "findings_object",
    "judgement_object",
    "learned_object",
    "lint_object",
    "reconciliation_object",
    "run_cost_object",
    "search_object",
    "sweep_object",
    "validation_object",
]

EXPLANATION_SCHEMA = "shardwise.explanation/1"
RECONCILIATION_SCHEMA = "shardwise.reconciliation/1"
VALIDATION_SCHEMAS: Mapping[str, str] = {
    "AccuracyReport": "shardwise.validation/1",
    "RunCostReport": "shardwise.cost_validation/1",
    "TimeAccuracyReport": "shardwise.time_validation/1",
}


def search_object(
    result: "SearchResult", *, sensitivity: "Sensitivity | None" = None, has_clock: bool = False
) -> dict[str, object]:
    """The whole answer; ``closest`` only when no plan fits, ``missed`` only when none meets a deadline or a budget.

    ``wall_s`` is null unless it is asked for: the same question gives the same bytes.
    """
    space = json_object(result.space)
    rest = {"what_if": sensitivity, "closest": result.closest, "repairs": result.repairs, "missed": result.missed}
    return {
        "schema": "shardwise.search/1",
        "objective": result.objective,
        "space": space if has_clock else {**space, "wall_s": None},
        **_recommended(result.plans[0] if result.plans else None),
        **json_object(result, "plans pareto rejected assumptions notes"),
        **{key: json_value(value) for key, value in rest.items() if value},
    }


def _recommended(best: "RankedPlan | None", *, reason: str = "") -> dict[str, object]:
    """The recommended plan with its prediction and the reason; nothing where there is none."""
    return (
        {} if best is None else {"recommended": {**json_object(best, "plan prediction"), "reason": reason or best.why}}
    )


def sweep_object(result: "SweepResult") -> dict[str, object]:
    """Every cluster with its best plan, and which of them is recommended."""
    clusters: list[dict[str, object]] = []
    for row in result.rows:
        cluster = row.question.cluster
        clusters.append(
            {
                **json_object(cluster, "gpu=gpu.id num_gpus num_nodes"),
                "usd_per_gpu_hour": None if cluster.price is None else cluster.price.usd_per_gpu_hour,
                "is_recommended": row is result.recommended,
                **json_object(row),
            }
        )
    return {
        "schema": "shardwise.sweep/1",
        **json_object(result, "objective deadline_days=bounds.deadline_days budget_usd=bounds.budget_usd why"),
        **_recommended(None if result.recommended is None else result.recommended.best, reason=result.why),
        "clusters": clusters,
        **json_object(result, "changes assumptions"),
    }


def explanation_object(explanation: "Explanation") -> dict[str, object]:
    """The plan, its prediction, the findings in order, the verified changes in order, and the recommended plan."""
    written = json_object(explanation)
    return {"schema": EXPLANATION_SCHEMA, **written, **_findings(explanation.findings, written["plan"])}


def findings_object(findings: "Sequence[Finding]", *, question: "Plan | None" = None) -> dict[str, object]:
    """Findings that are not about one predicted plan: those of an out-of-memory text, or of strategies."""
    asked = {} if question is None else {"question": json_value(question)}
    return {"schema": EXPLANATION_SCHEMA, **asked, **_findings(findings)}


def _findings(findings: "Sequence[Finding]", explained: object = None) -> dict[str, object]:
    """Findings, and ``plans``: every plan that one of their numbers is predicted for, once.

    A number says the position of its ``plan`` there and the ``field`` of that plan's prediction; ``against`` what it is
    divided by, or what is taken from it.
    """
    plans: list[object] = [] if explained is None else [explained]

    def source(found: "Source") -> dict[str, object]:
        plan = explained if found.plan is None else json_value(found.plan)
        if plan not in plans:
            plans.append(plan)
        return {"plan": plans.index(plan), "field": found.field}

    def number(found: "Quantity") -> dict[str, object]:
        sources = {"against": source(found.against)} if found.against is not None else {}
        return {
            **json_object(found, "name value unit"),
            **(source(found.source) if found.source is not None else {}),
            **sources,
        }

    written = [
        {**json_object(found), "numbers": [number(quantity) for quantity in found.numbers]} for found in findings
    ]
    return {"findings": written, "plans": plans}


def judgement_object(judgement: "Judgement") -> dict[str, object]:
    """What a reported rate is by each convention, beside the prediction and the best published run."""
    return {"schema": "shardwise.judgement/1", **json_object(judgement)}


def run_cost_object(run: "RunCost") -> dict[str, object]:
    """The cost beside what was priced."""
    return {
        "schema": "shardwise.cost/1",
        "model": run.model.name,
        "parameters": {"total": run.model.num_params, "active": run.model.num_active_params},
        **json_object(run, "gpu=gpu.id num_gpus fits fit plan cost assumptions=model.assumptions"),
    }


def validation_object(report: object) -> dict[str, object]:
    """A report on memory, step times or bills: its summaries, every row, and the rows that cannot be used."""
    return {"schema": VALIDATION_SCHEMAS[type(report).__name__], **json_object(report)}


def reconciliation_object(
    found: "Sequence[Reconciliation]", learned: "LearnedCalibration | None" = None
) -> dict[str, object]:
    """One run, or several under ``runs``, and what they taught where that was asked."""
    runs = [{"schema": RECONCILIATION_SCHEMA, **json_object(run)} for run in found]
    answer: dict[str, object] = runs[0] if len(runs) == 1 else {"schema": RECONCILIATION_SCHEMA, "runs": runs}
    return answer if learned is None else {**answer, "calibration": learned_object(learned)}


def learned_object(found: "LearnedCalibration") -> dict[str, object]:
    """The factors, every error before and after, and the runs that are predicted worse."""
    return {
        **json_object(found, "residuals=calibration.residuals changes"),
        "worse": [f"{change.run}: {change.quantity}" for change in found.worse],
    }


def batch_object(samples: Sequence[object]) -> dict[str, object]:
    """The sequences of a run's first micro-batch, each with the parts of it that are learned and those that are not."""
    return {"schema": "shardwise.batch/1", "sequences": [json_object(sample) for sample in samples]}


def lint_object(findings: Sequence[object]) -> dict[str, object]:
    """Findings about the surroundings of a run."""
    return {"schema": "shardwise.lint/1", "findings": [json_object(found) for found in findings]}
