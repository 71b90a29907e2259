"""A model file: round trips, and what is refused."""

import json
import struct

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import dips
from dips.data.synthetic import stream
from dips.errors import RunError
from dips.model.trained_model import FILE, open_model
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.studies.sketches import prediction_columns, sketch_columns

SMALL = {"epochs": 1, "dim": 6, "batch_size": 256, "device": "cpu"}
DATA = {
    "explicit": stream(users=30, items=64, events=14),
    "implicit": stream(users=30, items=64, events=14, implicit=True),
}


def train(loss, recommender="dot", policy="reservoir", **more):
    data = DATA["implicit" if loss == "softmax" else "explicit"]
    parts = data.split_users(seed=0)
    settings = {**SMALL, "size": 3, "loss": loss, "recommender": recommender, **more}
    return dips.train(*parts, policy=policy, **settings).trained, parts[2]


@pytest.fixture(scope="module")
def trained():
    return train("mse")[0]


@pytest.fixture
def run(trained, tmp_path):
    trained.save(tmp_path)
    return tmp_path


def assert_same_columns(left, right):
    assert list(left) == list(right)
    for name in left:
        np.testing.assert_array_equal(left[name], right[name])


@pytest.mark.parametrize("recommender", ["dot", "mlp"])
@pytest.mark.parametrize("loss", ["mse", "bce", "cce", "softmax"])
def test_round_trip(loss, recommender, tmp_path):
    trained, test = train(loss, recommender, every=2)
    trained.save(tmp_path)
    again = open_model(tmp_path)
    assert_same_columns(prediction_columns(trained, test), prediction_columns(again, test))
    assert_same_columns(sketch_columns(trained, test), sketch_columns(again, test))
    assert again.spec == trained.spec
    assert list(again.item_ids) == list(trained.item_ids)


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        ("hardest:5", {}),
        ("influence", {"damping": 0.3, "dim": 3, "inner_steps": 3}),
        ("mix:2", {"periods": (2, 1), "seed": 4}),
        ("reservoir", {"selection": "sampled", "prior_penalty": 0.1}),
    ],
)
def test_everything_that_decides_a_sketch_is_kept(policy, more, tmp_path):
    trained, test = train("mse", policy=policy, **more)
    trained.save(tmp_path)
    again = open_model(tmp_path)
    assert_same_columns(sketch_columns(trained, test), sketch_columns(again, test))
    for field in ("policy_spec", "size", "periods", "selection", "seed"):
        assert getattr(again, field) == getattr(trained, field)


def test_the_file_is_safetensors_and_nothing_else(run):
    content = (run / FILE).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert json.loads(header["__metadata__"]["dips"])["version"] == 4
    assert [path.name for path in run.iterdir()] == [FILE]


def test_saving_twice_gives_the_same_bytes(trained, tmp_path):
    trained.save(tmp_path / "a")
    trained.save(tmp_path / "b")
    assert (tmp_path / "a" / FILE).read_bytes() == (tmp_path / "b" / FILE).read_bytes()


def test_opening_leaves_the_random_state_alone(run):
    before = torch.get_rng_state()
    open_model(run)
    assert torch.equal(torch.get_rng_state(), before)


def rewrite(run, change):
    """Change what the metadata says."""
    with safe_open(run / FILE, framework="pt") as file:
        about = json.loads(file.metadata()["dips"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(about, tensors)
    save_file(tensors, run / FILE, metadata={"dips": json.dumps(about)})


def without(*names):
    def change(about, tensors):
        for name in names:
            about.pop(name, None)
            tensors.pop(name, None)

    return change


def changed(**values):
    return lambda about, tensors: about.update(values)


def test_another_version_is_refused(run):
    rewrite(run, changed(version=99))
    with pytest.raises(RunError, match="has version 99, this dips reads 4: install the dips that"):
        open_model(run)


def test_a_file_of_the_first_release_is_refused(run):
    rewrite(run, changed(version=2))
    with pytest.raises(RunError, match=r"was written by dips 0\.1; train the run again"):
        open_model(run)


@pytest.mark.parametrize(
    "change",
    [
        without("version"),
        without("policy"),
        without("items.blob"),
        without("recommender.bias"),
        changed(recommender={}),
        changed(recommender={"kind": "tree", "rating_values": [], "side": {}}),
        changed(periods=3),
        lambda about, tensors: about["recommender"].update(dim=7),
    ],
)
def test_a_file_that_lacks_something_is_refused(run, change):
    rewrite(run, change)
    with pytest.raises(RunError, match=r"damaged or was not written by dips .*: train the run"):
        open_model(run)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 0.5, 0.99])
