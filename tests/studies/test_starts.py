"""`learned` is trained from several initial policies; the better one on validation is kept."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from dips.data.synthetic import stream
from dips.errors import RunError
from dips.policy.settings import starts
from dips.studies.checks import resolved, split
from dips.studies.compare import Comparison, ComparisonPlan
from dips.studies.progress import EpochReport, StudyProgress
from dips.studies.result import RunResult
from dips.studies.run import train_runs
from dips.studies.run_directory import prepare_directory
from dips.training import checkpoint
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
    assert best.metrics()["starts"] == {name: one.valid for name, one in single.items()}
    assert f"of the start at {wanted}" in best.kept_epoch()
    assert best.history == single[wanted].history
    assert best.config.policy_training.initial_policy is None


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
        if report.role == "start at rule" and report.epoch == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config(), on_epoch=stop, directory=tmp_path)
    [found] = train(config(), on_epoch=again.append, directory=tmp_path, resume=True)
    assert [one.epoch for one in seen] == [1, 2, 3, 4, 5, 6]
    assert {one.epochs for one in seen} == {8}
    assert [(one.role, one.epoch) for one in again] == [("start at rule", n) for n in (7, 8)]
    assert same(found, whole)


def test_a_start_that_diverges_leaves_the_other() -> None:
    left, right = (train(config(initial_policy=name))[0] for name in starts("best"))
    failed = replace(left, own=None, error="the policy was not finite", seconds=2.0)
    right.seconds = 3.0
    assert failed.or_better(right) is right
    assert right.seconds == 5.0  # of both
    assert right.starts == {"last": "the policy was not finite", "rule": right.valid}
    assert replace(right).or_better(failed).own is right.own
    assert failed.or_better(replace(failed)).error


def test_other_policies_have_one_start() -> None:
    for policy in ("last", "dips"):
        seen: list[EpochReport] = []
        [found] = train(config().but(policy=policy), on_epoch=seen.append)
        assert [one.epoch for one in seen] == [1, 2, 3, 4]
        assert "initial_policy" not in found.metrics()


def test_progress_of_a_comparison_counts_both_starts(tmp_path) -> None:
    seen: list[StudyProgress] = []
    plan = ComparisonPlan(
        policies=["last", "learned"], sizes=[3], every=[1], folds=1,
        settings=lambda policy: config().but(policy=policy),
    )  # fmt: skip
    Comparison(EXPLICIT, plan, tmp_path / "out", source="made", on_progress=seen.append).run()
    assert {one.total for one in seen} == {12}
    assert [one.done for one in seen] == list(range(1, 13))


def test_only_checkpoints_are_removed(tmp_path) -> None:
    for name in ("start-rule", "start-last", "start-scripts"):
        (tmp_path / name).mkdir()
    (tmp_path / "start-notes.txt").write_text("mine")
    (tmp_path / "start-scripts" / "mine.py").write_text("")
    (tmp_path / "start-last" / "mine.txt").write_text("")
    for place in (tmp_path, tmp_path / "start-last", tmp_path / "start-rule"):
        (place / checkpoint.FILE).write_bytes(b"")
        (place / f"{checkpoint.FILE}.1.part").write_bytes(b"")
    assert checkpoint.exists(tmp_path)
    checkpoint.remove(tmp_path)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert found == [
        "start-last", "start-last/mine.txt", "start-notes.txt", "start-scripts",
        "start-scripts/mine.py",
    ]  # fmt: skip
    assert not checkpoint.exists(tmp_path)


def test_a_checkpoint_of_the_second_start_is_of_an_interrupted_run(tmp_path) -> None:
    place = checkpoint.of_start(tmp_path, "rule")
    place.mkdir()
    (place / checkpoint.FILE).write_bytes(b"")
    with pytest.raises(RunError, match="interrupted run"):
        prepare_directory(tmp_path, config(), "made", resume=False)
