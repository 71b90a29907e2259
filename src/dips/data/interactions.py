"""`Interactions`: the events of all users in order of time. Knows no files, tensors or models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dips.data.read_summary import ReadSummary
from dips.errors import DataError

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Strings:
    """An immutable column of strings: one UTF-8 blob and offsets, so that it can be memory-mapped.

    >>> Strings.of(["a", "bc"])[1]
    'bc'
    """

    blob: Bytes
    offsets: Int64

    @classmethod
    def of(cls, values: Iterable[str]) -> Strings:
        """Return a column of these values."""
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
        """Return the values at these rows, in this order."""
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        return Strings(self.blob[ragged(starts, lengths)], _offsets(lengths))

    @cached_property
    def index(self) -> dict[str, int]:
        """Row of each value; built on first use."""
        return {value: row for row, value in enumerate(self)}


@dataclass(frozen=True, eq=False)
class Categories:
    """The categories of each item: category names, and a ragged list of codes per item.

    >>> Categories.of([["drama"], [], ["drama", "war"]])[2]
    ['drama', 'war']
    """

    names: Strings
    offsets: Int64
    codes: Int32

    @classmethod
    def of(cls, lists: Sequence[Sequence[str]]) -> Categories:
        """Return categories from one list of names per item; codes follow the sorted names."""
        names = sorted({name for row in lists for name in row})
        code = {name: index for index, name in enumerate(names)}
        lengths = np.array([len(row) for row in lists], dtype=np.int64)
        codes = np.array([code[name] for row in lists for name in row], dtype=np.int32)
        return cls(Strings.of(names), _offsets(lengths), codes)

    def __getitem__(self, item: int) -> list[str]:
        codes = self.codes[self.offsets[item] : self.offsets[item + 1]]
        return [self.names[int(code)] for code in codes]

    def take(self, items: npt.NDArray[np.integer[Any]]) -> Categories:
        """Return the categories of these items, in this order, with unchanged codes."""
        starts, lengths = self.offsets[items], self.offsets[items + 1] - self.offsets[items]
        return Categories(self.names, _offsets(lengths), self.codes[ragged(starts, lengths)])


@dataclass(frozen=True, eq=False)
class EventColumn:
    """A further column of the events (side information): numbers, or codes of names.

    >>> EventColumn.of(["rain", "sun", "rain"]).values.tolist()
    [0, 1, 0]
    """

    values: npt.NDArray[Any]
    """[events] float numbers, or int32 codes."""
    names: Strings | None = None
    """Name of each code; None if the values are numbers."""

    @classmethod
    def of(cls, values: npt.ArrayLike) -> EventColumn:
        """Return a column of numbers, or of codes of the sorted names for any other type."""
        given = np.asarray(values)
        if given.dtype.kind in "buif":
            return cls(given.astype(np.float32))
        names, codes = np.unique(given.astype(str), return_inverse=True)
        return cls(codes.astype(np.int32), Strings.of(names.tolist()))

    def take(self, rows: npt.NDArray[np.integer[Any]]) -> EventColumn:
        """Return the values of these events, in this order, with unchanged codes."""
        return EventColumn(self.values[rows], self.names)


@dataclass(frozen=True, eq=False, kw_only=True)
class Interactions:
    """A dataset of user-item interactions (events), each user's events in order of time.

    A dataset and its parts share the event columns. A part has its own list of users, with the
    start and the number of their events. A user may repeat an item. Events with equal times keep
    the order of the source. Build one with `dips.load` or `from_arrays`.

    >>> data = from_arrays(user=[0, 1, 0], item=[2, 0, 1], rating=[4, 3, 5], time=[20, 5, 10])
    >>> data.users, data.items, len(data)
    (2, 3, 3)
    >>> data.item[data.events(0)].tolist()  # in order of time
    [1, 2]
    """

    item: Int32
    """[events] item index; events are grouped by user and sorted by time."""
    rating: Float32 | None
    """[events] rating, or None for implicit data."""
    time: Int64 | None
    """[events] seconds, or None if the source has only an order."""
    starts: Int64
    """[users] index of each user's first event."""
    lengths: Int64
    """[users] number of events of each user."""
    warmup: Int64
    """[users] number of first events that only build the sketch and are not evaluated."""
    user_rows: Int64
    """[users] row of each user in `user_ids`."""
    user_ids: Strings
    """Original user ids."""
    item_ids: Strings
    """Original item ids, one per item index."""
    titles: Strings | None = None
    """A title per item, if the source has titles."""
    categories: Categories | None = None
    """Categories per item, if the source has them."""
    side: Mapping[str, EventColumn] = field(default_factory=dict)
    """Further event columns by name (side information)."""
    about: dict[str, Any] = field(default_factory=dict)
    """Name, source, recipe and filter steps, for reports."""
    read_summary: ReadSummary | None = None
    """Which columns of a table were read; None for other sources and prepared data."""

    def __len__(self) -> int:
        return int(self.lengths.sum())

    @property
    def users(self) -> int:
        """Number of users."""
        return len(self.starts)

    @property
    def items(self) -> int:
        """Number of items in the vocabulary."""
        return len(self.item_ids)

    @property
    def name(self) -> str:
        """Name of the dataset in tables and messages."""
        return str(self.about.get("name", "data"))

    @property
    def explicit(self) -> bool:
        """Whether there are ratings."""
        return self.rating is not None

    @cached_property
    def repeats(self) -> float:
        """Share of events whose item the user has had before (repeat consumption)."""
        owner = np.repeat(np.arange(self.users), self.lengths)
        pairs = np.sort(owner * self.items + self.item[self.event_rows])
        return float(np.count_nonzero(pairs[1:] == pairs[:-1]) / max(1, len(pairs)))

    @property
    def event_rows(self) -> Int64:
        """Rows of this part's events in the event columns, user by user."""
        return ragged(self.starts, self.lengths)

    def user_id(self, user: int) -> str:
        """Return the original id of a user."""
        return self.user_ids[int(self.user_rows[user])]

    def find_user(self, user_id: str) -> int:
        """Return the index of the user with this original id.

        Raises:
            DataError: If this part of the data has no such user.
        """
        row = self.user_ids.index.get(user_id)
        found = np.flatnonzero(self.user_rows == (-1 if row is None else row))
        if len(found) == 0:
            raise DataError(f"{self.name}: there is no user '{user_id}' in this part of the data")
        return int(found[0])

    def events(self, user: int) -> slice:
        """Return the slice of a user's events in the event columns."""
        start = int(self.starts[user])
        return slice(start, start + int(self.lengths[user]))

    def select(self, users: npt.ArrayLike) -> Interactions:
        """Return a part with these users; the event columns are shared.

        Args:
            users: Indices of users, in the order of the part.
        """
        rows = np.asarray(users, dtype=np.int64)
        return replace(
            self,
            starts=self.starts[rows],
            lengths=self.lengths[rows],
            warmup=self.warmup[rows],
            user_rows=self.user_rows[rows],
        )

    def rating_range(self) -> tuple[float, float]:
        """Return the smallest and largest rating of the whole source, also for a part of it.

        Training must not use it: it contains the ratings of test users.

        Raises:
            DataError: If the data has no ratings.
        """
        if self.rating is None:
            raise DataError(f"{self.name}: implicit data has no ratings")
        low, high = self.about.get("rating_range") or (self.rating.min(), self.rating.max())
        return float(low), float(high)

    def split_users(
        self, train: float = 0.6, valid: float = 0.2, test: float = 0.2, *, seed: int
    ) -> tuple[Interactions, Interactions, Interactions]:
        """Split the users at random into train, valid and test; each user is in one part.

        Args:
            train: Share of users for training.
            valid: Share of users for validation.
            test: Share of users for testing; the three shares sum to 1.
            seed: Seed of the permutation of users.

        Returns:
            The three parts, which share the event columns.

        Raises:
            ConfigError: If the shares are not positive or do not sum to 1.
            DataError: If there are fewer than 3 users.

        >>> data = from_arrays(user=[0, 1, 2, 3, 4], item=[0, 0, 1, 1, 0])
        >>> [part.users for part in data.split_users(0.6, 0.2, 0.2, seed=0)]
        [3, 1, 1]
        """
        from dips.data.splitting import by_users

        return by_users(self, (train, valid, test), seed=seed)


