"""Recognise an input that is read again, and skip those of its lines that are durable.

A log is a name and the files that it is written to, one after the other. A file is recognised by
its first line, so it may be renamed (log rotation) and compressed. The store keeps the number of
durable lines of each file, and a digest of them: so a file that was cut or rewritten is an error,
and no line of it is lost silently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import final

from dips.errors import DataError
from dips.serve.fields import parse_name


@final
class SourceProgress:
    """Durable lines of one input.

    Args:
        name: Name of the log; None: the input is not recognised, and no line is skipped.
        offset: Returns a number that the store keeps, by its key; 0 where it keeps none.
        is_file: Whether the input is a file, not a pipe. Only a file may begin with another first
            line than the input before it.
    """

    def __init__(self, name: str | None, offset: Callable[[str], int], *, is_file: bool) -> None:
        self._name = None if name is None else parse_name(name, "source")
        self._offset, self._is_file = offset, is_file
        self._lines, self._digest, self._first = 0, hashlib.blake2b(digest_size=16), ""
        self._files = self._durable = 0

    def new_lines(self, lines: Sequence[bytes]) -> tuple[int, Sequence[bytes]]:
        """Read the next lines of the input.

        Args:
            lines: The lines.

        Returns:
            Number of lines before the new ones, and the new ones: those that are not durable yet.

        Raises:
            DataError: The durable lines are not those of this input.
        """
        if self._name is not None and not self._first and lines:
            self._recognise(lines[0])
        start = self._lines
        known = lines[: max(0, self._durable - start)]
        self._add(known)
        if known and self._lines == self._durable:
            self._check()
        self._add(lines[len(known) :])
        return start + len(known), lines[len(known) :]

    def finish(self) -> None:
        """Raise `DataError` if the input ended before its durable lines did."""
        if self._lines < self._durable:
            raise DataError(
                f"source '{self._name}': the input has {self._lines} lines, and {self._durable} "
                "were read from it before: it was cut; read it under another --source name"
            )

    def offsets(self) -> dict[str, int]:
        """Return the numbers to store with a commit of all lines so far, by key."""
        if self._name is None:
            return {}
        return {
            f"files/{self._name}": self._files,
            self._key("lines"): self._lines,
            self._key("digest"): int.from_bytes(self._digest.digest()),
        }

    def _recognise(self, first: bytes) -> None:
        """Look up the file by its first line."""
        self._first = hashlib.blake2b(first, digest_size=16).hexdigest()
        self._files = self._offset(f"files/{self._name}")
        self._durable = self._offset(self._key("lines"))
        if self._durable == 0:
            if self._files and not self._is_file:
                raise DataError(
                    f"source '{self._name}': the first line of the pipe is not the one that was "
                    "read before: send its lines from the first one on, or another --source name"
                )
            self._files += 1

    def _check(self) -> None:
        if int.from_bytes(self._digest.digest()) != self._offset(self._key("digest")):
            raise DataError(
                f"source '{self._name}': the first {self._durable} lines of the input are not "
                "those that were read before: it was rewritten; read it under another --source name"
            )

    def _add(self, lines: Sequence[bytes]) -> None:
        self._lines += len(lines)
        if self._name is not None and lines:
            self._digest.update(b"\n".join(lines) + b"\n")

    def _key(self, kind: str) -> str:
        return f"{kind}/{self._first}/{self._name}"
