"""Reduce the sketches of a store that are larger than the size of a model."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dips.numerics.hashing import text_keys
from dips.serve.engine import Engine
from dips.serve.records import encode
from dips.serve.stores.base import Store, Table
from dips.serve.user_states import UserStates, scan_records


class ResizeResult(NamedTuple):
    """What became of the sketches of a store."""

    reduced: int
    """Number of sketches that were changed."""
    damaged: dict[str, str]
    """Why a user's record cannot be read, by user; it was left as it is."""


def resize(
    store: Store, engine: Engine, item_index: Tensor, version: int, chunk: int
) -> ResizeResult:
    """Reduce every sketch that is larger than the model's size, by the model's policy.

    Args:
        store: The store, which is written to.
        engine: Policy and recommender of the model.
        item_index: Model item of every code of the store; -1 for unknown items, [codes].
        version: Version number of the policy, written to the records.
        chunk: Most users in a commit.

    Returns:
        Number of reduced sketches, and the users whose record is damaged.

    Raises:
        StoreError: The store cannot be read or written.
    """
    reduced, damaged = 0, dict[str, str]()
    for keys, records, faults in scan_records(store, chunk):
        damaged |= {key.decode(errors="replace"): why for key, why in faults.items()}
        states = UserStates.from_records(records, engine.size, engine.longest)
        rows = engine.shrink(states, text_keys(key.decode() for key in keys), item_index)
        users = [keys[row] for row in rows]
        encoded = encode(users, states.to_records(version).take(rows))
        store.commit({Table.USERS: dict(zip(users, encoded, strict=True))})
        reduced += len(rows)
    return ResizeResult(reduced, damaged)
