"""One pass over a history gives the gradients of reading every prefix separately."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dips.data.interactions import Interactions
from dips.numerics.descent import identity
from dips.recommender.gru import GRU
from dips.recommender.losses import BPRMax, FullSoftmax, Loss
from dips.recommender.sasrec import SASRec
from dips.recommender.sequential import Sequential
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import FullHistoryRollout
from dips.rollout.trace import FullHistoryTrace
from dips.stream.users import EventColumns, make_stream
from dips.training.batches import FullHistoryBlock
from dips.training.config import TrainConfig
from dips.training.recommender_gradients import recommender_gradients
from dips.training.sequences import SequenceBlock, dropouts, full_history_block, sequence_gradients

World = Callable[..., Interactions]
Kind = Callable[..., Sequential]
LENGTHS = [9, 3, 12, 1, 7, 6]


def _trace(parts: list[Interactions]) -> FullHistoryTrace:
    return FullHistoryRollout(make_stream(parts, EventColumns.of(parts[0]))).trace


def _model(loss: Loss, seed: int = 0, kind: Kind = GRU) -> Sequential:
    generator = torch.Generator().manual_seed(seed)
    return kind(items=8, loss=loss, dim=3, generator=generator)


@pytest.mark.parametrize("kind", [GRU, SASRec])
@pytest.mark.parametrize("loss", [FullSoftmax(), BPRMax(4)])
def test_gradients_equal_those_of_separate_prefixes(world: World, loss: Loss, kind: Kind) -> None:
    data = world(LENGTHS, items=8, explicit=False)
    late = replace(data, warmup=np.array([2, 0, 5, 0, 0, 1]))
    trace = _trace([data, late.select([2, 0, 5])])
    stack = StackedRecommenders.of([_model(loss, seed, kind) for seed in (0, 1)])
    for rows in SequenceBlock(trace).batches([0, 1], 1, 16):
        found = sequence_gradients(stack, trace, rows, [identity, identity])
        losses, gradients = recommender_gradients(stack, trace, rows)
        there = (rows >= 0).any(1)
        torch.testing.assert_close(found[0][there], losses[there])
        for name, value in gradients.items():
            torch.testing.assert_close(
                found[1][name][there], value[there], atol=1e-5, rtol=1e-3, msg=name
            )
            assert not found[1][name][~there].any()


def test_batches_hold_whole_users_and_every_prediction_once(world: World) -> None:
    data = world(LENGTHS, items=8, explicit=False)
    trace = _trace([data, data.select([1, 4])])
    batches = SequenceBlock(trace).batches([0, 7], 3, 10)
    for run in (0, 1):
        rows = torch.cat([batch[run][batch[run] >= 0] for batch in batches])
        assert sorted(rows.tolist()) == list(range(*trace.run_rows[run : run + 2]))
        users = [set(trace.user[b[run][b[run] >= 0]].tolist()) for b in batches]
        assert sum(map(len, users)) == len(set.union(*users))  # no user is in two batches
    single = SequenceBlock(_trace([data])).batches([0], 3, 10)
    own = [batch[0][batch[0] >= 0] for batch in batches]
    for mine, other in zip([rows for rows in own if len(rows)], single, strict=True):
        assert torch.equal(mine, other[0])
    other = SequenceBlock(trace).batches([0, 7], 4, 10)
    assert [b.tolist() for b in other] != [b.tolist() for b in batches]


def test_sequential_models_are_trained_in_one_pass(world: World, dot: Callable[..., Any]) -> None:
    trace = _trace([world(LENGTHS, explicit=False)])
    assert isinstance(full_history_block(trace, _model(FullSoftmax())), SequenceBlock)
    assert isinstance(full_history_block(trace, dot(FullSoftmax())), FullHistoryBlock)


def test_dropout_is_a_function_of_seed_and_step() -> None:
    configs = [
        TrainConfig.of(dropout=0.5, seed=1),
        TrainConfig.of(dropout=0.0),
        TrainConfig.of(dropout=0.5),
    ]
    ones = torch.ones(400)
    first = [drop(ones) for drop in dropouts(configs, torch.tensor([4.0, 4.0, 4.0]))]
    again = [drop(ones) for drop in dropouts(configs, torch.tensor([4.0, 4.0, 5.0]))]
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], ones)
    assert not torch.equal(first[2], again[2])
    assert not torch.equal(first[0], first[2])
    assert set(first[0].tolist()) == {0.0, 2.0}
    assert float(first[0].mean()) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("kind", [GRU, SASRec])
def test_seen_items_are_filtered_in_one_pass(world: World, kind: Kind) -> None:
    """Losses and gradients are those of separate prefixes, and not those without a filter."""
    trace = _trace([world(LENGTHS, items=8, explicit=False)])
    stack = StackedRecommenders.of([_model(FullSoftmax(), 0, kind)])
    rows = torch.arange(len(trace.event))[None]
    plain, _ = sequence_gradients(stack, trace, rows, [identity])
    stack.template.masks_seen = True
    found, slopes = sequence_gradients(stack, trace, rows, [identity])
    losses, gradients = recommender_gradients(stack, trace, rows)
    torch.testing.assert_close(found, losses)
    assert bool((found < plain - 0.01).all())
    for name, value in gradients.items():
        torch.testing.assert_close(slopes[name], value, atol=1e-5, rtol=1e-3, msg=name)
