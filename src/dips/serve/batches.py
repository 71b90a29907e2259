"""A batch of events on its way: opened, with what the store holds of its users; then decided.

Writes nothing. Ordinary events are seen to be so all at once, and only where one of them is not,
each is looked at: either way gives the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dips.data.interactions import Int64
from dips.numerics.hashing import text_keys
from dips.serve.admission import Known, Refusal, Tally, admit
from dips.serve.deduplication import Glance, Window, id_key
from dips.serve.engine import Engine
from dips.serve.events import Event, EventError, Rules, read_event
from dips.serve.records import Rows, encode, fault, unpack
from dips.serve.arrivals import arrivals_of
from dips.serve.user_states import States
from dips.serve.stores.base import Store, Table
from dips.serve.vocabulary import Numbering, Vocabulary

GONE = b"gone/"
Given = Event | Mapping[str, Any]
"""An event, or what a line of JSON says of one."""


class Batch(NamedTuple):
    """Events of one commit."""

    events: Sequence[Given]
    marks: Mapping[str, int] = {}
    """Numbers by name that are written with it, such as how much of a source has been read."""
    refuse: Callable[[Sequence[Refusal]], None] = lambda refused: None
    """Is given the bad events before the commit."""


class Opened(NamedTuple):
    """A batch, and what the store holds of its users."""

    events: list[Event]
    row: Int64  # [events] which of the users
    users: list[str]  # each once, in order of arrival
    keys: list[bytes]  # [users]
    found: list[bytes | None]  # [users] their records
    gone: dict[str, int]
    ids: Glance
    refused: list[Refusal]

    def read(self) -> tuple[Rows, dict[str, str]]:
        """[users] their states, and whose cannot be read, with the reason."""
        pairs = zip(self.keys, self.found, strict=True)
        reasons = ["" if record is None else fault(key, record) for key, record in pairs]
        damaged = {user: why for user, why in zip(self.users, reasons, strict=True) if why}
        whole = [r if not why else None for r, why in zip(self.found, reasons, strict=True)]
        return unpack(whole if damaged else self.found), damaged


def open_batch(
    piece: Sequence[Given], store: Store, rules: Rules, items: Vocabulary, window: Window
) -> Opened:
    """Check events, and read what must be known of their users and ids."""
    events, refused = _checked(piece, rules, items)
    names = [event.user for event in events]
    row_of = {user: place for place, user in enumerate(dict.fromkeys(names))}
    users, row = list(row_of), np.array([row_of[name] for name in names], np.int64)
    keys = [user.encode() for user in users]
    found = store.get(Table.USERS, keys)
    gone = _forgotten(store, [u for u, record in zip(users, found, strict=True) if record is None])
    ids = window.look([id_key(e.user, e.id) for e in events if e.id is not None])
    return Opened(events, row, users, keys, found, gone, ids, refused)


class Decided(NamedTuple):
    """What a batch comes to."""

    tally: Tally
    records: dict[bytes, bytes | None]
    users: int
    """How many of the records are somebody's first."""
    items: dict[str, int]
    """Items never met before, and their codes."""
    number: Tensor
    """The run's number of every code."""


def decide(
    opened: Opened,
    rules: Rules,
    engine: Engine,
    items: Vocabulary,
    numbering: Numbering,
    version: int,
) -> Decided:
    """Admit events, and change the sketches of their users; `version` is that of the policy."""
    tally, new = Tally(refused=list(opened.refused)), dict[str, int]()
    rows, damaged = opened.read()
    known = Known(opened.gone, damaged, opened.ids)
    events, row, last = admit(opened.events, opened.row, rows.last, known, tally)
    code = items.codes([event.item for event in events], new)
    number, states = numbering.with_new(new), States.of(rows, engine.size, engine.longest)
    states.last[:] = torch.from_numpy(last)
    arrivals, identity = arrivals_of(events, code, rules), partial(text_keys, opened.users)
    engine.arrive_all(states, torch.from_numpy(row), arrivals, identity, number)
    after, changed, keys = states.rows(version), np.unique(row), opened.keys
    if len(changed) < len(keys):
        after, keys = Rows(*(f[changed] for f in after)), [keys[n] for n in changed.tolist()]
    records: dict[bytes, bytes | None] = dict(zip(keys, encode(keys, after), strict=True))
    first = sum(opened.found[n] is None for n in changed.tolist()) if None in opened.found else 0
    return Decided(tally, records, first, new, number)


def gone_key(user: str) -> bytes:
    """Where it is noted that a user was forgotten: by a hash, not by name."""
    return GONE + hashlib.blake2b(user.encode(), digest_size=16).digest()


def _forgotten(store: Store, users: Sequence[str]) -> dict[str, int]:
    """1 + the last sequence number of those who were forgotten."""
    found = store.get(Table.FACTS, [gone_key(user) for user in users])
    return {u: int(last) for u, last in zip(users, found, strict=True) if last is not None}


def _checked(
    piece: Sequence[Given], rules: Rules, items: Vocabulary
) -> tuple[list[Event], list[Refusal]]:
    """The events that make sense under these rules, and the others with the reasons."""
    events, refused = list[Event](), list[Refusal]()
    for value in piece:
        try:
            event = value if isinstance(value, Event) else read_event(value)
            rules.check(event)
            items.check(event.item)
            events.append(event)
        except EventError as error:
            refused.append((value, str(error)))
    return events, refused
