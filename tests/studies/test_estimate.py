"""The time of training, estimated from a sample of the users."""

from __future__ import annotations

import pytest

from dips.data.catalog import open_data
from dips.studies import estimate
from dips.studies.checks import split
from dips.training.recipes import build_config


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch):
    """Replace the timing of a sample by one second, and record what is timed."""
    seen = []

    def second(parts, config):
        seen.append((parts, config))
        return 1.0

    monkeypatch.setattr(estimate, "_second_epoch", second)
    monkeypatch.setattr(estimate, "SHORT_WORK", 0)
    return seen


def test_starts_and_baselines_are_counted(timed) -> None:
    data = open_data("synthetic", options={"users": 200})
    config = build_config(flags={"policy": "learned", "epochs": 8, "baselines": ("last", "mix:2")})
    parts = split(data, config)
    seconds = estimate.estimate_seconds(parts, [config])
    policies = [(c.sketch.policy, c.policy_training.initial_policy) for _, c in timed]
    assert [name for name, _ in policies] == ["learned", "learned", "last", "mix:2"]
    assert {start for name, start in policies if name == "learned"} == {"last", "rule"}
    (sample, _, test), _ = timed[0]
    assert sample.users == round(0.1 * parts[0].users)
    assert test.users == 0
    assert seconds == pytest.approx(4 * 8 * len(parts[0]) / len(sample))


def test_runs_of_one_policy_are_timed_once(timed) -> None:
    data = open_data("synthetic", options={"users": 200})
    config = build_config(flags={"policy": "last", "epochs": 5})
    parts = split(data, config)
    one = estimate.estimate_seconds(parts, [config])
    three = estimate.estimate_seconds(parts, [config.but(fold=fold) for fold in range(3)])
    assert len(timed) == 2
    assert three == pytest.approx(3 * one)


def test_the_batches_are_those_of_all_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the policy is trained in the epoch that is timed."""
    seen = []
    plain = estimate.train_runs
    monkeypatch.setattr(
        estimate, "train_runs", lambda jobs, **rest: (seen.extend(jobs), plain(jobs, **rest))[1]
    )
    monkeypatch.setattr(estimate, "SHORT_WORK", 0)
    data = open_data("synthetic", options={"users": 300})
    config = build_config(flags={"policy": "learned", "baselines": ()})
    parts = split(data, config)
    assert estimate.estimate_seconds(parts, [config]) > 0
    wanted = estimate.resolved(parts[0], config)
    for _, short in seen:
        assert short.training.batch_size == wanted.training.batch_size
        assert short.training.epochs == 2
        assert short.policy_training.policy_warmup_epochs == 0
        assert short.policy_training.policy_freeze_epochs == 0


def test_short_work_is_not_estimated() -> None:
    config = build_config(flags={"policy": "last", "epochs": 1})
    assert (
        estimate.estimate_seconds(
            split(open_data("synthetic", options={"users": 50}), config), [config]
        )
        is None
    )
