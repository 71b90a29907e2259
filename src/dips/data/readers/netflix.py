"""Read the Netflix Prize in both official layouts, in bounded memory. Knows no other dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dips.data.interactions import Interactions, Strings, from_arrays
from dips.data.readers.assembly import ItemMetadata, encode_integers
from dips.data.readers.delimited import decode_lines
from dips.data.readers.source import Source
from dips.errors import DataError

BLOCK = 1 << 22
"""Bytes parsed at once: small files are concatenated, large files are cut."""
_SCHEMA = {"column_1": pl.Int32, "column_2": pl.UInt8, "column_3": pl.Date}
_FILM = re.compile(rb"(\d+):\r?")
_RATING = re.compile(rb"\d+,[1-5],\d{4}-\d\d-\d\d\r?")
_DAY = 86_400


@dataclass(frozen=True)
class _Part:
    """Some lines of one file, with its name and the number of the first line."""

    name: str
    first: int
    data: bytes


def read(source: Source) -> Interactions:
    """Read `combined_data_*.txt` or the `mv_*.txt` of `training_set`, with `movie_titles`.

    Both hold for each film a line `film:`, then lines `user,rating,date`.

    Raises:
        DataError: If a file is missing or a line is invalid.
    """
    names = source.find("combined_data_*.txt") or source.find("mv_*.txt")
    if not names:
        source.need("combined_data_*.txt", "mv_*.txt")
    if source.given in names:
        names = [source.given]
    films, users, ratings, days = (np.empty(0, kind) for kind in ("i4", "i4", "u1", "i4"))
    for block in _blocks_of_columns(source, names):
        for column, values in zip((films, users, ratings, days), block, strict=True):
            # In place: a list of blocks that is joined at the end would need twice the memory.
            filled = len(column)
            column.resize(filled + len(values), refcheck=False)
            column[filled:] = values
    if len(users) == 0:
        raise DataError(f"{source.path}: there are no ratings in {names[0]}; download it again")
    items, film_ids = encode_integers(films)
    del films
    user_codes, user_ids = encode_integers(users)
    del users
    ids = Strings.of(map(str, film_ids.tolist()))
    return from_arrays(
        user_codes,
        items,
        ratings,
        days,
        seconds=_DAY,
        user_ids=Strings.of(map(str, user_ids.tolist())),
        item_ids=ids,
        titles=_titles(source).titles_of(ids),
    )


def _blocks(source: Source, names: list[str]) -> Iterator[list[_Part]]:
    """Yield whole lines of the files, about BLOCK bytes at a time."""
    parts: list[_Part] = []
    for name in names:
        line = 1
        for data in source.blocks(name, BLOCK):
            parts.append(_Part(name, line, data if data.endswith(b"\n") else data + b"\n"))
            line += data.count(b"\n")
            if sum(len(part.data) for part in parts) >= BLOCK:
                yield parts
                parts = []
    if parts:
        yield parts


def _blocks_of_columns(source: Source, names: list[str]) -> Iterator[tuple[npt.NDArray[Any], ...]]:
    """Yield films, users, ratings and days of each block, in narrow dtypes."""
    film = 0
    for parts in _blocks(source, names):
        # The first line sets the number of columns; it stands for the previous film.
        data = b"".join([b",,\n", *(part.data for part in parts)])
        colons = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(":")).tolist()
        try:
            films = [film, *(int(data[data.rfind(b"\n", 0, at) + 1 : at]) for at in colons)]
            frame = pl.read_csv(data, has_header=False, schema=_SCHEMA, ignore_errors=True)
        except (ValueError, pl.exceptions.PolarsError):
            raise _explained(source, parts) from None
        heads = frame["column_1"].is_null()
        ratings = frame.filter(~heads)
        user, rating, day = ratings.get_columns()
        nulls = (len(films),) * len(_SCHEMA)  # in every column as many as there are films
        sound = frame.null_count().row(0) == nulls and not any(ratings.null_count().row(0))
        if not (sound and rating.is_between(1, 5).all() and (user >= 0).all()):
            raise _explained(source, parts)
        if film == 0 and not heads[1]:
            raise DataError(
                f"{source.place(parts[0].name)}, line 1: a rating before the first line 'film:'; "
                "download the file again"
            )
        film_of = np.array(films, np.int32)[np.cumsum(heads.to_numpy()) - 1]
        yield (
            film_of[~heads.to_numpy()],
            user.to_numpy(),
            rating.to_numpy(),
            day.to_physical().to_numpy(),
        )
        film = films[-1]


def _explained(source: Source, parts: list[_Part]) -> DataError:
    """Return an error that names the first bad line of a block."""
    for part in parts:
        for number, line in enumerate(part.data.split(b"\n")[:-1], start=part.first):
            if not (_FILM.fullmatch(line) or _RATING.fullmatch(line)):
                return DataError(
                    f"{source.place(part.name)}, line {number}: expected 'film:' or "
                    f"'user,rating,date' with a rating from 1 to 5 and a date such as 2005-09-06, "
                    f"got {line.decode('utf-8', 'replace')[:80]!r}; correct or remove this line"
                )
    place = source.place(parts[0].name)
    return DataError(f"{place}: holds a user id or a date that does not exist; download it again")


def _titles(source: Source) -> ItemMetadata:
    """`movie_titles`: film,year,title in Latin-1; a title may hold commas."""
    name = source.first("movie_titles.csv", "movie_titles.txt")
    if name is None:
        return ItemMetadata()
    titles = {}
    for number, line in enumerate(decode_lines(source, name, latin1=True), start=1):
        fields = line.split(",", 2)
        if len(fields) < 3:
            raise DataError(
                f"{source.place(name)}, line {number}: too few fields in {line[:80]!r}, "
                "expected film,year,title; download the file again"
            )
        titles[fields[0]] = fields[2]
    return ItemMetadata(titles)
