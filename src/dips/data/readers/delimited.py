"""Read delimited text as typed columns; errors name the line. Knows no dataset."""

from __future__ import annotations

import csv
import io
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import Literal

import polars as pl

from dips.data.readers.assembly import RawRows
from dips.data.readers.source import Source
from dips.errors import DataError

Kind = Literal["integer", "number", "text"]
_TYPES = {"integer": pl.Int64, "number": pl.Float64, "text": pl.String}
_BLOCK = 1 << 22
_COMMA = re.compile(r"\s*-?\d+,\d+\s*")
_ASKS = {"integer": "a whole number", "number": "a number", "text": "a value"}


@dataclass(frozen=True)
class Field:
    """A column of delimited text that a reader needs."""

    name: str
    """Name of the column in the result."""
    place: int
    """Index of the field in the line, from 0."""
    kind: Kind
    """Type of the values."""


def read_delimited(
    source: Source,
    name: str,
    fields: list[Field],
    *,
    separator: str,
    skip: int = 0,
    quote: str | None = None,
    latin1: bool = False,
    width: int | None = None,
) -> RawRows:
    """Read fields of every line of a text file; every field must have a value.

    Args:
        source: Where the file is.
        name: Name of the file in the source.
        fields: The fields to read.
        separator: One character, or one character twice such as `::`.
        skip: Number of header lines.
        quote: Quote character, if values may be quoted.
        latin1: Whether the text is Latin-1 instead of UTF-8.
        width: Largest number of fields of a line; None: further fields are ignored.

    Returns:
        One row per line.

    Raises:
        DataError: If a line has too few or too many fields, a value of another type, or is not
            decodable.
    """
    place, step = source.place(name), len(separator)
    first = _line(source, name, skip + 1)
    if first is None:
        raise DataError(
            f"{place}: there are no interactions: the file has {skip or 'no'} line"
            f"{'s' if skip > 1 else ''} of header and no rows"
        )
    where = f"{place}, line {skip + 1}"
    _check_width(first, separator, quote, fields, where)
    kinds = {field.place * step: field.kind for field in fields}
    if width is not None:
        _refuse_long_lines(source, name, separator, quote, width)
    splits = (len(split_line(first, separator, quote, where)) - 1) * step + 1
    columns = {field.name: f"column_{field.place * step + 1}" for field in fields}

    def parse(raw: bytes | Path, skip: int = 0) -> pl.DataFrame:
        return pl.read_csv(
            raw,
            has_header=False,
            separator=separator[0],
            quote_char=quote,
            skip_lines=skip,
            schema={f"column_{at + 1}": _TYPES[kinds.get(at, "text")] for at in range(splits)},
            columns=list(columns.values()),
            ignore_errors=True,
            truncate_ragged_lines=True,
        )

    path = source.local(name)
    try:
        if latin1 or (path is None and quote is None and skip == 0):
            # A thread decompresses the next block while this one is parsed.
            blocks = source.blocks(name, _BLOCK)
            with ThreadPoolExecutor(1) as pool:
                frame = pl.concat(pool.map(parse, map(_utf8, blocks) if latin1 else blocks))
        else:
            frame = parse(path or source.read(name), skip)
    except pl.exceptions.PolarsError as error:
        raise _undecodable(source, name, error) from error
    frame = frame.select(pl.col(column).alias(field) for field, column in columns.items())
    rows = RawRows(_without_blank_end(frame), partial(_where, source, name, skip, quote))
    for field in fields:
        if rows.frame[field.name].null_count():
            row = rows.frame[field.name].is_null().arg_max() or 0
            line = _line(source, name, row + 1 + skip) or b""
            _check_width(line, separator, quote, fields, rows.where(row))
            fix = "correct or remove this line"
            if _COMMA.fullmatch(split_line(line, separator, quote, where)[field.place]):
                fix = "write decimals with a point, as 4.5"
            raise DataError(
                f"{rows.where(row)}: {field.name} is not {_ASKS[field.kind]} in {_shown(line)}; "
                f"{fix}"
            )
    return rows


