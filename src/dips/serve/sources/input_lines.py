"""Split an input, plain or gzip, into batches of lines. Knows nothing of events or stores."""

from __future__ import annotations

import fcntl
import json
import os
import select
import zlib
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import final

from dips.errors import ConfigError, DataError
from dips.serve.events import MAX_LINE_BYTES

READ_BYTES = 1 << 16
"""Most bytes of one read, and of one step of decompression."""
PIPE_BYTES = 1 << 20
"""Capacity of the pipe: the sender can go on while a batch is applied."""
GZIP_START = b"\x1f"
"""First byte of a gzip file; no JSON starts with it."""
GZIP = 31
"""Code of zlib for the format of gzip."""
MAX_LINGER = 3600.0
"""Longest time in seconds to wait until a batch is full."""


@final
class InputLines:
    """Batches of lines of an input. Iterate over it once.

    A line that is too long is cut to one byte above the limit. So it will be refused, and it takes
    no memory. A last line without its line break may be half a line: it is part of a batch only if
    it is a complete JSON object, and stays in `unfinished` otherwise.

    Args:
        descriptor: File descriptor of a pipe or a file; gzip is recognised by its first bytes.
        batch: Most lines in a batch.
        linger: Most seconds to wait for further lines after the first one of a batch.
        stop: File descriptor; the input ends as soon as something can be read from it.

    Raises:
        ConfigError: `linger` is out of range.
    """

    def __init__(self, descriptor: int, batch: int, linger: float, stop: int | None = None) -> None:
        if not 0 <= linger <= MAX_LINGER:
            raise ConfigError(f"linger is {linger}: it must be from 0 to {MAX_LINGER:g} seconds")
        self.unfinished = b""
        """The end of the input that is not a whole line; it was not read."""
        self._batch, self._linger = batch, linger
        self._bytes = _Bytes(descriptor, stop)

    def is_stopped(self) -> bool:
        """Return whether something can be read from `stop`."""
        return self._bytes.is_stopped()

    def __iter__(self) -> Iterator[list[bytes]]:
        """Yield batches of lines, and an empty batch before each wait for a line.

        Raises:
            DataError: The input cannot be read, or is damaged gzip.
        """
        held, partial, done = list[bytes](), b"", False
        while not done or held:
            until, announced = monotonic() + self._linger, False
            while not done and len(held) < self._batch:
                if not announced and not self._bytes.wait(0.0):
                    announced = True
                    yield []
                if not self._bytes.wait(max(0.0, until - monotonic()) if held else None):
                    break
                if not held:
                    until = monotonic() + self._linger
                try:
                    content = self._bytes.read()
                except DataError:
                    if held:
                        yield held
                    raise
                done = not content
                *lines, partial = (partial + content).split(b"\n")
                held += [_cut(line) for line in lines]
                partial = _cut(partial)
                if done and partial:
                    if _is_object(partial):
                        held.append(partial)
                    else:
                        self.unfinished = partial
            if held:
                yield held[: self._batch]
                held = held[self._batch :]


@final
class _Bytes:
    """Bytes of a file descriptor, decompressed if they are gzip."""

    def __init__(self, descriptor: int, stop: int | None) -> None:
        self._descriptor, self._stop = descriptor, [] if stop is None else [stop]
        self._gzip: zlib._Decompress | None = None
        self._packed, self._begun = b"", False
        with suppress(OSError, AttributeError):  # a file has no capacity; the option is of Linux
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def wait(self, seconds: float | None) -> bool:
        """Wait until `read` does not block; return whether it does not."""
        if self._packed:
            return True
        return bool(select.select([self._descriptor, *self._stop], [], [], seconds)[0])

    def read(self) -> bytes:
        """Return the next bytes; none at the end of the input, or once it is told to stop."""
        while not self.is_stopped():
            packed = self._packed or self._read_packed()
            if not self._begun:
                self._begun = True
                self._gzip = zlib.decompressobj(GZIP) if packed.startswith(GZIP_START) else None
            if self._gzip is None:
                return packed
            if content := self._decompress(self._gzip, packed):
                return content
            if not packed:
                if self._gzip.eof:
                    return b""
                raise DataError(
                    "standard input is a gzip file without its end: its whole lines were read; "
                    "send the complete file with --source, which skips them"
                )
        return b""

    def _decompress(self, gzip: zlib._Decompress, packed: bytes) -> bytes:
        """Return some decompressed bytes; a file may have several members, then zeros."""
        if gzip.eof:
            self._packed = packed = packed.lstrip(b"\0")
            if not packed:
                return b""
            gzip = self._gzip = zlib.decompressobj(GZIP)
        try:
            content = gzip.decompress(packed, READ_BYTES)
        except zlib.error as error:
            raise DataError(f"standard input is a damaged gzip file ({error})") from None
        self._packed = gzip.unused_data if gzip.eof else gzip.unconsumed_tail
        return content

    def is_stopped(self) -> bool:
        """Return whether it is told to stop."""
        return bool(self._stop and select.select(self._stop, [], [], 0.0)[0])

    def _read_packed(self) -> bytes:
        try:
            return os.read(self._descriptor, READ_BYTES)
        except OSError as error:
            raise DataError(f"standard input cannot be read ({error.strerror})") from None


def _cut(line: bytes) -> bytes:
    """Return a line without what lies beyond the first byte above the limit."""
    return line[: MAX_LINE_BYTES + 1]


def _is_object(line: bytes) -> bool:
    """Return whether a line is a complete JSON object: then only its line break is missing."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
