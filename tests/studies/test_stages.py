"""Stages with a clock of their own: what runs, what is left, and how long it will take."""

import json

import pytest

from dips.errors import DataError, RunError
from dips.studies.compare import Update
from dips.studies.stages import Journal, Stage, carry_out, seconds_left

ABOUT = {"data": "a world"}


class Clock:
    """Time passes when somebody works."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Bench:
    """Stages of two steps each, one second a step, and a note of what was done."""

    def __init__(self, folder):
        self.folder, self.clock, self.ran, self.seen = folder, Clock(), [], []

    def stage(self, name, fails=None, needs=(), cost=2.0, plan=1, steps=2, scale=""):
        leaves = self.folder / f"{name}.txt"

        def run(watch):
            self.ran.append(name)
            for done in range(1, steps + 1):
                self.clock.now += cost / steps
                watch(Update("working", done, steps))
                if fails is not None and done == 1:
                    raise fails
            leaves.write_text("done")

        costs = {"working": cost}
        return Stage(
            name=name, plan={"settings": {"seeds": (plan,)}}, costs=costs, leaves=leaves, run=run,
            needs=needs, scale=scale,
        )  # fmt: skip

    def go(self, *stages, command=""):
        journal = Journal(self.folder / "paper.json", {**ABOUT, "command": command})
        carry_out(stages, journal, self.seen.append, self.clock)
        return journal


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_all_run_once_and_the_second_call_has_nothing_to_do(bench):
    before = bench.stage("a")
    stages = [before, bench.stage("b", needs=(before,))]
    bench.go(*stages)
    found = json.loads((bench.folder / "paper.json").read_text())
    assert found["data"] == "a world"
    assert {name: told["state"] for name, told in found["stages"].items()} == {
        "a": "done",
        "b": "done",
    }
    assert found["stages"]["a"]["seconds"] == 2
    bench.go(*stages)
    assert bench.ran == ["a", "b"]


def test_what_was_removed_or_has_another_plan_runs_again(bench):
    bench.go(bench.stage("a"), bench.stage("b"))
    (bench.folder / "a.txt").unlink()
    bench.go(bench.stage("a"), bench.stage("b", plan=2))
    assert bench.ran == ["a", "b", "a", "b"]
    assert bench.go(bench.stage("a")).entries["a"].seconds == 2  # the first time is forgotten


def test_what_cannot_run_says_why_and_the_others_go_on(bench):
    short = bench.stage("a", fails=DataError("histories are too short"))
    stages = [short, bench.stage("b", needs=(short,)), bench.stage("c")]
    entries = bench.go(*stages).entries
    assert [entry.state for entry in entries.values()] == ["skipped", "skipped", "done"]
    assert entries["a"].why == "histories are too short"
    assert "goes on from what a leaves" in entries["b"].why
    bench.go(bench.stage("a"), *stages[1:])  # it is tried again
    assert bench.ran == ["a", "c", "a", "b"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RunError("made with another dim")])
def test_an_interrupt_leaves_a_journal_and_goes_on_with_the_stage(bench, error):
    with pytest.raises(type(error)):
        bench.go(bench.stage("a"), bench.stage("b", fails=error))
    found = json.loads((bench.folder / "paper.json").read_text())["stages"]
    assert found["a"]["state"] == "done"
    assert found["b"]["state"] == "open"
    assert found["b"]["parts"] == {"working": {"seconds": 1.0, "share": 0.5}}
    journal = bench.go(bench.stage("a"), bench.stage("b", steps=1, cost=1.0))
    assert bench.ran == ["a", "b", "b"]
    assert journal.entries["b"].seconds == 2


def test_what_is_refused_for_its_plan_leaves_the_journal_as_it_was(bench):
    bench.go(bench.stage("a", scale="few"), bench.stage("b"), command="first")
    before = (bench.folder / "paper.json").read_bytes()
    refused = bench.stage("a", plan=2, scale="many", fails=RunError("made with another seeds"))
    with pytest.raises(RunError):
        bench.go(refused, bench.stage("b", plan=2), command="second")
    assert (bench.folder / "paper.json").read_bytes() == before
    bench.go(bench.stage("a"), bench.stage("b"))
    assert bench.ran == ["a", "b", "a"]


def test_what_was_run_with_another_plan_is_not_gone_on_from(bench):
    bench.go(bench.stage("a"))
    with pytest.raises(RunError, match="a was run with another seeds: give the same, or --out"):
        bench.go(bench.stage("b", needs=(bench.stage("a", plan=2),)))
    bench.go(bench.stage("b", needs=(bench.stage("a"),)))
    assert bench.ran == ["a", "b"]


def test_every_stage_has_the_scale_that_it_was_run_with(bench):
    bench.go(bench.stage("a", scale="few users"))
    entries = bench.go(bench.stage("b", scale="many users")).entries
    assert [entry.scale for entry in entries.values()] == ["few users", "many users"]


def test_progress_counts_stages_and_learns_how_long_a_cost_takes(bench):
    bench.go(bench.stage("a", cost=4.0), bench.stage("b", cost=2.0))
    told = [(p.place, p.stages, p.stage, p.update.stage, p.seconds_left) for p in bench.seen]
    assert told == [
        (1, 2, "a", "beginning", None),
        (1, 2, "a", "working", 2.0 + 2.0),  # a second for a unit of cost
        (1, 2, "a", "working", 2.0),
        (2, 2, "b", "beginning", 2.0),
        (2, 2, "b", "working", 1.0),
        (2, 2, "b", "working", 0.0),
    ]


def test_a_part_on_its_way_is_believed_more_than_its_cost(bench):
    slow = Stage(
        name="b", plan={}, costs={"x": 2.0, "y": 1.0}, leaves=bench.folder / "b",
        run=lambda watch: None,
    )  # fmt: skip
    journal = bench.go(bench.stage("a", cost=2.0))
    spent = journal.of(slow).parts
    assert seconds_left([bench.stage("a"), slow], journal) == pytest.approx(3.0)
    spent["x"] = type(journal.entries["a"].parts["working"])(seconds=10.0, share=0.5)
    took, paid = 2.0 + 10.0, 2.0 + 1.0
    assert seconds_left([bench.stage("a"), slow], journal) == pytest.approx(10.0 + took / paid)


def test_time_before_the_first_update_is_the_parts_own(bench):
    def run(watch):
        for part in ("x", "y"):
            bench.clock.now += 3
            watch(Update(part, 1, 2))

    stage = Stage(
        name="s", plan={}, costs={"x": 1.0, "y": 1.0}, leaves=bench.folder, run=run
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
