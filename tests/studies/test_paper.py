"""Everything that the paper shows: what the stages ask for, and all of them in a tiny world."""

import json
from dataclasses import replace

import numpy as np
import pytest

import dips
from dips.data.filtering import RECIPES
from dips.data.synthetic import stream
from dips.errors import ConfigError, DataError, RunError
from dips.studies.paper import PaperStudy, StudyFunctions, to_implicit, user_of_length
from dips.studies.paper_plan import FULL, QUICK, STAGES, Grid
from tests.report.fixtures import write_comparison

TINY = replace(
    QUICK,
    grids={
        "compare": Grid(policies=("learned", "dips"), sizes=(4,)),
        "transfer": Grid(policies=("last", "reservoir"), sizes=(1,)),
        "session": Grid(policies=("last",), sizes=(0, 1)),
    },
    gradients={"users": 2, "steps": 1, "longest": 9, "queue": 4},
)
ONE = {"epochs": 1}
FAST = {
    "epochs": 1,
    "baselines": (),
    "dim": 4,
    "batch_size": 256,
    "inner_steps": 2,
    "device": "cpu",
}


class Bench:
    """Functions that record their arguments and write the files of the commands."""

    def __init__(self):
        self.calls = {}

    def __call__(self, name):
        def tool(data, policies=(), sizes=(), **options):
            self.calls[name] = {"data": data, "policies": policies, "sizes": sizes, **options}
            if "out" in options:
                options["out"].mkdir(parents=True)
                (options["out"] / "figure.png").write_text("")
                if name == "compare":
                    write_comparison(options["out"])

        return tool

    def tools(self):
        return StudyFunctions(*(self(name) for name in StudyFunctions._fields))


@pytest.fixture
def bench():
    return Bench()


def rated(**parameters):
    return stream(users=60, items=64, events=40, **parameters)


def study(data, out, bench, plan=QUICK):
    return PaperStudy(data, plan, out, bench.tools(), source=data.name, command="dips paper")


def test_ratings_are_compared_and_likes_are_transferred(tmp_path, bench, monkeypatch):
    monkeypatch.setitem(RECIPES, "implicit", replace(RECIPES["implicit"], core=3))
    data = rated()
    study(data, tmp_path, bench).run(["compare", "transfer", "session"], lambda progress: None)
    assert bench.calls["compare"]["data"].explicit
    for name in ("transfer", "session"):
        asked = bench.calls[name]
        assert not asked["data"].explicit
        assert asked["data"].lengths.sum() < data.lengths.sum()
        assert asked["data"].name == "synthetic-implicit"
        assert dips.load(asked["source"]).lengths.sum() == asked["data"].lengths.sum()
        assert asked["command"] == "dips paper"
    assert bench.calls["compare"]["every"] == (1,)
    assert bench.calls["session"]["sizes"][0] == 0
    assert json.loads((tmp_path / "paper.json").read_text())["items"].startswith("ratings above")


def test_the_result_has_the_verdict_of_the_comparison(tmp_path, bench):
    data = rated(implicit=True)
    reported = study(data, tmp_path, bench).run(["compare"], lambda progress: None)
    assert "learned" in reported["verdict"]
    assert "last" in reported["verdict"]
    assert "story" not in reported  # the story stage was not requested


def test_implicit_data_is_not_converted(tmp_path, bench):
    data = rated(implicit=True)
    work = study(data, tmp_path, bench, FULL)
    work.run(["compare", "transfer"], lambda progress: None)
    assert bench.calls["compare"]["data"] is data
    assert bench.calls["compare"]["source"] == data.name
    assert bench.calls["transfer"]["data"] is data


def test_the_reduced_version_cuts_histories(tmp_path, bench):
    data = rated(implicit=True)
    plan = replace(QUICK, longest=10)
    study(data, tmp_path, bench, plan).run(["compare", "transfer"], lambda progress: None)
    for name in ("compare", "transfer"):
        asked = bench.calls[name]
        cut = asked["data"]
        assert cut.lengths.tolist() == np.minimum(data.lengths, 10).tolist()
        assert cut.name == data.name
        items = [[table.item_ids[row] for row in table.item[table.events(3)]]
                 for table in (cut, data)]  # fmt: skip
        assert items[0] == items[1][:10]
        assert dips.load(asked["source"]).lengths.tolist() == cut.lengths.tolist()


def test_converted_data_depends_on_its_source(tmp_path, bench, monkeypatch):
    monkeypatch.setitem(RECIPES, "implicit", replace(RECIPES["implicit"], core=3))
    data = rated()
    other = replace(data, rating=data.rating[::-1].copy())
    works = [
        study(table, tmp_path, bench, plan)
        for table, plan in ((data, QUICK), (data, replace(QUICK, longest=20)), (data, FULL),
                            (other, FULL))
    ]  # fmt: skip
    made = {source: table.lengths.sum() for table, source in (work.items() for work in works)}
    assert len(made) == len(set(made.values())) == 4


