"""Histories of a trace: the prefixes of any predictions, and the items in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from dips.data.interactions import Interactions
from dips.policy.registry import make_policy
from dips.rollout.rollout import FullHistoryRollout, rollout
from dips.stream.schedule import Schedule
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


@pytest.mark.parametrize("policy", ["last", "all"])
def test_seen_items_are_those_before_the_prediction(
    policy: str, world: Callable[..., Interactions], stream_of: Callable[..., Stream]
) -> None:
    """All of the history, also what does not count, of the own user and nothing later."""
    data = replace(world([5, 9, 1, 4], items=40, explicit=False), warmup=np.array([2, 0, 0, 3]))
    stream = stream_of([data, data.select([1, 3])])
    trace = rollout(
        stream, make_policy(policy, size=2), size=2, schedule=Schedule((1,)),
        keys=stream.keys([0, 0]),
    )  # fmt: skip
    assert trace.longest == 8
    runs = [data, data.select([1, 3])]
    for run, part in enumerate(runs):
        rows = torch.arange(*trace.run_rows[run : run + 2]).flip(0)
        found = trace.seen_items(rows)
        for row, items in zip(rows.tolist(), found.tolist(), strict=True):
            history = part.item[part.events(int(trace.user[row]))][: int(trace.step[row])]
            assert items[: len(history)] == history.tolist()
            assert set(items[len(history) :]) <= {-1}
    both = trace.seen_items(torch.stack([rows[:3], rows[-3:]]))
    assert both.shape[:2] == (2, 3)
    assert trace.seen_items(rows[-1:]).shape[1] == int(trace.step[rows[-1]])
    assert trace.seen_items(rows[:0]).shape == (0, 0)
    assert trace.seen_items(rows, filtered=False).shape == (len(rows), 0)
