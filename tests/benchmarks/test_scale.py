"""The benchmark of large streams: its verdicts, and a smallest run of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import scale


@pytest.mark.parametrize(("seconds", "says"), [(179.0, "met"), (181.0, "missed")])
def test_a_target_is_met_below_its_limit(seconds: float, says: str) -> None:
    gib = 2**30
    results = {
        "policy": "learned", "device": "cuda:0", "interactions": 98, "users": 2, "items": 3,
        "interactions_per_second": 5.0, "seconds": seconds, "host_peak_bytes": 15 * gib,
        "gpu_peak_bytes": 41 * gib,
    }  # fmt: skip
    *_, time, host, gpu = scale.report({**results, "targets": scale.judged(results)}).splitlines()
    assert time == f"seconds: {seconds:.2f} s (target 180 s, {says})"
    assert host == "host_peak_bytes: 15.00 GiB (target 16 GiB, met)"
    assert gpu == "gpu_peak_bytes: 41.00 GiB (target 40 GiB, missed)"


def test_an_epoch_over_a_small_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nearly everyone trains, company by company."""
    file = tmp_path / "found.json"
    options = ["--interactions", "3000", "--users", "150", "--items", "64", "--user-batch", "50"]
    assert scale.main([*options, "--batch", "512", "--json", str(file)]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == json.loads(file.read_text())
    assert (found["users"], found["users_a_walk"], found["items"]) == (147, 50, 64)
    assert 2000 < found["interactions"] < 4000
    assert found["interactions_per_second"] == found["interactions"] / found["seconds"]
    assert 0 < found["valid"] < 3
    assert found["targets"] == {"host_peak_bytes": [found["host_peak_bytes"], 4 * 2**30]}
