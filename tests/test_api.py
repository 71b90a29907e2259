import doctest
import math

import numpy as np
import pytest
import torch

import dips
from dips import api
from dips.data.prepared import write
from dips.data.synthetic import stream
from dips.errors import ConfigError, DataError, RunError, TrainingDiverged
from dips.model.trained_model import TrainedModel

SMALL = {"epochs": 2, "dim": 8, "batch_size": 256, "device": "cpu"}
HOMEMADE = """
import dips


class Oldest(dips.Policy):
    def score(self, candidates, signals):
        return -candidates.position.double()


class NotOne:
    pass
"""


@pytest.fixture(scope="module")
def data():
    return stream(users=60, items=80, events=20)


@pytest.fixture(scope="module")
def parts(data):
    return data.split_users(0.6, 0.2, 0.2, seed=0)


@pytest.fixture(scope="module")
def model(parts):
    return dips.train(*parts, policy="reservoir", size=4, every=1, **SMALL)


@pytest.fixture
def homemade(tmp_path, monkeypatch):
    (tmp_path / "homemade").mkdir()
    (tmp_path / "homemade" / "policies.py").write_text(HOMEMADE)
    monkeypatch.syspath_prepend(tmp_path)
    return "homemade.policies:Oldest"


def same_tensors(a, b):
    left, right = a.trained.recommender.state_dict(), b.trained.recommender.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_the_documented_example_runs(tmp_path, data):
    write(data, tmp_path / "data.safetensors")
    loaded = dips.load(str(tmp_path / "data.safetensors"))
    train, valid, test = loaded.split_users(0.6, 0.2, 0.2, seed=0)
    model = dips.train(train, valid, policy="last", size=4, every=1, **SMALL)
    metrics = dips.evaluate(model, test)
    assert list(metrics) == ["rmse"]
    assert 0.3 < metrics["rmse"] < 1.5
    table = dips.compare(loaded, policies=["reservoir", "last"], sizes=[2], folds=2, **SMALL)
    assert len(table.rows) == 4
    assert {row["policy"] for row in table.summary} == {"reservoir", "last", "best-rule"}
    columns = dips.sketches(model, test)
    assert list(columns) == ["user", "t", "position", "item", "rating", "score"]


def test_catalogue_names_load():
    assert dips.load("planted").explicit
    with pytest.raises(DataError, match="neither a file or directory nor a known name"):
        dips.load("no-such-data")


def test_training_is_a_function_of_the_seed(parts, model):
    again = dips.train(*parts, policy="reservoir", size=4, every=1, **SMALL)
    assert same_tensors(model, again)
    assert again.test.metrics == model.test.metrics
    assert not same_tensors(model, dips.train(*parts, policy="reservoir", seed=1, **SMALL))


def test_training_takes_no_global_random_state(parts, model):
    torch.manual_seed(123)
    np.random.seed(123)
    before = torch.get_rng_state()
    assert same_tensors(model, dips.train(*parts, policy="reservoir", size=4, every=1, **SMALL))
    assert torch.equal(torch.get_rng_state(), before)


def test_training_learns(parts):
    start = dips.train(*parts, policy="last", **{**SMALL, "learning_rate": 0.0})
    settings = {**SMALL, "epochs": 8, "batch_size": 64}
    assert dips.train(*parts, policy="last", **settings).valid["rmse"] < 0.98 * start.valid["rmse"]


@pytest.mark.parametrize("policy", ["last", "reservoir", "hardest", "all"])
def test_evaluate_equals_the_test_metrics_of_the_run(policy, parts):
    found = dips.train(*parts, policy=policy, size=3, every=2, **SMALL)
    assert dips.evaluate(found, parts[2]) == pytest.approx(found.test.metrics, abs=1e-12)
    assert dips.evaluate(found.trained, parts[1]) == pytest.approx(found.valid, abs=1e-12)


def test_evaluate_takes_a_result_a_model_or_a_directory(parts, model, tmp_path):
    model.trained.save(tmp_path)
    wanted = dips.evaluate(model, parts[2])
    assert dips.evaluate(tmp_path, parts[2]) == wanted
    assert dips.evaluate(str(tmp_path), parts[2]) == wanted
    assert isinstance(model.trained, TrainedModel)


def test_without_test_users_nothing_is_tested(parts):
    found = dips.train(*parts[:2], policy="last", **SMALL)
    assert found.test is None
    assert found.metrics()["test"] == {}
    assert found.metrics()["users"] == parts[0].users + parts[1].users


def test_items_are_matched_by_their_original_id(model, parts, tmp_path):
    test = parts[2]
    path = tmp_path / "other.csv"
    lines = ["user,item,rating,timestamp"]
    for user in reversed(range(test.users)):
        for event in range(*test.events(user).indices(1 << 40)):
            item = test.item_ids[int(test.item[event])]
            lines.append(f"{test.user_id(user)},{item},{test.rating[event]},{test.time[event]}")
            lines.append(f"{test.user_id(user)},a new item,1.0,{test.time[event]}")
    path.write_text("\n".join(lines) + "\n")
    found = dips.evaluate(model, dips.load(str(path)))
    assert found == pytest.approx(dips.evaluate(model, test), abs=1e-9)


def test_data_with_other_items_only_is_refused(model):
    other = stream(users=5, items=80, events=9, seed=3)
    with pytest.raises(DataError, match="none of its items are known to the run"):
        dips.evaluate(model, renamed_users(other))


def renamed_users(data):
    from dataclasses import replace

    from dips.data.interactions import Strings

    return replace(data, item_ids=Strings.of(f"new {item}" for item in range(data.items)))


