"""How well predictions rank the runs of one sweep, whatever their common bias."""

from collections.abc import Sequence


def concordance(measured: Sequence[float], predicted: Sequence[float]) -> tuple[int, int]:
    """Pairs ranked alike minus pairs ranked apart, and the pairs that measured apart.

    A pair that measured equal says nothing and is left out; one that is predicted equal is neither right nor wrong.

    Source: Kendall 1938, Biometrika 30 (1/2), tau before any correction for ties.
    Assumes: both sequences list the same runs in the same order.

    >>> concordance([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    (1, 3)
    """
    agreement = pairs = 0
    for later in range(len(measured)):
        for earlier in range(later):
            truth = _sign(measured[later] - measured[earlier])
            if truth:
                pairs += 1
                agreement += truth * _sign(predicted[later] - predicted[earlier])
    return agreement, pairs


def _sign(difference: float) -> int:
    return (difference > 0) - (difference < 0)
