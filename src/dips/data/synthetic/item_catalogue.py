"""The item catalogue of the synthetic stream: kinds, genres, loadings. Knows no users.

Items are grouped in pools of similar items, sorted by popularity. There are four kinds:

- *hit*: rated alike by all users, so it carries no information about a user;
- *cult*: rated by long-term preference;
- *mood piece*: rated by short-term interest;
- *ordinary*: rated by a little of both.

The names of the kinds are categories of the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dips.data.interactions import Categories, Int64, Strings
from dips.data.synthetic.counter_rng import Float64

GENRES: Final = ("action", "comedy", "crime", "drama", "fantasy", "horror", "romance", "science")
TONES: Final = ("light", "dark")
KINDS: Final = ("hit", "cult", "mood piece", "ordinary")
HIT, CULT, MOOD_PIECE, ORDINARY = range(4)

KIND_SHARES: Final = np.array([0.04, 0.16, 0.10])
"""Share of the catalogue that is hits, cults and mood pieces; the rest is ordinary."""
MIN_ITEMS: Final = 64
"""Fewest items that fill every pool."""
SERIES_LENGTH: Final = 5
"""Neighbours in a pool that form one series, with equal loadings."""
POPULARITY_OFFSET: Final = 3.0
"""Popularity falls with the rank r in a pool like 1 / (r + POPULARITY_OFFSET)."""

PREFERENCE_SPREAD: Final = np.array([1.3, 0.9, 0.7])
"""Standard deviation of users along each axis of preference."""
GENRE_AXES: Final = PREFERENCE_SPREAD * (
    np.array([[1 - 2 * (genre >> axis & 1) for axis in range(3)] for genre in range(8)])
    / np.sqrt(3.0)
)
"""[genres, 3] loadings of each genre: the corners of a cube."""
TONE_AXIS: Final = np.array([1.0, -1.0])
"""[tones] loading of each tone on short-term interest."""
PREFERENCE_LOADING: Final = np.array([0.0, 1.7, 0.0, 0.4])
"""[kinds] effect of long-term preference on the rating, in stars."""
INTEREST_LOADING: Final = np.array([0.0, 0.0, 1.7, 0.4])
"""[kinds] effect of short-term interest on the rating, in stars."""
JITTER: Final = 0.15
"""Standard deviation of the loadings of a series around those of its pool."""
QUALITY: Final = np.array([0.6, 0.0, 0.0, 0.0])
"""[kinds] stars that all users add."""

POOLS: Final = np.array([1, len(GENRES), len(TONES), len(GENRES) * len(TONES)])
"""[kinds] pools: one of hits, cults by genre, mood pieces by tone, ordinary by both."""
FIRST_POOL: Final = np.cumsum(POOLS) - POOLS

# fmt: off
ADJECTIVES: Final = (
    "Amber", "Blue", "Broken", "Crimson", "Distant", "Early", "Gentle", "Golden",
    "Hidden", "Iron", "Last", "Quiet", "Second", "Silver", "Wandering", "Winter",
)
NOUNS: Final = (
    "Anchor", "Bridge", "Canyon", "Daughter", "Engine", "Forest", "Garden", "Harbour",
    "Island", "Journey", "Lantern", "Mirror", "Orchard", "River", "Station", "Tower",
)
# fmt: on


@dataclass(frozen=True, eq=False)
class ItemCatalogue:
    """Properties of every item, and the extent of each pool."""

    first: Int64
    """[pools] first item of each pool."""
    size: Int64
    """[pools] number of items of each pool."""
    kind: Int64
    """[items] HIT, CULT, MOOD_PIECE or ORDINARY."""
    genre: Int64
    """[items] index into GENRES."""
    tone: Int64
    """[items] index into TONES."""
    series: Int64
    """[items] first item of the item's series."""
    next_in_series: Int64
    """[items] next item of the series; the first one after the last."""
    quality: Float64
    """[items] stars above the average, for all users."""
    preference_loading: Float64
    """[3, items] loadings on the axes of long-term preference."""
    interest_loading: Float64
    """[items] loading on short-term interest."""


