"""Open a store by its URL. A new kind of store is added here."""

from __future__ import annotations

from pathlib import Path

from dips.errors import ConfigError
from dips.serve.stores.base import Store


def open_store(url: str, *, readonly: bool = False, accept_missing: bool = False) -> Store:
    """Open the store at a URL, and create it where it does not exist.

    Args:
        url: `memory:` or `sqlite:PATH`.
        readonly: Open for reading only. The store must exist; another process may write to it.
        accept_missing: Open for writing even if acknowledged commits are missing.

    Returns:
        The open store. The caller closes it.

    Raises:
        ConfigError: The URL names no known kind of store.
        StoreError: The store cannot be opened, lacks commits, or another process writes to it.
    """
    kind, _, place = url.partition(":")
    if kind == "memory" and not place:
        from dips.serve.stores.memory import MemoryStore

        return MemoryStore()
    if kind == "sqlite" and place:
        from dips.serve.stores.sqlite import SqliteStore

        return SqliteStore(Path(place), readonly=readonly, accept_missing=accept_missing)
    raise ConfigError(f"store '{url}': choose memory: or sqlite:PATH, for example sqlite:users.db")
