"""Lock a database file for its only writer, and notice when its path leads to another file.

The lock (`flock`) is on the database file itself. So no second name of the file, and no removed
side file, gets around it. It is independent of SQLite's own locks (`fcntl`). Those have a trap:
when a process closes any descriptor of a file, it loses all its `fcntl` locks on that file. So a
process opens each database file once here, and closes it after its last store.
"""

from __future__ import annotations

import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import final

from dips.serve.stores.base import StoreError

SQLITE_FILES = ("", "-wal", "-shm")
"""What SQLite appends to the path of a database: the file, its write-ahead log, its index."""

CLOSED = -1
"""Number of a descriptor that was closed in a forked child."""

Identity = tuple[int, int]
"""Device and inode: the same for all names of a file."""


@dataclass
class _Descriptor:
    number: int
    stores: int = 0
    is_locked: bool = False


_opened: dict[Identity, _Descriptor] = {}
_inherited: set[Identity] = set()
"""Files that were open when this process was forked. SQLite cannot open them here: it takes the
state of their locks from the parent, and the locks themselves do not survive a fork."""
_guard = Lock()


def _close_all() -> None:
    """Close the descriptors in a forked child, so that it does not hold the locks of its parent."""
    _inherited.update(_opened)
    for opened in _opened.values():
        os.close(opened.number)
        opened.number = CLOSED
    _opened.clear()
    _guard.release()


os.register_at_fork(
    before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_close_all
)


@final
class DatabaseFile:
    """A database file that is opened by a store of this process.

    Args:
        path: Any path of the file. Symbolic links are followed once, here.
        create: Create the file, and its directory, where it does not exist.

    Raises:
        StoreError: The file cannot be opened, or has a second name.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self._name = path
        self._is_writer = False
        self._in_place: list[Identity | None] = []
        try:
            self.path = path.resolve()
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with _guard:
                self._identity, self._opened = _open(self.path, create)
        except _InheritedError:
            raise StoreError(
                f"sqlite:{path} was open when this process was forked, and cannot be opened here: "
                "fork before a store is opened, or start processes with 'spawn'"
            ) from None
        except (OSError, RuntimeError) as error:  # a loop of symbolic links
            raise StoreError(f"sqlite:{path} cannot be opened: {error}") from None
        found = os.fstat(self._opened.number)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise StoreError(f"sqlite:{path} is no file: give the path of a store")
        if found.st_nlink > 1:
            self.close()
            raise StoreError(
                f"sqlite:{path} has a second name (a hard link), and SQLite keeps a write-ahead "
                f"log for each name: find it with 'find / -samefile {self.path}' and delete it"
            )

    def lock(self) -> None:
        """Lock the file for writing; the system releases the lock when the process ends.

        Raises:
            StoreError: Another store, of this or another process, holds the lock.
        """
        with _guard:
            try:
                if self._opened.is_locked:
                    raise BlockingIOError
                fcntl.flock(self._opened.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreError(
                    f"sqlite:{self._name} is in use: another process writes to it"
                ) from None
            self._is_writer = self._opened.is_locked = True

    def remember(self) -> None:
        """Remember which files the paths of SQLite lead to now."""
        self._in_place = self._find()

    def check(self) -> None:
        """Raise `StoreError` if a path of SQLite leads to another file than was remembered."""
        if self._find() != self._in_place:
            raise StoreError(
                f"sqlite:{self._name} or a file of SQLite beside it was moved, replaced or removed "
                "while the store was open: put it back and open the store again"
            )

    def check_path(self) -> None:
        """Raise `StoreError` if the path leads to another file than the one that was opened."""
        if _identity(str(self.path)) != self._identity:
            raise StoreError(
                f"sqlite:{self._name} was moved, replaced or removed while it was open: open it "
                "again"
            )

    def close(self) -> None:
        """Release the lock; close the file after the last store of this process."""
        with _guard:
            opened = self._opened
            if opened.number == CLOSED:
                return
            opened.stores -= 1
            if self._is_writer:
                fcntl.flock(opened.number, fcntl.LOCK_UN)
                self._is_writer = opened.is_locked = False
            if not opened.stores:
                del _opened[self._identity]
                os.close(opened.number)

    def _find(self) -> list[Identity | None]:
        return [_identity(f"{self.path}{suffix}") for suffix in SQLITE_FILES]


class _InheritedError(Exception):
    """A file was open when this process was forked."""


def _open(path: Path, create: bool) -> tuple[Identity, _Descriptor]:
    """Return the descriptor of a file, opened if this process has it not open already."""
    identity = _identity(str(path))
    if identity in _inherited:
        raise _InheritedError
    if identity not in _opened:
        number = os.open(path, os.O_RDWR | os.O_CREAT if create else os.O_RDONLY, 0o644)
        found = os.fstat(number)
        identity = found.st_dev, found.st_ino
        _opened[identity] = _Descriptor(number)
    assert identity is not None
    _opened[identity].stores += 1
    return identity, _opened[identity]


def _identity(path: str) -> Identity | None:
    """Return which file a path leads to; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
