"""The training benchmarks on small data."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import growth, product, training
from benchmarks.algorithm1_timing import (
    StepShape,
    grouped,
    step_shapes,
    time_steps,
    train_epoch,
)
from benchmarks.measure import Took, best, in_child, table
from dips.data import prepared, synthetic
from dips.training import policy_gradients as policy_gradients_module
from dips.training.rollouts import TrainingRollouts

TINY: dict[str, Any] = {"size": 2, "dim": 4, "queue": 3, "inner_steps": 2, "device": "cpu"}


def setting(recipe: str, **flags: Any) -> product.Setting:
    data = synthetic.stream(users=15, items=64, events=8)
    return product.Setting.of(data, recipe, {**TINY, **flags})


def test_groups_have_every_step_once_and_similar_work() -> None:
    found = list(step_shapes([90, 40, 40, 12, 3], 2, 10))
    groups = list(grouped(found, 4))
    assert sum(count for _, count in groups) == len(found)
    assert all(shape in found for shape, _ in groups)
    total = sum(shape.work for shape in found)
    guessed = sum(shape.work * count for shape, count in groups)
    assert guessed == pytest.approx(total, rel=0.2)
    assert len(groups) == 4
    assert list(grouped([StepShape(1, 0)], 4)) == [(StepShape(1, 0), 1)]


def test_literal_steps_add_up_to_an_epoch() -> None:
    found = time_steps(setting("paper", policy="dips", user_batch=8), seconds=0.0)
    train = setting("paper", policy="dips", user_batch=8).train
    assert found["interactions"] == len(train)
    assert found["steps_per_epoch"] >= int(train.lengths.max())
    assert 0 < found["steps_timed"] < found["steps_per_epoch"] * 50
    assert all(found["phases"][name]["wall"] > 0 for name in ("rollout", "recommender", "policy"))


def test_an_epoch_of_the_literal_algorithm_is_validated() -> None:
    own = setting("paper", policy="dips", user_batch=8)
    still, moved = (train_epoch(own, faster)["valid"] for faster in (0.0, 1.0))
    run = product.Run.begin(own)
    models = run.state.models_with(run.state.parameters())
    _, validation = TrainingRollouts([run.job], run.columns).traces(1, models, models)
    assert run.validate(run.state.stack, validation) == [still]
    assert moved != still


@pytest.mark.parametrize(
    ("policy", "phases", "user_batches"),
    [("last", 3, 1), ("dips", 5, 1), ("learned", 5, 1), ("learned", 5, 2)],
)
def test_phases_of_an_epoch(policy: str, phases: int, user_batches: int) -> None:
    whole = setting(
        "default", policy=policy, **product.WHOLE, epochs=2, user_batches_per_epoch=user_batches
    )
    assert product.whole_epochs(whole)["epoch"]["wall"] > 0
    found = product.phases(whole)
    assert list(found) == [name for name in training.PHASES if name in found]
    assert len(found) == phases


def test_credit_can_be_cached_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = policy_gradients_module._credit
    monkeypatch.setattr(
        policy_gradients_module, "_credit", lambda *given: (calls.append(1), original(*given))[1]
    )
    epoch = product.EpochPhases(
        product.Run.begin(setting("default", policy="dips", policy_batch_size=32))
    )
    epoch.policy_gradients(3)
    assert len(calls) == 3
    with product.cached_credit():
        epoch.policy_gradients(3)
    assert len(calls) == 4
    epoch.policy_gradients(1)
    assert len(calls) == 5


def test_training_stops_at_the_target_quality() -> None:
    own = setting("default", policy="last", epochs=3)
    assert product.until(own, target=100.0)["epochs"] == 1
    never = product.until(own, target=0.0)
    assert (never["reached"], never["epochs"]) == (False, 3)


def test_profiles_name_operators() -> None:
    found = product.profiles(setting("default", policy="dips"), rows=3)
    assert list(found) == ["rollout", "credit and policy"]
    assert all("aten::" in text for text in found.values())


def test_the_report_of_a_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def here(module: str, job: dict[str, Any]) -> dict[str, Any]:
        job["flags"] |= {"dim": 4, "inner_steps": 2}
        return training._child(job)

    monkeypatch.setattr(training, "in_child", here)
    file = tmp_path / "made.safetensors"
    prepared.write(synthetic.stream(users=15, items=64, events=8), file)
    command = ["--data", str(file), "--size", "2", "--queue", "3", "--epochs", "1"]
    command += ["--policies", "last,dips", "--seconds-literal", "0", "--to-quality"]
    assert training.main([*command, "--json", str(tmp_path / "r.json")]) == 0
    out = capsys.readouterr().out
    results = json.loads(out.splitlines()[-1])
    assert results == json.loads((tmp_path / "r.json").read_text())
    assert list(results["rows"]) == ["literal", "last", "dips"]
    for row in results["rows"].values():
        assert row["interactions_per_second"] == row["interactions"] / row["epoch"]["wall"]
    literal, dips = results["rows"]["literal"], results["rows"]["dips"]
    assert dips["times_literal"] == literal["epoch"]["wall"] / dips["epoch"]["wall"]
    assert results["quality"]["last"]["times_faster"] > 0
    assert out.count("| `dips`") == 2


def test_growth_changes_one_thing_at_a_time() -> None:
    jobs = {name: axis.job(name, 7000, "") for name, axis in growth.AXES.items()}
    assert jobs["items"]["world"]["items"] == 7000
    assert jobs["interactions"]["world"]["users"] == 70
    usual = {"batch_size": None, "policy_batch_size": None}
    assert jobs["size"]["flags"] == {"policy": "learned", "size": 7000, **usual}
    assert jobs["queue"]["flags"] == {"policy": "dips", "queue": 7000, **usual}


def test_growth_is_a_ratio_and_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(module: str, job: dict[str, Any]) -> dict[str, Any]:
        taken = {"wall": 1.0 * job["flags"]["size"], "cpu": 1.0}
        return {"epoch": taken, "interactions": 1000, "peak_bytes": 2**20}

    monkeypatch.setattr(growth, "in_child", made)
    found = growth.grow("size", [2, 4, 8], "", "cpu", "wall")
    assert (found["base"], found["ratio"], found["met"]) == (4, 2.0, True)
    assert found["target"] == pytest.approx(2.2)
    assert "| 8" in growth.report("size", found)
    growth.draw({"size": found}, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_growth_trains() -> None:
    job = {"world": {"users": 30, "items": 64, "events": 12}, "flags": {"policy": "last"}}
    assert growth._child({**job, "device": "cpu"})["epoch"]["wall"] > 0


def test_a_failing_child_process_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child.py").write_text(
        "import json, os, sys\n"
        "job = json.loads(sys.argv[2])\n"
        "print('a log line')\n"
        "print(json.dumps({'pid': os.getpid(), **job}))\n"
        "sys.exit(job['code'])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert in_child("child", {"code": 0})["pid"] > 0
    with pytest.raises(SystemExit, match="failed"):
        in_child("child", {"code": 3})


def test_clocks_and_tables() -> None:
    assert best([Took(2.0, 1.0), Took(1.0, 3.0)]) == Took(1.0, 1.0)
    assert Took(2.0, 1.0).less(Took(1.0, 3.0)) == Took(1.0, 0.0)
    assert table(["a", "b"], [["x", "10"]]) == "| a |  b |\n| : | -: |\n| x | 10 |"
