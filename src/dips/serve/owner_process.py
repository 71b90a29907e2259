"""Refuse the use of a keeper or a reader in a forked child: SQLite connections cannot be shared."""

from __future__ import annotations

import os
from typing import final

from dips.serve.stores.base import StoreError


@final
class OwnerProcess:
    """The process that opened a keeper or a reader.

    Args:
        what: What was opened, for the message of the error.
    """

    def __init__(self, what: str) -> None:
        self._what, self._process = what, os.getpid()

    def is_current(self) -> bool:
        """Return whether this is the process that opened it."""
        return os.getpid() == self._process

    def check(self) -> None:
        """Raise `StoreError` in a forked child."""
        if not self.is_current():
            raise StoreError(
                f"this {self._what} belongs to process {self._process}, which opened it before "
                "the fork: fork before a store is opened, or start processes with 'spawn'"
            )
