"""A realistic stream of made-up users, in bounded memory. Knows nothing of policies or models.

(The other made world, whose best sketch is known, is `planted`, offered here as well.)

Each user has a *taste* (three numbers, for ever) and a *mood* (one number that drifts from event to
event). `durability` is the share of preference that is taste, the rest is mood; the mood keeps for
about `MOOD_MEMORY / drift` events.

- Items are hits, cults, mood pieces or ordinary (see `synthetic_items`), popular ones far ahead.
- Newcomers introduce themselves: cults are frequent at first, then rare.
- Explicit: rating = quality + taste . item + mood * item + noise, in half stars from 1 to 5.
- Implicit: users choose by taste and mood; up to `FAVOURITES` first cults become favourites, and
  users return to them in turn, for ever. Passing are replays of one of the last few items.
- Passing, too, are binges: part after part of one series, which say the same thing again.
- Sessions: events of one sitting are seconds apart and often share a timestamp; days lie between.

What a good sketch does here: keep cults of different genres (implicit: each favourite once), they
say most about taste and stay true; keep the newest mood piece or two; drop hits, repeats and parts
of a series already there. `last` forgets taste, `reservoir` never knows the mood, and both fill
up with items that tell little. At durability 1 age does not matter and early cults make `reservoir`
better than `last`; at durability 0 only the newest events count. All of it shows in item,
rating, age and repeats.

Draws are hashes of (seed, user, event, purpose): a user is the same in any number and any chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dips.data.draws import PURPOSES, Float64, UInt64, draw, keys, normal, uniform
from dips.data.interactions import Float32, Int32, Int64, Interactions, Strings
from dips.data.planted import best_rmse, planted, planted_positions
from dips.data.synthetic_items import (
    CULT,
    GENRE_AXES,
    HIT,
    LEAST,
    ORDINARY,
    PIECE,
    TONE_AXIS,
    Shelf,
    categories,
    pick,
    pools,
    stock,
    titles,
)
from dips.errors import ConfigError

__all__ = ["best_rmse", "planted", "planted_positions", "stream"]

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How users choose. Shares are of the events that are neither binge nor return."""

    hits: float = 0.25
    """Share of hits among what is not a cult."""
    pieces: float = 0.2
    """Share of mood pieces among what is not a cult."""
    cults: float
    """Share of cults in the long run."""
    introduction: float
    """Extra share of cults at the first event, gone after about `NEWCOMER` events."""
    by_taste: tuple[float, float, float, float]
    """How strongly taste decides the genre, for each kind."""
    by_mood: tuple[float, float, float, float]
    """How strongly mood decides the tone, for each kind."""


RATERS: Final = Habits(
    cults=0.2, introduction=0.3, by_taste=(0.0, 0.2, 0.0, 0.2), by_mood=(0.0, 0.0, 0.2, 0.2)
)
CONSUMERS: Final = Habits(
    cults=0.05, introduction=0.5, by_taste=(0.0, 5.0, 0.0, 2.0), by_mood=(0.0, 0.0, 5.0, 2.0)
)

NEWCOMER: Final = 10.0
"""After so many events the introduction has faded to a third."""
MOOD_MEMORY: Final = 10.0
"""So many events, at drift 1, take the mood's correlation with itself to a third."""
BINGE_START, BINGE_STAY = 0.03, 0.6
"""Chance to start a binge, at durability 0, and to go on with it."""
RETURN, FAVOURITES = 0.4, 8
"""Chance to return to a favourite, at durability 1, and how many a user may have."""
REPLAY, REPLAY_WITHIN = 0.05, 8
"""Chance to replay, at durability 0, and how far back."""
MEAN_RATING, NOISE = 3.2, 0.4
SESSION_END, TIE, DAY = 0.2, 0.3, 86_400
SHORTEST, LONGEST = 15, 8
"""Fewest events of a user (a quarter of the mean, where that is less); most, as multiple of it."""
REMEMBERED: Final = 2048
"""Cells of the table of items seen, so that nobody rates an item twice (collisions do no harm)."""

# What a draw is for: of a user (at time 0) and of an event.
LENGTH, TASTE, MOOD, ARRIVAL = 0, 1, 4, 5
SHIFT, KIND, GENRE, TONE, ITEM, BINGE, COME_BACK, WHICH, PAUSE, GAP, ERROR, RETRY = range(12)


