"""Stages with a clock of their own: what runs, what is left, and how long it will take."""

import json

import pytest

from dips.errors import DataError, RunError
from dips.studies.progress import StudyProgress
from dips.studies.stages import Journal, Stage, run_stages, seconds_left

ABOUT = {"data": "a world"}


class Clock:
    """Time passes when somebody works."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Bench:
    """Stages with two steps of one second each; records what was run."""

    def __init__(self, folder):
        self.folder, self.clock, self.ran, self.seen = folder, Clock(), [], []

    def stage(self, name, fails=None, needs=(), cost=2.0, plan=1, steps=2, scale=""):
        leaves = self.folder / f"{name}.txt"

        def run(on_progress):
            self.ran.append(name)
            for done in range(1, steps + 1):
                self.clock.now += cost / steps
                on_progress(StudyProgress("working", done, steps))
                if fails is not None and done == 1:
                    raise fails
            leaves.write_text("done")

        costs = {"working": cost}
        return Stage(
            name=name, plan={"settings": {"seeds": (plan,)}}, costs=costs, output=leaves, run=run,
            needs=needs, scale=scale,
        )  # fmt: skip

    def go(self, *stages, command=""):
        journal = Journal(self.folder / "paper.json", {**ABOUT, "command": command})
        run_stages(stages, journal, self.seen.append, self.clock)
        return journal


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_stages_run_once(bench):
    before = bench.stage("a")
    stages = [before, bench.stage("b", needs=(before,))]
    bench.go(*stages)
    found = json.loads((bench.folder / "paper.json").read_text())
    assert found["data"] == "a world"
    assert {name: reported["state"] for name, reported in found["stages"].items()} == {
        "a": "done",
        "b": "done",
    }
    assert found["stages"]["a"]["seconds"] == 2
    bench.go(*stages)
    assert bench.ran == ["a", "b"]


def test_a_stage_without_output_or_with_another_plan_runs_again(bench):
    bench.go(bench.stage("a"), bench.stage("b"))
    (bench.folder / "a.txt").unlink()
    bench.go(bench.stage("a"), bench.stage("b", plan=2))
    assert bench.ran == ["a", "b", "a", "b"]
    assert bench.go(bench.stage("a")).entries["a"].seconds == 2  # the first time is forgotten


def test_a_skipped_stage_has_a_reason_and_the_others_run(bench):
    short = bench.stage("a", fails=DataError("histories are too short"))
    stages = [short, bench.stage("b", needs=(short,)), bench.stage("c")]
    entries = bench.go(*stages).entries
    assert [entry.state for entry in entries.values()] == ["skipped", "skipped", "done"]
    assert entries["a"].why == "histories are too short"
    assert "it needs the results of a" in entries["b"].why
    bench.go(bench.stage("a"), *stages[1:])  # it is tried again
    assert bench.ran == ["a", "c", "a", "b"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RunError("made with another dim")])
def test_an_interrupted_stage_resumes(bench, error):
    with pytest.raises(type(error)):
        bench.go(bench.stage("a"), bench.stage("b", fails=error))
    found = json.loads((bench.folder / "paper.json").read_text())["stages"]
    assert found["a"]["state"] == "done"
    assert found["b"]["state"] == "open"
    assert found["b"]["parts"] == {"working": {"seconds": 1.0, "share": 0.5}}
    journal = bench.go(bench.stage("a"), bench.stage("b", steps=1, cost=1.0))
    assert bench.ran == ["a", "b", "b"]
    assert journal.entries["b"].seconds == 2


def test_a_refused_plan_does_not_change_the_journal(bench):
    bench.go(bench.stage("a", scale="few"), bench.stage("b"), command="first")
    before = (bench.folder / "paper.json").read_bytes()
    refused = bench.stage("a", plan=2, scale="many", fails=RunError("made with another seeds"))
    with pytest.raises(RunError):
        bench.go(refused, bench.stage("b", plan=2), command="second")
    assert (bench.folder / "paper.json").read_bytes() == before
    bench.go(bench.stage("a"), bench.stage("b"))
    assert bench.ran == ["a", "b", "a"]


def test_a_needed_stage_with_another_plan_is_refused(bench):
    bench.go(bench.stage("a"))
    with pytest.raises(
        RunError, match=r"a, which was run with other settings \(seeds\): give the same settings"
    ):
        bench.go(bench.stage("b", needs=(bench.stage("a", plan=2),)))
    bench.go(bench.stage("b", needs=(bench.stage("a"),)))
    assert bench.ran == ["a", "b"]


def test_every_stage_records_its_own_scale(bench):
    bench.go(bench.stage("a", scale="few users"))
    entries = bench.go(bench.stage("b", scale="many users")).entries
    assert [entry.scale for entry in entries.values()] == ["few users", "many users"]


def test_progress_counts_stages_and_estimates_the_remaining_time(bench):
    bench.go(bench.stage("a", cost=4.0), bench.stage("b", cost=2.0))
    reported = [(p.number, p.stages, p.stage, p.study.phase, p.seconds_left) for p in bench.seen]
    assert reported == [
        (1, 2, "a", "beginning", None),
        (1, 2, "a", "working", 2.0 + 2.0),  # a second for a unit of cost
        (1, 2, "a", "working", 2.0),
        (2, 2, "b", "beginning", 2.0),
        (2, 2, "b", "working", 1.0),
        (2, 2, "b", "working", 0.0),
    ]


def test_a_started_phase_is_extrapolated_from_its_own_speed(bench):
    slow = Stage(
        name="b", plan={}, costs={"x": 2.0, "y": 1.0}, output=bench.folder / "b",
        run=lambda on_progress: None,
    )  # fmt: skip
    journal = bench.go(bench.stage("a", cost=2.0))
    spent = journal.of(slow).parts
    assert seconds_left([bench.stage("a"), slow], journal) == pytest.approx(3.0)
    spent["x"] = type(journal.entries["a"].parts["working"])(seconds=10.0, share=0.5)
    took, paid = 2.0 + 10.0, 2.0 + 1.0
    assert seconds_left([bench.stage("a"), slow], journal) == pytest.approx(10.0 + took / paid)


def test_time_before_the_first_report_belongs_to_the_phase(bench):
    def run(on_progress):
        for part in ("x", "y"):
            bench.clock.now += 3
            on_progress(StudyProgress(part, 1, 2))

    stage = Stage(
        name="s", plan={}, costs={"x": 1.0, "y": 1.0}, output=bench.folder, run=run
    )  # fmt: skip
    parts = bench.go(stage).entries["s"].parts
    assert {name: (spent.seconds, spent.share) for name, spent in parts.items()} == {
        "x": (3.0, 1.0),
        "y": (3.0, 1.0),
    }


def test_a_directory_about_other_data_is_refused(bench):
    bench.go(bench.stage("a"))
    with pytest.raises(RunError, match="is about a world, not another"):
        Journal(bench.folder / "paper.json", {"data": "another"})
