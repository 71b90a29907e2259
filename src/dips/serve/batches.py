"""Load a batch of events with the records of its users, and apply it. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dips.data.interactions import Int64
from dips.numerics.hashing import text_keys
from dips.serve.admission import Admission, CommitResult, RefusedEvent
from dips.serve.arrivals import arrival_columns
from dips.serve.deduplication import BatchIds, DeduplicationWindow, id_hash
from dips.serve.engine import Engine
from dips.serve.events import Event, EventError, EventLike, EventSchema, parse_event
from dips.serve.records import UserRecords, decode_unchecked, encode, find_fault
from dips.serve.stores.base import Store, Table
from dips.serve.tombstones import read_tombstones
from dips.serve.user_states import UserStates
from dips.serve.vocabulary import ItemVocabulary, ModelItems


class EventBatch(NamedTuple):
    """Events of one commit, as a source delivers them."""

    events: Sequence[EventLike]
    offsets: Mapping[str, int] = {}
    """Offsets of sources that the commit writes, by name: how much of each has been read."""
    on_refused: Callable[[Sequence[RefusedEvent]], None] = lambda refused: None
    """Called with the events that the keeper refuses, before the commit."""
    refused: Sequence[RefusedEvent] = ()
    """What the source has refused already; counted with the commit."""


class LoadedBatch(NamedTuple):
    """Valid events of a batch, with what the store holds of their users."""

    events: list[Event]
    row: Int64  # [events] which user each event belongs to
    users: list[str]  # each user once, in order of arrival
    keys: list[bytes]  # [users] keys in the store
    found: list[bytes | None]  # [users] records; None where there is none
    tombstones: dict[str, int]
    ids: BatchIds
    refused: list[RefusedEvent]

    def decode(self) -> tuple[UserRecords, dict[str, str]]:
        """Decode the records of the users; return also why a user's record is damaged, by user."""
        pairs = zip(self.keys, self.found, strict=True)
        faults = ["" if record is None else find_fault(key, record) for key, record in pairs]
        damaged = {user: why for user, why in zip(self.users, faults, strict=True) if why}
        intact = [r if not why else None for r, why in zip(self.found, faults, strict=True)]
        return decode_unchecked(intact if damaged else self.found), damaged


class AppliedBatch(NamedTuple):
    """Changes that a batch makes, ready to be committed."""

    result: CommitResult
    records: dict[bytes, bytes | None]
    """Changed records by user."""
    new_users: int
    """Number of users that had no record before."""
    new_items: dict[str, int]
    """Codes of items that the store did not know."""
    item_index: Tensor
    """Model item of every code, the new ones included, [codes]."""


def load_batch(
    events: Sequence[EventLike],
    store: Store,
    schema: EventSchema,
    vocabulary: ItemVocabulary,
    window: DeduplicationWindow,
) -> LoadedBatch:
    """Validate events, and read the records, tombstones and event ids that decide about them.

    Args:
        events: Events of one commit.
        store: Store to read from.
        schema: Schema of the model's events.
        vocabulary: Items of the store.
        window: Known event ids.

    Returns:
        The valid events and what was read; invalid events with their reasons.

    Raises:
        StoreError: The store cannot be read.
    """
    valid, refused = _validate(events, schema, vocabulary)
    names = [event.user for event in valid]
    row_of = {user: row for row, user in enumerate(dict.fromkeys(names))}
    users, row = list(row_of), np.array([row_of[name] for name in names], np.int64)
    keys = [user.encode() for user in users]
    found = store.get(Table.USERS, keys)
    absent = [user for user, record in zip(users, found, strict=True) if record is None]
    tombstones = read_tombstones(store, absent)
    ids = window.look_up([id_hash(e.user, e.id) for e in valid if e.id is not None])
    return LoadedBatch(valid, row, users, keys, found, tombstones, ids, refused)


def apply_batch(
    batch: LoadedBatch,
    schema: EventSchema,
    engine: Engine,
    vocabulary: ItemVocabulary,
    model_items: ModelItems,
    version: int,
) -> AppliedBatch:
    """Decide which events are applied, and update the sketches of their users.

    Args:
        batch: The events and the records of their users.
        schema: Schema of the model's events.
        engine: Policy and recommender of the model.
        vocabulary: Items of the store.
        model_items: Items of the model.
        version: Version number of the policy, written to the records.

    Returns:
        The changes to commit.
    """
    result, new_items = CommitResult(refused=list(batch.refused)), dict[str, int]()
    records, damaged = batch.decode()
    admission = Admission(batch.tombstones, damaged, batch.ids, result)
    events, row, next_seq = admission.admit(batch.events, batch.row, records.next_seq)
    codes = vocabulary.codes([event.item for event in events], new_items)
    item_index = model_items.extended(new_items)
    states = UserStates.from_records(records, engine.size, engine.longest)
    states.next_seq[:] = torch.from_numpy(next_seq)
    arrivals, user_keys = arrival_columns(events, codes, schema), partial(text_keys, batch.users)
    engine.apply_arrivals(states, torch.from_numpy(row), arrivals, user_keys, item_index)
    after, changed, keys = states.to_records(version), np.unique(row), batch.keys
    if len(changed) < len(keys):
        after, keys = after.take(changed), [keys[n] for n in changed.tolist()]
    written: dict[bytes, bytes | None] = dict(zip(keys, encode(keys, after), strict=True))
    new_users = sum(batch.found[n] is None for n in changed.tolist()) if None in batch.found else 0
    return AppliedBatch(result, written, new_users, new_items, item_index)


def _validate(
    events: Sequence[EventLike], schema: EventSchema, vocabulary: ItemVocabulary
) -> tuple[list[Event], list[RefusedEvent]]:
    """Return the events that are valid under a schema, and the others with their reasons."""
    valid, refused = list[Event](), list[RefusedEvent]()
    for value in events:
        try:
            event = value if isinstance(value, Event) else parse_event(value)
            schema.validate(event)
            vocabulary.check_limit(event.item)
            valid.append(event)
        except EventError as error:
            refused.append(RefusedEvent(value, str(error)))
    return valid, refused
