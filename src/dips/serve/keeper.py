"""The keeper: sketches in a store, kept up to date from events, durably and exactly once.

A batch of events is applied in rounds, the r-th event of every user in round r, and committed as a
whole; the result does not depend on how events are batched. Knows nothing of training.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np
import torch
from torch import Tensor

from dips.bundle import Bundle, open_bundle
from dips.errors import ConfigError
from dips.numerics.hashing import text_keys
from dips.serve import versions
from dips.serve.admission import Refusal, Tally, admit
from dips.serve.duplicates import Window, id_key
from dips.serve.engine import Engine
from dips.serve.events import Event, EventError, Rules, read_event
from dips.serve.reading import UserSketch, read_sketches
from dips.serve.recommending import recommend
from dips.serve.records import Rows, decode, encode, fault, unpack
from dips.serve.rounds import arrivals_of, rounds
from dips.serve.shadow import Shadow
from dips.serve.states import States, stored
from dips.serve.store import RESTORING, Store, StoreError, Table, open_store
from dips.serve.vocabulary import Numbering, Vocabulary
from dips.sketch.records import Sketch

BATCH = 1000
"""Events in a commit."""
ID_BYTES = 64 * 1024 * 1024
"""Budget of the side table of event ids: the newest million."""
COUNTS, GONE, MARKS = b"counts", b"gone/", b"mark/"
Given = Event | Mapping[str, Any]
"""An event, or what a line of JSON says of one."""
COUNTED = ("users", "applied", "repeated", "forgotten", "refused")


def open_keeper(
    run: str | Path | Bundle,
    store: str | Store = "sqlite:sketches.db",
    *,
    batch: int = BATCH,
    id_bytes: int = ID_BYTES,
) -> Keeper:
    """Keep sketches under a trained run, in a store: `memory:` or `sqlite:PATH`.

    `batch` events make a commit; `id_bytes` is the budget of the window of event ids.
    """
    bundle = run if isinstance(run, Bundle) else open_bundle(Path(run))
    opened = open_store(store) if isinstance(store, str) else store
    try:
        return Keeper(bundle, opened, batch=batch, id_bytes=id_bytes)
    except BaseException:
        opened.close()
        raise


@final
class Keeper:
    """Everyone's sketch under one run, in one store. Safe to use from several threads."""

    def __init__(
        self, bundle: Bundle, store: Store, *, batch: int = BATCH, id_bytes: int = ID_BYTES
    ) -> None:
        if batch < 1:
            raise ConfigError(f"batch is {batch}: it must be at least 1")
        self._store, self.batch, self._lock = store, batch, threading.RLock()
        if store.get(Table.FACTS, [RESTORING]) != [None]:
            raise StoreError("a restore into this store was interrupted: restore it anew elsewhere")
        self._items = Vocabulary(store)
        self._window = Window(store, id_bytes, batch)
        (found,) = store.get(Table.FACTS, [COUNTS])
        self._counts: dict[str, int] = json.loads(found or b"{}")
        self.swap(bundle)

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

    def observe_many(
        self,
        events: Iterable[Given],
        *,
        marks: Mapping[str, int] | None = None,
        refuse: Callable[[Sequence[Refusal]], None] = lambda refused: None,
    ) -> Tally:
        """Many interactions, a commit for every `batch`; bad ones are told in the tally.

        `marks` are numbers by name that are written with the last commit, such as how much of a
        source has been read. `refuse` is given the bad events of a batch before its commit.
        """
        tally, source = Tally(), iter(events)
        piece = list(islice(source, self.batch))
        while True:
            following = list(islice(source, self.batch))
            with self._lock:
                tally.add(self._apply(piece, {} if following else marks or {}, refuse))
            if not following:
                return tally
            piece = following

    def sketch(self, user: str) -> UserSketch:
        """What is remembered of a user; nothing where there is no record."""
        return self.sketches([user])[0]

    def sketches(self, users: Sequence[str]) -> list[UserSketch]:
        """What is remembered of several users."""
        with self._lock:
            rows = self._rows([user.encode() for user in users])
            return read_sketches(self._items.names, users, rows)

    def recommend(self, user: str, n: int = 20) -> list[tuple[str, float]]:
        """The `n` best items for a user by the run's recommender, with their scores."""
        with self._lock:
            rows = self._rows([user.encode()])
            sketch = States.of(rows, self._engine.size, 1).sketch
            number = self._numbering.number
            return recommend(self._engine.bundle, sketch, number, n)

    def forget(self, user: str) -> bool:
        """Erase a user; whether there was a record. `compact` removes the last traces from files.

        Afterwards only events with a sequence number above the user's last one count again.
        """
        with self._lock:
            key = user.encode()
            (found,) = self._store.get(Table.USERS, [key])
            if found is None:
                return False
            last = 0 if fault(key, found) else int(decode([key], [found]).last[0])
            counts = self._counted(users=-1)
            self._store.commit({
                Table.USERS: {key: None},
                Table.FACTS: {_gone(user): b"%d" % last, COUNTS: json.dumps(counts).encode()},
            })  # fmt: skip
            self._counts = counts
            return True

    def readmit(self, user: str) -> None:
        """Let a user who was forgotten start anew with any event."""
        with self._lock:
            self._store.commit({Table.FACTS: {_gone(user): None}})

    def swap(self, run: str | Path | Bundle) -> int:
        """Go on under another run, of the same or another size; return its version number.

        Sketches stay as they are until their user's next refresh. Swapping back is the same call.
        """
        bundle = run if isinstance(run, Bundle) else open_bundle(Path(run))
        with self._lock:
            known = versions.versions(self._store)
            widest = max((about["size"] for about in known.values()), default=0)
            engine = Engine(bundle, widest=widest)
            number = versions.register(self._store, bundle)
            if not self._items.names:
                seed = {name: code for code, name in enumerate(bundle.item_ids)}
                self._store.commit({Table.FACTS: self._items.rows(seed)})
                self._items.adopt(seed)
            self._numbering = Numbering(self._items, bundle.item_ids)
            self._engine, self._rules, self.version = engine, Rules.of(bundle), number
            return number

    def shadow(self, run: str | Path | Bundle | None) -> Shadow | None:
        """Ask another run at every refresh, without doing what it says; None ends it.

        What it returns counts the differences from now on.
        """
        bundle = run if run is None or isinstance(run, Bundle) else open_bundle(Path(run))
        with self._lock:
            shadow = None if bundle is None else Shadow(bundle, self._items)
            self._engine.shadow = shadow
            return shadow

    def resize(self) -> int:
        """Bring every sketch to the size of the run now, not at the user's next event.

        Returns how many were changed; commits in pieces, and may be repeated.
        """
        with self._lock:
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
        with self._lock:
            bundle = self._engine.bundle
            counts = {name: self._counts.get(name, 0) for name in COUNTED}
            return {
                **counts,
                "items": len(self._items.names),
                "ids": min(self._window.count, self._window.length),
                "policy": bundle.policy_spec.name,
                "size": bundle.size,
                "periods": list(bundle.periods),
                "version": self.version,
            }

    def mark(self, name: str) -> int:
        """The number that was written under this name with the last commit; 0 where none was."""
        (found,) = self._store.get(Table.FACTS, [MARKS + name.encode()])
        return int(found or b"0")

    def compact(self) -> None:
        """Write the store's files anew: nothing of what was deleted stays in them."""
        with self._lock:
            self._store.compact()

    def close(self) -> None:
        """Let go of the store."""
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

    def _rows(self, users: Sequence[bytes]) -> Rows:
        return decode(users, self._store.get(Table.USERS, users))

    def _counted(self, **more: int) -> dict[str, int]:
        return {n: self._counts.get(n, 0) + more.get(n, 0) for n in COUNTED}

    def _apply(
        self,
        piece: Sequence[Given],
        marks: Mapping[str, int],
        refuse: Callable[[Sequence[Refusal]], None],
    ) -> Tally:
        """One batch: admit, change the sketches round by round, commit."""
        tally = Tally()
        events = self._checked(piece, tally)
        users = list(dict.fromkeys(event.user for event in events))
        keys = [user.encode() for user in users]
        found = self._store.get(Table.USERS, keys)
        damaged: dict[str, str] = {}
        healthy = list(found)
        for place, record in enumerate(found):
            if record is not None and (reason := fault(keys[place], record)):
                damaged[users[place]], healthy[place] = reason, None
        rows = unpack(healthy)
        last = dict(zip(users, rows.last.tolist(), strict=True))
        gone = self._forgotten([user for user, r in zip(users, found, strict=True) if r is None])
        ids = self._window.look([id_key(e.user, e.id) for e in events if e.id is not None])
        events = admit(events, last, gone, damaged, ids, tally)
        refuse(tally.refused)
        new: dict[str, int] = {}
        code = [self._items.code(event.item, new) for event in events]
        number = self._numbering.with_new(new)
        written = self._advanced(rows, last, events, code, number)
        new_users = [key for key, record in zip(keys, found, strict=True) if record is None]
        counts = self._counted(users=sum(key in written for key in new_users), **tally.counts())
        if events or marks:  # else there is nothing that must not be lost
            change = self._window.rows(ids.new)
            facts = change.pop(Table.FACTS, {}) | self._items.rows(new)
            facts |= {MARKS + name.encode(): b"%d" % value for name, value in marks.items()}
            facts[COUNTS] = json.dumps(counts).encode()
            self._store.commit({Table.USERS: written, Table.FACTS: facts, **change})
        self._items.adopt(new)
        self._window.adopt(ids.new)
        self._numbering.number, self._counts = number, counts
        return tally

    def _advanced(
        self,
        rows: Rows,
        last: Mapping[str, int],
        events: Sequence[Event],
        code: Sequence[int],
        number: Tensor,
    ) -> dict[bytes, bytes]:
        """The records of all users of these events after them; `last` is in the order of rows."""
        row_of = {user: place for place, user in enumerate(last)}
        row = np.array([row_of[event.user] for event in events], np.int64)
        states = States.of(rows, self._engine.size, self._engine.longest)
        states.last[:] = torch.tensor(list(last.values()), dtype=torch.int64)
        identity, arrivals = text_keys(last), arrivals_of(events, code, self._rules)
        for places in rounds(row):
            part = Sketch(*(column[places, None] for column in arrivals))
            self._engine.arrive(states, torch.from_numpy(row[places]), part, identity, number)
        changed, names = np.unique(row), list(last)
        keys = [names[place].encode() for place in changed.tolist()]
        picked = Rows(*(field[changed] for field in states.rows(self.version)))
        return dict(zip(keys, encode(keys, picked), strict=True))

    def _checked(self, piece: Sequence[Given], tally: Tally) -> list[Event]:
        events = []
        for value in piece:
            try:
                event = value if isinstance(value, Event) else read_event(value)
                self._rules.check(event)
                self._items.check(event.item)
                events.append(event)
            except EventError as error:
                tally.refused.append((value, str(error)))
        return events

    def _forgotten(self, users: Sequence[str]) -> dict[str, int]:
        """1 + the last sequence number of those who were forgotten."""
        found = self._store.get(Table.FACTS, [_gone(user) for user in users])
        return {u: int(last) for u, last in zip(users, found, strict=True) if last is not None}


def _gone(user: str) -> bytes:
    """Where it is noted that a user was forgotten: by a hash, not by name."""
    return GONE + hashlib.blake2b(user.encode(), digest_size=16).digest()
