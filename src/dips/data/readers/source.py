"""Directories, single files, zip and tar archives as named files. Knows no formats."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any, Self, cast, final

from dips.errors import DataError

_DAMAGE: tuple[type[Exception], ...] = (EOFError, RuntimeError, OSError, zipfile.BadZipFile)
_DAMAGE += (tarfile.TarError, zlib.error, lzma.LZMAError)
MAX_RATIO = 100
"""Most decompressed bytes for each byte of an archive; tables of text have less than 20."""
MAX_SMALL_BYTES = 1 << 26
"""Decompressed bytes that are always read."""
_TARS = (".tar", ".tar.gz", ".tgz")


class Source(ABC):
    """The files inside one path. A context manager, because archives have to be closed."""

    def __init__(self, path: Path, names: list[str], given: str | None = None) -> None:
        self.path = path
        self.names = sorted(name for name in names if not name.startswith("__MACOSX/"))
        self.given = given
        """Name of the file, if the path is a single file and no archive."""

    @abstractmethod
    def _open(self, name: str) -> IO[bytes]: ...

    def close(self) -> None:  # noqa: B027 - only archives have something to close
        """Close the archive."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def find(self, *patterns: str) -> list[str]:
        """Return the files whose base name matches a shell pattern, the given file first."""
        found = [
            name
            for name in self.names
            if any(fnmatchcase(PurePosixPath(name).name, pattern) for pattern in patterns)
        ]
        return sorted(found, key=lambda name: name != self.given)

    def first(self, *patterns: str) -> str | None:
        """Return the first file that matches, or None."""
        return next(iter(self.find(*patterns)), None)

    def need(self, *patterns: str) -> str:
        """Return the first file that matches.

        Raises:
            DataError: If no file matches.
        """
        name = self.first(*patterns)
        if name is None:
            wanted = " or ".join(f"'{pattern}'" for pattern in patterns)
            held = ", ".join(self.names[:5]) or "nothing"
            raise DataError(
                f"{self.path}: there is no {wanted} inside (it holds {held}); "
                "give the official files, or name the layout with --layout"
            )
        return name

    def place(self, name: str) -> str:
        """Return the path of a file for messages."""
        return f"{self.path}:{name}"

    def local(self, name: str) -> Path | None:
        """Return the path of a file that is on disk and not compressed, or None."""
        del name
        return None

    def read(self, name: str) -> bytes:
        """Return the decompressed bytes of a file.

        Raises:
            DataError: If the file is empty or damaged.
        """
        with self._guard(name), self._unpacked(name) as stream:
            data = stream.read()
        return self._filled(name, data)

    def blocks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the decompressed bytes of a file in blocks of whole lines.

        Args:
            name: Name of the file in the source.
            size: Approximate bytes per block.

        Raises:
            DataError: If the file is empty or damaged.
        """
        with self._guard(name), self._unpacked(name) as stream:
            block = self._filled(name, stream.read(size))
            while block:
                yield block if block.endswith(b"\n") else block + stream.readline()
                block = stream.read(size)

    def _unpacked(self, name: str) -> IO[bytes]:
        stream, packed = self._open(name), self._packed_bytes(name)
        if name.endswith(".gz"):
            stream = cast(IO[bytes], _Gunzip(stream))
        return (
            stream
            if packed is None
            else io.BufferedReader(_Bounded(stream, packed, self.place(name)))
        )

    def _packed_bytes(self, name: str) -> int | None:
        """Return the size of the file on disk that holds a compressed file; None for others."""
        del name
        return self.path.stat().st_size

    def _filled(self, name: str, data: bytes) -> bytes:
        if not data:
            raise DataError(f"{self.place(name)}: the file is empty; download it again")
        return data

    @contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            raise DataError(
                f"{self.place(name)}: cannot be read ({error}); "
                "the file is damaged or cut short: download it again"
            ) from error


class _Gunzip(gzip.GzipFile):
    """A GzipFile that closes the stream it was given as well."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(fileobj=stream, mode="rb")
        self._inner = stream

    def close(self) -> None:
        super().close()
        self._inner.close()


