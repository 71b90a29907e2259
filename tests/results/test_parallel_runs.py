"""Runs in parallel processes are those of `protocol.py`, which then only writes the tables."""

import parallel_runs
import protocol

from dips.studies.run_directory import read_metrics


def test_protocol_takes_over_the_runs(tmp_path, capsys):
    words = ["planted", str(tmp_path), "--policies", "last,reservoir", "--sizes", "2"]
    words += ["--every", "1", "--folds", "1", "--set", "epochs=1", "--set", "patience=1"]
    assert parallel_runs.main([*words, "--workers", "1"]) == 0
    assert "2 of 2 runs are missing" in capsys.readouterr().out
    place = tmp_path / "runs" / "last-k2-t1-f0-r0"
    made = read_metrics(place)
    assert parallel_runs.main([*words, "--workers", "1"]) == 0
    assert "0 of 2 runs are missing" in capsys.readouterr().out
    (tmp_path / "runs" / "reservoir-k2-t1-f0-r0" / "metrics.json").unlink()
    assert protocol.main([*words, "--trials", "0"]) == 0
    assert read_metrics(place) == made
    assert (tmp_path / "summary.csv").exists()