def test_a_truncated_file_is_refused(run, keep):
    content = (run / FILE).read_bytes()
    length = int(keep * len(content)) if isinstance(keep, float) else keep
    (run / FILE).write_bytes(content[:length])
    with pytest.raises(RunError, match=r"model\.safetensors is damaged.*train the run again"):
        open_model(run)


@pytest.mark.parametrize("content", [b"\x80\x04K\x01.", b"PK\x03\x04 a torch file", b"{}" * 50])
def test_a_pickle_or_anything_else_is_never_executed(run, content):
    (run / FILE).write_bytes(content)
    with pytest.raises(RunError, match="damaged or was not written by dips"):
        open_model(run)


def test_a_damaged_header_is_refused(run):
    content = bytearray((run / FILE).read_bytes())
    content[20:40] = b"\xff" * 20
    (run / FILE).write_bytes(bytes(content))
    with pytest.raises(RunError, match="damaged"):
        open_model(run)


def test_safetensors_of_someone_else_is_refused(tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / FILE)
    with pytest.raises(RunError, match="was not written by dips"):
        open_model(tmp_path)


def test_missing_runs_are_named(tmp_path):
    with pytest.raises(RunError, match=r"is not a finished run: there is no model\.safetensors"):
        open_model(tmp_path)
    with pytest.raises(RunError, match="there is no such run directory; make one with 'dips train"):
        dips.evaluate(tmp_path / "nowhere", DATA["explicit"])


@pytest.mark.parametrize("recommender", ["dot", "mlp"])
def test_the_mask_of_sketch_items_is_saved(recommender, tmp_path):
    trained, test = train("softmax", recommender, filter_sketch=True)
    trained.save(tmp_path)
    again = open_model(tmp_path)
    assert again.recommender.masks_sketch
    made = prediction_columns(trained, test)
    assert_same_columns(made, prediction_columns(again, test))
    again.recommender.masks_sketch = False
    assert made["rank"].tolist() != prediction_columns(again, test)["rank"].tolist()


def test_a_sequential_recommender_with_all_options_is_saved(tmp_path):
    trained, test = train("softmax", "gru", filter_sketch=True, cosine=True, tie_embeddings=False)
    trained.save(tmp_path)
    again = open_model(tmp_path)
    assert again.spec == trained.spec
    assert (again.spec.filter_sketch, again.spec.cosine, again.spec.tie_embeddings) == (
        True,
        True,
        False,
    )
    assert_same_columns(prediction_columns(trained, test), prediction_columns(again, test))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (LinearisedDotProduct, {"inner_loss": "linearised", "repeat_feature": True}),
        (
            LinearisedDotProduct,
            {"inner_loss": "linearised", "negatives": 9, "policy": "last-top:1"},
        ),
        (DotProduct, {"inner_loss": "softmax"}),
    ],
)
def test_the_inner_loss_is_saved(kind, more, tmp_path):
    """Sums over all items are not: they are computed again."""
    trained, test = train("softmax", **more)
    trained.save(tmp_path)
    again = open_model(tmp_path)
    assert type(again.recommender) is type(trained.recommender) is kind
    assert again.spec == trained.spec
    assert again.spec.inner_loss == more["inner_loss"]
    assert_same_columns(prediction_columns(trained, test), prediction_columns(again, test))
    assert_same_columns(sketch_columns(trained, test), sketch_columns(again, test))
    with safe_open(tmp_path / FILE, framework="pt") as file:
        assert not any("stored_sums" in name for name in file.keys())  # noqa: SIM118


def test_a_file_from_before_inner_losses_has_the_softmax(tmp_path):
    trained, test = train("softmax", inner_loss="softmax")
    trained.save(tmp_path)
    rewrite(tmp_path, lambda about, tensors: about["recommender"].pop("inner_loss"))
    again = open_model(tmp_path)
    assert type(again.recommender) is DotProduct
    assert_same_columns(prediction_columns(trained, test), prediction_columns(again, test))
