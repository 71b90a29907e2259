"""A rollout in update intervals equals one rollout, and records the inputs of decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from dips.data.interactions import Interactions
from dips.policy.base import Policy
from dips.policy.paper_network import PaperNetwork
from dips.policy.registry import make_policy
from dips.policy.set_network import SetNetwork
from dips.policy.stacked import StackedPolicies
from dips.recommender.dot import DotProduct
from dips.recommender.losses import Loss
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import FullHistoryRollout, Rollout, rollout
from dips.rollout.trace import StoredTrace
from dips.sketch.selection import Greedy, Sampled, Selector
from dips.stream.schedule import Schedule
from dips.stream.users import Stream

World = Callable[..., Interactions]
StreamOf = Callable[[Sequence[Interactions]], Stream]
Dot = Callable[..., DotProduct]
LENGTHS, SIZE, RUNS = [9, 3, 17, 1, 12, 2, 14, 4, 5, 8], 2, 2
SCHEDULES = [Schedule((1,)), Schedule((4,)), Schedule((3, 5, 2))]


def _policy(kind: str) -> Policy:
    """A policy for all runs; networks differ from run to run."""
    networks: list[torch.nn.Module] = []
    for seed in range(RUNS):
        generator = torch.Generator().manual_seed(seed)
        if kind == "paper":
            networks.append(PaperNetwork(items=8, hidden=8, generator=generator))
        elif kind == "set":
            network = SetNetwork(dim=6, hidden=8, center=3.0, slope=0.1, generator=generator)
            network.output.data.normal_(generator=generator)
            networks.append(network)
        else:
            return make_policy(kind, size=SIZE)
    return StackedPolicies.of(networks)


def _everything(trace: StoredTrace) -> dict[str, Tensor]:
    """All tensors of a trace."""
    assert trace.final is not None
    named = {
        "kept": trace.kept,
        "repeats": trace.repeats,
        "event": trace.event,
        "step": trace.step,
        "user": trace.user,
    }
    named |= {f"final.{name}": value for name, value in trace.final._asdict().items()}
    if trace.scores is not None and trace.final_scores is not None:
        named |= {"scores": trace.scores, "final_scores": trace.final_scores}
    if trace.inputs is not None:
        inputs = trace.inputs
        named |= {"owner": inputs.owner, "key": inputs.key, **inputs.signals}
    return named


@pytest.mark.parametrize("selector", [Greedy(), Sampled()], ids=["greedy", "sampled"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=["online", "batch", "varying"])
@pytest.mark.parametrize("kind", ["last", "reservoir", "frequent", "hardest", "paper", "set"])
def test_update_intervals_do_not_change_the_rollout(
    world: World, stream_of: StreamOf, dot: Dot, losses: dict[str, Loss], kind: str,
    schedule: Schedule, selector: Selector,
) -> None:  # fmt: skip
    """Byte for byte, for stacked runs."""
    data, policy = world(LENGTHS, items=8, seed=3), _policy(kind)
    stream = stream_of([data, data.select([2, 0, 6, 7, 1])])
    stack = StackedRecommenders.of([dot(losses["mse"], seed=seed) for seed in range(RUNS)])
    settings = {
        "size": SIZE, "schedule": schedule, "keys": stream.keys([0, 5]), "selector": selector,
        "with_scores": True, "recorded_signals": ["residual"] if kind == "set" else [],
    }  # fmt: skip
    once = rollout(stream, policy, recommenders=stack, **settings)  # type: ignore[arg-type]
    assert isinstance(once, StoredTrace)
    for interval in (1, 4, 7, 100):
        rolled = Rollout(stream, **settings)  # type: ignore[arg-type]
        for first in range(0, stream.longest + 1, interval):
            rolled.advance(policy, stack, first + interval)
        for name, value in _everything(once).items():
            mine = _everything(rolled.trace)[name]
            assert torch.equal(mine.nan_to_num(-77.0), value.nan_to_num(-77.0)), (interval, name)


def test_predictions_beyond_the_interval_are_not_refreshed(
    world: World, stream_of: StreamOf
) -> None:
    """An interval refreshes the sketches of its own predictions, and no others."""
    stream = stream_of([world([12])])
    settings = {"size": 2, "schedule": Schedule((3,)), "keys": stream.keys([0])}
    rolled = Rollout(stream, **settings)  # type: ignore[arg-type]
    last = make_policy("last", size=2)
    seen = []
    for until in range(1, 13):
        rolled.advance(last, None, until)
        seen.append(rolled.trace.kept[until - 1].tolist())
    assert seen[4:] == [[0, 1]] + [[3, 4]] * 3 + [[6, 7]] * 3 + [[9, 10]]
    rolled = Rollout(stream, **settings)  # type: ignore[arg-type]
    rolled.advance(last, None, 8)
    assert rolled.trace.kept[7].tolist() == [3, 4]  # the refresh at 8 belongs to the next interval
    assert rolled.trace.kept[8].tolist() == [0, 1]


def test_rows_are_base_plus_step(world: World, stream_of: StreamOf) -> None:
    data = world(LENGTHS)
    stream = stream_of([data, data.select([2, 0])])
    some = {"size": 2, "schedule": Schedule(), "keys": stream.keys([0, 1])}
    for rolled in (Rollout(stream, **some), FullHistoryRollout(stream)):  # type: ignore[arg-type]
        for run in range(stream.runs):
            for place, length in enumerate(stream.length[run].tolist()):
                rows = rolled.base[run, place] + torch.arange(length)
                assert rolled.trace.step[rows].tolist() == list(range(length))
                assert rolled.trace.user[rows].unique().tolist() == (
                    [int(stream.user[run, place])] if length else []
                )


def test_repeats_are_recorded_for_every_prediction(world: World, stream_of: StreamOf) -> None:
    """The repeat count of an item while it was kept, computed by hand."""
    stream = stream_of([world(LENGTHS, items=3, seed=7)])
    some = {"size": 2, "schedule": Schedule((2,)), "keys": stream.keys([0])}
    trace = rollout(stream, make_policy("last", size=2), recorded_signals=[], **some)  # type: ignore[arg-type]
    assert isinstance(trace, StoredTrace)
    assert trace.inputs is not None
    for row in range(len(trace.event)):
        step, first = int(trace.step[row]), int(trace.event[row] - trace.step[row])
        kept: list[tuple[int, int, int]] = []  # (position, item, repeats)
        for seen in range(1, step + 1):
            item = int(trace.columns.item[first + seen - 1])
            known = [count for _, other, count in kept if other == item]
            kept.append((seen - 1, item, max(known, default=0) + 1))
            if seen > 2 and (seen - 2) % 2 == 0:
                kept = kept[-2:]
        held = [entry for entry in kept if entry[0] < max(2, 2 + (step - 2) // 2 * 2)][:2]
        repeats = [count for _, _, count in held]
        assert trace.repeats[row].tolist() == repeats + [0] * (2 - len(repeats))
