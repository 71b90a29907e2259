"""Keep sketches in a store up to date from events: durably, and each event exactly once.

Events are applied in batches; each batch is one atomic commit. The result does not depend on how
events are batched. Knows nothing of training.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from dips.errors import ConfigError
from dips.model.trained_model import TrainedModel, as_trained_model
from dips.serve import versions
from dips.serve.admission import CommitResult
from dips.serve.batches import EventBatch, LoadedBatch, apply_batch, load_batch
from dips.serve.deduplication import DeduplicationWindow
from dips.serve.engine import Engine
from dips.serve.events import EventError, EventLike, EventSchema, newest_time
from dips.serve.fields import parse_name
from dips.serve.in_flight import CommitWriter, InFlightCommit
from dips.serve.metrics import Metrics
from dips.serve.owner_process import OwnerProcess
from dips.serve.reader import Reader
from dips.serve.readmission import readmit
from dips.serve.records import decode, find_fault
from dips.serve.resizing import ResizeResult, resize
from dips.serve.settings import BATCH, ID_BYTES
from dips.serve.shadow import Shadow
from dips.serve.stores.base import COUNTERS, Store, Table, check_restored
from dips.serve.stores.registry import open_store
from dips.serve.tombstones import NO_EVENT, tombstone_key
from dips.serve.user_sketch import UserSketch
from dips.serve.vocabulary import ItemVocabulary, ModelItems

OFFSETS = b"offset/"
"""Metadata keys of the offset of each source, by name."""
COUNTER_NAMES = ("users", "applied", "repeated", "forgotten", "refused")


def open_keeper(
    run: str | Path | TrainedModel,
    store: str | Store = "sqlite:sketches.db",
    *,
    batch: int = BATCH,
    id_bytes: int = ID_BYTES,
    allow_plugins: bool = False,
) -> Keeper:
    """Open a store and keep its sketches with a trained model.

    Args:
        run: A run directory, or a trained model.
        store: URL of a store (`memory:` or `sqlite:PATH`), or an open store. It is created where
            it does not exist. The keeper closes it.
        batch: Most events in a commit.
        id_bytes: Size of the deduplication window for event ids, in bytes (64 per id).
        allow_plugins: Whether a user's own class that the run names is imported.

    Returns:
        The keeper. Use it in a `with` statement, or call `close`.

    Raises:
        RunError: The run directory holds no finished run.
        ConfigError: A setting is invalid, or the model does not fit the store.
        StoreError: The store cannot be opened, or another process writes to it.

    Example:
        >>> import dips
        >>> from dips.testing import random_world
        >>> train, valid, _ = random_world([6] * 10, items=8).split_users(seed=0)
        >>> run = dips.train(train, valid, policy="last", size=2, epochs=1, device="cpu")
        >>> with dips.open_keeper(run.trained, store="memory:") as keeper:
        ...     for item in ("3", "5", "1"):
        ...         applied = keeper.observe(user="alice", item=item, rating=4)
        ...     keeper.sketch("alice").items
        ['5', '1']
    """
    trained = as_trained_model(run, allow_plugins=allow_plugins)
    opened = open_store(store) if isinstance(store, str) else store
    try:
        return Keeper(trained, opened, batch=batch, id_bytes=id_bytes)
    except BaseException:
        opened.close()
        raise


@final
class Keeper:
    """Keeps the sketches of all users in one store with one trained model. Thread-safe.

    Open one with `open_keeper`. `metrics` counts what it does.

    Args:
        trained: The trained model.
        store: The open store; the keeper closes it.
        batch: Most events in a commit.
        id_bytes: Size of the deduplication window for event ids, in bytes.

    Raises:
        ConfigError: A setting is invalid, or the model does not fit the store.
        StoreError: The store cannot be read, or a restore into it was interrupted.
    """

    def __init__(
        self, trained: TrainedModel, store: Store, *, batch: int = BATCH, id_bytes: int = ID_BYTES
    ) -> None:
        if batch < 1:
            raise ConfigError(f"batch is {batch}: it must be at least 1")
        self._store, self.batch, self._lock = store, batch, threading.RLock()
        check_restored(store)
        self._vocabulary = ItemVocabulary(store)
        self._window = DeduplicationWindow(store, id_bytes, batch)
        self._writer = CommitWriter()
        self._owner = OwnerProcess("keeper")
        self.metrics = Metrics()
        (found,) = store.get(Table.METADATA, [COUNTERS])
        self._counters: dict[str, int] = json.loads(found or b"{}")
        self._reader = Reader(trained, store.reader(), self._vocabulary, self._owner)
        try:
            self.swap(trained)
        except BaseException:
            self._reader.close()
            raise

    def observe(
        self,
        user: str,
        item: str,
        rating: float | None = None,
        time: int | None = None,
        *,
        id: str | None = None,
        seq: int | None = None,
        **side: Any,
    ) -> bool:
        """Apply one event. It is durable when this returns.

        Args:
            user: Name of the user.
            item: Name of the item.
            rating: Rating; required if the model predicts ratings.
            time: Time in seconds.
            id: Event id, to recognise duplicates.
            seq: Sequence number of the user's events, to recognise duplicates.
            **side: Side information by name.

        Returns:
            Whether the event was applied. False for duplicates and for users that were erased.

        Raises:
            EventError: The event is invalid.
            StoreError: The commit failed. Then nothing of it was written.
        """
        values = {"user": user, "item": item, "rating": rating, "time": time, "id": id, "seq": seq}
        result = self.observe_many([{**side, **values}])
        if result.refused:
            raise EventError(result.refused[0].reason)
        return result.applied == 1

    def observe_many(self, events: Iterable[EventLike]) -> CommitResult:
        """Apply events, with one commit for every `batch` of them.

        All are durable when this returns. While one commit is written the next batch is applied in
        memory, so batches are taken from the iterator one ahead.

        Args:
            events: Events, or their fields as dictionaries.

        Returns:
            What became of the events. Invalid events stand in `refused` with their reasons.

        Raises:
            StoreError: A commit failed. Then neither its batch nor a later one was written.
        """
        total, source = CommitResult(), iter(events)
        chunks = iter(lambda: list(islice(source, self.batch)), [])
        for result in self.process(map(EventBatch, chunks)):
            total.add(result)
        return total

    def process(self, batches: Iterable[EventBatch | None]) -> Iterator[CommitResult]:
        """Commit batches one by one; yield the result of each when it is durable.

        A batch is applied in memory while the commit before it is written. So the result of a
        batch is yielded after the next batch was taken from `batches`.

        Args:
            batches: The batches. None means that no batch is available at the moment: then the
                commit in flight is finished, and its result yielded, before the next one is taken.

        Returns:
            One result per batch.

        Raises:
            StoreError: A commit failed. Results of durable commits are yielded first.
        """
        self._owner.check()  # a forked child may never get the lock
        source, in_flight = _end_with_none(batches), None
        batch = next(source)
        try:
            for following in source:
                self._owner.check()  # the source may have forked
                if batch is not None:
                    with self._lock:
                        durable, in_flight = in_flight, self._apply(batch, following, in_flight)
                    if durable is not None:
                        yield durable.result
                if following is None and in_flight is not None:
                    with self._lock:
                        self._finish(in_flight)
                    durable, in_flight = in_flight, None
                    yield durable.result
                batch = following
        except Exception:
            self._settle()
            if self._owner.is_current() and in_flight and in_flight.done.exception() is None:
                yield in_flight.result
            raise
        finally:
            self._settle()

    def sketch(self, user: str) -> UserSketch:
        """Return the sketch of a user.

        Args:
            user: Name of the user.

        Returns:
            The sketch; an empty one where there is no record.

        Raises:
            EventError: The name is invalid.
            RecordError: The record is damaged.
        """
        return self.sketches([user])[0]

    def sketches(self, users: Sequence[str]) -> list[UserSketch]:
        """Return the sketches of several users.

        Args:
            users: Names of the users.

        Returns:
            One sketch per user; an empty one where there is no record.

        Raises:
            EventError: A name is invalid.
            RecordError: A record is damaged.
        """
        return self._reader.sketches(users)

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
            RecordError: The record is damaged.
        """
        return self._reader.recommend(user, n, exclude)

    def forget(self, user: str) -> bool:
        """Erase a user, and leave a tombstone.

        Afterwards only events with a sequence number above the user's last one are applied. If the
        record is damaged, that number is lost: no event is applied until `readmit` is called. Call
        `compact` to remove the bytes of the record from the files.

        Args:
            user: Name of the user.

        Returns:
            Whether there was a record.

        Raises:
            EventError: The name is invalid.
        """
        name = parse_name(user, "user")
        with self._exclusive():
            key = name.encode()
            (found,) = self._store.get(Table.USERS, [key])
            if found is None:
                return False
            next_seq = NO_EVENT
            if not find_fault(key, found):
                next_seq = int(decode([key], [found]).next_seq[0])
            counters = self._count(users=-1)
            self._store.commit({
                Table.USERS: {key: None},
                Table.METADATA: {
                    tombstone_key(name): b"%d" % next_seq,
                    COUNTERS: json.dumps(counters).encode(),
                },
            })  # fmt: skip
            self._counters = counters
            return True

    def readmit(self, user: str, last_seq: int | None = None) -> bool:
        """Apply events again of a user who was erased, or whose sequence number is too high.

        Args:
            user: Name of the user.
            last_seq: Only events above this sequence number are applied; None: all events are.

        Returns:
            Whether the user was known: has a record, or was erased.

        Raises:
            EventError: The name or the number is invalid.
            RecordError: The record is damaged.
        """
        with self._exclusive():
            return readmit(self._store, user, last_seq)

    def swap(self, run: str | Path | TrainedModel, *, allow_plugins: bool = False) -> int:
        """Replace the trained model. Sketches change at their user's next refresh.

        The new model may have another size, schedule or vocabulary. Call this again with the old
        model to go back.

        Args:
            run: A run directory, or a trained model.
            allow_plugins: Whether a user's own class that the run names is imported.

        Returns:
            Version number of the model in this store.

        Raises:
            RunError: The run directory holds no finished run.
            ConfigError: The model uses other side information than the records of the store hold.
        """
        trained = as_trained_model(run, allow_plugins=allow_plugins)
        with self._exclusive():
            known = versions.read_versions(self._store)
            widest = max((about["size"] for about in known.values()), default=0)
            engine = Engine(trained, widest=widest)
            number = versions.register(self._store, trained)
            if not self._vocabulary.names:
                items = {name: code for code, name in enumerate(trained.item_ids)}
                self._store.commit({Table.METADATA: self._vocabulary.rows(items)})
                self._vocabulary.add(items)
            self._model_items = ModelItems(self._vocabulary, trained.item_ids)
            self._engine, self._schema = engine, EventSchema.from_model(trained)
            self._reader.trained = engine.trained
            self.version = number
            return number

    def shadow(
        self, run: str | Path | TrainedModel | None, *, allow_plugins: bool = False
    ) -> Shadow | None:
        """Evaluate another model in shadow: it decides at every refresh, and changes nothing.

        Args:
            run: A run directory or a trained model; None ends the shadow evaluation.
            allow_plugins: Whether a user's own class that the run names is imported.

        Returns:
            Counts of how the decisions differ from now on; None where it was ended.

        Raises:
            RunError: The run directory holds no finished run.
        """
        trained = None if run is None else as_trained_model(run, allow_plugins=allow_plugins)
        with self._exclusive():
            shadow = None if trained is None else Shadow(trained, self._vocabulary)
            self._engine.shadow = shadow
            return shadow

    def resize(self) -> ResizeResult:
        """Reduce every sketch that is larger than the model's size, by the model's policy.

        Without this a sketch is reduced at its user's next event. Commits happen in between, and
        the call may be repeated after an interruption. Damaged records are left as they are.

        Returns:
            Number of sketches that were changed, and the users whose record is damaged.
        """
        with self._exclusive():
            index = self._model_items.index
            return resize(self._store, self._engine, index, self.version, self.batch)

    def stats(self) -> dict[str, Any]:
        """Return counters since the store was created, and settings of the current model.

        Returns:
            users, applied, repeated, forgotten, refused, items, ids, policy, size, periods,
            version; and the counters of the store itself.
        """
        with self._exclusive():
            trained = self._engine.trained
            counters = {name: self._counters.get(name, 0) for name in COUNTER_NAMES}
            return {
                **counters,
                "items": len(self._vocabulary.names),
                "ids": min(self._window.count, self._window.length),
                "policy": trained.policy_spec.name,
                "size": trained.size,
                "periods": list(trained.periods),
                "version": self.version,
                **self._store.stats(),
            }

    def offset(self, source: str) -> int:
        """Return the offset of a source that was written with its last commit; 0 if none was."""
        with self._exclusive():
            (found,) = self._store.get(Table.METADATA, [OFFSETS + source.encode()])
            return int(found or b"0")

    def compact(self) -> None:
        """Rewrite the files of the store, so that they hold no bytes of deleted rows.

        Raises:
            StoreError: The files could not be rewritten, for example because they are being read.
        """
        with self._exclusive():
            self._store.compact()

    def owns(self, path: Path) -> bool:
        """Return whether a path leads to a file of the store, which nothing else may write to."""
        return self._store.owns(path)

    def close(self) -> None:
        """Finish the commit in flight, and close the store."""
        if self._owner.is_current():
            with self._exclusive():
                self._writer.close()
                self._reader.close()
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

    def _count(self, **more: int) -> dict[str, int]:
        return {n: self._counters.get(n, 0) + more.get(n, 0) for n in COUNTER_NAMES}

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the lock, with no commit in flight."""
        self._owner.check()
        with self._lock:
            self._writer.wait()
            yield

    def _apply(
        self, batch: EventBatch, following: EventBatch | None, in_flight: InFlightCommit | None
    ) -> InFlightCommit:
        """Apply one batch in memory, wait for the commit before it, and submit its commit."""
        loaded = self._writer.prefetched(in_flight)
        if loaded is None:  # the first batch, or another caller has written since
            self._writer.wait()
            loaded = self._load(batch)
        model = self._schema, self._engine, self._vocabulary, self._model_items, self.version
        result, records, new_users, new_items, item_index = apply_batch(loaded, *model)
        self._finish(in_flight)
        batch.on_refused(result.refused)
        result.refused += batch.refused
        counters, ids = self._count(users=new_users, **result.counts()), loaded.ids.new
        change = {Table.USERS: records, Table.METADATA: {}, **self._window.rows(ids)}
        change[Table.METADATA] |= self._vocabulary.rows(new_items)
        change[Table.METADATA] |= {
            OFFSETS + n.encode(): b"%d" % v for n, v in batch.offsets.items()
        }
        change[Table.METADATA][COUNTERS] = json.dumps(counters).encode()
        roll_back, write = self._roll_back(), _write_nothing
        self._vocabulary.add(new_items)  # before a reader can see their codes
        self._window.add(ids)
        self._model_items.index, self._counters = item_index, counters
        if any(result.counts().values()) or batch.offsets:  # else there is nothing to write
            write = self.metrics.measured(
                self._store.stage(change), result, newest_time(loaded.events)
            )
        has_shadow = self._engine.shadow is not None
        commit = self._writer.submit(
            write,
            roll_back,
            result,
            lambda: None if following is None or has_shadow else self._load(following),
        )
        if has_shadow:  # its counts cannot be rolled back: do not overlap
            self._finish(commit)
        return commit

    def _load(self, batch: EventBatch) -> LoadedBatch:
        return load_batch(batch.events, self._store, self._schema, self._vocabulary, self._window)

    def _settle(self) -> None:
        """Wait until no commit is in flight; a forked child has no thread that could finish it."""
        if self._owner.is_current():
            with self._lock:
                self._writer.wait()

    def _finish(self, commit: InFlightCommit | None) -> None:
        """Wait until no commit is in flight; raise the error of this commit if it failed."""
        self._writer.wait()
        if commit is not None:
            commit.done.result()

    def _roll_back(self) -> Callable[[], None]:
        """Return a function that restores what memory holds now."""
        items, position = len(self._vocabulary.names), self._window.position
        index, counters = self._model_items.index, self._counters

        def roll_back() -> None:
            self._vocabulary.roll_back(items)
            self._window.roll_back(position)
            self._model_items.index, self._counters = index, counters

        return roll_back


def _end_with_none(batches: Iterable[EventBatch | None]) -> Iterator[EventBatch | None]:
    """Yield the batches and None at the end; an error of their source is raised after the None."""
    try:
        yield from batches
    except Exception:
        yield None
        raise
    yield None


def _write_nothing() -> None:
    """Stand in for the write of a commit that is not needed."""
