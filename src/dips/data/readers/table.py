"""Read any table of interactions: CSV, TSV or Parquet. Knows no dataset."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import PurePosixPath

import polars as pl

from dips.data.interactions import Interactions
from dips.data.readers.assembly import ItemMetadata, RawRows, assemble
from dips.data.readers.columns import CATEGORIES, SIDE, TITLES, ColumnNames, guess, original_ids
from dips.data.readers.delimited import Field, read_delimited, split_line
from dips.data.readers.source import Source
from dips.errors import DataError

PATTERNS = ("*.parquet", "*.csv", "*.tsv", "*.csv.gz", "*.tsv.gz")
_QUOTE = '"'


def read(source: Source, columns: ColumnNames | None = None) -> Interactions:
    """Read a table with a user, an item and optionally a rating and a time in every row.

    A file `X_items.parquet` next to `X.parquet` gives original ids, titles and categories.

    Args:
        source: Directory, file or archive.
        columns: Names of the columns; by default they are guessed.

    Raises:
        DataError: If a column is missing, or a row has an invalid value.
    """
    columns = columns or ColumnNames()
    name = source.given or _only(source)
    if name.endswith(".parquet"):
        rows = _read_parquet(source, name, columns)
        return assemble(rows, metadata=_item_metadata(source, name))
    return assemble(read_text(source, name, columns))


def _only(source: Source) -> str:
    names = [name for name in source.find(*PATTERNS) if not name.endswith("_items.parquet")]
    if len(names) > 1:
        raise DataError(
            f"{source.path}: holds more than one table ({', '.join(names[:5])}); give one of them"
        )
    return names[0] if names else source.need(*PATTERNS)


def read_text(
    source: Source, name: str, columns: ColumnNames, renames: Mapping[str, str] | None = None
) -> RawRows:
    """Read delimited text with a header; `renames` maps names of the header to other names."""
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
    return _with_seconds(RawRows(_with_numbers(rows.frame), rows.where))


def _with_numbers(frame: pl.DataFrame) -> pl.DataFrame:
    """Convert event columns to numbers if every row is a number."""
    read = [
        frame[name].cast(pl.Float64, strict=False)
        for name in frame.columns
        if name.startswith(SIDE)
    ]
    return frame.with_columns(column for column in read if column.null_count() == 0)


def _read_parquet(source: Source, name: str, columns: ColumnNames) -> RawRows:
    place = source.place(name)
    raw = source.local(name) or source.read(name)
    try:
        found = columns.resolve(list(pl.read_parquet_schema(raw)), place)
        frame = pl.read_parquet(raw, columns=list(found.values()))
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{place}: is not a complete Parquet file ({error}); download it again"
        ) from error
    frame = frame.select(pl.col(column).alias(field) for field, column in found.items())
    rows = RawRows(frame, partial(_row, place))
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


def _with_seconds(rows: RawRows) -> RawRows:
    """Convert times to seconds: from numbers, dates, or text of either."""
    if "time" not in rows.frame.columns:
        return rows
    times = rows.frame["time"]
    if times.dtype.is_numeric():
        return rows
    if times.dtype == pl.String:
        times = _parsed(rows)
    if times.dtype.is_temporal():
        times = times.cast(pl.Datetime("ms")).dt.epoch("s")
    return RawRows(rows.frame.with_columns(time=times), rows.where)


def _parsed(rows: RawRows) -> pl.Series:
    """Parse times from text with the first format that fits every row."""
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


def _item_metadata(source: Source, name: str) -> ItemMetadata:
    """Return the metadata of `X_items.parquet` for a table `X.parquet`, if it exists."""
    path = PurePosixPath(name)
    items_file = path.with_name(f"{path.stem}_items.parquet").as_posix()
    if items_file not in source.names:
        return ItemMetadata()
    frame = pl.read_parquet(source.local(items_file) or source.read(items_file))
    if "item" not in frame.columns:
        raise DataError(f"{source.place(items_file)}: there is no column 'item' to join on")
    items = frame["item"].cast(pl.String).to_list()
    found = {
        "titles": guess(frame.columns, TITLES),
        "categories": guess(frame.columns, CATEGORIES),
        "original_ids": original_ids(frame.columns),
    }
    metadata = {
        field: dict(zip(items, frame[column].cast(pl.String).fill_null("").to_list(), strict=True))
        for field, column in found.items()
        if column is not None
    }
    genres = metadata.pop("categories", {})
    return ItemMetadata(
        categories={item: _split(text) for item, text in genres.items()}, **metadata
    )


def _split(text: str) -> list[str]:
    return [part for part in text.split("|") if part]
