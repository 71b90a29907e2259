"""Plug-in recommenders and policies, from training to opening the run again."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dips
from dips.data.interactions import from_arrays
from dips.data.synthetic import stream
from dips.errors import ConfigError, RunError
from dips.model.trained_model import open_model
from dips.policy.registry import build_policy
from dips.recommender.registry import make_recommender
from dips.training.recipes import build_config

SOURCE = '''
import dips, torch
from torch import nn

class Bounded(dips.Recommender):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.vectors = nn.Parameter(torch.randn(self.items, len(self.user_prior)) / 5)
        self.bias = nn.Parameter(torch.zeros(self.items, 1))

    def predict(self, user, items):
        score = (nn.functional.embedding(items, self.vectors) * user[:, None]).sum(-1)
        return self.offset + nn.functional.embedding(items, self.bias)[..., 0] + 2 * score.tanh()

class Wide(dips.Recommender):
    """Has torch modules, an integer buffer, one channel per star, and embeddings for policies."""

    def __init__(self, *, items, loss, dim, **settings):
        super().__init__(items=items, loss=loss, user_dim=dim + 2, **settings)
        self.table = nn.Embedding(items, dim + 2)
        self.body = nn.Sequential(nn.Linear(2 * dim + 4, 8), nn.Tanh(), nn.Linear(8, loss.channels))
        self.kind = nn.Parameter(torch.zeros(3, 1))
        self.register_buffer("kinds", torch.arange(items) % 3)

    def predict(self, user, items):
        vector = self.table(items) / 3
        out = self.body(torch.cat([user[:, None].expand_as(vector), vector], -1))
        out = out + nn.functional.embedding(self.kinds[items], self.kind)
        return self.offset + (out if self.loss.channels > 1 else out[..., 0])

    def embedding(self, items):
        return self.table(items).detach()

class Steep(Bounded):
    def predict(self, user, items):
        return 1000 * super().predict(user, items)

class Mistaken(Bounded):
    def predict(self, user, items):
        return self.stars

class Taste(nn.Module, dips.Policy):
    required_signals = ("residual",)

    def __init__(self):
        super().__init__()
        self.surprise, self.fresh = (nn.Parameter(torch.tensor(x)) for x in (0.0, 0.2))

    def score(self, candidates, signals):
        return self.surprise * signals.residual.abs() - self.fresh * candidates.age.double()

class Forgetful(Taste):
    """Uses torch's dropout in training."""

    def score(self, candidates, signals):
        return nn.functional.dropout(super().score(candidates, signals), 0.5, self.training)
