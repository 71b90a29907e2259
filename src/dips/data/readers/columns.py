"""Names of the columns of a table, given or guessed. Knows nothing about files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

from dips.data.read_summary import ReadSummary
from dips.errors import DataError, did_you_mean

NONE = "none"
"""Column name that means: ignore this column."""
SIDE = "side "
"""Prefix of the field of an event column (side information)."""
_GUESSES = {
    "user": "user userid uid customer customerid reviewerid member memberid",
    "item": "item itemid iid movie movieid film filmid asin parentasin product productid "
    "venue venueid poi poiid business businessid book bookid isbn artist artistid track trackid",
    "rating": "rating ratings score stars overall",
    "time": "time timestamp ts date datetime unixreviewtime unixtime utctime",
}
TITLES = ("title", "movietitle", "name", "itemname")
CATEGORIES = ("genres", "genre", "class", "categories", "category", "movieclass")


@dataclass(frozen=True, kw_only=True)
class ColumnNames:
    """Which column holds the user, item, rating and time; None: guess it from the header."""

    user: str | None = None
    item: str | None = None
    rating: str | None = None
    time: str | None = None
    side: tuple[str, ...] = ()
    """Names of further event columns to read."""

    def positional(self) -> bool:
        """Return whether columns are given by number from 1, as for a file without header."""
        given = [name for name in (*self._given().values(), *self.side) if name not in (None, NONE)]
        return bool(given) and all(name is not None and name.isdecimal() for name in given)

    def resolve(self, header: Sequence[str], place: str) -> dict[str, str]:
        """Return the column name of each field found in a header.

        Args:
            header: Column names of the table.
            place: File and line, for error messages.

        Returns:
            Column names by field: `user`, `item`, optionally `rating` and `time`, and
            `SIDE` + NAME for an event column NAME.

        Raises:
            DataError: If a given column, the user or the item is missing.
        """
        found = {}
        for field, given in self._given().items():
            if given == NONE:
                continue
            name = guess(header, _GUESSES[field].split()) if given is None else given
            if given is not None and given not in header:
                raise self._missing(field, given, f"no column '{given}'", header, place)
            if name is not None:
                found[field] = name
        for field in ("user", "item"):
            if field not in found:
                what = f"no column that looks like the {field}"
                raise self._missing(field, field, what, header, place)
        for name in self.side:
            if name not in header:
                near, known = did_you_mean(name, header), ", ".join(header)
                raise DataError(
                    f"{place}: there is no column '{name}' among {known}; {near}see --side"
                )
            if name in found.values():
                raise DataError(f"{place}: column '{name}' is read already; leave it out of --side")
        found |= {SIDE + name: name for name in self.side}
        for name in found.values():
            if list(header).count(name) > 1:
                raise DataError(f"{place}: there are several columns '{name}'; rename all but one")
        return found

    def summary(
        self, found: Mapping[str, str], sample: Mapping[str, Sequence[str]], place: str
    ) -> ReadSummary:
        """Return what was read, with a warning for each other column that looks useful.

        Args:
            found: Column names by field, as `resolve` returns them.
            sample: The first values of every other column, as text.
            place: The file, for messages.
        """
        fields = {field: name for field, name in found.items() if not field.startswith(SIDE)}
        warnings = []
        for name, values in sample.items():
            field = next((f for f in _LOOKS if self._guessed(f) and _LOOKS[f](name, values)), None)
            if field is None or (field in fields and not _named_like(field, name)):
                continue
            instead = f", as '{fields[field]}' is" if field in fields else ""
            warnings.append(
                f"{place}: column '{name}' looks like a {field} and is not read{instead}; choose "
                f"with --{field}-col {name} or --{field}-col {fields.get(field, NONE)} (of dips "
                "data prepare)"
            )
        return ReadSummary(place, fields, tuple(sample), self.side, tuple(warnings))

    def _guessed(self, field: str) -> bool:
        """Return whether the column of a field was left open."""
        return self._given()[field] is None

    def _given(self) -> dict[str, str | None]:
        """Return the given names of user, item, rating and time."""
        return {"user": self.user, "item": self.item, "rating": self.rating, "time": self.time}

    @staticmethod
    def _missing(
        field: str, wanted: str, what: str, header: Sequence[str], place: str
    ) -> DataError:
        if not any(name.strip() for name in header):
            return DataError(f"{place}: this line is blank; begin with the names of the columns")
        fix = f"{did_you_mean(wanted, header)}name it with --{field}-col"
        if any(_number(name) is not None for name in header):
            fix = "without a header give columns by number, as --user-col 1 --item-col 2"
        known = ", ".join(header)
        return DataError(
            f"{place}: there is {what} among {shorten(known, 200)}; {fix} (of dips data prepare)"
        )


def guess(header: Sequence[str], known: Sequence[str]) -> str | None:
    """Return the column whose lower-case alphanumeric name comes first in `known`, or None."""
    plain = {"".join(filter(str.isalnum, name.lower())): name for name in reversed(header)}
    return next((plain[name] for name in known if name in plain), None)


def original_ids(header: Sequence[str]) -> str | None:
    """Return the column of an item table that holds original ids, next to `item`, or None."""
    return guess([name for name in header if name != "item"], _GUESSES["item"].split())


_WORDS = {
    "time": "time timestamp ts date datetime unix epoch created updated when",
    "rating": "rating ratings star stars score scores vote votes grade overall",
}
"""Words in the name of a column that make it look like a field."""
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([ T]\d.*)?|\d\d?[/.]\d\d?[/.]\d{2,4}( .*)?")
SECONDS = (6e8, 4.2e9)
"""Seconds since 1970 that are a likely time: from 1989 to 2103."""


def _number(text: str) -> float | None:
    """Return a number from text, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def _named_like(field: str, name: str) -> bool:
    """Return whether a word of a column's name belongs to a field: `createdAt`, `review_date`."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return any(part.lower() in _WORDS[field].split() for part in parts)


def _like_times(name: str, values: Sequence[str]) -> bool:
    """Return whether all values are dates or seconds, or numbers below the name of a time."""
    numbers = [number for value in values if (number := _number(value)) is not None]
    if len(numbers) == len(values):
        low, high = SECONDS
        likely = all(low <= n <= high or low <= n / 1000 <= high for n in numbers)
        return bool(values) and (likely or _named_like("time", name))
    return all(_DATE.fullmatch(value.strip()) for value in values)


def _like_ratings(name: str, values: Sequence[str]) -> bool:
    """Return whether all values are numbers below the name of a rating, or a few from 0 to 10."""
    numbers = [number for value in values if (number := _number(value)) is not None]
    if not numbers or len(numbers) < len(values):
        return False
    if name.lower().endswith("id") or guess(
        [name], f"{_GUESSES['user']} {_GUESSES['item']}".split()
    ):
        return False
    few = 3 <= len(set(numbers)) <= 21 and all(0 <= n <= 10 and 2 * n % 1 == 0 for n in numbers)
    return few or _named_like("rating", name)


_LOOKS: dict[str, Callable[[str, Sequence[str]], bool]] = {
    "time": _like_times,
    "rating": _like_ratings,
}
