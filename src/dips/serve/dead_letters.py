"""Write invalid events to a dead-letter file, each with its reason; read them back as they were."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO, final

from dips.errors import DataError
from dips.serve.stores.base import StoreError

MAX_FILE_BYTES = 1 << 26
"""A file of this size is renamed, and a new one begins."""
EXACT = "surrogateescape"
"""How bytes that are not UTF-8 are kept in JSON: each as one lone surrogate."""
START = b'{"line": '
"""First bytes of every row."""


@final
class DeadLetters:
    """File of invalid lines. They are on the disk before the rest of their batch is committed.

    A full file is renamed to the next free name PATH.1, PATH.2, ...; no file is removed.

    Args:
        path: The file, in JSON lines; created with the first invalid line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, letters: Iterable[tuple[int, str, bytes]]) -> None:
        """Append invalid lines, and synchronise the file to the disk.

        Args:
            letters: Triples of line number, reason and line.

        Raises:
            StoreError: The file cannot be written.
        """
        rows = [
            {"line": number, "reason": reason, "event": text.decode(errors=EXACT)}
            for number, reason, text in letters
        ]
        if not rows:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                start = b"\n" if _ends_within_a_line(file) else b""
                file.write(start + b"".join(json.dumps(row).encode() + b"\n" for row in rows))
                file.flush()
                os.fsync(file.fileno())
                is_full = file.tell() >= MAX_FILE_BYTES
            if is_full:
                self._rotate()
        except OSError as error:
            raise StoreError(
                f"{self.path}: invalid events cannot be written there ({error}); "
                "choose another file with --dead-letters"
            ) from None

    def _rotate(self) -> None:
        names = (self.path.with_name(f"{self.path.name}.{number}") for number in count(1))
        self.path.rename(next(name for name in names if not name.exists()))


def read_dead_letters(path: Path) -> Iterator[bytes]:
    """Read the invalid lines of a dead-letter file, as they were, without their line breaks.

    A line that was too long has its first 65,537 bytes. A row without its end, as a crash may
    leave one, is skipped: its line was not acknowledged.

    Args:
        path: The file.

    Raises:
        DataError: The file cannot be read, or is no dead-letter file.
    """
    try:
        with path.open("rb") as file:
            for number, row in enumerate(file, start=1):
                try:
                    letter = json.loads(row)
                except ValueError:
                    if row.startswith(START[: len(row) - 1]):
                        continue
                    letter = None
                if not isinstance(letter, dict) or not isinstance(letter.get("event"), str):
                    raise DataError(f"{path}, line {number}: it is not a dead letter")
                yield letter["event"].encode(errors=EXACT)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _ends_within_a_line(file: BinaryIO) -> bool:
    """Return whether a file ends without a line break, as after a crash."""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
