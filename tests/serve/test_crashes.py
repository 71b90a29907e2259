"""A keeper that is killed loses no acknowledged event and applies none twice."""

from __future__ import annotations

import pytest

from tests.serve import crashing


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(crashing, "BATCH", 5)


def test_nothing_acknowledged_is_lost(durable, small_batches):
    """Run `make crash` with fewer kills."""
    report = crashing.crash(durable, kills=21, seed=7)
    assert report.faults == []
    assert report.lost == 0
    assert report.unacknowledged > 0  # some kills fell between commit and acknowledgement
    assert report.acknowledged > 50
    assert dict(report.kills) == dict.fromkeys(crashing.POINTS, 3)


def test_an_acknowledgement_before_the_commit_is_detected(durable, small_batches, monkeypatch):
    """The crash test fails for a keeper that acknowledges what was not committed."""

    class Unwritten(crashing.KillingStore):
        def stage(self, change):
            if self._turn > 1:  # acknowledged, but never written
                self._turn -= 1
                return lambda: None
            return super().stage(change)

    monkeypatch.setattr(crashing, "KillingStore", Unwritten)
    assert crashing.crash(durable, kills=7, seed=7).lost > 0
