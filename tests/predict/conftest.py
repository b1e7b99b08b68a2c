"""What tests of predictions share."""

import pytest

from shardwise.step import native_engine, stage_context


@pytest.fixture
def in_units(monkeypatch):
    """Our trainer before 2026-12-01: one rank cast fp32 weights and bf16 gradients, unit by unit."""
    for module in (native_engine, stage_context):
        monkeypatch.setattr(module, "keeps_halves", lambda **_: False)
