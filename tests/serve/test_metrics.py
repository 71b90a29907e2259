"""Counters of a keeper, their Prometheus text, and the metrics file."""

from __future__ import annotations

import re
import time

import pytest

from dips.errors import DataError
from dips.serve import metrics as metrics_module
from dips.serve.admission import CommitResult
from dips.serve.keeper import open_keeper
from dips.serve.metrics import BUCKETS, Metrics, metrics_file
from dips.serve.stores.base import StoreError
from dips.serve.stores.registry import open_store
from tests.serve.failing import Failing
from tests.serve.models import make_model

LINE = re.compile(r'(dips_\w+)(\{\w+="[\w.+]+"\})? (-?[\d.]+(?:e[-+]\d+)?)')
EVENT = {"user": "u", "item": "1", "rating": 3, "seq": 1, "time": 1_000}


def samples(text: str) -> dict[str, float]:
    """Parse the text format: every sample stands behind the type of its metric."""
    found, kind = {}, ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            kind = line.split()[2]
        elif not line.startswith("# HELP "):
            name, labels, value = LINE.fullmatch(line).groups()
            assert name.removesuffix("_bucket").removesuffix("_sum").startswith(kind[:12])
            found[name + (labels or "")] = float(value)
    return found


def test_what_becomes_of_events_is_counted(url):
    with open_keeper(make_model(), url, batch=2) as keeper:
        assert keeper.metrics.lag_seconds is None
        before = time.time()
        keeper.observe_many([EVENT, EVENT, {"user": "v"}, {**EVENT, "seq": 2, "time": 2_000}])
        keeper.forget("u")
        keeper.observe_many([{**EVENT, "time": None}])
        metrics = keeper.metrics
        expected = {"applied": 2, "repeated": 1, "forgotten": 1, "refused": 1}
        assert metrics.events == expected
        assert metrics.commits == 3
        assert before - 2_000 <= metrics.lag_seconds <= time.time() - 2_000
        found = samples(metrics.text())
        assert {k: found[f'dips_events_total{{outcome="{k}"}}'] for k in expected} == expected
        assert found['dips_commit_seconds_bucket{le="+Inf"}'] == 3
        assert found["dips_commit_seconds_count"] == 3
        assert found["dips_commit_seconds_sum"] == metrics.commit_seconds > 0
        assert found["dips_lag_seconds"] == metrics.lag_seconds
        assert found["dips_last_commit_timestamp_seconds"] >= before
        assert found["dips_failed_commits_total"] == 0


def test_events_of_a_failed_commit_are_not_counted(durable):
    store = Failing(open_store(durable))
    with open_keeper(make_model(), store, batch=2) as keeper:
        store.fail([2])
        with pytest.raises(StoreError):
            keeper.observe_many({**EVENT, "seq": n} for n in range(6))
        assert (keeper.metrics.events["applied"], keeper.metrics.failed_commits) == (2, 1)
        assert keeper.metrics.commits == 1


def test_repeats_and_refusals_are_counted_for_ever(durable):
    """Also where a commit holds nothing else."""
    with open_keeper(make_model(), durable) as keeper:
        keeper.observe_many([EVENT])
        keeper.observe_many([EVENT, EVENT])
        keeper.observe_many([{"user": "v"}])
    with open_keeper(make_model(), durable) as keeper:
        stats = keeper.stats()
        assert (stats["applied"], stats["repeated"], stats["refused"]) == (1, 2, 1)
        assert sum(keeper.metrics.events.values()) == 0  # of this process


def test_the_buckets_are_cumulative(monkeypatch):
    clock = iter([0.0, 0.001, 0.0, 0.003, 0.0, 99.0])
    monkeypatch.setattr(metrics_module.time, "perf_counter", lambda: next(clock))
    metrics = Metrics()
    for _ in range(3):
        metrics.measured(lambda: None, CommitResult(), None)()
    found = samples(metrics.text())
    counts = [found[f'dips_commit_seconds_bucket{{le="{most}"}}'] for most in BUCKETS]
    assert counts == [1, 1, *[2] * (len(BUCKETS) - 2)]
    assert found['dips_commit_seconds_bucket{le="+Inf"}'] == 3
    assert found["dips_commit_seconds_sum"] == pytest.approx(99.004)


def test_the_file_is_written_at_the_start_repeatedly_and_at_the_end(tmp_path):
    path, metrics = tmp_path / "new" / "dips.prom", Metrics()
    with metrics_file(path, metrics, seconds=0.001):
        first = samples(path.read_text())
        metrics.measured(lambda: None, CommitResult(applied=5), None)()
        while 'outcome="applied"} 5' not in path.read_text():  # whole at any time
            assert samples(path.read_text())
        metrics.measured(lambda: None, CommitResult(applied=1), None)()
    assert first['dips_events_total{outcome="applied"}'] == 0
    assert samples(path.read_text())['dips_events_total{outcome="applied"}'] == 6
    assert [found.name for found in path.parent.iterdir()] == ["dips.prom"]


def test_a_file_that_cannot_be_written_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DataError, match="file/x: cannot be written"),
        metrics_file(tmp_path / "file" / "x", Metrics()),
    ):
        pytest.fail("the stream must not start")
