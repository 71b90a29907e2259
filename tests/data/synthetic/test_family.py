"""The family of synthetic worlds: drawn from a seed, of three kinds, some held out."""

import numpy as np
import pytest

from dips.data.synthetic.family import KINDS, SIZES, family


@pytest.mark.parametrize("kind", KINDS)
def test_worlds_are_the_same_for_the_same_seed_and_differ_between_seeds(kind):
    worlds = family(kind, 6)
    assert worlds == family(kind, 6)
    assert worlds == family(kind, 9)[:6]
    assert len({world.options["seed"] for world in worlds}) == 6
    assert family(kind, 6, seed=1) != worlds


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_worlds_are_not_trained_on(kind):
    training = {str(world.options) for world in family(kind, 30)}
    held_out = {str(world.options) for world in family(kind, 30, held_out=True)}
    assert len(training) == len(held_out) == 30
    assert not training & held_out


def test_kinds_differ_in_ratings_and_repeats():
    ratings, items, repeats = (family(kind, 4)[3].load() for kind in KINDS)
    assert ratings.rating is not None
    assert items.rating is None
    assert repeats.rating is None
    assert items.repeats == 0
    assert repeats.repeats > 0.01
    for data in (ratings, items, repeats):
        assert data.lengths.min() > 0
        assert np.array_equal(data.starts, np.cumsum(data.lengths) - data.lengths)
        assert data.starts[-1] + data.lengths[-1] == len(data.item)


def test_worlds_have_all_sizes_several_periods_and_some_no_times():
    worlds = family("ratings", 3 * len(SIZES))
    assert {world.size for world in worlds} == set(SIZES)
    assert len({world.every for world in worlds}) > 2
    assert {world.has_times for world in worlds} == {True, False}
    without = next(world for world in worlds if not world.has_times)
    assert without.load().time is None
