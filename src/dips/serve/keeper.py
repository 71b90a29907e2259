"""The keeper: sketches in a store, kept up to date from events, durably and exactly once.

A batch of events is applied in rounds, the r-th event of every user in round r, and committed as a
whole; the result does not depend on how events are batched. Knows nothing of training.
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
from dips.model.trained_model import TrainedModel, open_model
from dips.numerics.hashing import text_keys
from dips.serve import versions
from dips.serve.admission import Tally
from dips.serve.batches import Batch, Given, Opened, decide, gone_key, open_batch
from dips.serve.deduplication import Window
from dips.serve.engine import Engine
from dips.serve.events import EventError, Rules
from dips.serve.in_flight import Flight, Underway
from dips.serve.reader import UserSketch, read_sketches
from dips.serve.recommend import recommend
from dips.serve.records import Rows, decode, encode, fault
from dips.serve.shadow import Shadow
from dips.serve.user_states import States, stored
from dips.serve.stores.base import RESTORING, Store, StoreError, Table, open_store
from dips.serve.vocabulary import Numbering, Vocabulary

BATCH = 1000
"""Events in a commit."""
ID_BYTES = 64 * 1024 * 1024
"""Budget of the side table of event ids: the newest million."""
COUNTS, MARKS = b"counts", b"mark/"
COUNTED = ("users", "applied", "repeated", "forgotten", "refused")


def open_keeper(
    run: str | Path | TrainedModel,
    store: str | Store = "sqlite:sketches.db",
    *,
    batch: int = BATCH,
    id_bytes: int = ID_BYTES,
) -> Keeper:
    """Keep sketches under a trained run, in a store: `memory:` or `sqlite:PATH`.

    `batch` events make a commit; `id_bytes` is the budget of the window of event ids.
    """
    trained = run if isinstance(run, TrainedModel) else open_model(Path(run))
    opened = open_store(store) if isinstance(store, str) else store
    try:
        return Keeper(trained, opened, batch=batch, id_bytes=id_bytes)
    except BaseException:
        opened.close()
        raise


@final
class Keeper:
    """Everyone's sketch under one run, in one store. Safe to use from several threads."""

    def __init__(
        self, trained: TrainedModel, store: Store, *, batch: int = BATCH, id_bytes: int = ID_BYTES
    ) -> None:
        if batch < 1:
            raise ConfigError(f"batch is {batch}: it must be at least 1")
        self._store, self.batch, self._lock = store, batch, threading.RLock()
        if store.get(Table.FACTS, [RESTORING]) != [None]:
            raise StoreError("a restore into this store was interrupted: restore it anew elsewhere")
        self._items = Vocabulary(store)
        self._window = Window(store, id_bytes, batch)
        self._underway = Underway()
        (found,) = store.get(Table.FACTS, [COUNTS])
        self._counts: dict[str, int] = json.loads(found or b"{}")
        self.swap(trained)

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
        """One more interaction of a user, durable on return; whether it was applied."""
        values = {"user": user, "item": item, "rating": rating, "time": time, "id": id, "seq": seq}
        tally = self.observe_many([{**side, **values}])
        if tally.refused:
            raise EventError(tally.refused[0][1])
        return tally.applied == 1

    def observe_many(self, events: Iterable[Given]) -> Tally:
        """Many interactions, a commit for every `batch`; bad ones are told in the tally."""
        whole, source = Tally(), iter(events)
        pieces = iter(lambda: list(islice(source, self.batch)), [])
        for tally in self.follow(map(Batch, pieces)):
            whole.add(tally)
        return whole

    def follow(self, batches: Iterable[Batch | None]) -> Iterator[Tally]:
        """A commit for each of these batches; what became of its events is told when it is durable.

        Batches are asked for one ahead, and decided while the commit before is written. `None`
        among them says that there is no next one for now: then it is not waited for. What goes
        wrong with a batch, or with the source, is raised when all that is durable has been told.
        """
        source, before = _ended(batches), None
        batch = next(source)
        try:
            for following in source:
                if batch is not None:
                    with self._lock:
                        landed, before = before, self._apply(batch, following, before)
                    if landed is not None:
                        yield landed.tally
                if following is None and before is not None:
                    with self._lock:
                        self._landed(before)
                    landed, before = before, None
                    yield landed.tally
                batch = following
        except Exception:
            with self._lock:
                self._underway.rounding()
            if before is not None and before.done.exception() is None:
                yield before.tally
            raise
        finally:
            with self._lock:
                self._underway.rounding()

    def sketch(self, user: str) -> UserSketch:
        """What is remembered of a user; nothing where there is no record."""
        return self.sketches([user])[0]

    def sketches(self, users: Sequence[str]) -> list[UserSketch]:
        """What is remembered of several users."""
        with self._alone():
            rows = self._rows([user.encode() for user in users])
            return read_sketches(self._items.names, users, rows)

    def recommend(self, user: str, n: int = 20) -> list[tuple[str, float]]:
        """The best items for a user, at most `n`, by the run's recommender, with their scores."""
        with self._alone():
            rows = self._rows([user.encode()])
            state = States.of(rows, self._engine.size, 1)
            number = self._numbering.number
            return recommend(self._engine.trained, state.sketch, state.seen, number, n)

    def forget(self, user: str) -> bool:
        """Erase a user; whether there was a record. `compact` removes the last traces from files.

        Afterwards only events with a sequence number above the user's last one count again.
        """
        with self._alone():
            key = user.encode()
            (found,) = self._store.get(Table.USERS, [key])
            if found is None:
                return False
            last = 0 if fault(key, found) else int(decode([key], [found]).last[0])
            counts = self._counted(users=-1)
            self._store.commit({
                Table.USERS: {key: None},
                Table.FACTS: {gone_key(user): b"%d" % last, COUNTS: json.dumps(counts).encode()},
            })  # fmt: skip
            self._counts = counts
            return True

    def readmit(self, user: str) -> None:
        """Let a user who was forgotten start anew with any event."""
        with self._alone():
            self._store.commit({Table.FACTS: {gone_key(user): None}})

    def swap(self, run: str | Path | TrainedModel) -> int:
        """Go on under another run, of the same or another size; return its version number.

        Sketches stay as they are until their user's next refresh. Swapping back is the same call.
        """
        trained = run if isinstance(run, TrainedModel) else open_model(Path(run))
        with self._alone():
            known = versions.versions(self._store)
            widest = max((about["size"] for about in known.values()), default=0)
            engine = Engine(trained, widest=widest)
            number = versions.register(self._store, trained)
            if not self._items.names:
                seed = {name: code for code, name in enumerate(trained.item_ids)}
                self._store.commit({Table.FACTS: self._items.rows(seed)})
                self._items.adopt(seed)
            self._numbering = Numbering(self._items, trained.item_ids)
            self._engine, self._rules, self.version = engine, Rules.of(trained), number
            return number

    def shadow(self, run: str | Path | TrainedModel | None) -> Shadow | None:
        """Ask another run at every refresh, without doing what it says; None ends it.

        What it returns counts the differences from now on.
        """
        trained = run if run is None or isinstance(run, TrainedModel) else open_model(Path(run))
        with self._alone():
            shadow = None if trained is None else Shadow(trained, self._items)
            self._engine.shadow = shadow
            return shadow

    def resize(self) -> int:
        """Bring every sketch to the size of the run now, not at the user's next event.

        Returns how many were changed; commits in pieces, and may be repeated.
        """
        with self._alone():
            changed = 0
            for keys, rows in stored(self._store, self.batch):
                states = States.of(rows, self._engine.size, self._engine.longest)
                identity = text_keys(key.decode() for key in keys)
                these = self._engine.shrink(states, identity, self._numbering.number)
                picked = Rows(*(field[these] for field in states.rows(self.version)))
                users = [keys[i] for i in these]
                written = dict(zip(users, encode(users, picked), strict=True))
                self._store.commit({Table.USERS: written})
                changed += len(these)
            return changed

    def stats(self) -> dict[str, Any]:
        """Counts since the store was made, and what is at work now."""
        with self._alone():
            trained = self._engine.trained
            counts = {name: self._counts.get(name, 0) for name in COUNTED}
            return {
                **counts,
                "items": len(self._items.names),
                "ids": min(self._window.count, self._window.length),
                "policy": trained.policy_spec.name,
                "size": trained.size,
                "periods": list(trained.periods),
                "version": self.version,
                **self._store.stats(),
            }

    def mark(self, name: str) -> int:
        """The number that was written under this name with the last commit; 0 where none was."""
        with self._alone():
            (found,) = self._store.get(Table.FACTS, [MARKS + name.encode()])
            return int(found or b"0")

    def compact(self) -> None:
        """Write the store's files anew: nothing of what was deleted stays in them."""
        with self._alone():
            self._store.compact()

    def close(self) -> None:
        """Let go of the store."""
        with self._alone():
            self._underway.close()
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

    def _rows(self, users: Sequence[bytes]) -> Rows:
        return decode(users, self._store.get(Table.USERS, users))

    def _counted(self, **more: int) -> dict[str, int]:
        return {n: self._counts.get(n, 0) + more.get(n, 0) for n in COUNTED}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else is at work, and no commit on its way."""
        with self._lock:
            self._underway.rounding()
            yield

    def _apply(self, batch: Batch, following: Batch | None, before: Flight | None) -> Flight:
        """One batch: admit, change the sketches, send the commit on its way.

        `before` is the commit of the batch before, which is written meanwhile.
        """
        opened = self._underway.opened(before)
        if opened is None:  # the first batch, or others have been at work
            self._underway.rounding()
            opened = self._open(batch)
        run = self._rules, self._engine, self._items, self._numbering, self.version
        tally, records, users, items, number = decide(opened, *run)
        self._landed(before)
        batch.refuse(tally.refused)
        counts, ids = self._counted(users=users, **tally.counts()), opened.ids.new
        change = {Table.USERS: records, Table.FACTS: {}, **self._window.rows(ids)}
        change[Table.FACTS] |= self._items.rows(items)
        change[Table.FACTS] |= {MARKS + n.encode(): b"%d" % v for n, v in batch.marks.items()}
        change[Table.FACTS][COUNTS] = json.dumps(counts).encode()
        undo, end = self._undo(), _nothing
        if tally.applied or batch.marks:  # else there is nothing that must not be lost
            end = self._store.stage(change)
        if self._engine.shadow is not None:  # what it counts is not undone: nothing is ahead of it
            end()
            end, following = _nothing, None
        self._items.adopt(items)
        self._window.adopt(ids)
        self._numbering.number, self._counts = number, counts
        return self._underway.send(end, undo, tally, lambda: following and self._open(following))

    def _open(self, batch: Batch) -> Opened:
        return open_batch(batch.events, self._store, self._rules, self._items, self._window)

    def _landed(self, flight: Flight | None) -> None:
        """Wait until nothing is on its way; raises what went wrong with this commit."""
        self._underway.rounding()
        if flight is not None:
            flight.done.result()

    def _undo(self) -> Callable[[], None]:
        """How to go back to what is known now."""
        items, place = len(self._items.names), self._window.place
        number, counts = self._numbering.number, self._counts

        def undo() -> None:
            self._items.cut(items)
            self._window.back_to(place)
            self._numbering.number, self._counts = number, counts

        return undo


def _ended(batches: Iterable[Batch | None]) -> Iterator[Batch | None]:
    """These batches and None; also where their source fails, which is told after that."""
    try:
        yield from batches
    except Exception:
        yield None
        raise
    yield None


def _nothing() -> None:
    """The end of a commit that need not be."""
