"""Killed at random and at marked points, a keeper loses nothing and applies nothing twice."""

from __future__ import annotations

import pytest

from tests.serve import crashing


@pytest.fixture
def here(monkeypatch):
    """Lives are forked from this process: it must not report what they do."""
    monkeypatch.setattr(crashing, "BATCH", 5)


def test_nothing_acknowledged_is_lost(lasting, here):
    """The same as `make crash`, with fewer kills."""
    report = crashing.crash(lasting, kills=12, seed=7)
    assert report.wrong == []
    assert report.lost == 0
    assert report.ahead > 0  # some were killed between the commit and its acknowledgement
    assert report.acknowledged > 50
    assert dict(report.kills) == dict.fromkeys(crashing.POINTS, 3)


def test_the_suite_notices_a_keeper_that_lies(lasting, here, monkeypatch):
    """One that acknowledges before it has committed is found out."""

    class Late(crashing.Deadly):
        def stage(self, change):
            if self._turn > 1:  # an acknowledged commit that never happens
                self._turn -= 1
                return lambda: None
            return super().stage(change)

    monkeypatch.setattr(crashing, "Deadly", Late)
    assert crashing.crash(lasting, kills=4, seed=7).lost > 0
