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
    "policy": "learned", "rival": "reservoir", "size": 3, "policy_rest": 0,
    "policy_rate": 0.0, "inner_rate": 0.21, "weight_decay": 3e-4,
}  # fmt: skip


def test_a_rival_takes_the_place_of_a_run_that_is_worse(tmp_path):
    chosen = config(**RIVALRY)
    parts = split(EXPLICIT, chosen)
    seen = []
    found = run([(parts, chosen)], watch=seen.append, directory=tmp_path)[0]
    alone = run([(parts, chosen.but(rival=""))])[0]
    rival = run([(parts, chosen.but(policy="reservoir", rival=""))])[0]
    assert rival.valid["rmse"] < alone.valid["rmse"]
    assert found.beaten
    assert found.metrics()["policy"] == "learned"
    assert found.metrics()["kept_policy"] == "reservoir"
    assert found.best_epoch == rival.best_epoch
    assert f"epoch {rival.best_epoch} of reservoir" in found.kept()
    assert (found.valid, found.test.metrics) == (rival.valid, rival.test.metrics)
    assert found.metrics()["rivals"] == {"reservoir": rival.valid}
    assert (found.learned.valid, found.learned.test.metrics) == (alone.valid, alone.test.metrics)
    assert found.verdict().startswith("reservoir stays: what was learned is ")
    assert alone.verdict() == ""
    assert "rivals" not in alone.metrics()
    assert [line["valid"] for line in found.history] == [line["valid"] for line in alone.history]
    assert [line["rival"] for line in found.history] == [line["valid"] for line in rival.history]
    assert [moment.epoch for moment in seen if moment.rival] == [1, 2, 3, 4]
    assert not (tmp_path / "rival").exists()


@pytest.mark.parametrize("rival", ["hardest", "last"])  # worse, and as good to the last bit
def test_a_run_that_its_rival_does_not_beat_stays(rival):
    chosen = config(**{**RIVALRY, "rival": rival})
    found, alone = (run([(split(EXPLICIT, c), c)])[0] for c in (chosen, chosen.but(rival="")))
    assert not found.beaten
    assert found.kept() == alone.kept()
    assert (found.valid, found.test.metrics) == (alone.valid, alone.test.metrics)


def test_of_several_rivals_the_best_stays():
    chosen = config(**{**RIVALRY, "rival": "mix:1, reservoir,hardest"})
    parts = split(EXPLICIT, chosen)
    found = run([(parts, chosen)])[0]
    alone = [run([(parts, chosen.but(policy=name, rival=""))])[0] for name in chosen.rivals]
    assert found.valid == min((one.valid for one in alone), key=lambda valid: valid["rmse"])
    assert found.metrics()["kept_policy"] == "reservoir"
    curves = zip(*([line["valid"] for line in one.history] for one in alone), strict=True)
    assert [line["rival"] for line in found.history] == [min(scores) for scores in curves]


def test_runs_side_by_side_meet_their_own_rivals():
    chosen = config(**RIVALRY)
    parts = split(EXPLICIT, chosen)
    both = run([(parts, chosen), (parts, chosen.but(seed=1, rival="hardest,reservoir"))])
    assert [[one.name for one in found.rivals] for found in both] == [
        ["reservoir"],
        ["reservoir", "hardest"],
    ]


def test_rivals_go_on_where_the_second_one_was_stopped(tmp_path):
    chosen = config(**{**RIVALRY, "rival": "reservoir,hardest"})
    parts = split(EXPLICIT, chosen)
    whole, seen, again = run([(parts, chosen)])[0], [], []

    def stop(moment):
        seen.append(moment.rival)
        if sum(seen) == 6:  # of eight: four are the first one's
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([(parts, chosen)], watch=stop, directory=tmp_path)
    found = run([(parts, chosen)], watch=again.append, directory=tmp_path, resume=True)[0]
    assert [moment.epoch for moment in again if moment.rival] == [3, 4]
    assert (found.metrics()["rivals"], found.valid) == (whole.metrics()["rivals"], whole.valid)


def test_a_rival_replaces_a_run_that_diverged():
    chosen = config(**{**RIVALRY, "policy_rate": 1e30, "policy_wait": 0})
    found = run([(split(EXPLICIT, chosen), chosen)])[0]
    assert not found.error
    assert found.beaten


def test_of_a_run_that_diverged_no_numbers_are_told():
    chosen = config(**{**RIVALRY, "rival": ""})
    parts = split(EXPLICIT, chosen)
    gone, rival = (run([(parts, chosen.but(policy=name))])[0] for name in ("learned", "reservoir"))
    gone.error = "the loss is not a number"
    gone.meet(rival)
    gone.meet(rival)  # another one
    assert (gone.error, gone.learned, len(gone.rivals)) == ("", None, 2)
    assert gone.verdict() == "reservoir stays: what was learned diverged; use reservoir-3"


def test_a_rival_must_be_a_policy():
    with pytest.raises(ConfigError, match="nobody"):
        check(EXPLICIT, config(**{**RIVALRY, "rival": "nobody"}))
