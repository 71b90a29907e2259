"""What the synthetic stream has on offer: items, their kinds and characters. Knows no users.

Items stand in pools of alike ones, the most popular first. Four kinds differ in what a user's
liking tells: *hits* please everybody and tell nothing; *cults* split opinion along lasting tastes;
*mood pieces* split it by the mood of the day; *ordinary* items have a little of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dips.data.draws import Float64
from dips.data.interactions import Categories, Int64, Strings

GENRES: Final = ("action", "comedy", "crime", "drama", "fantasy", "horror", "romance", "science")
TONES: Final = ("light", "dark")
KINDS: Final = ("hit", "cult", "mood piece", "ordinary")
HIT, CULT, PIECE, ORDINARY = range(4)

SHARES: Final = np.array([0.04, 0.16, 0.10])
"""Share of the catalogue that is hits, cults and mood pieces; the rest is ordinary."""
LEAST: Final = 64
"""Fewer items than this cannot fill every pool."""
SERIES: Final = 5
"""So many neighbours in a pool are one series: parts of the same thing, with the same loadings."""
FLATNESS: Final = 3.0
"""Popularity falls with the rank r in a pool like 1 / (r + FLATNESS)."""

TASTE_SPREAD: Final = np.array([1.3, 0.9, 0.7])
"""How much users differ along each axis of taste; genres are the corners of the cube."""
GENRE_AXES: Final = TASTE_SPREAD * (
    np.array([[1 - 2 * (genre >> axis & 1) for axis in range(3)] for genre in range(8)])
    / np.sqrt(3.0)
)
TONE_AXIS: Final = np.array([1.0, -1.0])
TASTE_LOADING: Final = np.array([0.0, 1.7, 0.0, 0.4])
"""How far taste moves the rating of each kind, in stars."""
MOOD_LOADING: Final = np.array([0.0, 0.0, 1.7, 0.4])
"""How far mood does."""
JITTER: Final = 0.15
"""Standard deviation by which the loadings of a series differ from those of its pool."""
QUALITY: Final = np.array([0.6, 0.0, 0.0, 0.0])
"""Extra stars that everybody gives to each kind."""

POOLS: Final = np.array([1, len(GENRES), len(TONES), len(GENRES) * len(TONES)])
"""Pools of each kind: one of hits, cults by genre, mood pieces by tone, ordinary by both."""
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
class Shelf:
    """Every item's character, and where each pool starts."""

    first: Int64
    """[pools] first item of each pool."""
    size: Int64
    """[pools] how many items it has."""
    kind: Int64
    """[items] HIT, CULT, PIECE or ORDINARY."""
    genre: Int64
    """[items] index into GENRES."""
    tone: Int64
    """[items] index into TONES."""
    series: Int64
    """[items] first item of its series."""
    follower: Int64
    """[items] the next part of its series; the last part leads back to the first."""
    quality: Float64
    """[items] stars above the average that everybody gives."""
    taste: Float64
    """[3, items] loadings on the axes of taste."""
    mood: Float64
    """[items] loading on the mood."""


def stock(items: int, seed: int) -> Shelf:
    """Make the shelf; it depends on nothing but its size and the seed."""
    rng = np.random.default_rng([seed, items])
    count = np.round(SHARES * items).astype(np.int64)
    count = np.append(count, items - count.sum())
    kind = np.repeat(np.arange(4), count)
    turn = np.arange(items) - np.repeat(np.cumsum(count) - count, count)
    pool = np.sort(FIRST_POOL[kind] + turn % POOLS[kind])
    cell = pool - FIRST_POOL[kind]
    size = np.bincount(pool, minlength=int(POOLS.sum()))
    first = np.cumsum(size) - size
    here = np.arange(items)
    series = here - (here - first[pool]) % SERIES
    end = np.minimum(series + SERIES, (first + size)[pool])
    any_genre, any_tone = rng.integers(8, size=items), rng.integers(2, size=items)
    genre = np.where((kind == CULT) | (kind == ORDINARY), cell % 8, any_genre)
    tone = np.select([kind == PIECE, kind == ORDINARY], [cell, cell // 8], any_tone)
    jitter = JITTER * rng.standard_normal((4, items))[:, series]
    return Shelf(
        first=first,
        size=size,
        kind=kind,
        genre=genre,
        tone=tone,
        series=series,
        follower=np.where(here + 1 < end, here + 1, series),
        quality=QUALITY[kind] + 0.3 * rng.standard_normal(items),
        taste=TASTE_LOADING[kind] * (GENRE_AXES[genre].T + jitter[:3]),
        mood=MOOD_LOADING[kind] * (TONE_AXIS[tone] + jitter[3]),
    )


def pick(shelf: Shelf, pool: Int64, chance: Float64) -> Int64:
    """An item of each pool by popularity, given uniform chances: their inverse distribution."""
    size = shelf.size[pool]
    rank = FLATNESS * (np.exp(chance * np.log1p(size / FLATNESS)) - 1.0)
    return shelf.first[pool] + np.minimum(rank.astype(np.int64), size - 1)


def pools(kind: Int64, genre: Int64, tone: Int64) -> Int64:
    """The pool that holds items of this kind, genre and tone."""
    cell = np.select([kind == HIT, kind == CULT, kind == PIECE], [0, genre, tone], genre + 8 * tone)
    found: Int64 = FIRST_POOL[kind] + cell
    return found


def titles(shelf: Shelf) -> Strings:
    """An invented title per item: parts of a series share theirs."""
    return Strings.of(
        _title(int(item), int(series)) for item, series in enumerate(shelf.series.tolist())
    )


def categories(shelf: Shelf) -> Categories:
    """Genre, tone and, unless ordinary, kind of each item."""
    return Categories.of(
        [
            [GENRES[genre], TONES[tone], *([] if kind == ORDINARY else [KINDS[kind]])]
            for kind, genre, tone in zip(
                shelf.kind.tolist(), shelf.genre.tolist(), shelf.tone.tolist(), strict=True
            )
        ]
    )


def _title(item: int, series: int) -> str:
    scramble = series * 2654435761 % 2**32
    adjective, noun = ADJECTIVES[scramble >> 28], NOUNS[scramble >> 24 & 15]
    return f"The {adjective} {noun} ({series}), part {item - series + 1}"