def stream(
    *,
    users: int = 2000,
    items: int = 800,
    events: int = 60,
    durability: float = 0.5,
    drift: float = 0.5,
    implicit: bool = False,
    seed: int = 0,
    chunk: int = 16_384,
) -> Interactions:
    """Draw users of about `events` events each; `chunk` bounds memory and changes nothing else.

    >>> data = stream(users=3)
    >>> data.users, data.items, data.rating_range()
    (3, 800, (1.0, 5.0))
    """
    _check(users, items, events, durability, drift, seed, chunk)
    shelf = stock(items, seed)
    key = keys(seed, users)
    lengths = _lengths(key, events)
    starts = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    item, time = np.empty(total, np.int32), np.empty(total, np.int64)
    rating = None if implicit else np.empty(total, np.float32)
    for low in range(0, users, chunk):
        rows = np.arange(low, min(low + chunk, users))
        rows = rows[np.argsort(-lengths[rows], kind="stable")]
        crowd = _Crowd(shelf, key[rows], starts[rows], durability, drift, implicit)
        crowd.walk(lengths[rows], item, rating, time)
    dials = {"users": users, "items": items, "events": events, "seed": seed}
    about = {"name": "synthetic", "durability": durability, "drift": drift, **dials}
    if implicit:
        about["name"] = "synthetic-implicit"
    else:
        about["rating_range"] = (1.0, 5.0)
    return Interactions(
        item=item,
        rating=rating,
        time=time,
        starts=starts,
        lengths=lengths,
        warmup=np.zeros(users, np.int64),
        user_rows=np.arange(users, dtype=np.int64),
        user_ids=Strings.of(map(str, range(users))),
        item_ids=Strings.of(map(str, range(items))),
        titles=titles(shelf),
        categories=categories(shelf),
        about=about,
    )