def test_ratings_other_than_stars_are_all_kept():
    data = rated()
    tens = replace(data, rating=data.rating * 2, about={"name": "tens"})
    found = to_implicit(tens)
    assert found.rating is None
    assert found.lengths.sum() == data.lengths.sum()
    assert found.name == "tens-implicit"


def test_a_skipped_stage_has_a_reason(tmp_path, bench):
    short = stream(users=30, items=64, events=4, implicit=True)
    short = replace(short, lengths=np.minimum(short.lengths, 4))
    reported = study(short, tmp_path, bench).run(["compare", "session"], lambda progress: None)
    assert reported["stages"]["compare"]["state"] == "done"
    assert reported["stages"]["session"]["state"] == "skipped"
    assert "no history is longer than a session of 4" in reported["stages"]["session"]["why"]


def test_without_any_stage_there_is_no_report(tmp_path, bench):
    short = stream(users=30, items=64, events=4, implicit=True)
    short = replace(short, lengths=np.minimum(short.lengths, 4))
    with pytest.raises(RunError, match="no stage could be run: session: synthetic"):
        study(short, tmp_path, bench).run(["session"], lambda progress: None)
    assert "report" not in bench.calls


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"epochs": 0}, "epochs is 0"), ({"device": "abacus"}, "device 'abacus'"),
     ({"colour": 1}, "unknown setting 'colour'")],
)  # fmt: skip
def test_bad_settings_are_refused_before_anything_is_written(settings, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        dips.paper(rated(), tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_unknown_stages_are_refused(tmp_path, bench):
    with pytest.raises(ConfigError, match="no stage 'dinner': choose one of compare, transfer"):
        study(rated(), tmp_path, bench).run(["dinner"], lambda progress: None)


@pytest.mark.parametrize("plan", [FULL, QUICK], ids=["full", "quick"])
def test_plans_have_all_stages_with_costs(plan, tmp_path, bench):
    stages = study(rated(), tmp_path, bench, plan).stages()
    assert [stage.name for stage in stages] == list(STAGES)
    costs = {stage.name: sum(stage.costs.values()) for stage in stages}
    assert costs["compare"] > costs["story"]


def test_the_device_is_not_part_of_a_plan(tmp_path, bench):
    plans = [
        [stage.plan for stage in study(rated(), tmp_path, bench, QUICK.but(None, 0, more)).stages()]
        for more in ({}, {"device": "cpu"}, {"epochs": 9})
    ]
    assert plans[0] == plans[1] != plans[2]


def test_the_scale_names_the_reduced_version(tmp_path, bench):
    data = rated()
    assert study(data, tmp_path, bench, FULL).scale() == (
        "60 users, 5 folds, default epochs of each policy"
    )
    some = study(data, tmp_path, bench, FULL.but(1, 0, {"max_users": 9})).scale()
    assert some.startswith(
        "9 of 60 users, 1 fold, default epochs of each policy: a reduced version"
    )
    assert "1 fold, up to 1 epoch:" in study(data, tmp_path, bench, QUICK.but(None, 0, ONE)).scale()
    assert (
        "60 users, the first 80 of their interactions, 1 fold, up to 5 epochs: a"
        in study(data, tmp_path, bench).scale()
    )


def test_the_story_is_of_a_user_with_a_typical_history():
    data = rated()
    lengths = {data.user_id(user): int(data.lengths[user]) for user in range(data.users)}
    some = set(list(lengths)[5:])
    found = user_of_length(data, some, 24)
    assert found in some
    assert abs(lengths[found] - 24) == min(abs(lengths[name] - 24) for name in some)


def test_all_stages_on_a_tiny_data_set(tmp_path, monkeypatch):
    """The real tools: what each stage leaves, the page, and nothing done twice."""
    monkeypatch.setattr("dips.api.QUICK", TINY)
    data, out, seen = stream(users=40, items=64, events=14, implicit=True), tmp_path / "out", []
    reported = dips.paper(data, out, quick=True, on_progress=seen.append, **FAST)
    assert {name: stage["state"] for name, stage in reported["stages"].items()} == dict.fromkeys(
        STAGES, "done"
    )
    assert all(stage["seconds"] > 0 for stage in reported["stages"].values())
    page = (out / "report.html").read_text()
    for words in ("Policy transfer", "Sessions with a sketch", "Signs of the true policy gradient",
                  "Stages", 'href="story.html"'):  # fmt: skip
        assert words in page
    assert reported["story"] == str(out / "story.html")
    assert "The story of user" in (out / "story.html").read_text()
    assert {progress.number for progress in seen} == {1, 2, 3, 4, 5}
    assert seen[-1].seconds_left is not None
    before = len(seen)
    assert (
        dips.paper(data, out, quick=True, on_progress=seen.append, **FAST)["stages"]
        == reported["stages"]
    )
    assert len(seen) == before
    with pytest.raises(RunError, match=r"made with other settings \(epochs\)"):
        dips.paper(data, out, quick=True, **{**FAST, "epochs": 2})


def test_an_empty_core_is_refused():
    with pytest.raises(DataError):
        to_implicit(stream(users=20, items=64, events=10))
