"""The command `dips paper`."""

from dataclasses import replace

import pytest

from dips import api
from dips.cli.paper import describe_stage
from dips.studies.paper_plan import QUICK, Grid
from dips.studies.progress import StudyProgress
from dips.studies.stages import StageProgress

SOME = replace(
    QUICK,
    grids={
        "compare": Grid(policies=("last", "reservoir"), sizes=(2,)),
        "transfer": Grid(policies=("last",), sizes=(1,)),
        "session": Grid(policies=("last",), sizes=(0, 2)),
    },
    settings={"epochs": 1, "dim": 4, "batch_size": 256, "inner_steps": 2},
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(api, "QUICK", SOME)


def call(data, out, *more):
    return "paper", data, "--out", out, "--quick", "--device", "cpu", "--max-users", 30, *more


def test_an_interrupted_paper_command_resumes(command, worlds, tmp_path, monkeypatch):
    out, transfer = tmp_path / "out", api.transfer

    def interrupted(*data, **options):
        raise KeyboardInterrupt

    wanted = call(worlds["implicit"], out, "--stages", "compare,transfer")
    monkeypatch.setattr(api, "transfer", interrupted)
    stopped = command(*wanted)
    assert stopped.code == 130
    assert "interrupted; continue with the same command" in stopped.err
    assert "stage 1/2 compare, training" in " ".join(stopped.err.split())
    monkeypatch.setattr(api, "transfer", transfer)
    monkeypatch.setattr(api, "compare", interrupted)  # it is done and must not be called again
    found = command(*wanted, "--json")
    assert found.code == 0, found.err
    assert [stage["state"] for stage in found.json["stages"].values()] == ["done", "done"]
    assert found.json["command"].startswith("dips paper ")
    page = (out / "report.html").read_text()
    assert page.count("<pre>dips paper ") == 2  # the command of both
    again = command(*wanted)
    assert again.code == 0, again.err
    assert f"the report is in {out}/report.html" in "".join(again.out.split("\n"))
    assert "verdict: " in again.out


def test_a_skipped_stage_is_printed_and_reported(command, worlds, tmp_path):
    out = tmp_path / "out"
    found = command(*call(worlds["explicit"], out, "--stages", "compare,session"))
    assert found.code == 0, found.err
    shown = " ".join(found.out.replace("│", " ").split())
    assert "session skipped" in shown
    assert "20-core" in shown  # such small data has no 20-core
    assert "20-core" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--stages", "compare,dinner"), "there is no stage 'dinner'"),
        (("--folds", "0"), "folds is 0: it must be between 1 and 5"),
        (("--epochs", "0"), "epochs is 0"),
        (("--device", "abacus"), "device 'abacus'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(
    more, sentence, command, worlds, tmp_path
):
    found = command(*call(worlds["implicit"], tmp_path / "out", *more))
    assert found.code == 2
    assert sentence in " ".join(found.err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (None, "stage 2/5 session, policies"),
        (30.0, "stage 2/5 session, policies (30.0 s left)"),
        (7200.0, "stage 2/5 session, policies (2:00 h left)"),
    ],
)
def test_the_description_of_progress(left, words):
    assert (
        describe_stage(StageProgress(2, 5, "session", StudyProgress("policies", 1, 2), left))
        == words
    )
