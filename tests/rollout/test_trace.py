"""Histories of a trace: the prefixes of any predictions, each user's once."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dips.data.interactions import Interactions
from dips.rollout.rollout import FullHistoryRollout
from dips.stream.users import Stream


def test_histories_are_the_prefixes_of_the_rows(
    world: Callable[..., Interactions], stream_of: Callable[..., Stream]
) -> None:
    trace = FullHistoryRollout(stream_of([world([5, 3, 1, 4], explicit=False)])).trace
    for rows in (torch.arange(13), torch.tensor([7, 2, 3, 10]), torch.tensor([0])):
        found, past = trace.histories(rows), trace.evidence(rows)
        assert len(found.item) == len(set(trace.user[rows].tolist()))
        for row in range(len(rows)):
            length = int(found.step[row])
            prefix = found.item[found.user[row], :length]
            assert prefix.tolist() == past.item[row, : int(past.slots[row])].tolist()
