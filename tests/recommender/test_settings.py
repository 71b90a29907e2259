"""A setting of recommenders is declared once: flag, specification and constructors follow."""

from __future__ import annotations

import dataclasses
from typing import Any

from dips.recommender.dot import DotProduct
from dips.recommender.registry import RecommenderSpec, construct_recommender
from dips.recommender.settings import RecommenderSettings
from dips.training.config import LEAVES

NAMES = [field.name for field in dataclasses.fields(RecommenderSettings)]


class Wide(DotProduct):
    """A recommender that names one setting of the declaration."""

    def __init__(self, *, inner_steps: int, **settings: Any) -> None:
        super().__init__(inner_steps=inner_steps, **settings)
        self.given = inner_steps


def test_every_declared_setting_is_a_flag_and_a_field_of_the_specification() -> None:
    assert {LEAVES[name] for name in NAMES} == {"model"}
    assert set(NAMES) <= {field.name for field in dataclasses.fields(RecommenderSpec)}


def test_a_setting_reaches_the_constructors_that_name_it() -> None:
    spec = RecommenderSpec(kind="dot", loss="mse", items=5, dim=2, inner_steps=3)
    model = construct_recommender(Wide, spec)
    assert isinstance(model, Wide)
    assert (model.given, model.inner_steps, model.vectors.shape[1]) == (3, 3, 2)


def test_an_open_setting_is_left_to_the_constructor() -> None:
    model = construct_recommender(DotProduct, RecommenderSpec(kind="dot", loss="mse", items=5))
    assert model.vectors.shape == (5, 32)
