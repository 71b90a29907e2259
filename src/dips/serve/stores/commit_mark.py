"""Keep the number of a store's last durable commit in a small file beside its database.

A write-ahead log that is damaged or removed takes commits back, silently. It cannot take back this
file, the high-water mark. The mark is written after a commit and before its acknowledgement. So
after a crash it may be behind the database. It is ahead only if commits are missing.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import NamedTuple, final

from dips.serve.stores.base import StoreError

SUFFIX = ".commits"
"""What is appended to the path of the database."""
LENGTH = 128
"""Bytes of the file: a disk writes so few at once."""
_synchronise = getattr(os, "fdatasync", os.fsync)  # fdatasync does not exist everywhere


class CommitMarkError(StoreError):
    """Raised when a mark is damaged."""


class Commit(NamedTuple):
    """A commit of a store."""

    store: str
    """Random name of the store, to recognise the mark of another one."""
    number: int
    """Number of the commit, from 1 on."""


@final
class CommitMark:
    """High-water mark of a store: the file that holds its last durable commit.

    Args:
        database: Path of the database.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + SUFFIX)
        self._file = -1

    def read(self) -> Commit | None:
        """Return the last durable commit; None if there is no mark, or an empty one.

        Raises:
            CommitMarkError: The mark is damaged or cannot be read.
        """
        try:
            content = self.path.read_text().strip()
            if not content:  # a process was killed while it created the file
                return None
            text, _, checksum = content.rpartition(" ")
            if int(checksum) != zlib.crc32(text.encode()):
                raise ValueError("its checksum differs")
            return Commit(**json.loads(text))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise CommitMarkError(f"{self.path} is damaged: {error}") from None

    def write(self, commit: Commit) -> None:
        """Write a durable commit, and synchronise the file to the disk.

        Raises:
            OSError: The file cannot be written.
        """
        text = json.dumps(commit._asdict())
        line = f"{text} {zlib.crc32(text.encode())}".ljust(LENGTH - 1) + "\n"
        is_new = self._file < 0
        if is_new:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.pwrite(self._file, line.encode(), 0)
        if is_new:
            os.ftruncate(self._file, LENGTH)  # another file may have been there
            os.fsync(self._file)
            _synchronise_directory(self.path.parent)
        else:
            _synchronise(self._file)

    def remove(self) -> None:
        """Remove the file, if the path still leads to it.

        Raises:
            OSError: The file cannot be removed.
        """
        if self._file >= 0 and os.path.samestat(os.fstat(self._file), os.stat(self.path)):
            self.path.unlink()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _synchronise_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
