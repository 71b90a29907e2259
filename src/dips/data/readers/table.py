"""Read any table of interactions: CSV, TSV or Parquet. Knows no dataset."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

import polars as pl

from dips.data.interactions import Interactions
from dips.data.readers.assembly import ItemMetadata, RawRows, assemble, refuse
from dips.data.readers.columns import (
    CATEGORIES,
    SECONDS,
    SIDE,
    TITLES,
    ColumnNames,
    guess,
    original_ids,
)
from dips.data.readers.delimited import Field, read_delimited, split_line
from dips.data.readers.source import Source
from dips.errors import DataError

PATTERNS = ("*.parquet", "*.csv", "*.tsv", "*.csv.gz", "*.tsv.gz")
_QUOTE = '"'
_EXCEL = "this is an Excel workbook or a zip archive; save the sheet as CSV in UTF-8"
_UTF16 = "this is text in UTF-16; save it as CSV in UTF-8"
_BINARY = {
    b"PK\x03\x04": _EXCEL,
    b"\xd0\xcf\x11\xe0": _EXCEL,
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
    b"\x1f\x8b": "this is compressed with gzip; let its name end in .csv.gz",
    b"PAR1": "this is a Parquet file; let its name end in .parquet",
}
"""First bytes of files that are often taken for text, and what to do."""
SAMPLE = 1000
"""Number of rows by which a column that is not read is judged."""
_TIMES = (
    None,  # seconds
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
)
"""Formats of times in text; `%.f` are fractions of a second, `%#z` is an offset or Z."""


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
    place, block = source.place(name), next(source.blocks(name, 1 << 16))
    _refuse_binary(block, place)
    line = block.split(b"\n", 1)[0].rstrip(b"\r").removeprefix(b"\xef\xbb\xbf")
    separator = max(",\t;|", key=lambda mark: line.count(mark.encode()))
    top = f"{place}, line 1"
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
    rows = read_delimited(
        source, name, fields, separator=separator, skip=skip, quote=_QUOTE, width=len(header)
    )
    text = block.decode("utf-8", "replace").splitlines()[skip : skip + SAMPLE]
    lines = list(csv.reader(text, delimiter=separator))
    sample = {
        column: [line[at] for line in lines if len(line) > at and line[at]]
        for at, column in enumerate(header)
        if column not in found.values()
    }
    summary = columns.summary(found, sample, place)
    return _with_seconds(RawRows(_with_numbers(rows.frame), rows.where, summary))


def _refuse_binary(block: bytes, place: str) -> None:
    """Raise `DataError` if a file begins like one that is no UTF-8 text."""
    for start, what in _BINARY.items():
        if block.startswith(start):
            raise DataError(f"{place}: {what}")
    if b"\0" in block[: 1 << 10]:
        raise DataError(f"{place}: this is no text in UTF-8; save it as CSV in UTF-8")


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
        schema = pl.read_parquet_schema(raw)
        found = columns.resolve(list(schema), place)
        frame = pl.read_parquet(raw, columns=list(found.values()))
        rest = [column for column in schema if column not in found.values()]
        plain = [column for column in rest if not schema[column].is_nested()]
        sample = pl.read_parquet(raw, columns=plain, n_rows=SAMPLE).cast(pl.String, strict=False)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{place}: is not a complete Parquet file ({error}); download it again"
        ) from error
    frame = frame.select(pl.col(column).alias(field) for field, column in found.items())
    texts = {
        column: sample[column].drop_nulls().to_list() if column in plain else [] for column in rest
    }
    rows = RawRows(frame, partial(_row, place), columns.summary(found, texts, place))
    if frame.height == 0:
        raise DataError(f"{place}: there are no interactions: the table has no rows")
    for field, column in found.items():
        kind = frame[field].dtype
        if kind.is_nested() or kind in (pl.Binary, pl.Duration, pl.Time):
            raise DataError(f"{place}: column '{column}' is {kind}; give text or numbers")
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
        return _checked_times(rows)
    if times.dtype == pl.String:
        times = _parsed(rows)
        if times.dtype.is_numeric():
            return _checked_times(replace(rows, frame=rows.frame.with_columns(time=times)))
    if times.dtype.is_temporal():
        times = times.cast(pl.Datetime("ms")).dt.epoch("s")
    return replace(rows, frame=rows.frame.with_columns(time=times))


def _checked_times(rows: RawRows) -> RawRows:
    """Refuse a mixture of seconds and milliseconds; warn of times that are probably wrong.

    Raises:
        DataError: If there are both seconds and milliseconds since 1970.
    """
    times, summary = rows.frame["time"], rows.summary
    assert summary is not None
    low, high = SECONDS
    seconds = times.is_between(low, high)
    milliseconds = times.is_between(1000 * low, 1000 * high)
    here = int(seconds.sum()), int(milliseconds.sum())
    warning = None
    if all(here) and sum(here) == len(times):
        fewer = seconds if here[0] < here[1] else milliseconds
        refuse(rows, "time", fewer, "has another unit: there are both seconds and milliseconds")
    if here[1] == len(times):
        warning = "times look like milliseconds and count as seconds; divide them by 1000"
    elif len(times) > here[0] > len(times) / 2:
        row = int((~seconds).arg_max() or 0)
        warning = (
            f"{len(times) - here[0]:,} times are not between 1989 and 2103, the first one is "
            f"{times[row]:.0f} ({rows.where(row).removeprefix(summary.place).lstrip(', ')}); if it "
            "stands for a missing time, remove such rows"
        )
    elif len(times) > 1 and times.min() == times.max():
        warning = "all times are equal; the order of the file is used"
    if warning is None:
        return rows
    warnings = (*summary.warnings, f"{summary.place}: {warning}")
    return replace(rows, summary=replace(summary, warnings=warnings))


def _parsed(rows: RawRows) -> pl.Series:
    """Parse times from text with the first format that fits every row."""
    texts, furthest = rows.frame["time"], 0
    for pattern in _TIMES:
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