def _refuse_long_lines(
    source: Source, name: str, separator: str, quote: str | None, width: int
) -> None:
    """Raise `DataError` for the first line with more than `width` fields, blank ones left out."""
    mark, most, row, held = separator.encode(), width - 1, 0, b""
    for part in source.blocks(name, _BLOCK):
        block, held = held + part, b""
        if quote and quote.encode() in block:
            if block.count(quote.encode()) % 2:
                held = block  # a quoted field goes on in the next block
                if len(held) < 16 * _BLOCK:
                    continue
                return  # a quote is not closed, or it is no quote
            block = b"".join(block.split(quote.encode())[::2])  # what stands outside quotes
        lines = block.count(b"\n")
        if block.count(mark) != most * lines or not block.endswith(b"\n"):
            for at, line in enumerate(block.split(b"\n")):
                found = line.rstrip(mark + b" \t\r").count(mark)
                if found > most:
                    where = _where(source, name, 0, quote, row + at)
                    raise DataError(
                        f"{where}: {found + 1} fields, and line 1 has {width}; "
                        "quote values that hold the separator, or correct this line"
                    )
        row += lines


def decode_lines(source: Source, name: str, *, latin1: bool = False) -> list[str]:
    """Return the decoded lines of a small text file.

    Raises:
        DataError: If a line is not valid text.
    """
    lines = []
    for number, line in enumerate(source.read(name).splitlines(), start=1):
        try:
            lines.append(line.decode("latin-1" if latin1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise _not_utf8(f"{source.place(name)}, line {number}", line) from error
    return lines


def _where(source: Source, name: str, skip: int, quote: str | None, row: int) -> str:
    # A quoted field may hold line breaks; then only the row can be counted.
    unit = "row" if quote and quote.encode() in source.read(name) else "line"
    return f"{source.place(name)}, {unit} {row + 1 + skip}"


def _without_blank_end(frame: pl.DataFrame) -> pl.DataFrame:
    while frame.height and all(value is None for value in frame.row(-1)):
        frame = frame.head(-1)
    return frame


def split_line(line: bytes, separator: str, quote: str | None, where: str) -> list[str]:
    """Return the fields of one line.

    Raises:
        DataError: If a quote is not closed; `where` is the file and line of the message.
    """
    text = line.decode("utf-8", "replace")
    if quote is None:
        return text.split(separator)
    try:
        return next(csv.reader([text], delimiter=separator, quotechar=quote), [])
    except csv.Error as error:
        raise DataError(
            f"{where}: cannot be split into fields in {_shown(line)} ({error}); "
            "end lines with \\n or \\r\\n, and close every quote"
        ) from None


def _check_width(
    line: bytes, separator: str, quote: str | None, fields: list[Field], where: str
) -> None:
    last = max(fields, key=lambda field: field.place)
    if len(split_line(line, separator, quote, where)) <= last.place:
        raise DataError(
            f"{where}: too few fields in {_shown(line)}, no {last.name} "
            f"(field {last.place + 1} of the line); correct or remove this line"
        )


def _shown(line: bytes) -> str:
    return repr(line.decode("utf-8", "replace")[:80])


def _utf8(block: bytes) -> bytes:
    return block if block.isascii() else block.decode("latin-1").encode()


def _line(source: Source, name: str, number: int) -> bytes | None:
    """Return a line by its number from 1, or None past the end."""
    lines = (line for block in source.blocks(name, 1 << 16) for line in io.BytesIO(block))
    with closing(lines):
        line = next(islice(lines, number - 1, None), None)
    return None if line is None else line.rstrip(b"\r\n")


def _undecodable(source: Source, name: str, error: Exception) -> DataError:
    """Return an error that names the line which cannot be decoded."""
    for number, line in enumerate(io.BytesIO(source.read(name)), start=1):
        try:
            line.decode()
        except UnicodeDecodeError:
            return _not_utf8(f"{source.place(name)}, line {number}", line)
    why = shorten(str(error), 80)
    return DataError(
        f"{source.place(name)}: cannot be read as a table ({why}); check the separator, and close "
        "every quote"
    )


def _not_utf8(where: str, line: bytes) -> DataError:
    return DataError(
        f"{where}: not UTF-8 in {_shown(line.rstrip())}; "
        "save the file as UTF-8 (for instance: iconv -f latin1 -t utf-8)"
    )
