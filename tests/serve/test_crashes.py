"""A keeper that is killed loses no acknowledged event and applies none twice."""

from __future__ import annotations

from tests.serve import crashing


def test_nothing_acknowledged_is_lost(durable):
    """Run `make crash` with fewer kills."""
    report = crashing.crash(durable, kills=10, seed=7)
    assert report.faults == []
    assert report.lost == 0
    assert report.unacknowledged > 0  # some kills fell between commit and acknowledgement
    assert report.acknowledged > 20
    assert report.reads > 10
    assert set(report.kills) == set(crashing.POINTS)


def test_an_acknowledgement_before_the_commit_is_detected(durable):
    """After a kill, and by the reader before it."""
    report = crashing.crash(durable, kills=2, seed=7, points=["random", "unwritten"])
    assert report.lost > 0
    assert any("a reader missed what was acknowledged" in fault for fault in report.faults)
