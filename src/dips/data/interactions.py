"""The one table type: who met what, in order. Knows nothing of files, tensors or models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dips.errors import DataError

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Strings:
    """An immutable column of strings as one blob of UTF-8 and offsets, so that it can be mapped.

    >>> Strings.of(["a", "bc"])[1]
    'bc'
    """

    blob: Bytes
    offsets: Int64

    @classmethod
    def of(cls, values: Iterable[str]) -> Strings:
        """Pack the values."""
        parts = [value.encode() for value in values]
        lengths = np.fromiter((len(part) for part in parts), dtype=np.int64, count=len(parts))
        return cls(np.frombuffer(b"".join(parts), dtype=np.uint8), _offsets(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:
        start, end = self.offsets[index], self.offsets[index + 1]
        return self.blob[start:end].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        blob = self.blob.tobytes()
        return (blob[start:end].decode() for start, end in pairwise(self.offsets.tolist()))

    def take(self, rows: npt.NDArray[np.integer[Any]]) -> Strings:
        """The values at these rows, in this order."""
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        return Strings(self.blob[ragged(starts, lengths)], _offsets(lengths))

    @cached_property
    def index(self) -> dict[str, int]:
        """Value to row; built on first use."""
        return {value: row for row, value in enumerate(self)}


@dataclass(frozen=True, eq=False)
class Categories:
    """The categories of each item: names, and a ragged list of their codes per item."""

    names: Strings
    offsets: Int64
    codes: Int32

    @classmethod
    def of(cls, lists: Sequence[Sequence[str]]) -> Categories:
        """Pack one list of names per item; codes follow the sorted names."""
        names = sorted({name for row in lists for name in row})
        code = {name: index for index, name in enumerate(names)}
        lengths = np.array([len(row) for row in lists], dtype=np.int64)
        codes = np.array([code[name] for row in lists for name in row], dtype=np.int32)
        return cls(Strings.of(names), _offsets(lengths), codes)

    def __getitem__(self, item: int) -> list[str]:
        codes = self.codes[self.offsets[item] : self.offsets[item + 1]]
        return [self.names[int(code)] for code in codes]

    def take(self, items: npt.NDArray[np.integer[Any]]) -> Categories:
        """The categories of these items, in this order; the names stay."""
        starts, lengths = self.offsets[items], self.offsets[items + 1] - self.offsets[items]
        return Categories(self.names, _offsets(lengths), self.codes[ragged(starts, lengths)])


@dataclass(frozen=True, eq=False)
class Side:
    """A further column of the events: numbers, or codes of names.

    >>> Side.of(["rain", "sun", "rain"]).values.tolist()
    [0, 1, 0]
    """

    values: npt.NDArray[Any]
    """[events] numbers in float, codes in int32."""
    names: Strings | None = None
    """What the codes stand for; None where the values are numbers."""

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Side:
        """Numbers as they are; of anything else the sorted names and their codes."""
        given = np.asarray(values)
        if given.dtype.kind in "buif":
            return cls(given.astype(np.float32))
        names, codes = np.unique(given.astype(str), return_inverse=True)
        return cls(codes.astype(np.int32), Strings.of(names.tolist()))

    def take(self, rows: npt.NDArray[np.integer[Any]]) -> Side:
        """The values of these events, in this order; the names stay."""
        return Side(self.values[rows], self.names)


@dataclass(frozen=True, eq=False, kw_only=True)
class Interactions:
    """Who met what, when, and how they liked it: each user's events in order of time.

    The columns are shared between a dataset and its parts; a part only lists other users, by where
    their events start and how many there are. Repeats are allowed; ties keep the source's order.
    """

    item: Int32
    """[events] item index, user after user, each in time order."""
    rating: Float32 | None
    """[events] rating, or None for implicit data."""
    time: Int64 | None
    """[events] seconds, or None where the source has only an order."""
    starts: Int64
    """[users] first event of each user."""
    lengths: Int64
    """[users] how many events each user has."""
    warmup: Int64
    """[users] how many first events only build the sketch; predictions count after them."""
    user_rows: Int64
    """[users] row of each user in `user_ids`."""
    user_ids: Strings
    """Original user ids."""
    item_ids: Strings
    """Original item ids, one per item index."""
    titles: Strings | None = None
    """A title per item, where the source has one."""
    categories: Categories | None = None
    """Categories per item, where the source has them."""
    side: Mapping[str, Side] = field(default_factory=dict)
    """Further columns of the events by name, where they were asked for."""
    about: dict[str, Any] = field(default_factory=dict)
    """Name, source, recipe: what a report should say of this data."""

    def __len__(self) -> int:
        return int(self.lengths.sum())

    @property
    def users(self) -> int:
        """How many users."""
        return len(self.starts)

    @property
    def items(self) -> int:
        """How many items the vocabulary holds."""
        return len(self.item_ids)

    @property
    def name(self) -> str:
        """What to call this data in a table."""
        return str(self.about.get("name", "data"))

    @property
    def explicit(self) -> bool:
        """Whether there are ratings."""
        return self.rating is not None

    @cached_property
    def repeats(self) -> float:
        """The share of events with an item that the user had before."""
        owner = np.repeat(np.arange(self.users), self.lengths)
        pairs = np.sort(owner * self.items + self.item[ragged(self.starts, self.lengths)])
        return float(np.count_nonzero(pairs[1:] == pairs[:-1]) / max(1, len(pairs)))

    def user_id(self, user: int) -> str:
        """The original id of a user."""
        return self.user_ids[int(self.user_rows[user])]

    def find_user(self, user_id: str) -> int:
        """The user with this original id."""
        row = self.user_ids.index.get(user_id)
        found = np.flatnonzero(self.user_rows == (-1 if row is None else row))
        if len(found) == 0:
            raise DataError(f"{self.name}: there is no user '{user_id}' in this part of the data")
        return int(found[0])

    def events(self, user: int) -> slice:
        """Where this user's events lie in the columns."""
        start = int(self.starts[user])
        return slice(start, start + int(self.lengths[user]))

    def select(self, users: npt.ArrayLike) -> Interactions:
        """The same columns seen through some of the users."""
        rows = np.asarray(users, dtype=np.int64)
        return replace(
            self,
            starts=self.starts[rows],
            lengths=self.lengths[rows],
            warmup=self.warmup[rows],
            user_rows=self.user_rows[rows],
        )

    def rating_range(self) -> tuple[float, float]:
        """Smallest and largest rating of the whole source, kept in `about` so parts agree."""
        if self.rating is None:
            raise DataError(f"{self.name}: implicit data has no ratings")
        low, high = self.about.get("rating_range") or (self.rating.min(), self.rating.max())
        return float(low), float(high)

    def split_users(
        self, train: float = 0.6, valid: float = 0.2, test: float = 0.2, *, seed: int
    ) -> tuple[Interactions, Interactions, Interactions]:
        """Three parts with different users; the seed alone decides who goes where."""
        from dips.data.splitting import by_users

        return by_users(self, (train, valid, test), seed=seed)


