"""Write files atomically: a reader sees the whole file or none. Knows nothing about contents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from glob import escape
from pathlib import Path

from dips.errors import DataError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` at the end.

    If the block raises, the temporary file is removed and `path` stays unchanged. Temporary files
    of processes that were killed while they wrote to `path` are removed, too.

    Args:
        path: The file to write; its directory is created.

    Yields:
        The temporary path to write to.

    Raises:
        DataError: If the file cannot be written.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(path)
        yield part
        part.chmod(0o666 & ~_umask())  # some writers leave a file that only its owner can read
        part.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error}); choose another place") from error
    finally:
        with suppress(OSError):  # the file or its directory may not exist
            part.unlink()


def _remove_unfinished(path: Path) -> None:
    """Remove the temporary files of processes that no longer exist."""
    for part in path.parent.glob(f"{escape(path.name)}.*.part"):
        process = part.name.removeprefix(f"{path.name}.").removesuffix(".part")
        if process.isdecimal() and not _exists(int(process)):
            part.unlink(missing_ok=True)


def _exists(process: int) -> bool:
    """Return whether a process exists; also where the system cannot tell."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # a process of another user, or no process number
        return True
    return True


@cache  # reading it sets it for a moment, also for other threads
def _umask() -> int:
    """Return the process's umask."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
