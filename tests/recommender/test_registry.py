"""Recommenders by name, and what a class of one's own is given and must be."""

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
from dips.recommender.linear_scores import Linear
from dips.recommender.losses import FullSoftmax, SquaredError
from dips.recommender.mlp import MLP
from dips.recommender.registry import RecommenderSpec, embedding_width, make_recommender
from dips.recommender.stacked import StackedRecommenders


class Least(Recommender):
    """One method, no constructor."""

    def predict(self, user: Tensor, items: Tensor) -> Tensor:
        return user.sum(1, keepdim=True) * items


class Drawn(Least):
    """Draws from the generator that it is given, and shows vectors of two numbers."""

    def __init__(self, *, items: int, generator: torch.Generator, **settings: Any) -> None:
        super().__init__(items=items, **settings)
        self.vectors = torch.nn.Parameter(torch.randn(items, 2, generator=generator))
        self.register_buffer("kind", torch.arange(items) % 3)

    def embedding(self, items: Tensor) -> Tensor:
        return self.vectors[items].detach()


class Small(Least):
    """Does not hand on what it is given."""

    def __init__(self, loss: Any) -> None:
        super().__init__(items=3, loss=loss)


class Stubborn(Least):
    """Knows one loss only."""

    def __init__(self, items: int) -> None:
        super().__init__(items=items, loss=SquaredError())


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_recommenders")
    for own in (Least, Drawn, Small, Stubborn):
        setattr(module, own.__name__, own)
    monkeypatch.setitem(sys.modules, "my_recommenders", module)


def spec(form: str, **more: Any) -> RecommenderSpec:
    return RecommenderSpec(**{"form": form, "loss": "mse", "items": 7, "dim": 5, **more})


def test_names() -> None:
    assert type(make_recommender(spec("dot"))) is DotProduct
    assert type(make_recommender(spec("mlp"))) is MLP


def test_the_base_class_takes_all_settings() -> None:
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


def test_a_generator_is_there_for_those_who_name_it() -> None:
    name = spec("my_recommenders:Drawn")
    one, same, other = (make_recommender(name, seed).state_dict()["vectors"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_width_of_what_policies_see() -> None:
    forms = {"dot": 5, "mlp": 5, "my_recommenders:Drawn": 2, "my_recommenders:Least": 0}
    assert {form: embedding_width(spec(form)) for form in forms} == forms


def test_whole_numbers_stay_whole_at_decision_time() -> None:
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
        ("my_recommenders:Small", PluginError, "has items 3, not the run's 7: hand what it is"),
        ("my_recommenders:Stubborn", PluginError, "has loss SquaredError(), not the run's Full"),
        ("dips.recommender.base:Recommender", PluginError, "abstract"),
    ],
)
def test_a_name_that_does_not_fit(form: str, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=re.escape(sentence)):
        make_recommender(spec(form, loss="softmax"))


@pytest.mark.parametrize("form", ["dot", "mlp", "my_recommenders:Least"])
def test_what_need_not_know_of_it_strikes_by_the_ranking(form: str) -> None:
    plain, made = (
        make_recommender(spec(form, loss="softmax", filter_sketch=struck))
        for struck in (False, True)
    )
    assert (plain.filters_sketch, made.filters_sketch) == (False, True)
    assert set(plain.state_dict()) == set(made.state_dict())


@pytest.mark.parametrize("form", ["gru", "gru-separate", "sasrec"])
def test_what_reads_in_order_learns_to_strike(form: str) -> None:
    made = make_recommender(spec(form, loss="softmax", filter_sketch=True))
    assert isinstance(made, Linear)
    assert made.has_own
    assert not made.filters_sketch  # not twice


@pytest.mark.parametrize("name", ["repeat_feature", "recency_decay", "separate_input"])
def test_what_a_product_knows_besides(name: str) -> None:
    spec = RecommenderSpec(form="dot", loss="softmax", items=3, **{name: True})
    model = make_recommender(RecommenderSpec.from_dict(spec.to_dict()))
    assert isinstance(model, DotProduct)
    found = {
        "repeat_feature": model.has_own,
        "recency_decay": model.has_recency_decay,
        "separate_input": model.has_separate_input,
    }
    assert found == {other: other == name for other in found}
