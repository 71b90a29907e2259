"""A batch that is seen to be fine at once against events that are looked at one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dips.serve import admission
from dips.serve.admission import Known, Tally, admit, admit_each
from dips.serve.deduplication import Window, id_key
from dips.serve.events import Event
from dips.serve.stores.base import open_store

USERS = ["a", "b", "c"]
numbers = st.integers(0, 6) | st.just(2**63 - 2)
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
    last=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    gone=few,
    damaged=few,
)
def test_at_once_is_one_by_one(batch, last, gone, damaged):
    """The same events, rows, last numbers, counts and reasons, and the same ids are noted."""
    row = np.array([USERS.index(event.user) for event in batch], np.int64)
    damaged, found = {user: "is damaged" for user in damaged}, []
    for way in (admit, admit_each):
        ids = Window(open_store("memory:"), 64 * 100, 1).look(
            [id_key(e.user, e.id) for e in batch if e.id is not None]
        )
        tally, before = Tally(), np.array(last, np.int64)
        admitted = way(batch, row, before, Known(gone, damaged, ids), tally)
        assert before.tolist() == last  # what was read is left alone
        columns = (list(admitted.events), admitted.row.tolist(), admitted.last.tolist())
        found.append((*columns, tally, ids.new))
    assert found[0] == found[1]


def test_a_batch_in_order_is_not_looked_at_one_by_one(monkeypatch):
    monkeypatch.setattr(admission, "admit_each", None)
    batch = [Event(user, "1", 3.0, seq=n) for n, user in enumerate("abacab")]
    row = np.array([USERS.index(event.user) for event in batch], np.int64)
    ids = Window(open_store("memory:"), 64, 1).look([])
    tally = Tally()
    last = admit(batch, row, np.zeros(3, np.int64), Known({}, {}, ids), tally).last
    assert (tally.applied, last.tolist()) == (6, [5, 6, 4])
