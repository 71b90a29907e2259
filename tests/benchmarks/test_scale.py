"""The benchmark of large data: targets, and a small run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import scale


@pytest.mark.parametrize(("seconds", "reached"), [(179.0, "met"), (181.0, "missed")])
def test_a_target_below_its_limit_passes(seconds: float, reached: str) -> None:
    gib = 2**30
    results = {
        "policy": "learned", "device": "cuda:0", "interactions": 98, "users": 2, "items": 3,
        "interactions_per_second": 5.0, "seconds": seconds, "host_peak_bytes": 15 * gib,
        "gpu_peak_bytes": 41 * gib,
    }  # fmt: skip
    *_, time, host, gpu = scale.report(
        {**results, "targets": scale.with_targets(results)}
    ).splitlines()
    assert time == f"seconds: {seconds:.2f} s (target 180 s, {reached})"
    assert host == "host_peak_bytes: 15.00 GiB (target 16 GiB, met)"
    assert gpu == "gpu_peak_bytes: 41.00 GiB (target 40 GiB, missed)"


def test_an_epoch_over_a_small_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nearly all users are training users, in several user batches."""
    file = tmp_path / "found.json"
    options = ["--interactions", "3000", "--users", "150", "--items", "64", "--user-batch", "50"]
    assert scale.main([*options, "--batch-size", "512", "--json", str(file)]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == json.loads(file.read_text())
    assert (found["users"], found["user_batch"], found["items"]) == (147, 50, 64)
    assert 2000 < found["interactions"] < 4000
    assert found["interactions_per_second"] == found["interactions"] / found["seconds"]
    assert 0 < found["valid"] < 3
    assert found["targets"] == {"host_peak_bytes": [found["host_peak_bytes"], 4 * 2**30]}
