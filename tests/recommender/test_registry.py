"""Recommenders by name, and the settings that a user's own class gets."""

from __future__ import annotations

import re
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.errors import ConfigError, PluginError
from dips.recommender.base import Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.linear_scores import LinearScores
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import FullSoftmax, SquaredError
from dips.recommender.mlp import MLP
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.recommender.stacked import StackedRecommenders
from dips.recommender.weighted_entries import WeightedEntries


class Least(Recommender):
    """One method, no constructor."""

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        return user.sum(1, keepdim=True) * items


class Drawn(Least):
    """Uses the generator, and has vectors of length two for policies."""

    def __init__(self, *, items: int, generator: torch.Generator, **settings: Any) -> None:
        super().__init__(items=items, **settings)
        self.vectors = torch.nn.Parameter(torch.randn(items, 2, generator=generator))
        self.register_buffer("kind", torch.arange(items) % 3)

    def embedding(self, items: Tensor) -> Tensor:
        return self.vectors[items].detach()


class Small(Least):
    """Does not pass on the number of items."""

    def __init__(self, loss: Any) -> None:
        super().__init__(items=3, loss=loss)


class Stubborn(Least):
    """Ignores the loss that it is given."""

    def __init__(self, items: int) -> None:
        super().__init__(items=items, loss=SquaredError())


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_recommenders")
    for own in (Least, Drawn, Small, Stubborn):
        setattr(module, own.__name__, own)
    monkeypatch.setitem(sys.modules, "my_recommenders", module)


def spec(form: str, **more: Any) -> RecommenderSpec:
    return RecommenderSpec(**{"kind": form, "loss": "mse", "items": 7, "dim": 5, **more})


def test_names() -> None:
    assert type(make_recommender(spec("dot"))) is DotProduct
    assert type(make_recommender(spec("mlp"))) is MLP


@pytest.mark.parametrize(
    ("inner_loss", "kind"),
    [("linearised", LinearisedDotProduct), ("softmax", DotProduct), (None, DotProduct)],
)
def test_the_inner_loss_decides_the_class_of_dot(
    inner_loss: str | None, kind: type[Recommender]
) -> None:
    """Also from the dictionary in a model file; older files have no inner loss."""
    given = spec("dot", loss="softmax", inner_loss=inner_loss)
    written = given.to_dict()
    if inner_loss is None:
        del written["inner_loss"]
    for one in (given, RecommenderSpec.from_dict(written)):
        assert type(make_recommender(one)) is kind
    assert type(make_recommender(spec("mlp", loss="softmax", inner_loss=inner_loss))) is MLP


def test_a_class_without_constructor_gets_all_settings_of_the_base_class() -> None:
    given = spec(
        "my_recommenders:Least", offset=2.5, inner_lr=0.3, inner_steps=4, prior_penalty=0.1
    )
    made = make_recommender(given)
    assert type(made) is Least
    assert (made.items, made.loss, len(made.user_prior)) == (7, SquaredError(), 5)
    assert (float(made.offset), float(made.inner_lr)) == (2.5, pytest.approx(0.3))
    assert (made.inner_steps, made.prior_penalty) == (4, 0.1)
    softmax = make_recommender(spec("my_recommenders:Least", loss="softmax"))
    assert softmax.loss == FullSoftmax()


def test_every_class_has_the_unit_of_ratings_of_its_run() -> None:
    """Also where a constructor does not pass it to the base class."""
    for kind in ("dot", "mlp", "my_recommenders:Least", "my_recommenders:Drawn"):
        made = make_recommender(spec(kind, rating_center=3.5, rating_spread=1.25))
        assert (float(made.rating_center), float(made.rating_spread)) == (3.5, 1.25)


def test_a_constructor_that_names_a_generator_gets_one() -> None:
    name = spec("my_recommenders:Drawn")
    one, same, other = (make_recommender(name, seed).state_dict()["vectors"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_integer_buffers_are_not_quantized() -> None:
    quantized = StackedRecommenders.of(
        [make_recommender(spec("my_recommenders:Drawn"))]
    ).quantized()
    assert quantized.state["kind"].dtype == torch.int64
    assert quantized.state["vectors"].dtype == torch.float64


@pytest.mark.parametrize(
    ("form", "kind", "sentence"),
    [
        ("tree", ConfigError, "unknown recommender 'tree': choose one of dot, mlp, gru, "),
        ("nowhere:Tree", PluginError, "recommender 'nowhere:Tree' cannot be made"),
        ("os.path:join", PluginError, "it is not a dips.Recommender"),
        ("my_recommenders:Small", PluginError, "has items 3, not the run's 7: pass its settings"),
        ("my_recommenders:Stubborn", PluginError, "has loss SquaredError(), not the run's Full"),
        ("dips.recommender.base:Recommender", PluginError, "abstract"),
    ],
)
def test_a_wrong_name_or_class_is_refused(form: str, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=re.escape(sentence)):
        make_recommender(spec(form, loss="softmax"))


@pytest.mark.parametrize("form", ["dot", "mlp", "my_recommenders:Least"])
def test_sketch_items_are_masked_in_the_ranking(form: str) -> None:
    plain, made = (
        make_recommender(spec(form, loss="softmax", filter_sketch=filtered))
        for filtered in (False, True)
    )
    assert (plain.masks_sketch, made.masks_sketch) == (False, True)
    assert set(plain.state_dict()) == set(made.state_dict())


@pytest.mark.parametrize("form", ["gru", "sasrec"])
def test_sequential_recommenders_learn_to_filter(form: str) -> None:
    made = make_recommender(spec(form, loss="softmax", filter_sketch=True))
    assert isinstance(made, LinearScores)
    assert made.has_repeat_feature
    assert not made.masks_sketch  # their scores do it


@pytest.mark.parametrize("inner_loss", ["softmax", "linearised"])
@pytest.mark.parametrize("name", ["repeat_feature", "recency_decay", "tie_embeddings"])
def test_options_of_the_dot_product(name: str, inner_loss: str) -> None:
    options = {"repeat_feature": False, "recency_decay": False, "tie_embeddings": False}
    options |= {name: True}
    spec = RecommenderSpec(kind="dot", loss="softmax", items=3, inner_loss=inner_loss, **options)
    model = make_recommender(RecommenderSpec.from_dict(spec.to_dict()))
    assert isinstance(model, WeightedEntries)
    found = {
        "repeat_feature": model.has_repeat_feature,
        "recency_decay": model.has_recency_decay,
        "tie_embeddings": model.tie_embeddings,
    }
    assert found == {other: other == name for other in found}


def test_options_that_a_recommender_does_not_have_are_refused() -> None:
    for given in (
        spec("mlp", loss="softmax", repeat_feature=True),
        spec("sasrec", loss="softmax", tie_embeddings=False),
        spec("dot", loss="softmax", cosine=True),
    ):
        with pytest.raises(ConfigError, match="has no setting"):
            make_recommender(given)


@pytest.mark.parametrize("form", ["dot", "mlp", "gru", "sasrec"])
def test_filter_seen_masks_histories_and_not_the_sketch(form: str) -> None:
    """The specification says so, and older specifications without the field do not."""
    made = make_recommender(spec(form, loss="softmax", filter_seen=True))
    assert (made.masks_seen, made.masks_sketch) == (True, False)
    assert not make_recommender(spec(form, loss="softmax")).masks_seen
    stored = spec(form, loss="softmax", filter_seen=True).to_dict()
    assert RecommenderSpec.from_dict(stored).filter_seen
    del stored["filter_seen"]
    assert not RecommenderSpec.from_dict(stored).filter_seen
