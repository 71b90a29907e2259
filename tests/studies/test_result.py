"""Baselines that are trained beside a run; the best policy on validation is kept."""

import pytest

from dips.data.synthetic import stream
from dips.errors import ConfigError
from dips.studies.checks import check, split
from dips.studies.run import train_runs
from dips.training.config import TrainConfig

EXPLICIT = stream(users=40, items=64, events=14)


def config(**settings):
    return TrainConfig.of(epochs=4, dim=6, batch_size=128, device="cpu", **settings)


WITH_BASELINE = {
    "policy": "learned", "baselines": ("reservoir",), "size": 3, "policy_freeze_epochs": 0,
    "policy_lr": 0.0, "inner_lr": 0.21, "weight_decay": 3e-4,
}  # fmt: skip


def test_a_better_baseline_is_kept(tmp_path):
    chosen = config(**WITH_BASELINE)
    parts = split(EXPLICIT, chosen)
    seen = []
    found = train_runs([(parts, chosen)], on_epoch=seen.append, directory=tmp_path)[0]
    single = train_runs([(parts, chosen.but(baselines=()))])[0]
    baseline = train_runs([(parts, chosen.but(policy="reservoir", baselines=()))])[0]
    assert baseline.own.selection_loss < single.own.selection_loss
    assert found.baseline_kept
    assert found.metrics()["policy"] == "learned"
    assert found.metrics()["kept_policy"] == "reservoir"
    assert found.best_epoch == baseline.best_epoch
    assert f"epoch {baseline.best_epoch} of the baseline reservoir" in found.kept_epoch()
    assert (found.valid, found.test.metrics) == (baseline.valid, baseline.test.metrics)
    assert found.metrics()["baselines"] == {"reservoir": baseline.valid}
    assert found.own.valid.metrics == single.valid
    assert found.own.test.metrics == single.test.metrics
    assert found.policy == found.verdict.kept == found.verdict.baseline == "reservoir"
    assert found.metrics()["verdict"] == found.verdict.to_dict()
    assert (single.verdict, single.policy, single.metrics()["verdict"]) == (None, "learned", {})
    assert "baselines" not in single.metrics()
    assert [line["valid"] for line in found.history] == [line["valid"] for line in single.history]
    assert [line["baseline"] for line in found.history] == [
        line["valid"] for line in baseline.history
    ]
    assert [report.epoch for report in seen if report.role == "baseline"] == [1, 2, 3, 4]
    assert not (tmp_path / "baseline").exists()


def test_a_better_policy_is_kept():
    chosen = config(**{**WITH_BASELINE, "baselines": ("last",), "initial_policy": "last"})
    found, single = (
        train_runs([(split(EXPLICIT, c), c)])[0] for c in (chosen, chosen.but(baselines=()))
    )
    baseline = found.baselines[0]
    assert found.own.selection_loss == baseline.selection_loss
    assert (found.policy, found.baseline_kept) == ("learned", False)
    assert found.kept_epoch() == single.kept_epoch()
    assert (found.valid, found.test.metrics) == (single.valid, single.test.metrics)
    baseline.selection_loss += 0.1
    assert found.policy == "learned"
    baseline.selection_loss -= 0.2
    assert (found.policy, found.baseline_kept) == ("last", True)


def test_the_best_of_several_baselines_is_kept():
    chosen = config(**{**WITH_BASELINE, "baselines": ("mix:1", "reservoir", "hardest")})
    parts = split(EXPLICIT, chosen)
    found = train_runs([(parts, chosen)])[0]
    single = [
        train_runs([(parts, chosen.but(policy=name, baselines=()))])[0]
        for name in chosen.policy_training.baselines
    ]
    best = min(single, key=lambda one: one.own.selection_loss)
    assert (found.valid, found.policy) == (best.valid, best.policy)
    assert found.verdict.baseline == best.policy
    curves = zip(*([line["valid"] for line in one.history] for one in single), strict=True)
    assert [line["baseline"] for line in found.history] == [min(scores) for scores in curves]


def test_stacked_runs_have_their_own_baselines():
    chosen = config(**WITH_BASELINE)
    parts = split(EXPLICIT, chosen)
    both = train_runs(
        [(parts, chosen), (parts, chosen.but(seed=1, baselines=("hardest", "reservoir")))]
    )
    assert [[one.name for one in found.baselines] for found in both] == [
        ["reservoir"],
        ["reservoir", "hardest"],
    ]


def test_interrupted_baselines_resume(tmp_path):
    chosen = config(**{**WITH_BASELINE, "baselines": ("reservoir", "hardest")})
    parts = split(EXPLICIT, chosen)
    whole, seen, again = train_runs([(parts, chosen)])[0], [], []

    def stop(report):
        seen.append(report.role == "baseline")
        if sum(seen) == 6:  # after the second epoch of the second baseline
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_runs([(parts, chosen)], on_epoch=stop, directory=tmp_path)
    found = train_runs([(parts, chosen)], on_epoch=again.append, directory=tmp_path, resume=True)[0]
    assert [report.epoch for report in again if report.role == "baseline"] == [3, 4]
    assert (found.metrics()["baselines"], found.valid) == (
        whole.metrics()["baselines"],
        whole.valid,
    )


def test_a_baseline_replaces_a_diverged_run():
    chosen = config(**{**WITH_BASELINE, "policy_lr": 1e30, "policy_warmup_epochs": 0})
    found = train_runs([(split(EXPLICIT, chosen), chosen)])[0]
    assert not found.error
    assert found.baseline_kept


def test_a_diverged_run_has_no_scores_in_the_verdict():
    chosen = config(**{**WITH_BASELINE, "baselines": ()})
    parts = split(EXPLICIT, chosen)
    diverged, baseline = (
        train_runs([(parts, chosen.but(policy=name))])[0] for name in ("learned", "reservoir")
    )
    diverged.error, diverged.own = "the loss is not a number", None
    diverged.add_baseline(baseline)
    diverged.add_baseline(baseline)  # a second baseline
    diverged.judge("cpu")
    assert (diverged.error, diverged.own, len(diverged.baselines)) == ("", None, 2)
    assert (diverged.verdict.advice, diverged.verdict.gain) == ("reservoir", None)
    assert "learned diverged" in diverged.verdict.reason


def test_a_baseline_must_keep_k():
    with pytest.raises(ConfigError, match="baseline 'all' keeps everything"):
        check(EXPLICIT, config(**{**WITH_BASELINE, "baselines": ("all",)}))


def test_a_baseline_must_be_a_policy():
    with pytest.raises(ConfigError, match="nobody"):
        check(EXPLICIT, config(**{**WITH_BASELINE, "baselines": ("nobody",)}))
