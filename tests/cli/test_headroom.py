"""The commands `dips headroom` and `dips cross`."""

import pytest

from dips.cli.headroom import _share

LEARNED = ("--policy", "learned", "--size", "2")
LAST = ("--policy", "last", "--size", "2")


@pytest.mark.parametrize(("world", "metric"), [("explicit", "rmse"), ("implicit", "recall@20")])
def test_headroom(world, metric, command, trained):
    run, other = trained(world, *LEARNED), trained(world, *LAST)
    found = command("headroom", run, "--recommender-of", other, "--device", "cpu", "--json")
    assert found.code == 0, found.err
    assert found.json["metric"] == metric
    assert (found.json["policy"], found.json["size"], found.json["ahead"]) == ("learned", 2, 10)
    assert [row["recommender"] for row in found.json["rows"]] == ["learned", "last"]
    for row in found.json["rows"]:
        low, high = row["lead"][metric]
        assert low <= high
        assert (row["share"][metric] is None) == (low <= 0)
        share, last, own, oracle = row["share"][metric], row["last"], row["own"], row["oracle"]
        if share is not None:
            way = last[metric] - oracle[metric]
            assert share * way == pytest.approx(last[metric] - own[metric])
    shown = command("headroom", other, "--ahead", 4, "--device", "cpu")
    assert shown.code == 0
    assert "baseline" not in shown.out
    assert "even-numbered" in shown.out
    assert "oracle gain (95 %)" in shown.out
    assert "share" not in shown.out  # there is no share for last itself


def test_the_description_of_shares():
    assert _share(0.25, 0.1) == "25 %"
    assert _share(13.0, 0.1) == "better than the oracle"
    assert _share(None, 0.1) == "the gain may be chance"
    assert _share(None, -0.1) == "the oracle is no better"


def test_cross(command, trained):
    last, learned = trained("explicit", *LAST), trained("explicit", *LEARNED)
    found = command("cross", last, learned, "--device", "cpu", "--json")
    assert found.code == 0, found.err
    value = {(row["recommender"], row["sketches"]): row["rmse"] for row in found.json["rows"]}
    own = {run: command("evaluate", run, "--json").json["test"]["rmse"] for run in (last, learned)}
    assert value["last", "last"] == pytest.approx(own[last], abs=1e-7)
    assert value["learned", "learned"] == pytest.approx(own[learned], abs=1e-7)
    whole = next(row for row in found.json["effects"] if row["changed"] == "both")
    assert whole["diff"] == pytest.approx(own[learned] - own[last], abs=1e-7)
    shown = command("cross", last, learned, "--device", "cpu")
    words = " ".join(shown.out.split())
    assert "sketches of learned" in words
    assert "from the sketches and" in words


def test_runs_that_cannot_be_crossed_are_refused(command, trained, worlds, tmp_path):
    last = trained("explicit", *LAST)
    for arguments, reason in [
        (("cross", last, trained("implicit", *LAST)), "another task"),
        (("cross", last, tmp_path / "nothing"), "not a finished run"),
        (
            ("headroom", last, "--recommender-of", trained("explicit", "--size", "3")),
            "another size",
        ),
        (("headroom", last, "--ahead", 0), "ahead is 0"),
        (("cross", last, last), "named twice"),
        (("headroom", trained("explicit", "--policy", "all")), "keeps everything"),
    ]:
        found = command(*arguments, "--device", "cpu")
        assert found.code == 2, arguments
        assert reason in found.err
        assert len(found.err.splitlines()) == 1


def test_training_users_of_either_run_are_not_scored(command, trained, worlds):
    first, second = trained("explicit", *LAST), trained("explicit", *LAST, "--seed", "4")
    alike = command("cross", first, trained("explicit", *LEARNED), "--device", "cpu", "--json")
    found = command("cross", first, second, "--device", "cpu", "--json")
    assert alike.json["users"] == 8
    assert 0 < found.json["users"] < 8
    assert {found.json["old"], found.json["new"]} == {str(first), str(second)}
    all_users = command("cross", first, second, worlds["explicit"], "--device", "cpu", "--json")
    assert all_users.json["users"] == found.json["users"]


def test_a_kept_baseline_is_printed(command, trained):
    run = trained("explicit", *LEARNED, "--baselines", "hardest", "--policy-lr", "0")
    sentence = "the baseline hardest is kept: it is better on validation"
    assert command("headroom", run, "--device", "cpu", "--json").json["kept_policy"] == "hardest"
    for arguments in (("headroom", run), ("cross", trained("explicit", *LAST), run)):
        assert sentence in command(*arguments, "--device", "cpu").out
