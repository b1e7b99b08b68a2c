"""An explanation as ``shardwise.explanation/1``."""

from collections.abc import Sequence

from shardwise.explain.records import Explanation, Finding, VerifiedChange
from shardwise.plan_file import plan_to_json
from shardwise.render.json_prediction import prediction_object

EXPLANATION_SCHEMA = "shardwise.explanation/1"


def explanation_object(explanation: Explanation) -> dict[str, object]:
    """The plan, its prediction, the findings in order and the verified changes, smallest first."""
    plan = explanation.plan
    return {
        "schema": EXPLANATION_SCHEMA,
        "plan": plan_to_json(plan),
        "prediction": prediction_object(plan=plan, prediction=explanation.prediction),
        "findings": findings_list(explanation.findings),
        "changes": [change_object(change) for change in explanation.changes],
    }


def findings_object(findings: Sequence[Finding]) -> dict[str, object]:
    """Findings that are not about one predicted plan: an out-of-memory text, or a comparison of strategies."""
    return {"schema": EXPLANATION_SCHEMA, "findings": findings_list(findings)}


def findings_list(findings: Sequence[Finding]) -> list[dict[str, object]]:
    """Each finding with its numbers in base units."""
    return [
        {
            "topic": finding.topic,
            "claim": finding.claim,
            "numbers": [
                {"name": number.name, "value": number.value, "unit": number.unit} for number in finding.numbers
            ],
            "because": finding.because,
            "suggestion": finding.suggestion,
        }
        for finding in findings
    ]


def change_object(change: VerifiedChange) -> dict[str, object]:
    """An edit with what the edited plan was predicted to need."""
    return {
        "edit": change.edit,
        "cost": change.cost,
        "effort": change.effort,
        "fits": change.fits,
        "device_used_bytes": change.device_used_bytes,
        "needed_bytes": change.needed_bytes,
        "saved_bytes": change.saved_bytes,
        "host_saved_bytes": change.host_saved_bytes,
        "step_s": change.step_s,
        "step_ratio": change.step_ratio,
        "plan": plan_to_json(change.plan),
    }
