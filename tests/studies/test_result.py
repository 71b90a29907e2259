"""A run meets its rivals: who is better on validation stays."""

import pytest

from dips.data.synthetic import stream
from dips.errors import ConfigError
from dips.studies.checks import check, split
from dips.studies.run import run
from dips.training.config import TrainConfig

EXPLICIT = stream(users=40, items=64, events=14)


def config(**settings):
    return TrainConfig(epochs=4, dim=6, batch=128, device="cpu", **settings)


RIVALRY = {
    "policy": "learned", "baseline": "reservoir", "size": 3, "policy_freeze_epochs": 0,
    "policy_lr": 0.0, "inner_lr": 0.21, "weight_decay": 3e-4,
}  # fmt: skip


def test_a_rival_takes_the_place_of_a_run_that_is_worse(tmp_path):
    chosen = config(**RIVALRY)
    parts = split(EXPLICIT, chosen)
    seen = []
    found = run([(parts, chosen)], watch=seen.append, directory=tmp_path)[0]
    alone = run([(parts, chosen.but(baseline=""))])[0]
    baseline = run([(parts, chosen.but(policy="reservoir", baseline=""))])[0]
    assert baseline.valid["rmse"] < alone.valid["rmse"]
    assert found.baseline_kept
    assert found.metrics()["policy"] == "learned"
    assert found.metrics()["kept_policy"] == "reservoir"
    assert found.best_epoch == baseline.best_epoch
    assert f"epoch {baseline.best_epoch} of reservoir" in found.kept()
    assert (found.valid, found.test.metrics) == (baseline.valid, baseline.test.metrics)
    assert found.metrics()["baselines"] == {"reservoir": baseline.valid}
    assert (found.learned.valid, found.learned.test.metrics) == (alone.valid, alone.test.metrics)
    assert found.verdict().startswith("reservoir stays: what was learned is ")
    assert alone.verdict() == ""
    assert "baselines" not in alone.metrics()
    assert [line["valid"] for line in found.history] == [line["valid"] for line in alone.history]
    assert [line["baseline"] for line in found.history] == [
        line["valid"] for line in baseline.history
    ]
    assert [moment.epoch for moment in seen if moment.baseline] == [1, 2, 3, 4]
    assert not (tmp_path / "baseline").exists()


@pytest.mark.parametrize("baseline", ["hardest", "last"])  # worse, and as good to the last bit
def test_a_run_that_its_rival_does_not_beat_stays(baseline):
    chosen = config(**{**RIVALRY, "baseline": baseline})
    found, alone = (run([(split(EXPLICIT, c), c)])[0] for c in (chosen, chosen.but(baseline="")))
    assert not found.baseline_kept
    assert found.kept() == alone.kept()
    assert (found.valid, found.test.metrics) == (alone.valid, alone.test.metrics)


def test_of_several_rivals_the_best_stays():
    chosen = config(**{**RIVALRY, "baseline": "mix:1, reservoir,hardest"})
    parts = split(EXPLICIT, chosen)
    found = run([(parts, chosen)])[0]
    alone = [run([(parts, chosen.but(policy=name, baseline=""))])[0] for name in chosen.baselines]
    assert found.valid == min((one.valid for one in alone), key=lambda valid: valid["rmse"])
    assert found.metrics()["kept_policy"] == "reservoir"
    curves = zip(*([line["valid"] for line in one.history] for one in alone), strict=True)
    assert [line["baseline"] for line in found.history] == [min(scores) for scores in curves]


def test_runs_side_by_side_meet_their_own_rivals():
    chosen = config(**RIVALRY)
    parts = split(EXPLICIT, chosen)
    both = run([(parts, chosen), (parts, chosen.but(seed=1, baseline="hardest,reservoir"))])
    assert [[one.name for one in found.baselines] for found in both] == [
        ["reservoir"],
        ["reservoir", "hardest"],
    ]


def test_rivals_go_on_where_the_second_one_was_stopped(tmp_path):
    chosen = config(**{**RIVALRY, "baseline": "reservoir,hardest"})
    parts = split(EXPLICIT, chosen)
    whole, seen, again = run([(parts, chosen)])[0], [], []

    def stop(moment):
        seen.append(moment.baseline)
        if sum(seen) == 6:  # of eight: four are the first one's
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([(parts, chosen)], watch=stop, directory=tmp_path)
    found = run([(parts, chosen)], watch=again.append, directory=tmp_path, resume=True)[0]
    assert [moment.epoch for moment in again if moment.baseline] == [3, 4]
    assert (found.metrics()["baselines"], found.valid) == (
        whole.metrics()["baselines"],
        whole.valid,
    )


def test_a_rival_replaces_a_run_that_diverged():
    chosen = config(**{**RIVALRY, "policy_lr": 1e30, "policy_warmup_epochs": 0})
    found = run([(split(EXPLICIT, chosen), chosen)])[0]
    assert not found.error
    assert found.baseline_kept


def test_of_a_run_that_diverged_no_numbers_are_told():
    chosen = config(**{**RIVALRY, "baseline": ""})
    parts = split(EXPLICIT, chosen)
    gone, baseline = (
        run([(parts, chosen.but(policy=name))])[0] for name in ("learned", "reservoir")
    )
    gone.error = "the loss is not a number"
    gone.meet(baseline)
    gone.meet(baseline)  # another one
    assert (gone.error, gone.learned, len(gone.baselines)) == ("", None, 2)
    assert gone.verdict() == "reservoir stays: what was learned diverged; use reservoir-3"


def test_a_rival_must_be_a_policy():
    with pytest.raises(ConfigError, match="nobody"):
        check(EXPLICIT, config(**{**RIVALRY, "baseline": "nobody"}))
