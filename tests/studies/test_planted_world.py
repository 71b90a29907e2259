"""Data with a known best sketch: `learned` keeps it, `last` and `reservoir` do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dips
from dips.data.synthetic.planted_world import MEAN, best_rmse, planted, planted_positions


def _kept_keys(result: Any, data: Any) -> float:
    """Return the share of key items in the final sketches of all users."""
    found = dips.sketches(result, data)
    keys = {data.item_ids[item] for item in np.unique(data.item[planted_positions(data)])}
    return float(np.sum([item in keys for item in found["item"]])) / (4 * data.users)


def _noise_factor(data: Any) -> float:
    """Return the factor of the RMSE by which the drawn noise exceeds the expected noise."""
    key = planted_positions(data)
    error = []
    for start, length in zip(data.starts, data.lengths, strict=True):
        place = np.arange(start, start + length)
        sign = {
            genre: np.sign(data.rating[event] - MEAN)
            for event in place[key[place]]
            for genre in data.categories[data.item[event]]
            if genre != "key"
        }
        for event in place[~key[place]]:
            (kind,) = data.categories[data.item[event]]
            error.append(data.rating[event] - MEAN - sign.get(kind, 0.0))
    expected = float(data.about["noise"]) ** 2
    extra = (float(np.mean(np.square(error))) - expected) * len(error) / len(data)
    return float(np.sqrt(1 + extra / best_rmse(data) ** 2))


@pytest.fixture(scope="module")
def world() -> Any:
    return planted(seed=11).split_users(0.6, 0.2, 0.2, seed=0)


def _trained(world: Any, policy: str) -> tuple[float, float]:
    """Return the share of kept key items, and the test RMSE relative to the best possible one."""
    train, valid, test = world
    result = dips.train(train, valid, policy=policy, size=4, device="cpu")
    best = best_rmse(test) * _noise_factor(test)
    return _kept_keys(result, test), dips.evaluate(result, test)["rmse"] / best


def test_learned_keeps_the_planted_key_items(world: Any) -> None:
    share, ratio = _trained(world, "learned")
    assert share >= 0.95
    assert ratio <= 1.02


@pytest.mark.parametrize("policy", ["last", "reservoir"])
def test_static_policies_do_not_keep_the_planted_key_items(world: Any, policy: str) -> None:
    share, ratio = _trained(world, policy)
    assert share < 0.5
    assert ratio > 1.1