class _Crowd:
    """One chunk of users, long histories first, who all take their t-th step together."""

    def __init__(
        self,
        shelf: Shelf,
        key: UInt64,
        start: Int64,
        durability: float,
        drift: float,
        implicit: bool,
    ) -> None:
        users = len(key)
        self.shelf, self.key, self.start = shelf, key, start
        self.implicit, self.passing, self.lasting = implicit, 1.0 - durability, durability
        self.habits = CONSUMERS if implicit else RATERS
        axes = np.stack([normal(draw(key, 0, TASTE + axis)) for axis in range(3)])
        self.taste = np.sqrt(durability) * axes  # [3, users]
        self.mood = normal(draw(key, 0, MOOD))
        self.keeps = float(np.exp(-drift / MOOD_MEMORY))
        self.by_mood = np.sqrt(self.passing) * np.array(self.habits.by_mood)
        self.genres = {
            kind: _genre_chances(self.taste, self.habits.by_taste[kind])
            for kind in (CULT, ORDINARY)
        }
        self.clock = (1.5e9 + 365 * DAY * uniform(draw(key, 0, ARRIVAL))).astype(np.int64)
        self.last = np.zeros(users, np.int64)
        self.binge = np.zeros(users, np.bool_)
        self.seen = np.zeros((0 if implicit else users, REMEMBERED), np.bool_)
        self.favourite = np.full((users if implicit else 0, FAVOURITES), -1)
        self.favourites = np.zeros(users, np.int64)
        self.turn = np.zeros(users, np.int64)

    def walk(self, lengths: Int64, item: Int32, rating: Float32 | None, time: Int64) -> None:
        """Write every event of these users into the columns."""
        for t in range(int(lengths[0])):
            self._keep_first(int(np.searchsorted(-lengths, -t)))
            at = self.start + t
            shift = normal(self._bits(t, SHIFT))
            self.mood = self.keeps * self.mood + np.sqrt(1.0 - self.keeps**2) * shift
            chosen, kind = self._choose(t)
            chosen = self._binge(t, chosen)
            chosen = self._come_back(t, chosen, kind, item) if self.implicit else chosen
            self.last = chosen
            item[at] = chosen
            time[at] = self._tick(t)
            if rating is not None:
                self.seen[np.arange(len(at)), chosen % REMEMBERED] = True
                rating[at] = self._rate(t, chosen)

    def _bits(self, t: int, purpose: int) -> UInt64:
        return draw(self.key, t + 1, purpose)

    def _chance(self, t: int, purpose: int) -> Float64:
        return uniform(self._bits(t, purpose))

    def _keep_first(self, users: int) -> None:
        """Let those go whose history is over."""
        if users == len(self.key):
            return
        self.key, self.start = self.key[:users], self.start[:users]
        self.taste, self.mood = self.taste[:, :users], self.mood[:users]
        self.genres = {kind: table[:, :users] for kind, table in self.genres.items()}
        self.clock, self.last, self.binge = (
            self.clock[:users],
            self.last[:users],
            self.binge[:users],
        )
        self.seen, self.favourite = self.seen[:users], self.favourite[:users]
        self.favourites, self.turn = self.favourites[:users], self.turn[:users]

    def _choose(self, t: int) -> tuple[Int64, Int64]:
        """A fresh item and its kind: kind by habit, genre by taste, tone by mood, then by rank."""
        habits, chance = self.habits, self._chance(t, KIND)
        cults = habits.cults + habits.introduction * float(np.exp(-t / NEWCOMER))
        hits = cults + (1.0 - cults) * habits.hits
        pieces = hits + (1.0 - cults) * habits.pieces
        kind = np.select(
            [chance < cults, chance < hits, chance < pieces], [CULT, HIT, PIECE], ORDINARY
        )
        chance = self._chance(t, GENRE)
        genre = np.where(
            kind == CULT,
            (chance > self.genres[CULT]).sum(axis=0),
            (chance > self.genres[ORDINARY]).sum(axis=0),
        )
        pull = 2.0 * TONE_AXIS[0] * self.by_mood[kind] * self.mood
        tone = (self._chance(t, TONE) * (1.0 + np.exp(-pull)) > 1.0).astype(np.int64)
        pool = pools(kind, genre, tone)
        chosen = pick(self.shelf, pool, self._chance(t, ITEM))
        if not self.implicit:
            for attempt in range(RETRY, PURPOSES):
                again = np.flatnonzero(self.seen[np.arange(len(chosen)), chosen % REMEMBERED])
                fresh = uniform(draw(self.key[again], t + 1, attempt))
                chosen[again] = pick(self.shelf, pool[again], fresh)
        return chosen, kind

    def _binge(self, t: int, chosen: Int64) -> Int64:
        """Some go on with the next part of what they had last."""
        part = self.shelf.follower[self.last]
        rate = np.where(self.binge, BINGE_STAY, BINGE_START * self.passing)
        self.binge = (self._chance(t, BINGE) < rate) & (part != self.last) & (t > 0)
        if not self.implicit:
            self.binge &= ~self.seen[np.arange(len(part)), part % REMEMBERED]
        return np.where(self.binge, part, chosen)

    def _come_back(self, t: int, chosen: Int64, kind: Int64, item: Int32) -> Int64:
        """Some return to a favourite, each in its turn, or replay one of their last few items."""
        if t == 0:
            return self._adopt(chosen, kind == CULT)
        chance, which = self._chance(t, COME_BACK), self._chance(t, WHICH)
        loved = ~self.binge & (chance < RETURN * self.lasting) & (self.favourites > 0)
        replay = ~self.binge & (chance >= 1.0 - REPLAY * self.passing)
        chosen = self._adopt(chosen, (kind == CULT) & ~self.binge & ~loved & ~replay)
        back = 1 + (which * min(t, REPLAY_WITHIN)).astype(np.int64)
        ahead = (which * ((self.favourites + 1) // 2)).astype(np.int64)
        turn = (self.turn + ahead) % np.maximum(self.favourites, 1)
        self.turn = np.where(loved, turn + 1, self.turn)
        chosen = np.where(replay, item[self.start + t - back], chosen)
        return np.where(loved, self.favourite[np.arange(len(turn)), turn], chosen)

    def _adopt(self, chosen: Int64, cult: Bool) -> Int64:
        """Remember a new cult as a favourite while there is room."""
        who = np.flatnonzero(cult & (self.favourites < FAVOURITES))
        who = who[(self.favourite[who] != chosen[who, None]).all(axis=1)]
        self.favourite[who, self.favourites[who]] = chosen[who]
        self.favourites[who] += 1
        return chosen

    def _tick(self, t: int) -> Int64:
        """Seconds: within a sitting a little later or not at all, else days."""
        gap = self._chance(t, GAP)
        days = DAY / 24 - 4 * DAY * np.log1p(-gap)
        pause = np.where(self._chance(t, PAUSE) < SESSION_END, days, 400 * np.maximum(gap - TIE, 0))
        self.clock = self.clock + pause.astype(np.int64)
        return self.clock

    def _rate(self, t: int, chosen: Int64) -> Float64:
        """Half stars. Summed axis by axis, so that a user's sum does not depend on the crowd."""
        shelf = self.shelf
        value = MEAN_RATING + shelf.quality[chosen] + NOISE * normal(self._bits(t, ERROR))
        for axis in range(3):
            value += shelf.taste[axis, chosen] * self.taste[axis]
        value += shelf.mood[chosen] * (np.sqrt(self.passing) * self.mood)
        stars: Float64 = np.clip(np.round(2.0 * value) / 2.0, 1.0, 5.0)
        return stars


def _check(
    users: int, items: int, events: int, durability: float, drift: float, seed: int, chunk: int
) -> None:
    for name, dial in (("durability", durability), ("drift", drift)):
        if not 0.0 <= dial <= 1.0:
            raise ConfigError(f"{name} is {dial}: it goes from 0 to 1")
    least = {"users": (users, 1), "items": (items, LEAST), "events": (events, 4)}
    for name, (value, low) in {**least, "seed": (seed, 0), "chunk": (chunk, 1)}.items():
        if value < low:
            raise ConfigError(f"{name} is {value}: a synthetic stream needs at least {low}")


def _lengths(key: UInt64, events: int) -> Int64:
    """[users] log-normal above the shortest, mean about `events`, cut at `LONGEST` times it."""
    shortest, spread = min(SHORTEST, events // 4), 0.7
    factor = np.exp(spread * normal(draw(key, 0, LENGTH)) - spread**2 / 2)
    lengths = shortest + np.round((events - shortest) * factor).astype(np.int64)
    return np.minimum(lengths, LONGEST * events)


def _genre_chances(taste: Float64, strength: float) -> Float64:
    """[7, users] cumulative chances of the genres but the last, which a uniform draw is held to."""
    pull = [sum(axis[d] * taste[d] for d in range(3)) for axis in GENRE_AXES]
    table = np.cumsum(np.exp(strength * np.stack(pull)), axis=0)
    chances: Float64 = table[:-1] / table[-1]
    return chances