def test_sketches_at_each_prediction_end_with_the_final_sketch(model, parts):
    each, end = dips.sketches(model, parts[2], at="each"), dips.sketches(model, parts[2])
    assert max(np.bincount(each["t"])) <= 4 * parts[2].users
    assert (each["position"] < each["t"]).all()
    assert (end["position"] < end["t"]).all()
    assert set(end["user"]) == {parts[2].user_id(user) for user in range(parts[2].users)}
    with pytest.raises(ConfigError, match="at is 'start': choose end or each"):
        dips.sketches(model, parts[2], at="start")


def test_a_plugin_policy_trains(homemade, parts):
    found = dips.train(*parts, policy=homemade, size=3, **SMALL)
    assert math.isfinite(found.test.metrics["rmse"])
    kept = dips.sketches(found, parts[2])
    assert sorted(set(kept["position"].tolist())) == [0, 1, 2]  # the oldest stay


def test_a_plugin_policy_is_compared_and_opened_again(homemade, data, parts, tmp_path):
    out = tmp_path / "results"
    table = dips.compare(data, [homemade, "last"], [3], folds=1, out=out, **SMALL)
    assert [row["policy"] for row in table.rows] == [homemade, "last"]
    assert [(row["a"], row["b"]) for row in table.paired] == [(homemade, "last")]
    (run,) = (out / "runs").glob("homemade*")
    assert dips.evaluate(run, parts[2]) == pytest.approx(table.rows[0]["test"], abs=1e-12)


def test_a_plugin_that_is_no_policy_is_refused(homemade, parts):
    for name, reason in (("NotOne", "is not a dips.Policy"), ("Missing", "cannot be made")):
        with pytest.raises(ConfigError, match=reason):
            dips.train(*parts, policy=f"homemade.policies:{name}", **SMALL)


def test_unknown_settings_are_refused(parts, data):
    with pytest.raises(ConfigError, match="unknown setting 'sise'"):
        dips.train(*parts, sise=3)
    with pytest.raises(ConfigError, match="unknown setting 'sise'"):
        dips.compare(data, ["last"], sise=3)


def test_a_diverged_run_raises_and_can_be_started_again(parts, tmp_path):
    out = tmp_path / "run"
    wild = {**SMALL, "inner_lr": 1e6, "out": out}
    with pytest.raises(TrainingDiverged, match=r"step \d+, learning_rate 0\.01.*lower inner_lr"):
        dips.train(*parts, policy="last", **wild)
    assert dips.train(*parts, policy="last", **{**wild, "inner_lr": 0.1}).error == ""


def test_an_interrupted_run_needs_resume(parts, tmp_path):
    def stop(moment):
        if moment.epoch == 1:
            raise KeyboardInterrupt

    settings = {**SMALL, "epochs": 3, "policy": "reservoir"}
    whole = dips.train(*parts, **settings)
    with pytest.raises(KeyboardInterrupt):
        dips.train(*parts, out=tmp_path, on_epoch=stop, **settings)
    with pytest.raises(RunError, match="holds an interrupted run: continue it with --resume"):
        dips.train(*parts, out=tmp_path, **settings)
    with pytest.raises(RunError, match=r"was started with other settings \(inner_lr, epochs\)"):
        dips.train(*parts, out=tmp_path, resume=True, **{**settings, "epochs": 4, "inner_lr": 0.2})
    resumed = dips.train(*parts, out=tmp_path, resume=True, **settings)
    assert same_tensors(whole, resumed)
    assert resumed.test.metrics == whole.test.metrics
    with pytest.raises(RunError, match="is a finished run: choose another --out"):
        dips.train(*parts, out=tmp_path, resume=True, **settings)


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_resume_is_exact_with_resketch_epochs(stop_after, parts, tmp_path):
    def stop(moment):
        if moment.epoch == stop_after:
            raise KeyboardInterrupt

    settings = {
        "epochs": 4,
        "policy": "hardest",
        "resketch_epochs": 2,
        "size": 2,
        "dim": 4,
        "device": "cpu",
    }
    settings |= {"batch_size": 64, "learning_rate": 0.1, "patience": 4}
    with pytest.raises(KeyboardInterrupt):
        dips.train(*parts, out=tmp_path, on_epoch=stop, **settings)
    resumed = dips.train(*parts, out=tmp_path, resume=True, **settings)
    whole = dips.train(*parts, **settings)
    assert same_tensors(whole, resumed)
    assert resumed.history == whole.history


def test_resume_keeps_the_best_epoch(parts, tmp_path):
    def stop(moment):
        if moment.epoch == 5:
            raise KeyboardInterrupt

    settings = {**SMALL, "policy": "last", "epochs": 6, "patience": 6, "batch_size": 32}
    settings |= {"learning_rate": 0.2}
    whole = dips.train(*parts, **settings)
    scores = [line["valid"] for line in whole.history]
    assert min(scores) < min(scores[4:])  # the best was before the interrupt
    with pytest.raises(KeyboardInterrupt):
        dips.train(*parts, out=tmp_path, on_epoch=stop, **settings)
    resumed = dips.train(*parts, out=tmp_path, resume=True, **settings)
    assert same_tensors(whole, resumed)
    assert resumed.history == whole.history


def test_settings_are_given_by_name_or_as_config(data):
    with pytest.raises(ConfigError, match="epochs"):
        dips.compare(data, ["last"], config=dips.TrainConfig(), epochs=3)


EXAMPLES = {
    found.name.removeprefix("dips.api."): found
    for found in doctest.DocTestFinder().find(api, "dips.api")
    if found.examples
}


def test_every_public_function_has_an_example():
    public = {name for name in dips.__all__ if getattr(dips, name).__module__ == "dips.api"}
    assert public | {"report", "story"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_of_a_docstring_runs(name):
    output = []
    doctest.DocTestRunner().run(EXAMPLES[name], out=output.append)
    assert not output, "".join(output)
