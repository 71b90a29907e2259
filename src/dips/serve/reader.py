"""Read sketches, and recommend items, beside the process that writes the store.

Every call reads the newest commit, and holds no snapshot when it returns.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, final

from dips.errors import ConfigError
from dips.model.trained_model import TrainedModel, as_trained_model
from dips.serve import versions
from dips.serve.fields import parse_name
from dips.serve.owner_process import OwnerProcess
from dips.serve.recommend import item_numbers, parse_count, recommend, with_stored_sums
from dips.serve.records import UserRecords, decode
from dips.serve.stores.base import Store, Table, check_restored
from dips.serve.stores.registry import open_store
from dips.serve.user_sketch import UserSketch, to_sketches
from dips.serve.user_states import UserStates
from dips.serve.vocabulary import ItemVocabulary


def open_reader(
    run: str | Path | TrainedModel,
    store: str | Store = "sqlite:sketches.db",
    *,
    allow_plugins: bool = False,
) -> Reader:
    """Open a store for reading, beside the process that writes it.

    Any number of processes may read. Each call sees every event that was acknowledged before it.

    Args:
        run: A run directory, or a trained model. It recommends, also after a swap of the keeper.
        store: URL of a store that other processes can read (`sqlite:PATH`), or an open store. The
            reader closes it.
        allow_plugins: Whether a user's own class that the run names is imported.

    Returns:
        The reader. Use it in a `with` statement, or call `close`.

    Raises:
        RunError: The run directory holds no finished run.
        ConfigError: The model does not fit the store, or the store is `memory:`.
        StoreError: The store does not exist, or cannot be read.

    Example:
        >>> import dips, tempfile
        >>> from dips.testing import random_world
        >>> train, valid, _ = random_world([6] * 10, items=8).split_users(seed=0)
        >>> run = dips.train(train, valid, policy="last", size=2, epochs=1, device="cpu").trained
        >>> url = f"sqlite:{tempfile.mkdtemp()}/sketches.db"
        >>> with dips.open_keeper(run, url) as keeper, dips.open_reader(run, url) as reader:
        ...     applied = keeper.observe(user="alice", item="3", rating=4)
        ...     reader.sketch("alice").items
        ['3']
    """
    if store == "memory:":
        raise ConfigError("store 'memory:' can be read only by its keeper: choose sqlite:PATH")
    trained = as_trained_model(run, allow_plugins=allow_plugins)
    opened = open_store(store, readonly=True) if isinstance(store, str) else store
    try:
        check_restored(opened)
        versions.check_side_information(versions.read_versions(opened), trained)
        vocabulary, owner = ItemVocabulary(opened), OwnerProcess("reader")
        return Reader(with_stored_sums(trained), opened, vocabulary, owner)
    except BaseException:
        opened.close()
        raise


@final
class Reader:
    """Reads the sketches of one store, and recommends with one trained model. Thread-safe.

    Open one with `open_reader`.

    Args:
        trained: The trained model, from `with_stored_sums`. Assign another one to replace it.
        store: The open store; the reader closes it.
        vocabulary: Item names of the store.
        owner: The process that may use the reader.
    """

    def __init__(
        self,
        trained: TrainedModel,
        store: Store,
        vocabulary: ItemVocabulary,
        owner: OwnerProcess,
    ) -> None:
        self.trained = trained
        self._store, self._vocabulary, self._lock = store, vocabulary, threading.Lock()
        self._owner = owner

    def sketch(self, user: str) -> UserSketch:
        """Return the sketch of a user.

        Args:
            user: Name of the user.

        Returns:
            The sketch; an empty one where there is no record.

        Raises:
            DataError: The name is invalid.
            StoreError: The store cannot be read.
            RecordError: The record is damaged.
        """
        return self.sketches([user])[0]

    def sketches(self, users: Sequence[str]) -> list[UserSketch]:
        """Return the sketches of several users, all as of the same commit.

        Args:
            users: Names of the users.

        Returns:
            One sketch per user; an empty one where there is no record.

        Raises:
            DataError: A name is invalid.
            StoreError: The store cannot be read.
            RecordError: A record is damaged.
        """
        names = [parse_name(user, "user") for user in users]
        return to_sketches(names, self._read(names), self._vocabulary.names)

    def recommend(
        self, user: str, n: int = 20, exclude: Iterable[str] = ()
    ) -> list[tuple[str, float]]:
        """Return the items that the model's recommender ranks highest for a user.

        Args:
            user: Name of the user. A user without a record gets the items of an empty sketch.
            n: Most items to return, at least 1.
            exclude: Items that are not recommended, for example what the user has seen. Items that
                the model does not know are ignored.

        Returns:
            Pairs of item and score, best first. The score is the predicted rating, or the logit if
            the model predicts items.

        Raises:
            ConfigError: `n` is not a whole number from 1 on.
            DataError: The name, or what is excluded, is invalid.
            StoreError: The store cannot be read.
            RecordError: The record is damaged.
        """
        n, trained = parse_count(n), self.trained
        excluded = item_numbers(trained, exclude)
        records = self._read([parse_name(user, "user")])
        state = UserStates.from_records(records, trained.size, 1)
        sketch = state.sketch
        return recommend(trained, sketch, self._vocabulary.names, state.seen, n, excluded)

    def close(self) -> None:
        """Close the store."""
        if self._owner.is_current():
            with self._lock:
                self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self, users: Sequence[str]) -> UserRecords:
        self._owner.check()
        with self._lock:
            return _read_records(self._store, self._vocabulary, users)


def read_sketches(url: str, users: Sequence[str]) -> list[UserSketch]:
    """Read the sketches of users from a store, without a model. Another process may write to it.

    Args:
        url: URL of the store, for example `sqlite:sketches.db`.
        users: Names of the users.

    Returns:
        One sketch per user; an empty one where there is no record.

    Raises:
        ConfigError: The URL names no known kind of store.
        EventError: A name is invalid.
        StoreError: The store cannot be opened or read.
        RecordError: A record is damaged.
    """
    names = [parse_name(user, "user") for user in users]
    store = open_store(url, readonly=True)
    try:
        check_restored(store)
        vocabulary = ItemVocabulary(store)
        return to_sketches(names, _read_records(store, vocabulary, names), vocabulary.names)
    finally:
        store.close()


def _read_records(store: Store, vocabulary: ItemVocabulary, users: Sequence[str]) -> UserRecords:
    """Return the records of users as of one commit; then the vocabulary has all their items."""
    keys = [user.encode() for user in users]
    records = decode(keys, store.get(Table.USERS, keys))
    if records.item.max(initial=-1) >= len(vocabulary.names):
        vocabulary.read_new(store)  # a code never changes, so a later commit may be read
    return records
