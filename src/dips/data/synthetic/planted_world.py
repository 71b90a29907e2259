"""The planted world: a small dataset whose best sketch is known. Knows no policies or models.

Each user likes or dislikes each genre: a hidden sign per genre, fair and independent.

- Once per genre, in the first third of the history, the user rates a *key* item. Its rating is
  exactly `MEAN + KEY_LOADING * sign`, so it reveals the sign without noise.
- The other events of the first third are *fillers*, rated `MEAN + noise`.
- Later events are *ordinary* items, rated `MEAN + ORDINARY_LOADING * sign + noise`, and fillers.

The keys are the best sketch of size `genres`. No event before a key depends on its sign, so no
predictor of a key is better than the mean. With all keys in the sketch, the error of every later
prediction is its noise. Hence `best_mse` is the least loss of any predictor with any memory, and
a sketch of the keys reaches it. Without the key of a genre only noisy ratings are left, and every
ordinary item of the genre costs more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dips.data.interactions import Categories, Interactions, Strings
from dips.errors import ConfigError

MEAN = 3.0
KEY_LOADING = 2.0
ORDINARY_LOADING = 1.0
KEYS_PER_GENRE = 2
FILLER_SHARE = 0.3
"""Share of fillers among the events after the keys, and among the items that are not keys."""


def planted(
    *,
    users: int = 600,
    items: int = 40,
    events: int = 40,
    genres: int = 4,
    noise: float = 0.6,
    seed: int = 0,
) -> Interactions:
    """Return a planted world; its best sketch has size `genres` and holds the key items.

    Args:
        users: Number of users.
        items: Number of items, at least four per genre.
        events: Events of each user, at least three per genre.
        genres: Number of genres, and of key events of each user.
        noise: Standard deviation of the ratings that are no keys.
        seed: Seed of all random numbers.

    Raises:
        ConfigError: If an argument is out of range.

    >>> world = planted(users=10)
    >>> int(planted_positions(world).sum()), round(best_rmse(world), 2)
    (40, 0.85)
    """
    _check(users=users, items=items, events=events, genres=genres, noise=noise)
    if seed < 0:
        raise ConfigError(f"seed is {seed}: it must be at least 0")
    rng = np.random.default_rng(seed)
    keys, fillers = KEYS_PER_GENRE * genres, _filler_items(items, genres)
    early = max(events // 3, genres)
    signs = rng.choice([-1.0, 1.0], size=(users, genres))
    is_key = np.zeros((users, events), dtype=bool)
    is_key[:, :early] = rng.permuted(np.tile(np.arange(early) < genres, (users, 1)), axis=1)
    is_filler = ~is_key & (
        (np.arange(events) < early) | (rng.random((users, events)) < FILLER_SHARE)
    )
    genre = rng.integers(genres, size=(users, events))
    genre[is_key] = rng.permuted(np.tile(np.arange(genres), (users, 1)), axis=1).ravel()
    ordinary_of_genre = _ordinary_of_genre(items, genres)
    item = keys + fillers + genre + genres * rng.integers(ordinary_of_genre[genre])
    item = np.where(is_filler, keys + rng.integers(fillers, size=item.shape), item)
    item = np.where(is_key, genre + genres * rng.integers(KEYS_PER_GENRE, size=item.shape), item)
    sign = np.take_along_axis(signs, genre, axis=1)
    loading = np.where(is_key, KEY_LOADING, np.where(is_filler, 0.0, ORDINARY_LOADING))
    error = np.where(is_key, 0.0, noise) * rng.standard_normal(item.shape)
    rating = (MEAN + loading * sign + error).astype(np.float32)
    return Interactions(
        item=item.astype(np.int32).ravel(),
        rating=rating.ravel(),
        time=np.tile(3600 * np.arange(events, dtype=np.int64), users),
        starts=events * np.arange(users, dtype=np.int64),
        lengths=np.full(users, events, dtype=np.int64),
        warmup=np.zeros(users, dtype=np.int64),
        user_rows=np.arange(users, dtype=np.int64),
        user_ids=Strings.of(map(str, range(users))),
        item_ids=Strings.of(map(str, range(items))),
        categories=_categories(items, genres),
        about={
            "name": "planted",
            "seed": seed,
            "noise": noise,
            "genres": genres,
            "rating_range": (float(rating.min()), float(rating.max())),
        },
    )


def planted_positions(data: Interactions) -> npt.NDArray[np.bool_]:
    """Return [events] whether each event is a key, which the best sketch keeps.

    Raises:
        ConfigError: If the data is no planted world.
    """
    if data.categories is None or "key" not in data.categories.names.index:
        raise ConfigError(f"{data.name}: not a planted world, no item has the category 'key'")
    keys = [item for item in range(data.items) if "key" in data.categories[item]]
    return np.isin(data.item, keys)


def best_mse(data: Interactions) -> float:
    """Return the least expected mean squared error of any predictor, over all events.

    The error of a key is its variance, that of any other event the variance of the noise.
    """
    genres, noise = int(data.about["genres"]), float(data.about["noise"])
    events = len(data)
    keys = genres * data.users
    return (keys * KEY_LOADING**2 + (events - keys) * noise**2) / events


def best_rmse(data: Interactions) -> float:
    """Return the least expected root mean squared error of any predictor, over all events."""
    return float(np.sqrt(best_mse(data)))


def _check(*, users: int, items: int, events: int, genres: int, noise: float) -> None:
    if users < 1:
        raise ConfigError(f"users is {users}: a planted world needs at least 1")
    if genres < 1:
        raise ConfigError(f"genres is {genres}: a planted world needs at least 1")
    if noise < 0:
        raise ConfigError(f"noise is {noise}: it is a standard deviation, at least 0")
    if items < (KEYS_PER_GENRE + 2) * genres:
        least = (KEYS_PER_GENRE + 2) * genres
        raise ConfigError(f"items is {items}: {genres} genres need at least {least} items")
    if events < 3 * genres:
        raise ConfigError(f"events is {events}: {genres} genres need at least {3 * genres} events")


def _filler_items(items: int, genres: int) -> int:
    return max(1, int(FILLER_SHARE * (items - KEYS_PER_GENRE * genres)))


def _ordinary_of_genre(items: int, genres: int) -> npt.NDArray[np.int64]:
    """Return [genres] the number of ordinary items of each genre; item i has genre i modulo n."""
    ordinary = items - KEYS_PER_GENRE * genres - _filler_items(items, genres)
    return (ordinary - np.arange(genres) - 1) // genres + 1


def _categories(items: int, genres: int) -> Categories:
    keys, fillers = KEYS_PER_GENRE * genres, _filler_items(items, genres)
    rows: list[list[str]] = []
    for item in range(items):
        if item < keys:
            rows.append(["key", f"genre {item % genres}"])
        elif item < keys + fillers:
            rows.append(["filler"])
        else:
            rows.append([f"genre {(item - keys - fillers) % genres}"])
    return Categories.of(rows)
