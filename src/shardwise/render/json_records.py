"""Records as JSON: one writer, and :data:`KEYS`, which says under which keys each record is written.

Other programs read these keys: they are added to, and none is renamed or taken away.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter

from shardwise.plan import Plan
from shardwise.plan_file import plan_to_json
from shardwise.prediction import ExposedCommunication, Prediction, StageMemory
from shardwise.render.names import plan_warnings, stated_assumptions

PREDICTION_SCHEMA = "shardwise.prediction/1"

KEYS: Mapping[str, str] = {
    # a prediction and its cost
    "CommunicationEntry": "name kind axis group_size bytes=num_bytes count total_s exposed_s algorithm protocol"
    " bottleneck basis",
    "CostPrediction": "* best_days best_usd low_days high_days low_usd high_usd",
    "CostSensitivity": "*",
    "Calibration": "digest date machine is_measured",
    "ExposedCommunication": "total_s axes_s={axes} shared_by_axes_s units_s={units} shared_by_units_s",
    "MachineFacts": "device host num_processes",
    "MemoryPrediction": "capacity_bytes peak_allocated_bytes=worst.peak_allocated_bytes"
    " peak_reserved_bytes=worst.peak_reserved_bytes device_used_bytes=worst.device_used_bytes needed_bytes spare_bytes"
    " missing_bytes low_fraction high_fraction fits_device fits_host worst_stage=worst.stage"
    " peak_phase=worst.peak_phase peak_moment=worst.peak_moment components_bytes={worst.components} stages"
    " host_bytes=host_bytes_per_node host_capacity_bytes nvme_bytes=nvme_bytes_per_node nvme_capacity_bytes",
    "PhaseMemory": "*",
    "StageMemory": "stage layers in_flight_micro_batches peak_allocated_bytes peak_reserved_bytes device_used_bytes"
    " needed_bytes peak_phase peak_moment components_bytes={components} phases largest_tensors host_bytes nvme_bytes",
    "RunningCost": "*",
    "Throughput": "*",
    "TimePrediction": "step_s step_low_s step_high_s components_s={components} communication attention_kernel",
    # what a search and an explanation found
    "BestRun": "*",
    "ClosestPlan": "*",
    "Explanation": "*",
    "Claim": "*",
    "Finding": "*",
    "Judgement": "unit amount=reported_amount gpu=gpu_name is_in_band sparse_fraction findings readings best causes"
    " plan prediction",
    "LikelyCause": "*",
    "MissedTargets": "*",
    "Quantity": "name value unit",
    "RankedPlan": "rank plan prediction objective_value ratio_to_best is_tie num_axes price_fraction "
    "differences_s={differences} why",
    "Rejection": "rule count example fix",
    "RateReading": "*",
    "Relief": "*",
    "SearchSpace": "layouts_considered layouts_feasible layouts_invalid layouts_too_big layouts_slower"
    " layouts_evaluated layouts_predicted wall_s",
    "Sensitivity": "*",
    "SweepRow": "is_tie is_on_front meets_targets problem usd_per_million_tokens best",
    "TargetChange": "*",
    "VerifiedChange": "edit cost effort fits fit device_used_bytes needed_bytes saved_bytes host_saved_bytes step_s"
    " step_ratio plan",
    "WhatIf": "change plan step_s step_ratio rate_ratio is_for_sale running_cost",
    # a profile, a recorded memory history and a traced step
    "CodeShare": "*",
    "CollectiveFamily": "*",
    "KernelShare": "*",
    "KnobGain": "edit cost predicted_step_s predicted_gain_s=gain_s predicted_gain_fraction=gain_fraction",
    "MemoryMoment": "phase num_bytes components_bytes={components}",
    "MemoryProfile": "file=path.name device=device_index num_events peak phases=phase_peaks peak_reserved_bytes code"
    " out_of_memory=refused",
    "ProfileFinding": "knob finding=sentence advice gain_at_most_s=gain_s gain_at_most_fraction=gain_fraction",
    "RankProfile": "rank device=device_name num_steps num_kernels graph_launched_fraction wait_s *split",
    "RefusedRequest": "num_bytes free_bytes",
    "StepSplit": "* overlap_fraction",
    "TraceProfile": "world_size split ranks collectives units kernels straggler_rank",
    "TracedCollective": "*",
    "TracedMemory": "phase place allocated_bytes components_bytes={components}",
    "TracedOperator": "*",
    "TracedStage": "stage num_blocks num_traced_blocks num_microbatches num_traced_microbatches peak_phase=peak.phase"
    " phases collectives flop operators",
    "TurnedKnobs": "gains no_gain=useless does_not_fit=too_large",
    "UnitExposure": "* exposed_fraction",
    # predictions beside what was measured or published
    "AccuracyReport": "families overall reported reported_engines fitted fits fits_by_family rows unused",
    "RunCostComparison": "id model source quantity published=published_amount published_low=published_low_amount"
    " published_high=published_high_amount predicted=predicted_amount low=low_amount high=high_amount"
    " signed_error_fraction is_in_band basis implied_mfu_fraction fitted note",
    "RunCostReport": "in_band_fraction rows unused",
    "Cause": "quantity=row.quantity group=row.group gap=row.gap_amount share_fraction",
    "ErrorChange": "* is_worse",
    "ErrorSummary": "*",
    "FitSummary": "name num_rows correct_fraction num_fits_right num_fits_wrong num_oom_wrong num_oom_right",
    "LintFinding": "*",
    "ShownPart": "*",
    "ShownSample": "*",
    "ReconciledRow": "quantity unit predicted=predicted_amount measured=measured_amount group signed_error_fraction"
    " low=low_amount high=high_amount is_in_band",
    "Reconciliation": "trainer=measured.trainer num_steps=measured.num_steps rows causes step_time_ratio"
    " utilisation=utilisations warnings=measured.notes",
    "Residual": "*",
    "RowAccuracy": "id=run.id family=run.family scope=run.scope outcome=run.outcome"
    " measured_low_bytes=run.measured_low_bytes measured_high_bytes=run.measured_high_bytes predicted_bytes"
    " predicted_fits signed_error_fraction refusal assumptions=run.assumptions source=run.source date=run.date",
    "TimeAccuracyReport": "families reported fitted with_gaps blind blind_engines family_median_fraction"
    " family_calibrated_fraction blind_families"
    " fitted_families reported_families rows unused",
    "TimedRowAccuracy": "id=run.id family=run.family sweep=run.sweep figure=run.figure measured_s=run.measured_s"
    " predicted_s low_s high_s is_in_band signed_error_fraction components_s={components} refusal gaps=run.gaps"
    " assumptions=run.assumptions source=run.source date=run.date",
    "TimeSummary": "*",
    "UnusedRow": "*",
    "Utilisation": "mfu_convention=convention peak_flop_per_s predicted_mfu_fraction=predicted_fraction"
    " measured_mfu_fraction=measured_fraction refusal",
}
"""The keys of every record, in order. ``key`` is a field or property of that name, ``key=place`` one somewhere in the
record, ``key={place}`` pairs, or records of two fields, as one object. ``*`` is every field, ``*place`` every key of
the record there."""


def json_object(record: object, keys: str = "") -> dict[str, object]:
    """``record`` under ``keys``, or under those that :data:`KEYS` has for its class."""
    written: dict[str, object] = {}
    for word in (keys or KEYS[type(record).__name__]).split():
        key, _, place = word.partition("=")
        if key == "*":
            written |= {name: _member(record, name) for name in field_names(type(record))}
        elif key.startswith("*"):
            written |= json_object(attrgetter(key[1:])(record))
        elif place.startswith("{"):
            written[key] = dict(map(_pair, attrgetter(place[1:-1])(record)))
        else:
            written[key] = _member(record, place or key)
    return written


def field_names(record_type: type) -> tuple[str, ...]:
    """The fields of a class of records, in order."""
    return tuple(field.name for field in fields(record_type))


def _pair(entry: object) -> tuple[object, object]:
    name, amount = entry if isinstance(entry, tuple) else attrgetter(*field_names(type(entry)))(entry)
    return name, amount


def _member(record: object, place: str) -> object:
    value = attrgetter(place)(record)
    if isinstance(value, Prediction):  # its assumptions and warnings are those of the plan beside it
        return prediction_object(plan=attrgetter("plan")(record), prediction=value)
    return json_value(value)


def json_value(value: object) -> object:
    """``value`` as dictionaries, lists, text and numbers."""
    if isinstance(value, Plan):
        return plan_to_json(value)
    if isinstance(value, tuple):
        return [json_value(item) for item in value]
    if isinstance(value, StageMemory):
        largest = [{"name": name, "bytes": num_bytes} for name, num_bytes in value.largest_tensors]
        return {**json_object(value), "largest_tensors": largest}
    return json_object(value) if is_dataclass(value) else value


def prediction_object(
    *, plan: Plan, prediction: Prediction, exposed: ExposedCommunication | None = None
) -> dict[str, object]:
    """``shardwise.prediction/1``; ``running_cost`` is there where a price is known, ``cost`` when the
    recipe names its tokens, ``exposed`` when asked."""
    model, calibration = plan.model, plan.cluster.calibration
    written: dict[str, object] = {
        "schema": PREDICTION_SCHEMA,
        "fits": prediction.fits,
        "fit": prediction.fit,
        "parameters": {
            "total": model.num_params,
            "active": model.num_active_params,
            "embedding": model.num_embedding_params,
        },
        **json_object(prediction, "memory time throughput"),
    }
    if exposed is not None:
        written["exposed"] = json_object(exposed)
    if prediction.running_cost is not None:
        written["running_cost"] = json_object(prediction.running_cost)
    if prediction.cost is not None:
        written["cost"] = json_object(prediction.cost)
    if calibration is not None:
        written["calibration"] = {**json_object(calibration), "num_residuals": len(calibration.residuals)}
    warnings = plan_warnings(plan, prediction)
    written["warnings"] = [json_object(refusal, "rule warning=message fix") for refusal in warnings]
    written["assumptions"] = list(stated_assumptions(plan=plan, prediction=prediction))
    return written
