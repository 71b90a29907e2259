"""Simulate a stream of interactions, in bounded memory. Knows no policies or models.

Each user has a long-term preference (three numbers, constant) and a short-term interest (one
number that drifts from event to event). `durability` is the share of long-term preference; the
rest is short-term interest, which lasts for about `INTEREST_MEMORY / drift` events.

- Items are hits, cults, mood pieces or ordinary (see `item_catalogue`); popularity is skewed.
- New users choose many cults at first and few later.
- Explicit: rating = quality + user bias + preference . item + interest * item + noise, in half
  stars, 1 to 5. By default users have no bias.
- Implicit: users choose by preference and interest. The first `MAX_FAVOURITES` cults of a user
  become favourites, to which the user returns. Users also replay one of their last few items.
- Users sometimes consume several items of one series in a row, which carry equal information.
- Events of one session are seconds apart and often share a timestamp; sessions are days apart.

What a good sketch keeps: cults of different genres (implicit: each favourite once), because they
carry the most information about preference and stay valid, and one or two newest mood pieces. It
drops hits, repeats and further items of a series. `last` loses the preference. `reservoir` does
not follow the interest. At durability 1 age does not matter, and early cults make `reservoir`
better than `last`. At durability 0 only the newest events carry information. Item, rating, age
and repeats are enough to learn all of this.

Random numbers are hashes of (seed, user, event, purpose). A user is the same for any number of
users and any chunk size.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dips.data.interactions import Float32, Int32, Int64, Interactions, Strings
from dips.data.synthetic.counter_rng import (
    PURPOSES,
    Float64,
    UInt64,
    make_keys,
    normal,
    random_bits,
    uniform,
)
from dips.data.synthetic.item_catalogue import (
    CULT,
    GENRE_AXES,
    HIT,
    MIN_ITEMS,
    MOOD_PIECE,
    ORDINARY,
    TONE_AXIS,
    ItemCatalogue,
    categories,
    make_catalogue,
    pool_of,
    sample_by_popularity,
    titles,
)
from dips.errors import ConfigError

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class ChoiceModel:
    """How users choose new items, that is, neither the next of a series nor a repeat."""

    hits: float = 0.25
    """Share of hits among items that are no cults."""
    mood_pieces: float = 0.2
    """Share of mood pieces among items that are no cults."""
    cults: float
    """Share of cults in the long run."""
    introduction: float
    """Additional share of cults at the first event; it decays over `INTRODUCTION_EVENTS`."""
    by_preference: tuple[float, float, float, float]
    """[kinds] how strongly preference decides the genre."""
    by_interest: tuple[float, float, float, float]
    """[kinds] how strongly interest decides the tone."""


EXPLICIT: Final = ChoiceModel(
    cults=0.2,
    introduction=0.3,
    by_preference=(0.0, 0.2, 0.0, 0.2),
    by_interest=(0.0, 0.0, 0.2, 0.2),
)
IMPLICIT: Final = ChoiceModel(
    cults=0.05,
    introduction=0.5,
    by_preference=(0.0, 5.0, 0.0, 2.0),
    by_interest=(0.0, 0.0, 5.0, 2.0),
)


@dataclass(frozen=True, kw_only=True)
class RatingModel:
    """How users rate: all values in stars, from 1 to 5."""

    mean: float
    step: float
    user_bias: float
    noise: float


INTRODUCTION_EVENTS: Final = 10.0
"""Events after which the additional share of cults has fallen to a third."""
INTEREST_MEMORY: Final = 10.0
"""Events, at drift 1, after which the autocorrelation of interest has fallen to a third."""
SERIES_START, SERIES_STAY = 0.03, 0.6
"""Probability to start a series, at durability 0, and to continue it."""
FAVOURITE_RATE, MAX_FAVOURITES = 0.4, 8
"""Probability to repeat a favourite, at durability 1, and the most favourites of a user."""
REPLAY_RATE, REPLAY_WITHIN = 0.05, 8
"""Probability to replay a recent item, at durability 0, and how many events back."""
MEAN_RATING, NOISE, RATING_STEP = 3.2, 0.4, 0.5
SESSION_END, TIE, DAY = 0.2, 0.3, 86_400
"""Probability that a session ends, that two events of one share a timestamp; seconds of a day."""
MIN_EVENTS, MAX_RATIO = 15, 8
"""Fewest events of a user (or a quarter of the mean, if less); most, as a multiple of the mean."""
SEEN_CELLS: Final = 2048
"""Cells of the hash table of items seen, which prevents second ratings; collisions do no harm."""

# Purposes of the random numbers of a user (at time 0) and of an event.
LENGTH, PREFERENCE, INTEREST, ARRIVAL, BIAS = 0, 1, 4, 5, 6
DRIFT, KIND, GENRE, TONE, ITEM, SERIES, REPEAT, WHICH, PAUSE, GAP, ERROR, RETRY = range(12)


def stream(
    *,
    users: int = 2000,
    items: int = 800,
    events: int = 60,
    durability: float = 0.5,
    drift: float = 0.5,
    implicit: bool = False,
    repeats: bool = True,
    mean_rating: float = MEAN_RATING,
    rating_step: float = RATING_STEP,
    user_bias: float = 0.0,
    noise: float = NOISE,
    seed: int = 0,
    chunk: int = 16_384,
) -> Interactions:
    """Simulate users with lasting preferences and drifting interests.

    Args:
        users: Number of users.
        items: Number of items, at least `MIN_ITEMS`.
        events: Mean number of events of a user.
        durability: Share of long-term preference in what users like, from 0 to 1.
        drift: Speed at which short-term interest changes, from 0 to 1.
        implicit: Whether to simulate consumption without ratings.
        repeats: Whether consumption contains repeats; without them histories are shorter.
        mean_rating: Rating of an item that no user prefers, in stars.
        rating_step: Difference between neighbouring ratings, in stars.
        user_bias: Standard deviation between users of what a user adds to all ratings, in stars.
        noise: Standard deviation of the noise of ratings, in stars.
        seed: Seed of all random numbers.
        chunk: Users that are simulated at once; it bounds memory and does not change the data.

    Returns:
        The interactions, with times, titles and categories.

    Raises:
        ConfigError: If an argument is out of range.

    >>> data = stream(users=3)
    >>> data.users, data.items, data.rating_range()
    (3, 800, (1.0, 5.0))
    """
    _check(users, items, events, durability, drift, seed, chunk)
    model = RatingModel(mean=mean_rating, step=rating_step, user_bias=user_bias, noise=noise)
    if not (rating_step > 0 and user_bias >= 0 and noise >= 0):
        raise ConfigError(
            f"rating_step is {rating_step}, user_bias {user_bias}, noise {noise}: the first is "
            "above 0, the others are at least 0"
        )
    catalogue = make_catalogue(items, seed)
    key = make_keys(seed, users)
    lengths = _lengths(key, events)
    starts = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    item, time = np.empty(total, np.int32), np.empty(total, np.int64)
    rating = None if implicit else np.empty(total, np.float32)
    for low in range(0, users, chunk):
        rows = np.arange(low, min(low + chunk, users))
        rows = rows[np.argsort(-lengths[rows], kind="stable")]
        simulator = _UserSimulator(
            catalogue, key[rows], starts[rows], durability, drift, None if implicit else model
        )
        simulator.run(lengths[rows], item, rating, time)
    sizes = {"users": users, "items": items, "events": events, "seed": seed}
    about = {"name": "synthetic", "durability": durability, "drift": drift, **sizes}
    if implicit:
        about |= {"name": "synthetic-implicit", "repeats": repeats}
    else:
        about |= {"rating_range": (1.0, 5.0), **asdict(model)}
    if not repeats:
        first = _first_occurrences(item, lengths, items)
        item, time, rating = item[first], time[first], None if rating is None else rating[first]
        lengths = np.add.reduceat(first, starts, dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
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
        titles=titles(catalogue),
        categories=categories(catalogue),
        about=about,
    )


class _UserSimulator:
    """The state of one chunk of users, longest histories first; all advance in lockstep."""

    def __init__(
        self,
        catalogue: ItemCatalogue,
        key: UInt64,
        start: Int64,
        durability: float,
        drift: float,
        ratings: RatingModel | None,
    ) -> None:
        users, implicit = len(key), ratings is None
        self.catalogue, self.key, self.start = catalogue, key, start
        self.implicit, self.short_term, self.long_term = implicit, 1.0 - durability, durability
        self.ratings = ratings
        self.choice = IMPLICIT if implicit else EXPLICIT
        axes = np.stack([normal(random_bits(key, 0, PREFERENCE + axis)) for axis in range(3)])
        self.preference = np.sqrt(durability) * axes  # [3, users]
        self.interest = normal(random_bits(key, 0, INTEREST))
        self.bias = normal(random_bits(key, 0, BIAS))
        self.autocorrelation = float(np.exp(-drift / INTEREST_MEMORY))
        self.by_interest = np.sqrt(self.short_term) * np.array(self.choice.by_interest)
        self.genre_probabilities = {
            kind: _genre_probabilities(self.preference, self.choice.by_preference[kind])
            for kind in (CULT, ORDINARY)
        }
        self.clock = (1.5e9 + 365 * DAY * uniform(random_bits(key, 0, ARRIVAL))).astype(np.int64)
        self.last = np.zeros(users, np.int64)
        self.in_series = np.zeros(users, np.bool_)
        self.seen = np.zeros((0 if implicit else users, SEEN_CELLS), np.bool_)
        self.favourites = np.full((users if implicit else 0, MAX_FAVOURITES), -1)
        self.favourite_count = np.zeros(users, np.int64)
        self.next_favourite = np.zeros(users, np.int64)

    def run(self, lengths: Int64, item: Int32, rating: Float32 | None, time: Int64) -> None:
        """Write every event of these users into the event columns."""
        for t in range(int(lengths[0])):
            self._keep_active(int(np.searchsorted(-lengths, -t)))
            at = self.start + t
            step = normal(self._bits(t, DRIFT))
            old = self.autocorrelation
            self.interest = old * self.interest + np.sqrt(1.0 - old**2) * step
            chosen, kind = self._choose_new(t)
            chosen = self._continue_series(t, chosen)
            chosen = self._repeat(t, chosen, kind, item) if self.implicit else chosen
            self.last = chosen
            item[at] = chosen
            time[at] = self._advance_clock(t)
            if rating is not None:
                self.seen[np.arange(len(at)), chosen % SEEN_CELLS] = True
                assert self.ratings is not None
                rating[at] = self._rate(t, chosen, self.ratings)

    def _bits(self, t: int, purpose: int) -> UInt64:
        """Return [users] random bits of event t."""
        return random_bits(self.key, t + 1, purpose)

    def _uniform(self, t: int, purpose: int) -> Float64:
        """Return [users] uniform random numbers of event t."""
        return uniform(self._bits(t, purpose))

    def _keep_active(self, users: int) -> None:
        """Drop users whose history is complete."""
        if users == len(self.key):
            return
        self.key, self.start = self.key[:users], self.start[:users]
        self.preference, self.interest = self.preference[:, :users], self.interest[:users]
        self.bias = self.bias[:users]
        self.genre_probabilities = {
            kind: table[:, :users] for kind, table in self.genre_probabilities.items()
        }
        self.clock, self.last = self.clock[:users], self.last[:users]
        self.in_series, self.seen = self.in_series[:users], self.seen[:users]
        self.favourites = self.favourites[:users]
        self.favourite_count = self.favourite_count[:users]
        self.next_favourite = self.next_favourite[:users]

    def _choose_new(self, t: int) -> tuple[Int64, Int64]:
        """Return a new item and its kind; preference decides the genre, interest the tone."""
        choice, value = self.choice, self._uniform(t, KIND)
        cults = choice.cults + choice.introduction * float(np.exp(-t / INTRODUCTION_EVENTS))
        hits = cults + (1.0 - cults) * choice.hits
        mood_pieces = hits + (1.0 - cults) * choice.mood_pieces
        kind = np.select(
            [value < cults, value < hits, value < mood_pieces], [CULT, HIT, MOOD_PIECE], ORDINARY
        )
        value = self._uniform(t, GENRE)
        genre = np.where(
            kind == CULT,
            (value > self.genre_probabilities[CULT]).sum(axis=0),
            (value > self.genre_probabilities[ORDINARY]).sum(axis=0),
        )
        logit = 2.0 * TONE_AXIS[0] * self.by_interest[kind] * self.interest
        tone = (self._uniform(t, TONE) * (1.0 + np.exp(-logit)) > 1.0).astype(np.int64)
        pool = pool_of(kind, genre, tone)
        chosen = sample_by_popularity(self.catalogue, pool, self._uniform(t, ITEM))
        if not self.implicit:
            for attempt in range(RETRY, PURPOSES):
                again = np.flatnonzero(self.seen[np.arange(len(chosen)), chosen % SEEN_CELLS])
                value = uniform(random_bits(self.key[again], t + 1, attempt))
                chosen[again] = sample_by_popularity(self.catalogue, pool[again], value)
        return chosen, kind

    def _continue_series(self, t: int, chosen: Int64) -> Int64:
        """Replace the choice of some users by the next item of the series of their last one."""
        following = self.catalogue.next_in_series[self.last]
        rate = np.where(self.in_series, SERIES_STAY, SERIES_START * self.short_term)
        self.in_series = (self._uniform(t, SERIES) < rate) & (following != self.last) & (t > 0)
        if not self.implicit:
            self.in_series &= ~self.seen[np.arange(len(following)), following % SEEN_CELLS]
        return np.where(self.in_series, following, chosen)

    def _repeat(self, t: int, chosen: Int64, kind: Int64, item: Int32) -> Int64:
        """Replace the choice of some users by a favourite, in turn, or by a recent item."""
        if t == 0:
            return self._add_favourites(chosen, kind == CULT)
        value, which = self._uniform(t, REPEAT), self._uniform(t, WHICH)
        favourite = (
            ~self.in_series & (value < FAVOURITE_RATE * self.long_term) & (self.favourite_count > 0)
        )
        replay = ~self.in_series & (value >= 1.0 - REPLAY_RATE * self.short_term)
        new = (kind == CULT) & ~self.in_series & ~favourite & ~replay
        chosen = self._add_favourites(chosen, new)
        back = 1 + (which * min(t, REPLAY_WITHIN)).astype(np.int64)
        skipped = (which * ((self.favourite_count + 1) // 2)).astype(np.int64)
        index = (self.next_favourite + skipped) % np.maximum(self.favourite_count, 1)
        self.next_favourite = np.where(favourite, index + 1, self.next_favourite)
        chosen = np.where(replay, item[self.start + t - back], chosen)
        return np.where(favourite, self.favourites[np.arange(len(index)), index], chosen)

    def _add_favourites(self, chosen: Int64, is_new_cult: Bool) -> Int64:
        """Add new cults to the favourites, up to `MAX_FAVOURITES`; return the choice unchanged."""
        users = np.flatnonzero(is_new_cult & (self.favourite_count < MAX_FAVOURITES))
        users = users[(self.favourites[users] != chosen[users, None]).all(axis=1)]
        self.favourites[users, self.favourite_count[users]] = chosen[users]
        self.favourite_count[users] += 1
        return chosen

    def _advance_clock(self, t: int) -> Int64:
        """Return times in seconds: a short or no pause within a session, days between sessions."""
        gap = self._uniform(t, GAP)
        days = DAY / 24 - 4 * DAY * np.log1p(-gap)
        ends = self._uniform(t, PAUSE) < SESSION_END
        pause = np.where(ends, days, 400 * np.maximum(gap - TIE, 0))
        self.clock = self.clock + pause.astype(np.int64)
        return self.clock

    def _rate(self, t: int, chosen: Int64, model: RatingModel) -> Float64:
        """Return ratings from 1 to 5 stars, rounded to steps.

        The sum runs axis by axis, so that its bits do not depend on the number of users.
        """
        catalogue = self.catalogue
        value = model.mean + catalogue.quality[chosen] + model.noise * normal(self._bits(t, ERROR))
        value += model.user_bias * self.bias
        for axis in range(3):
            value += catalogue.preference_loading[axis, chosen] * self.preference[axis]
        value += catalogue.interest_loading[chosen] * (np.sqrt(self.short_term) * self.interest)
        steps = np.round((value - 1.0) / model.step)
        stars: Float64 = np.clip(1.0 + model.step * steps, 1.0, 5.0)
        return stars


def _check(
    users: int, items: int, events: int, durability: float, drift: float, seed: int, chunk: int
) -> None:
    """Raise `ConfigError` for an argument out of range."""
    for name, share in (("durability", durability), ("drift", drift)):
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"{name} is {share}: it goes from 0 to 1")
    least = {"users": (users, 1), "items": (items, MIN_ITEMS), "events": (events, 4)}
    for name, (value, low) in {**least, "seed": (seed, 0), "chunk": (chunk, 1)}.items():
        if value < low:
            raise ConfigError(f"{name} is {value}: a synthetic stream needs at least {low}")


def _lengths(key: UInt64, events: int) -> Int64:
    """Return [users] log-normal history lengths with mean about `events`, clipped."""
    shortest, spread = min(MIN_EVENTS, events // 4), 0.7
    factor = np.exp(spread * normal(random_bits(key, 0, LENGTH)) - spread**2 / 2)
    lengths = shortest + np.round((events - shortest) * factor).astype(np.int64)
    return np.minimum(lengths, MAX_RATIO * events)


def _first_occurrences(item: Int32, lengths: Int64, items: int) -> Bool:
    """Return [events] whether an event is the first of its user with its item."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    first = np.zeros(len(item), np.bool_)
    first[np.unique(owner * items + item, return_index=True)[1]] = True
    return first


def _genre_probabilities(preference: Float64, strength: float) -> Float64:
    """Return [7, users] cumulative softmax probabilities of the genres, without the last."""
    logits = [sum(axis[d] * preference[d] for d in range(3)) for axis in GENRE_AXES]
    table = np.cumsum(np.exp(strength * np.stack(logits)), axis=0)
    probabilities: Float64 = table[:-1] / table[-1]
    return probabilities
