"""The benchmark of several processes: its table, and a small run."""

from __future__ import annotations

import json

import pytest

from benchmarks import scaling


def test_efficiency_is_gain_over_processes() -> None:
    points = [
        {"processes": 2, "interactions_per_second": 1000.0},
        {"processes": 4, "interactions_per_second": 1500.0},
    ]
    first, second = scaling.report("last", points).splitlines()[2:]
    assert [cell.strip() for cell in first.strip("|").split("|")] == ["2", "1,000", "1.00", "100%"]
    assert [cell.strip() for cell in second.strip("|").split("|")] == ["4", "1,500", "1.50", "75%"]


@pytest.mark.parametrize("clock", ["wall", "cpu"])
def test_a_child_process_reports_its_speed(capsys: pytest.CaptureFixture[str], clock: str) -> None:
    job = {"users": 30, "items": 64, "epochs": 2, "device": "cpu", "policy": "last", "clock": clock}
    assert scaling.main(["--child", json.dumps(job)]) == 0
    assert json.loads(capsys.readouterr().out)["interactions_per_second"] > 0
