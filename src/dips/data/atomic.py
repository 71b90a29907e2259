"""Files that are there whole or not at all. Knows nothing of what is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dips.errors import DataError


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Give a place beside the path to write to; rename it at the end, or leave nothing."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.chmod(0o666 & ~_umask())  # some writers leave a file that only its owner can read
        part.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error}); choose another place") from error
    finally:
        with suppress(OSError):  # not there, or not even a directory
            part.unlink()


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
