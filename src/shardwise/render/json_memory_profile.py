"""A recorded memory history as ``shardwise.memory_profile/1``."""

from collections.abc import Sequence

from shardwise.measure.memory_origin import DEFINITIONS
from shardwise.measure.memory_profile import MemoryMoment, MemoryProfile

MEMORY_PROFILE_SCHEMA = "shardwise.memory_profile/1"


def memory_profile_object(profiles: Sequence[MemoryProfile]) -> dict[str, object]:
    """Every number of the report; the samples of the picture are left out."""
    return {
        "schema": MEMORY_PROFILE_SCHEMA,
        "devices": [
            {
                "file": profile.path.name,
                "device": profile.device_index,
                "num_events": profile.num_events,
                "peak": moment_object(profile.peak),
                "phases": [moment_object(moment) for moment in profile.phase_peaks],
                "peak_reserved_bytes": profile.peak_reserved_bytes,
                "code": [
                    {
                        "label": share.label,
                        "component": share.component,
                        "num_blocks": share.num_blocks,
                        "num_bytes": share.num_bytes,
                    }
                    for share in profile.code
                ],
                "out_of_memory": [
                    {"num_bytes": refused.num_bytes, "free_bytes": refused.free_bytes} for refused in profile.refused
                ],
            }
            for profile in profiles
        ],
        "definitions": dict(DEFINITIONS),
    }


def moment_object(moment: MemoryMoment) -> dict[str, object]:
    """What is held at one moment."""
    return {"phase": moment.phase, "num_bytes": moment.num_bytes, "components_bytes": dict(moment.components)}
