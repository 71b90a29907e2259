"""Provide a store whose commits fail on purpose."""

from __future__ import annotations


class Failing:
    """SQLite store whose n-th writes fail, for given n."""

    def __init__(self, store):
        self._store, self._turns, self._turn = store, set(), 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def fail(self, turns):
        """Fail at these commits, counted from 1 on."""
        self._turns, self._turn = set(turns), 0

    def stage(self, change):
        self._turn += 1
        write = self._store.stage(change)
        if self._turn not in self._turns:
            return write

        def failing():
            run = self._store.connection.execute
            run("PRAGMA query_only = ON")
            try:
                write()
            finally:
                run("PRAGMA query_only = OFF")

        return failing
