"""Filter datasets: minimum ratings, minimum events, k-core. Knows no files, needs numpy only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dips.data.interactions import Interactions, from_arrays, ragged
from dips.errors import ConfigError, DataError, choose_from


@dataclass(frozen=True, kw_only=True)
class FilterRecipe:
    """A named sequence of filters, applied in the order of the fields."""

    about: str
    """One line for the help text."""
    min_rating: float | None = None
    """Keep events with a higher rating, as implicit data."""
    min_events: int | None = None
    """Keep users with at least this many events."""
    core: int | None = None
    """Keep the k-core."""

    def __call__(self, data: Interactions) -> Interactions:
        """Return the filtered data."""
        if self.min_rating is not None:
            data = min_rating(data, self.min_rating)
        if self.min_events is not None:
            data = min_events(data, self.min_events)
        if self.core is not None:
            data = k_core(data, self.core)
        return data


RECIPES = {
    "as-is": FilterRecipe(about="everything, as the source has it (MovieLens in the paper)"),
    "netflix": FilterRecipe(about="users with 20 or more ratings", min_events=20),
    "amazon-books": FilterRecipe(about="ratings above 3.5, then 20-core", min_rating=3.5, core=20),
    "amazon-cds": FilterRecipe(
        about="ratings above 3.5, then users with 10+", min_rating=3.5, min_events=10
    ),
    "foursquare": FilterRecipe(about="20-core", core=20),
    "implicit": FilterRecipe(about="ratings above 3.5, then 20-core", min_rating=3.5, core=20),
}


def recipe_by_name(name: str) -> FilterRecipe:
    """Return the filter recipe with this name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in RECIPES:
        raise ConfigError(f"unknown recipe '{name}': {choose_from(name, RECIPES)}")
    return RECIPES[name]


def prepare(
    data: Interactions,
    *,
    recipe: str | None = None,
    min_rating: float | None = None,
    core: int | None = None,
) -> Interactions:
    """Apply a recipe, then single filters.

    Args:
        data: The dataset.
        recipe: A name of `RECIPES`.
        min_rating: Keep events with a higher rating, as implicit data.
        core: Keep the k-core.

    Returns:
        The filtered dataset; `about` lists the steps.

    Raises:
        ConfigError: If there is no such recipe, or `core` is below 1.
        DataError: If a filter removes every interaction, or there are no ratings to filter by.
    """
    if recipe is not None:
        data = recipe_by_name(recipe)(data)
        data = replace(data, about={**data.about, "recipe": recipe})
    return FilterRecipe(about="single filters", min_rating=min_rating, core=core)(data)


def min_rating(data: Interactions, above: float) -> Interactions:
    """Keep events rated above a threshold; the result is implicit data without ratings.

    Raises:
        DataError: If the data has no ratings, or none is above the threshold.
    """
    if data.rating is None:
        raise DataError(f"{data.name} has no ratings, so there is no filter by rating {above:g}")
    rows = _rows(data)
    kept = _keep(data, rows[data.rating[rows] > above], f"rating > {above:g}")
    facts = {key: value for key, value in kept.about.items() if key != "rating_range"}
    return replace(kept, rating=None, about=facts)


def min_events(data: Interactions, least: int) -> Interactions:
    """Keep users with at least `least` interactions.

    Raises:
        DataError: If there is no such user.
    """
    users = data.select(np.flatnonzero(data.lengths >= least))
    return _keep(users, _rows(users), f"users with {least}+ interactions")


def k_core(data: Interactions, k: int) -> Interactions:
    """Keep users with k distinct items and items with k distinct users, until nothing changes.

    Raises:
        ConfigError: If k is below 1.
        DataError: If the k-core is empty.
    """
    if k < 1:
        raise ConfigError(f"a {k}-core does not exist; --core takes 1 or more")
    rows = _rows(data)
    event_users = np.repeat(np.arange(data.users, dtype=np.int64), data.lengths)
    pairs = np.unique(event_users * data.items + data.item[rows])
    users, items = np.divmod(pairs, data.items)
    while True:
        good_user = np.bincount(users, minlength=data.users) >= k
        good_item = np.bincount(items, minlength=data.items) >= k
        alive = good_user[users] & good_item[items]
        if alive.all():
            break
        users, items = users[alive], items[alive]
    return _keep(data, rows[good_user[event_users] & good_item[data.item[rows]]], f"{k}-core")


def shuffle_ties(data: Interactions, seed: int) -> Interactions:
    """Shuffle events of a user that have equal times, to measure the effect of the file's order.

    Raises:
        ConfigError: If the data has no times, or the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"--shuffle-ties is {seed}: a seed must be at least 0")
    if data.time is None:
        raise ConfigError(f"{data.name} has no times, so there are no ties to shuffle")
    rows = _rows(data)
    owner = np.repeat(np.arange(data.users), data.lengths)
    priority = np.random.default_rng(seed).random(len(rows))
    order = rows[np.lexsort((priority, data.time[rows], owner))]
    return _keep(data, order, f"ties shuffled with seed {seed}")


def compact(data: Interactions) -> Interactions:
    """Return the data with only its own events and vocabularies; a whole dataset is unchanged."""
    whole = len(data) == len(data.item) and bool(np.all(np.diff(data.starts) == data.lengths[:-1]))
    return data if whole else _keep(data, _rows(data), None)


def _rows(data: Interactions) -> npt.NDArray[np.int64]:
    """Return the indices of the events in the event columns, user after user."""
    return ragged(data.starts, data.lengths)


def _keep(data: Interactions, rows: npt.NDArray[np.int64], step: str | None) -> Interactions:
    """Return these events, with users and items renumbered; add `step` to the list of steps."""
    if len(rows) == 0:
        raise DataError(f"{data.name}: '{step}' removes every interaction; use a weaker filter")
    if data.warmup.any():
        raise DataError(f"{data.name}: filter before the split by time, not a part of it")
    events = np.full(len(data.item), -1, np.int64)
    events[_rows(data)] = np.repeat(np.arange(data.users), data.lengths)
    users, user = np.unique(events[rows], return_inverse=True)
    items, item = np.unique(data.item[rows], return_inverse=True)
    taken = [*data.about.get("steps", []), *([step] if step else [])]
    return from_arrays(
        user,
        item.astype(np.int32),
        None if data.rating is None else data.rating[rows],
        None if data.time is None else data.time[rows],
        user_ids=data.user_ids.take(data.user_rows[users]),
        item_ids=data.item_ids.take(items),
        titles=None if data.titles is None else data.titles.take(items),
        categories=None if data.categories is None else data.categories.take(items),
        side={name: column.take(rows) for name, column in data.side.items()},
        about={**data.about, "steps": taken},
    )