def make_catalogue(items: int, seed: int) -> ItemCatalogue:
    """Return a catalogue that depends on the number of items and the seed only."""
    rng = np.random.default_rng([seed, items])
    count = np.round(KIND_SHARES * items).astype(np.int64)
    count = np.append(count, items - count.sum())
    kind = np.repeat(np.arange(4), count)
    index_in_kind = np.arange(items) - np.repeat(np.cumsum(count) - count, count)
    pool = np.sort(FIRST_POOL[kind] + index_in_kind % POOLS[kind])
    pool_in_kind = pool - FIRST_POOL[kind]
    size = np.bincount(pool, minlength=int(POOLS.sum()))
    first = np.cumsum(size) - size
    item = np.arange(items)
    series = item - (item - first[pool]) % SERIES_LENGTH
    end = np.minimum(series + SERIES_LENGTH, (first + size)[pool])
    any_genre, any_tone = rng.integers(8, size=items), rng.integers(2, size=items)
    genre = np.where((kind == CULT) | (kind == ORDINARY), pool_in_kind % 8, any_genre)
    tone = np.select(
        [kind == MOOD_PIECE, kind == ORDINARY], [pool_in_kind, pool_in_kind // 8], any_tone
    )
    jitter = JITTER * rng.standard_normal((4, items))[:, series]
    return ItemCatalogue(
        first=first,
        size=size,
        kind=kind,
        genre=genre,
        tone=tone,
        series=series,
        next_in_series=np.where(item + 1 < end, item + 1, series),
        quality=QUALITY[kind] + 0.3 * rng.standard_normal(items),
        preference_loading=PREFERENCE_LOADING[kind] * (GENRE_AXES[genre].T + jitter[:3]),
        interest_loading=INTEREST_LOADING[kind] * (TONE_AXIS[tone] + jitter[3]),
    )


def sample_by_popularity(catalogue: ItemCatalogue, pool: Int64, uniform: Float64) -> Int64:
    """Return an item of each pool, by the inverse distribution of popularity at `uniform`."""
    size = catalogue.size[pool]
    rank = POPULARITY_OFFSET * (np.exp(uniform * np.log1p(size / POPULARITY_OFFSET)) - 1.0)
    return catalogue.first[pool] + np.minimum(rank.astype(np.int64), size - 1)


def pool_of(kind: Int64, genre: Int64, tone: Int64) -> Int64:
    """Return the pool of items of this kind, genre and tone."""
    pool_in_kind = np.select(
        [kind == HIT, kind == CULT, kind == MOOD_PIECE], [0, genre, tone], genre + 8 * tone
    )
    pool: Int64 = FIRST_POOL[kind] + pool_in_kind
    return pool


def titles(catalogue: ItemCatalogue) -> Strings:
    """Return an invented title per item; items of a series share it."""
    return Strings.of(
        _title(int(item), int(series)) for item, series in enumerate(catalogue.series.tolist())
    )


def categories(catalogue: ItemCatalogue) -> Categories:
    """Return genre, tone and, unless ordinary, kind of each item."""
    return Categories.of(
        [
            [GENRES[genre], TONES[tone], *([] if kind == ORDINARY else [KINDS[kind]])]
            for kind, genre, tone in zip(
                catalogue.kind.tolist(),
                catalogue.genre.tolist(),
                catalogue.tone.tolist(),
                strict=True,
            )
        ]
    )


def _title(item: int, series: int) -> str:
    """Return the title of an item from a hash of its series."""
    scramble = series * 2654435761 % 2**32
    adjective, noun = ADJECTIVES[scramble >> 28], NOUNS[scramble >> 24 & 15]
    return f"The {adjective} {noun} ({series}), part {item - series + 1}"
