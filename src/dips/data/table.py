"""Any table of interactions: CSV, TSV or Parquet, columns named or guessed. Knows no dataset."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import PurePosixPath

import polars as pl

from dips.data.assembly import ItemFacts, Rows, assemble
from dips.data.columns import CATEGORIES, SIDE, TITLES, Columns, guess, original_ids
from dips.data.delimited import Field, read_delimited, split_line
from dips.data.interactions import Interactions
from dips.data.source import Source
from dips.errors import DataError

PATTERNS = ("*.parquet", "*.csv", "*.tsv", "*.csv.gz", "*.tsv.gz")
_QUOTE = '"'


def read(source: Source, columns: Columns | None = None) -> Interactions:
    """Read a table with a user and an item, and perhaps a rating and a time, in every row.

    A Parquet `X_items.parquet` beside `X.parquet` gives original ids, titles and genres.
    """
    columns = columns or Columns()
    name = source.given or _only(source)
    if name.endswith(".parquet"):
        rows = _read_parquet(source, name, columns)
        return assemble(rows, facts=_item_facts(source, name))
    return assemble(read_text(source, name, columns))


def _only(source: Source) -> str:
    names = [name for name in source.find(*PATTERNS) if not name.endswith("_items.parquet")]
    if len(names) > 1:
        raise DataError(
            f"{source.path}: holds more than one table ({', '.join(names[:5])}); give one of them"
        )
    return names[0] if names else source.need(*PATTERNS)


def read_text(
    source: Source, name: str, columns: Columns, renames: Mapping[str, str] | None = None
) -> Rows:
    """Rows of delimited text; `renames` says what the header's names are to be read as."""
    line = (
        next(source.blocks(name, 1 << 16))
        .split(b"\n", 1)[0]
        .rstrip(b"\r")
        .removeprefix(b"\xef\xbb\xbf")
    )
    separator = max(",\t;|", key=lambda mark: line.count(mark.encode()))
    top = f"{source.place(name)}, line 1"
    header = split_line(line, separator, _QUOTE, top)
    if columns.positional():
        header = [str(place + 1) for place in range(len(header))]
    header = [(renames or {}).get(column, column) for column in header]
    found = columns.resolve(header, top)
    fields = [
        Field(field, header.index(column), "number" if field == "rating" else "text")
        for field, column in found.items()
    ]
    skip = 0 if columns.positional() else 1
    rows = read_delimited(source, name, fields, separator=separator, skip=skip, quote=_QUOTE)
    return _with_seconds(Rows(_with_numbers(rows.frame), rows.where))


def _with_numbers(frame: pl.DataFrame) -> pl.DataFrame:
    """Further columns of text as numbers, where every row is one."""
    read = [
        frame[name].cast(pl.Float64, strict=False)
        for name in frame.columns
        if name.startswith(SIDE)
    ]
    return frame.with_columns(column for column in read if column.null_count() == 0)


def _read_parquet(source: Source, name: str, columns: Columns) -> Rows:
    place = source.place(name)
    raw = source.local(name) or source.read(name)
    try:
        found = columns.resolve(list(pl.read_parquet_schema(raw)), place)
        frame = pl.read_parquet(raw, columns=list(found.values()))
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{place}: is not a complete Parquet file ({error}); get it again"
        ) from error
    frame = frame.select(pl.col(column).alias(field) for field, column in found.items())
    rows = Rows(frame, partial(_row, place))
    for field in found:
        if frame[field].null_count():
            row = frame[field].is_null().arg_max() or 0
            raise DataError(f"{_row(place, row)}: {field} is missing; fill or remove this row")
    if "rating" in found and not frame["rating"].dtype.is_numeric():
        kind = frame["rating"].dtype
        raise DataError(f"{place}: column '{found['rating']}' is {kind}, ratings are numbers")
    return _with_seconds(rows)


def _row(place: str, row: int) -> str:
    return f"{place}, row {row + 1}"


def _with_seconds(rows: Rows) -> Rows:
    """Times as seconds, whether they are numbers, dates or text of either."""
    if "time" not in rows.frame.columns:
        return rows
    times = rows.frame["time"]
    if times.dtype.is_numeric():
        return rows
    if times.dtype == pl.String:
        times = _parsed(rows)
    if times.dtype.is_temporal():
        times = times.cast(pl.Datetime("ms")).dt.epoch("s")
    return Rows(rows.frame.with_columns(time=times), rows.where)


def _parsed(rows: Rows) -> pl.Series:
    """Times from text: the first reading that fits every row."""
    texts, furthest = rows.frame["time"], 0
    for pattern in (None, "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S"):
        if pattern is None:
            times = texts.cast(pl.Float64, strict=False)
        else:
            times = texts.str.to_datetime(pattern, time_unit="ms", strict=False)
        if times.null_count() == 0:
            return times
        furthest = max(furthest, times.is_null().arg_max() or 0)
    raise DataError(
        f"{rows.where(furthest)}: time {texts[furthest]!r} is neither seconds nor like 2005-09-06 "
        "or 2005-09-06 12:30:00; correct it, or leave the column out with --time-col none"
    )


def _item_facts(source: Source, name: str) -> ItemFacts:
    baseline_config = (
        PurePosixPath(name).with_name(f"{PurePosixPath(name).stem}_items.parquet").as_posix()
    )
    if baseline_config not in source.names:
        return ItemFacts()
    frame = pl.read_parquet(source.local(baseline_config) or source.read(baseline_config))
    if "item" not in frame.columns:
        raise DataError(f"{source.place(baseline_config)}: there is no column 'item' to join on")
    items = frame["item"].cast(pl.String).to_list()
    found = {
        "titles": guess(frame.columns, TITLES),
        "categories": guess(frame.columns, CATEGORIES),
        "originals": original_ids(frame.columns),
    }
    facts = {
        fact: dict(zip(items, frame[column].cast(pl.String).fill_null("").to_list(), strict=True))
        for fact, column in found.items()
        if column is not None
    }
    genres = facts.pop("categories", {})
    return ItemFacts(categories={item: _split(text) for item, text in genres.items()}, **facts)


def _split(text: str) -> list[str]:
    return [part for part in text.split("|") if part]
