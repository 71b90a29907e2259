"""`learned` is trained from several initial policies; the better one on validation is kept."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from dips.data.synthetic import stream
from dips.policy.registry import starts
from dips.studies.checks import resolved, split
from dips.studies.progress import EpochReport
from dips.studies.result import RunResult
from dips.studies.run import train_runs
from dips.training.config import TrainConfig

EXPLICIT = stream(users=40, items=64, events=14)


def config(**settings: Any) -> TrainConfig:
    return TrainConfig.of(
        policy="learned", size=3, baselines=(), epochs=4, dim=6, batch_size=128, device="cpu",
        policy_freeze_epochs=0, **settings,
    )  # fmt: skip


def train(*configs: TrainConfig, **options: Any) -> list[RunResult]:
    return train_runs([(split(EXPLICIT, one), one) for one in configs], **options)


def same(left: RunResult, right: RunResult) -> bool:
    states = left.trained.policy.state_dict(), right.trained.policy.state_dict()
    equal = all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    return equal and (left.valid, left.test.metrics) == (right.valid, right.test.metrics)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_better_start_on_the_selection_users_is_kept(seed: int) -> None:
    [best] = train(config(seed=seed))
    single = {name: train(config(seed=seed, initial_policy=name))[0] for name in starts("best")}
    wanted = min(single, key=lambda name: single[name].kept.selection_loss)
    assert same(best, single[wanted])
    assert not same(single["last"], single["rule"])
    assert best.metrics()["initial_policy"] == wanted
    assert best.history == single[wanted].history
    assert best.config.policy_training.initial_policy is None
    assert best.seconds > max(one.seconds for one in single.values()) / 2


def test_both_starts_are_kept_by_some_seed() -> None:
    found = train(*(config(seed=seed) for seed in range(4)))
    assert {one.metrics()["initial_policy"] for one in found} == {"last", "rule"}


def test_settings_left_open_are_decided_for_each_start() -> None:
    [best] = train(config())
    rates = {
        name: resolved(EXPLICIT, config(initial_policy=name)).policy_training.policy_lr
        for name in starts("best")
    }
    assert rates == {"last": 3e-3, "rule": 1e-3}
    assert best.resolved is not None
    assert best.resolved.config.policy_training.initial_policy == "best"
    given = {name: train(config(initial_policy=name, policy_lr=0.02))[0] for name in starts("best")}
    [both] = train(config(policy_lr=0.02))
    assert any(same(both, one) for one in given.values())


def test_runs_of_a_stack_keep_their_own_starts() -> None:
    stacked = train(*(config(seed=seed) for seed in range(3)))
    for seed, found in enumerate(stacked):
        [single] = train(config(seed=seed))
        assert found.valid == pytest.approx(single.valid, abs=1e-5)
        assert found.metrics()["initial_policy"] == single.metrics()["initial_policy"]


def test_an_interrupted_start_resumes(tmp_path) -> None:
    [whole] = train(config())
    again: list[EpochReport] = []
    seen: list[EpochReport] = []

    def stop(report: EpochReport) -> None:
        seen.append(report)
        if report.beside and report.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config(), on_epoch=stop, directory=tmp_path)
    [found] = train(config(), on_epoch=again.append, directory=tmp_path, resume=True)
    assert [one.epoch for one in seen if not one.beside] == [1, 2, 3, 4]
    assert [(one.beside, one.epoch) for one in again] == [("start at rule", n) for n in (3, 4)]
    assert same(found, whole)


def test_a_start_that_diverges_leaves_the_other() -> None:
    left, right = (train(config(initial_policy=name))[0] for name in starts("best"))
    failed = replace(left, own=None, error="the policy was not finite")
    assert failed.or_better(right) is right
    assert replace(right).or_better(failed).own is right.own
    assert failed.or_better(replace(failed)).error


def test_other_policies_have_one_start() -> None:
    for policy in ("last", "dips"):
        seen: list[EpochReport] = []
        [found] = train(config().but(policy=policy), on_epoch=seen.append)
        assert [one.epoch for one in seen] == [1, 2, 3, 4]
        assert "initial_policy" not in found.metrics()