'''
MODULE = "plugin_module"
SMALL: dict[str, Any] = {
    "size": 3, "dim": 5, "epochs": 2, "inner_steps": 3, "device": "cpu", "user_batch": None,
    "update_interval": None,
    "policy_warmup_epochs": 0, "policy_freeze_epochs": 0, "policy_lr": 0.05,
    "policy_batch_size": 64,
}  # fmt: skip
DATA = {name: stream(users=30, items=64, events=12, implicit=name) for name in (False, True)}


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path / "path")
    yield
    sys.modules.pop(MODULE, None)


def parts(loss: str = "mse") -> Any:
    return DATA[loss == "softmax"].split_users(seed=0)


def moved(start: torch.nn.Module, end: torch.nn.Module) -> dict[str, bool]:
    """Return which tensors have changed."""
    now = end.state_dict()
    return {name: not torch.equal(value, now[name]) for name, value in start.state_dict().items()}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize(
    ("name", "loss", "policy", "every"),
    [
        ("Bounded", "mse", "last", 1),
        ("Bounded", "mse", "hardest", 3),
        ("Bounded", "mse", "learned", 3),
        ("Bounded", "mse", "dips", 1),
        ("Bounded", "bce", "reservoir", 3),
        ("Bounded", "softmax", "mix:1", 1),
        ("Bounded", "softmax", "learned", 1),
        ("Bounded", "softmax", "dips", 3),
        ("Wide", "bce", "learned", 1),
        ("Wide", "cce", "last", 3),
        ("Wide", "cce", "learned", 3),
        ("Wide", "cce", "dips", 1),
    ],
)
def test_a_plugin_recommender_trains_and_is_opened_again(
    name: str, loss: str, policy: str, every: int, tmp_path: Path
) -> None:
    train, valid, test = parts(loss)
    run = dips.train(
        train, valid, recommender=f"{MODULE}:{name}", loss=loss, policy=policy, every=every,
        learning_rate=0.01, out=tmp_path / "run", **SMALL,
    )  # fmt: skip
    made = run.trained
    changed = moved(make_recommender(made.spec), made.recommender)
    still = {"inner_lr", "offset", "rating_center", "rating_spread", "kinds"}
    assert {name for name, yes in changed.items() if not yes} == still & set(changed)
    if isinstance(made.policy, torch.nn.Module):
        start = build_policy(made.policy_spec)
        assert isinstance(start, torch.nn.Module)
        assert any(moved(start, made.policy).values())
    assert_same(dips.sketches(run, test), dips.sketches(tmp_path / "run", test))
    assert dips.evaluate(run, test) == dips.evaluate(tmp_path / "run", test)


@pytest.mark.parametrize("recommender", ["dot", f"{MODULE}:Bounded"])
def test_sketch_items_are_filtered_unless_items_repeat(recommender: str, tmp_path: Path) -> None:
    user, item = np.divmod(np.arange(300), 10)
    once = from_arrays(user, (item + 3 * user) % 20, None, np.arange(300))
    assert once.repeats == 0 < DATA[True].repeats
    for data, masks_sketch in ((once, True), (DATA[True], False)):
        place = tmp_path / str(masks_sketch)
        some = {**SMALL, "recommender": recommender, "epochs": 1}
        dips.train(*data.split_users(seed=0), out=place, **some)
        assert open_model(place).recommender.masks_sketch == masks_sketch


def test_learned_has_one_shape_for_every_recommender() -> None:
    """It reads no item embeddings, so its parameters fit any recommender."""
    shapes = []
    for name in ("Bounded", "Wide"):
        run = dips.train(
            *parts(), recommender=f"{MODULE}:{name}", policy="learned", baselines=(), **SMALL
        )
        assert run.trained.policy.required_signals == ("residual",)
        shapes.append([value.shape for value in run.trained.policy.parameters()])
    assert shapes[0] == shapes[1]


def test_a_plugin_recommender_learns_preferences() -> None:
    """The error falls well below that of the initial item means."""
    train, valid, test = stream(users=120, items=64, events=30, seed=2).split_users(seed=0)
    many = {**SMALL, "epochs": 10, "patience": 10, "batch_size": 128, "inner_steps": 10}
    both = [
        dips.train(train, valid, recommender=f"{MODULE}:Bounded", learning_rate=rate, **many)
        for rate in (0.0, 0.02)
    ]
    start, run = (dips.evaluate(one, test)["rmse"] for one in both)
    assert run < start - 0.05


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Steep", "does not fit: Steep.read does not lower the loss of the entries: inner_lr"),
        ("Mistaken", "does not fit: AttributeError: 'Mistaken' object has no attribute 'stars'"),
        ("Taste", "cannot be made: it is not a dips.Recommender"),
        ("Nobody", "cannot be made: AttributeError"),
    ],
)
def test_a_plugin_that_fails_its_checks_is_refused(
    name: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"recommender '{MODULE}:{name}' {sentence}")):
        dips.train(*parts(), recommender=f"{MODULE}:{name}", out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_a_recommender_needs_one_channel_per_star() -> None:
    with pytest.raises(ConfigError, match=r"does not fit: Bounded\.predict returned the shape"):
        dips.train(*parts(), recommender=f"{MODULE}:Bounded", loss="cce", **SMALL)


@pytest.mark.parametrize("kind", ["recommender", "policy"])
def test_a_run_cannot_be_opened_without_the_module(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"recommender": f"{MODULE}:Bounded", "policy": f"{MODULE}:Taste"}[kind]
    dips.train(*parts(), out=tmp_path / "run", **{**SMALL, kind: name, "epochs": 1})
    monkeypatch.setitem(sys.modules, MODULE, None)
    reason = (
        rf"needs what it was trained with: {kind} '{name}' cannot be made: there is no .*{MODULE}"
    )
    with pytest.raises(RunError, match=reason):
        open_model(tmp_path / "run")


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("recommender", ["dot", f"{MODULE}:Bounded"])
def test_a_plugin_policy_with_signals_trains_and_is_opened_again(
    recommender: str, every: int, tmp_path: Path
) -> None:
    train, valid, test = parts()
    settings = {**SMALL, "every": every, "recommender": recommender}
    run = dips.train(train, valid, policy=f"{MODULE}:Taste", out=tmp_path / "run", **settings)
    learned = {name: float(p) for name, p in run.trained.policy.named_parameters()}  # type: ignore[attr-defined]
    assert learned["surprise"] != 0
    assert learned["fresh"] != pytest.approx(0.2)
    again = open_model(tmp_path / "run")
    assert isinstance(again.policy, torch.nn.Module)
    assert {name: float(p) for name, p in again.policy.named_parameters()} == learned
    for at in ("end", "each"):
        assert_same(dips.sketches(run, test, at=at), dips.sketches(again, test, at=at))


def test_runs_with_plugins_can_be_stacked() -> None:
    """Seeds are stacked by torch.func.vmap, also with torch's dropout."""
    table = dips.compare(
        DATA[False],
        [f"{MODULE}:Taste", f"{MODULE}:Forgetful", "last"],
        sizes=[3],
        folds=2,
        **{**SMALL, "recommender": f"{MODULE}:Bounded"},
    )
    assert [row["n"] for row in table.summary] == [2, 2, 2]


def test_a_recommender_with_a_colon_is_a_plugin() -> None:
    """Its defaults are those of `mlp`."""
    own = build_config(flags={"recommender": "my.module:Mine"})
    mlp = build_config(flags={"recommender": "mlp"})
    assert own == mlp.but(recommender="my.module:Mine")
    with pytest.raises(ConfigError, match=r"choose one of dot, mlp, .*package\.module:Class"):
        dips.TrainConfig.of(recommender="mine")
