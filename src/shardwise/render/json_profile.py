"""A profile of measured traces as ``shardwise.profile/1``."""

from shardwise.explain.knobs import TurnedKnobs
from shardwise.measure.profile_records import CollectiveFamily, KernelShare, RankProfile, TraceProfile, UnitExposure
from shardwise.measure.step_split import DEFINITIONS, StepSplit
from shardwise.reconcile.planned_profile import PlannedProfile
from shardwise.render.utilisation import utilisation_objects

PROFILE_SCHEMA = "shardwise.profile/1"


def profile_object(profile: TraceProfile, planned: PlannedProfile | None = None) -> dict[str, object]:
    """Every number of the report; times are seconds of one mean step. Without a plan nothing of it is predicted."""
    turned = planned.knobs if planned else tuple(None for _ in profile.findings)
    return {
        "schema": PROFILE_SCHEMA,
        "world_size": profile.world_size,
        "split": split_object(profile.split),
        "ranks": [_rank_object(rank) for rank in profile.ranks],
        "collectives": [_collective_object(family) for family in profile.collectives],
        "units": [_unit_object(unit) for unit in profile.units],
        "kernels": [_kernel_object(share) for share in profile.kernels],
        "straggler_rank": profile.straggler_rank,
        "findings": [
            {
                "knob": finding.knob,
                "finding": finding.sentence,
                "advice": finding.advice,
                "gain_at_most_s": finding.gain_s,
                "gain_at_most_fraction": finding.gain_fraction,
                "knobs": None if knobs is None else _knobs_object(knobs),
            }
            for finding, knobs in zip(profile.findings, turned, strict=True)
        ],
        "utilisation": utilisation_objects(planned.utilisations) if planned else None,
        "warnings": [*profile.warnings, *(planned.notes if planned else ())],
        "definitions": dict(DEFINITIONS),
    }


def split_object(split: StepSplit) -> dict[str, object]:
    """The parts of a step, which sum to it, and the communication under compute."""
    return {
        "step_s": split.step_s,
        "compute_s": split.compute_s,
        "exposed_communication_s": split.exposed_communication_s,
        "copies_s": split.copies_s,
        "host_s": split.host_s,
        "idle_s": split.idle_s,
        "communication_s": split.communication_s,
        "overlapped_s": split.overlapped_s,
        "overlap_fraction": split.overlap_fraction,
    }


def _knobs_object(knobs: TurnedKnobs) -> dict[str, object]:
    return {
        "gains": [
            {
                "edit": gain.edit,
                "cost": gain.cost,
                "predicted_step_s": gain.predicted_step_s,
                "predicted_gain_s": gain.gain_s,
                "predicted_gain_fraction": gain.gain_fraction,
            }
            for gain in knobs.gains
        ],
        "no_gain": list(knobs.useless),
        "does_not_fit": list(knobs.too_large),
    }


def _rank_object(rank: RankProfile) -> dict[str, object]:
    return {
        "rank": rank.rank,
        "device": rank.device_name,
        "num_steps": rank.num_steps,
        "num_kernels": rank.num_kernels,
        "graph_launched_fraction": rank.graph_launched_fraction,
        "wait_s": rank.wait_s,
        **split_object(rank.split),
    }


def _collective_object(family: CollectiveFamily) -> dict[str, object]:
    return {
        "kind": family.kind,
        "axis": family.axis,
        "group_size": family.group_size,
        "num_calls": family.num_calls,
        "payload_bytes": family.payload_bytes,
        "work_s": family.work_s,
        "wait_s": family.wait_s,
        "transfer_s": family.transfer_s,
        "exposed_s": family.exposed_s,
        "bus_bandwidth_bytes_per_s": family.bus_bandwidth_bytes_per_s,
    }


def _unit_object(unit: UnitExposure) -> dict[str, object]:
    return {
        "unit": unit.unit,
        "kind": unit.kind,
        "is_backward": unit.is_backward,
        "num_calls": unit.num_calls,
        "work_s": unit.work_s,
        "exposed_s": unit.exposed_s,
        "exposed_fraction": unit.exposed_fraction,
    }


def _kernel_object(share: KernelShare) -> dict[str, object]:
    return {
        "family": share.family,
        "num_kernels": share.num_kernels,
        "duration_s": share.duration_s,
        "share_fraction": share.share_fraction,
        "flop_per_s": share.flop_per_s,
        "peak_fraction": share.peak_fraction,
    }
