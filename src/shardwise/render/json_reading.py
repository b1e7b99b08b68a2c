"""What files of other tools say about a run, as ``shardwise.reading/1``."""

from dataclasses import asdict

from shardwise.exchange.mistakes import Mistake
from shardwise.exchange.names import Claim
from shardwise.exchange.reading import Reading


def reading_object(reading: Reading, mistakes: tuple[Mistake, ...], *, model_name: str) -> dict[str, object]:
    """The reading as one object."""
    return {
        "schema": "shardwise.reading/1",
        "read_as": [asdict(one) for one in reading.read_as],
        "model": model_name or None,
        "known": {claim.field: {"value": claim.value, "place": claim.place} for claim in reading.known},
        "open": [{**asdict(one), "option": one.option} for one in reading.open],
        "contradictions": [
            {"field": one.first.field, "claims": [_claim(one.first), _claim(one.second)]}
            for one in reading.contradictions
        ],
        "mistakes": [_mistake(one) for one in mistakes],
        "named_files": list(reading.named_files),
        "not_understood": [asdict(one) for one in reading.not_understood],
    }


def _claim(claim: Claim) -> dict[str, object]:
    return {"value": claim.value, "place": claim.place}


def _mistake(mistake: Mistake) -> dict[str, object]:
    said = {"code": mistake.code, "place": mistake.place, "what": mistake.what, "fix": mistake.fix}
    return {**said, "tool_says": mistake.tool_says, "source": mistake.kind.source}