def ragged(starts: Int64, lengths: Int64) -> Int64:
    """The positions start, start + 1, ... of every run, one run after the other."""
    shift = starts - (np.cumsum(lengths) - lengths)
    return np.repeat(shift, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def from_arrays(
    user: npt.ArrayLike,
    item: npt.ArrayLike,
    rating: npt.ArrayLike | None = None,
    time: npt.ArrayLike | None = None,
    *,
    seconds: int = 1,
    user_ids: Iterable[str] | None = None,
    item_ids: Iterable[str] | None = None,
    titles: Strings | None = None,
    categories: Categories | None = None,
    side: Mapping[str, Side] | None = None,
    about: dict[str, Any] | None = None,
) -> Interactions:
    """Build a table from parallel columns of indices, in any order of rows.

    Events are sorted by user and time; ties, and all events where there is no time, keep the order
    in which they are given. Without ids the index itself is the id. One unit of `time` lasts so
    many `seconds`. Narrow columns are widened only after the sort, to keep the peak of memory low.
    """
    users, items = np.asarray(user), np.asarray(item)
    ratings = None if rating is None else np.asarray(rating)
    times = None if time is None else np.asarray(time)
    if len(users) == 0:
        raise DataError("there are no interactions: the source is empty or a filter removed all")
    for name, column in (side or {}).items():
        if len(column.values) != len(users):
            count = len(column.values)
            raise DataError(f"column '{name}' has {count} values for {len(users)} interactions")
    if users.min() < 0 or items.min() < 0:
        raise DataError("user and item indices count from 0; there is a negative one")
    counts = np.bincount(users)
    present = np.flatnonzero(counts)
    lengths = counts[present].astype(np.int64)
    order = _order(users, times)
    facts, further = dict(about or {}), dict(side or {})
    if ratings is not None:
        facts.setdefault("rating_range", (float(ratings.min()), float(ratings.max())))
    moments = None if times is None else _arranged(times, order, np.int64)
    if moments is not None and seconds != 1:
        moments = moments * seconds
    return Interactions(
        item=_arranged(items, order, np.int32),
        rating=None if ratings is None else _arranged(ratings, order, np.float32),
        time=moments,
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        warmup=np.zeros(len(lengths), np.int64),
        user_rows=present.astype(np.int64),
        user_ids=_strings(user_ids, len(counts)),
        item_ids=_strings(item_ids, int(items.max()) + 1),
        titles=titles,
        categories=categories,
        side=further if order is None else {n: column.take(order) for n, column in further.items()},
        about=facts,
    )


def _order(users: npt.NDArray[Any], times: npt.NDArray[Any] | None) -> Int64 | None:
    """Rows by user, then time, then place; None where they already are in that order."""
    key = users
    if times is not None:
        low, high = int(times.min()), int(times.max())
        span = high - low + 1
        if (int(users.max()) + 1) * span >= 2**63:
            return np.lexsort((times, users))
        key = users.astype(np.int64)  # one key for both columns: half the time of a lexsort
        key *= span
        key += times
        key -= low
    if bool(np.all(key[1:] >= key[:-1])):
        return None
    return np.argsort(key, kind="stable")


def _arranged(
    column: npt.NDArray[Any], order: Int64 | None, dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    return column.astype(dtype, copy=False) if order is None else column[order].astype(dtype)


def _offsets(lengths: Int64) -> Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _strings(values: Iterable[str] | None, count: int) -> Strings:
    if values is None:
        values = map(str, range(count))
    return values if isinstance(values, Strings) else Strings.of(values)