def ragged(starts: Int64, lengths: Int64) -> Int64:
    """Return the concatenated ranges [start, start + length) of all starts.

    >>> ragged(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
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
    side: Mapping[str, EventColumn] | None = None,
    about: dict[str, Any] | None = None,
) -> Interactions:
    """Build `Interactions` from parallel columns, in any order of rows.

    Events are sorted by user and time. Ties, and all events without times, keep their order.

    Args:
        user: [events] user indices from 0.
        item: [events] item indices from 0.
        rating: [events] ratings; None for implicit data.
        time: [events] times; None if the rows are in order.
        seconds: Seconds per unit of `time`.
        user_ids: Original user ids; by default the indices.
        item_ids: Original item ids; by default the indices.
        titles: A title per item.
        categories: Categories per item.
        side: Further event columns by name.
        about: Facts about the dataset, for reports.

    Returns:
        The interactions; users without events are left out.

    Raises:
        DataError: If there are no events, an index is negative, or a column has another length.

    >>> from_arrays(user=[0, 0, 1], item=[0, 1, 1], time=[9, 3, 5]).item.tolist()
    [1, 0, 1]
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
    moments = None if times is None else _sort(times, order, np.int64)
    if moments is not None and seconds != 1:
        moments = moments * seconds
    return Interactions(
        item=_sort(items, order, np.int32),
        rating=None if ratings is None else _sort(ratings, order, np.float32),
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
    """Return the order of rows by user, time and row; None if they are in this order."""
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


def _sort(column: npt.NDArray[Any], order: Int64 | None, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Sort a column, then cast it: in this order the peak of memory is lower."""
    return column.astype(dtype, copy=False) if order is None else column[order].astype(dtype)


def _offsets(lengths: Int64) -> Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _strings(values: Iterable[str] | None, count: int) -> Strings:
    if values is None:
        values = map(str, range(count))
    return values if isinstance(values, Strings) else Strings.of(values)
