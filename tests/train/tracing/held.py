"""What a traced step holds."""

from shardwise.ledger import MEMORY_COMPONENTS
from shardwise.train.tracing.summary import StepSummary, peak


def held(summary: StepSummary, phase: str) -> dict[str, int]:
    """Bytes by component at the peak of a phase."""
    return dict(zip(MEMORY_COMPONENTS, peak(summary, (phase,))[1], strict=True))
