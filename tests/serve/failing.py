"""A store that now and then cannot write."""

from __future__ import annotations


class Failing:
    """A SQLite store of which some second halves of commits fail, by their turn."""

    def __init__(self, store):
        self._store, self._turns, self._turn = store, set(), 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def fail(self, turns):
        """Fail at these commits, counted from now on."""
        self._turns, self._turn = set(turns), 0

    def stage(self, change):
        self._turn += 1
        end = self._store.stage(change)
        if self._turn not in self._turns:
            return end

        def failing():
            run = self._store.connection.execute
            run("PRAGMA query_only = ON")
            try:
                end()
            finally:
                run("PRAGMA query_only = OFF")

        return failing
