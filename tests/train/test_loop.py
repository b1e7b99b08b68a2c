"""What a run does beside its steps."""

from types import SimpleNamespace

from shardwise.train import loop


def test_garbage_is_looked_for_every_fifty_steps_and_not_in_between(monkeypatch):
    """Ranks count steps alike, so that none of them pauses alone."""
    looked, stopped = [], []
    monkeypatch.setattr(
        loop, "gc", SimpleNamespace(collect=lambda _: looked.append(step), disable=lambda: stopped.append(step))
    )
    for step in range(151):
        loop.collect_garbage_together(step)
    assert looked == [0, 50, 100, 150]
    assert stopped == [0]
