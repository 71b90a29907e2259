"""Admission of a batch at once against admission event by event."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dips.serve.admission import Admission, CommitResult
from dips.serve.deduplication import DeduplicationWindow, id_hash
from dips.serve.events import Event
from dips.serve.stores.registry import open_store

USERS = ["a", "b", "c"]
numbers = st.integers(0, 6) | st.sampled_from([2**40 + 2, 2**41, 2**62 - 1])
events = st.builds(
    lambda user, seq, name: Event(user, "1", 3.0, id=None if seq is not None else name, seq=seq),
    st.sampled_from(USERS),
    st.none() | numbers,
    st.none() | st.sampled_from("xy"),
)
rising = st.lists(st.sampled_from(USERS), max_size=8).map(
    lambda users: [Event(user, "1", 3.0, seq=n) for n, user in enumerate(users)]
)
few = st.dictionaries(st.sampled_from(USERS), st.integers(0, 4), max_size=1)


@given(
    batch=st.lists(events, max_size=8) | rising,
    next_seq=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    tombstones=few,
    damaged=few,
)
def test_a_batch_at_once_gives_the_result_of_event_by_event(batch, next_seq, tombstones, damaged):
    """Applied events, rows, next sequence numbers, counts, reasons and new ids are equal."""
    row = np.array([USERS.index(event.user) for event in batch], np.int64)
    damaged, found = {user: "is damaged" for user in damaged}, []
    for method in (Admission.admit, Admission.admit_each):
        ids = DeduplicationWindow(open_store("memory:"), 64 * 100, 1).look_up(
            [id_hash(e.user, e.id) for e in batch if e.id is not None]
        )
        result, before = CommitResult(), np.array(next_seq, np.int64)
        admission = Admission(tombstones, damaged, ids, result)
        events, rows, after = method(admission, batch, row, before)
        assert before.tolist() == next_seq  # the argument is not changed
        found.append((list(events), rows.tolist(), after.tolist(), result, ids.new))
    assert found[0] == found[1]


def test_a_batch_without_duplicates_is_not_checked_event_by_event(monkeypatch):
    monkeypatch.setattr(Admission, "admit_each", None)
    batch = [Event(user, "1", 3.0, seq=n) for n, user in enumerate("abacab")]
    row = np.array([USERS.index(event.user) for event in batch], np.int64)
    ids = DeduplicationWindow(open_store("memory:"), 64, 1).look_up([])
    result = CommitResult()
    _, _, after = Admission({}, {}, ids, result).admit(batch, row, np.zeros(3, np.int64))
    assert (result.applied, after.tolist()) == (6, [5, 6, 4])
