"""Predictions and explanations of plans that were checked."""

from collections.abc import Mapping
from pathlib import Path

from shardwise.ask.answers import ExplainAnswer, PredictAnswer
from shardwise.ask.plans import (
    STANDARD_INPUT,
    ClusterSource,
    asked_plan,
    assumed_fields,
    calibrated,
    checked_prediction,
    plan_of,
)
from shardwise.errors import PlanError
from shardwise.explain import explain as explained
from shardwise.plan import Plan
from shardwise.plan_file import PlanSource
from shardwise.plan_file.read import is_plan_text
from shardwise.plan_file.text import is_file_there
from shardwise.rules import require_valid


def predict(
    source: Plan | PlanSource,
    cluster: ClusterSource | None = None,
    /,
    *,
    calibration: str | Path | None = None,
    **fields: object,
) -> PredictAnswer:
    """Predict the memory, step time and, where tokens are given, the cost of a plan.

    Args:
        source: a plan, a plan file or mapping, or a model (name, size, ``config.json``, fields) with a cluster.
        cluster: such as ``"64xh100-sxm"``, only after a model.
        calibration: a file of ``shardwise calibrate`` or ``reconcile``.
        fields: fields of the recipe and the layout, such as ``seq_len=8192, dp_shard=8``, and ``engine``; they win
            over the plan's own.

    Raises:
        ShardwiseError: with a message, a code and a fix, as the command line refuses.
    """
    plan = calibrated(asked_plan(source, cluster, fields), calibration)
    assumed = assumed_fields(source, cluster, fields, plan)
    return PredictAnswer(plan=plan, prediction=checked_prediction(plan), assumed=assumed)


def explain(
    source: Plan | PlanSource,
    cluster: ClusterSource | None = None,
    /,
    **fields: object,
) -> ExplainAnswer:
    """Say why a plan fits or not, what dominates its memory and time, and which changes help.

    Args:
        source: a plan, a plan file or mapping, or a model with a cluster.
        cluster: only after a model.
        fields: fields of the recipe and the layout, and ``engine``; they win over the plan's own.

    Raises:
        ShardwiseError: with a message, a code and a fix, as the command line refuses.
    """
    plan = asked_plan(source, cluster, fields)
    return ExplainAnswer(explanation=explained(plan), assumed=assumed_fields(source, cluster, fields, plan))


def _require_readable(source: object) -> None:
    """Return when a plan may be read from what is given.

    Raises:
        PlanError: it is neither a path nor a document, or nothing is at the path.
    """
    if not isinstance(source, str | Path | Mapping):
        raise PlanError(
            f"a {type(source).__name__} is neither a plan file nor its content",
            code="plan-wrong-type",
            fix="give the path of a plan file, its text, or the parsed document",
        )
    if isinstance(source, Mapping) or is_plan_text(source) or str(source) == STANDARD_INPUT:
        return
    if not is_file_there(Path(source)):
        raise PlanError(
            f"no file is at '{str(source)[:80]}'",
            code="plan-not-found",
            fix="give the path of a plan file; of a model, ask sw.predict(MODEL, CLUSTER).plan",
        )


def load_plan(
    path: PlanSource,
    /,
    *,
    model: str | None = None,
    cluster: str | None = None,
    **fields: object,
) -> Plan:
    """Read a plan file of ours or of another tool, and check it.

    Args:
        path: the path of the file, its text (JSON, or several lines of YAML), or the parsed document.
        model: what is trained, where the file of another tool does not say.
        cluster: what it runs on, where the file of another tool does not say.
        fields: values that win over the file's.

    Raises:
        ShardwiseError: the file cannot be used, or the plan breaks a rule.
    """
    _require_readable(path)
    plan = plan_of(path, None, fields, named_model=model, named_cluster=cluster)
    require_valid(plan)
    return plan