@final
class _Bounded(io.RawIOBase):
    """A decompressed stream that raises `DataError` once it is too large for its packed size.

    Args:
        stream: The stream; it is closed with this one.
        packed: Number of bytes from which it is decompressed.
        place: Its path for messages.
    """

    def __init__(self, stream: IO[bytes], packed: int, place: str) -> None:
        self._stream, self._packed, self._place = stream, packed, place
        self._left = MAX_SMALL_BYTES + MAX_RATIO * packed

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer; return their number."""
        content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        self._left -= len(content)
        if self._left < 0:
            raise DataError(
                f"{self._place}: it is more than {MAX_RATIO} times as large as the file of "
                f"{self._packed} bytes that it is unpacked from; if it is what you want, unpack it "
                "yourself and give the directory"
            )
        return len(content)

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
        super().close()


@final
class DirectorySource(Source):
    """Files of a directory. A single file is its directory with `given` set."""

    def __init__(self, path: Path) -> None:
        self._root = path if path.is_dir() else path.parent
        if path.is_dir():
            files = [file for file in path.rglob("*") if file.is_file()]
        else:
            files = [file for file in self._root.iterdir() if file.is_file()]
        names = [file.relative_to(self._root).as_posix() for file in files]
        super().__init__(path, names, None if path.is_dir() else path.name)

    def _open(self, name: str) -> IO[bytes]:
        return (self._root / name).open("rb")

    def place(self, name: str) -> str:
        """Return the path of a file for messages."""
        return str(self._root / name)

    def _packed_bytes(self, name: str) -> int | None:
        path = self._root / name
        return path.stat().st_size if name.endswith(".gz") else None

    def local(self, name: str) -> Path | None:
        """Return the path of a file that is on disk and not compressed, or None."""
        return None if name.endswith(".gz") else self._root / name


@final
class ZipSource(Source):
    """Files of a zip archive, read without extracting it to disk."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path)
        super().__init__(path, [entry for entry in self._zip.namelist() if entry[-1] != "/"])

    def _open(self, name: str) -> IO[bytes]:
        return self._zip.open(name)

    def close(self) -> None:
        """Close the archive."""
        self._zip.close()


@final
class TarSource(Source):
    """Files of a tar archive and of the tar archives inside it, as in the Netflix Prize."""

    def __init__(self, path: Path) -> None:
        self._tars = [tarfile.open(path)]  # noqa: SIM115 - closed in close()
        self._members = {entry.name: (self._tars[0], entry) for entry in self._files(self._tars[0])}
        for name, (outer, entry) in list(self._members.items()):
            if name.endswith(".tar"):
                inner = tarfile.open(fileobj=outer.extractfile(entry))  # noqa: SIM115
                self._tars.append(inner)
                self._members |= {part.name: (inner, part) for part in self._files(inner)}
        super().__init__(path, list(self._members))

    @staticmethod
    def _files(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
        return [entry for entry in tar.getmembers() if entry.isfile()]

    def _open(self, name: str) -> IO[bytes]:
        tar, entry = self._members[name]
        stream = tar.extractfile(entry)
        assert stream is not None, "only regular files are listed"
        return stream

    def close(self) -> None:
        """Close the archives, the inner ones first."""
        for tar in reversed(self._tars):
            tar.close()


def open_source(path: Path) -> Source:
    """Open a directory, a file or an archive.

    Raises:
        DataError: If the path does not exist, is empty, or is a damaged archive.
    """
    if not path.exists():
        raise DataError(f"{path}: there is no such file or directory")
    if path.is_dir():
        return DirectorySource(path)
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; download it again")
    try:
        if path.suffix == ".zip":
            return ZipSource(path)
        if path.name.endswith(_TARS):
            return TarSource(path)
    except _DAMAGE as error:
        raise DataError(
            f"{path}: is not a complete archive ({error}); "
            "it is damaged or cut short: download it again"
        ) from error
    return DirectorySource(path)
