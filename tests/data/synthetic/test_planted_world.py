"""The planted world: its keys, its best loss and its limits."""

import numpy as np
import pytest

from dips.data.interactions import Interactions
from dips.data.synthetic import best_rmse, planted, planted_positions, stream
from dips.data.synthetic.planted_world import KEY_LOADING, MEAN, ORDINARY_LOADING, best_mse
from dips.errors import ConfigError


def items_in(data: Interactions, category: str) -> np.ndarray:
    return np.array([category in data.categories[item] for item in range(data.items)])


def test_each_user_has_one_key_of_each_genre_early():
    world = planted(users=50, genres=4, events=40)
    keys = planted_positions(world).reshape(50, 40)
    assert (keys.sum(axis=1) == 4).all()
    assert not keys[:, 40 // 3 :].any()
    assert keys[:, :13].any(axis=0).all()  # anywhere in the first third, not at fixed places
    genres = [
        {world.categories[item][-1] for item in world.item.reshape(50, 40)[user][keys[user]]}
        for user in range(50)
    ]
    assert all(len(found) == 4 for found in genres)


def oracle_mse(world: Interactions, keep: np.ndarray) -> float:
    """Predict each event from those of the user's keys before it that are kept."""
    keys = planted_positions(world)
    total = 0.0
    for user in range(world.users):
        sign: dict[str, float] = {}
        for event in range(*world.events(user).indices(len(world))):
            genre = world.categories[int(world.item[event])][0 if not keys[event] else -1]
            guess = MEAN if keys[event] else MEAN + ORDINARY_LOADING * sign.get(genre, 0.0)
            total += (float(world.rating[event]) - guess) ** 2
            if keys[event] and keep[event]:
                sign[genre] = (float(world.rating[event]) - MEAN) / KEY_LOADING
    return total / len(world)


def test_the_keys_reach_the_best_loss_and_half_of_them_do_not():
    world = planted(users=400, seed=3)
    keys = planted_positions(world)
    assert np.sqrt(oracle_mse(world, keys)) == pytest.approx(best_rmse(world), rel=0.01)
    half = keys & (np.arange(len(world)) % 2 == 0)
    assert np.sqrt(oracle_mse(world, half)) > 1.1 * best_rmse(world)
    assert best_rmse(world) ** 2 == pytest.approx(best_mse(world))


def test_ratings_have_the_documented_spread():
    world = planted(users=500)
    filler = items_in(world, "filler")[world.item]
    keys = planted_positions(world)
    assert np.std(world.rating[filler]) == pytest.approx(0.6, rel=0.03)
    assert set(np.unique(world.rating[keys])) == {1.0, 5.0}
    ordinary = ~filler & ~keys
    assert np.std(world.rating[ordinary]) == pytest.approx(np.sqrt(1 + 0.36), rel=0.03)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"users": 0}, "users"),
        ({"genres": 0}, "genres"),
        ({"items": 5}, "items"),
        ({"events": 5}, "events"),
        ({"noise": -1.0}, "noise"),
    ],
)
def test_impossible_planted_worlds_are_refused(options, word):
    with pytest.raises(ConfigError, match=f"^{word} is "):
        planted(**options)


def test_a_stream_has_no_planted_positions():
    with pytest.raises(ConfigError, match="not a planted world"):
        planted_positions(stream(users=2))


def test_the_smallest_planted_world():
    world = planted(users=1, items=4, events=3, genres=1)
    assert len(world) == 3
    assert planted_positions(world).sum() == 1
