"""The walk in one launch against the walk refresh by refresh: the same bits, or not taken at all.

Triton's programs run in its interpreter; without triton, or numba, only the other's are tested.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.data.interactions import Interactions
from dips.data.side_information import SideInformation
from dips.kernels import numba_launch
from dips.policy.base import Policy
from dips.policy.hardest import Hardest
from dips.policy.influence import Influence
from dips.policy.network import PaperNetwork
from dips.policy.recency import Last
from dips.policy.stacked import StackedPolicies
from dips.recommender import predicted_score as predicted_scores
from dips.recommender.dot import DotProduct
from dips.recommender.losses import Loss
from dips.recommender.mlp import MLP
from dips.recommender.stacked import StackedRecommenders
from dips.rollout import compiled
from dips.sketch.selection import Sampled
from dips.stream.users import Stream
from tests.rollout.both_paths import (
    DIM,
    ITEMS,
    RUNS,
    everything,
    networks_of,
    same,
    shaken,
    walk_long,
)

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported: not before a walk

World = Callable[..., Interactions]
StreamOf = Callable[[Sequence[Interactions]], Stream]
Dot = Callable[..., DotProduct]
PERIODS = [(1,), (4,), (3, 5, 2)]


@pytest.fixture
def stream(world: World, stream_of: StreamOf) -> Stream:
    """Two runs of a few users who meet the same items again; predictions of some count late."""
    data = world([16, 3, 11, 13], items=ITEMS, seed=3)
    made = stream_of([data, data.select([0, 2])])
    return replace(
        made, warmup=torch.minimum(made.length, torch.tensor([[0, 7, 0, 2], [6, 0, 0, 0]]))
    )


@pytest.fixture
def stack(dot: Dot, losses: dict[str, Loss]) -> StackedRecommenders:
    """A recommender for each run."""
    rest = {"items": ITEMS, "dim": DIM, "inner_steps": 3, "prior_penalty": 0.05}
    return StackedRecommenders.of([dot(losses["mse"], seed=seed, **rest) for seed in range(RUNS)])


@pytest.fixture(params=["numba", "triton"])
def short(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Tensor]]:
    """Walk the short way, and see that it was taken."""
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")

    def walk(*arguments: Any, **settings: Any) -> dict[str, Tensor]:
        with monkeypatch.context() as patch:
            patch.setitem(compiled.COMPILERS, "cpu", request.param)
            patch.setattr("dips.rollout.rollout.Walk._transition", None)  # the long way is closed
            return everything(*arguments, **settings)

    return walk


@pytest.mark.parametrize("periods", PERIODS, ids=["online", "batch", "varying"])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", ["set", "paper"])
def test_the_short_way_leaves_the_same(
    stream: Stream, stack: StackedRecommenders, short: Callable[..., dict[str, Tensor]], kind: str, size: int,
    periods: tuple[int, ...],
) -> None:  # fmt: skip
    """Sketches, repeats, answers and scores; up to 2 entries by coefficients, beyond by vectors."""
    walk = (stream, networks_of(kind), stack, size, periods)
    same(short(*walk), walk_long(*walk))


@pytest.mark.parametrize("periods", PERIODS, ids=["online", "batch", "varying"])
@pytest.mark.parametrize(
    ("size", "recency_decay", "rate"),
    [(1, True, 0.1), (2, False, 9.0), (8, True, 1.0), (8, False, 0.1)],
)
def test_hunches_are_told_the_same(
    stream: Stream, dot: Dot, losses: dict[str, Loss], short: Callable[..., dict[str, Tensor]],
    size: int, recency_decay: bool, rate: float, periods: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Some are older than the oldest, steps are shortened, and the catalogue has more items."""
    monkeypatch.setattr(predicted_scores, "OLDEST", 5)
    rest = {
        "items": ITEMS + 5,
        "dim": DIM,
        "recency_decay": recency_decay,
        "separate_input": True,
        "inner_lr": rate,
    }
    made = [dot(losses["softmax"], seed=seed, **rest) for seed in range(RUNS)]
    walk = (
        stream,
        networks_of("set", predicted_score=True),
        StackedRecommenders.of(made),
        size,
        periods,
    )
    found = short(*walk)
    same(found, walk_long(*walk))
    assert len(found["predicted_score"].unique()) > 12


@pytest.mark.parametrize("periods", PERIODS, ids=["online", "batch", "varying"])
@pytest.mark.parametrize(("size", "pull"), [(1, 0.0), (2, 0.05), (8, 0.0)])
@pytest.mark.parametrize("rule", [Hardest, Influence])
def test_rules_that_ask_leave_the_same(
    stream: Stream, dot: Dot, losses: dict[str, Loss], short: Callable[..., dict[str, Tensor]],
    rule: type[Hardest | Influence], size: int, periods: tuple[int, ...], pull: float,
) -> None:  # fmt: skip
    """What is predicted worst, and what is added to the empty set one by one."""
    dim = DIM if rule is Hardest else 14  # read by coefficients, or by vectors
    rest = {"items": ITEMS, "dim": dim, "inner_steps": 3, "prior_penalty": pull}
    stack = StackedRecommenders.of([dot(losses["mse"], seed=seed, **rest) for seed in range(RUNS)])
    policy = Hardest() if rule is Hardest else Influence(size, damping=0.3)
    walk = (stream, policy, stack, size, periods)
    same(short(*walk, noted=[]), walk_long(*walk, noted=[]))


@pytest.mark.parametrize("name", ["vectors", "bias", "user_prior"])
@pytest.mark.parametrize("policy", [Hardest(), Influence(2)])
def test_rules_that_ask_what_is_no_number(
    stream: Stream, stack: StackedRecommenders, short: Callable[..., dict[str, Tensor]], policy: Policy,
    name: str,
) -> None:  # fmt: skip
    """A run that has diverged keeps what it would keep the long way."""
    stack.state[name][0, 1] = torch.nan
    walk = (stream, policy, stack, 2, (1,))
    same(short(*walk, noted=[]), walk_long(*walk, noted=[]))


@pytest.mark.skipif(not numba_launch.installed("numba"), reason="numba is not installed")
@pytest.mark.parametrize("policy", ["set", "paper", "hardest"])
def test_large_sketches_on_the_cpu(
    world: World, stream_of: StreamOf, stack: StackedRecommenders, policy: str
) -> None:
    """More than Triton's programs hold."""
    stream = stream_of([world([90, 71, 3], items=ITEMS, seed=5)] * RUNS)
    chosen = Hardest() if policy == "hardest" else networks_of(policy)
    walk = (stream, chosen, stack, 70, (4,))
    notes = {"noted": []} if policy == "hardest" else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dips.rollout.rollout.Walk._transition", None)  # the long way is closed
        found = everything(*walk, **notes)
    same(found, walk_long(*walk, **notes))


@pytest.mark.parametrize("kind", ["set", "paper", "hardest", "influence"])
def test_a_walk_knows_only_what_its_events_name(
    world: World, stream_of: StreamOf, dot: Dot, losses: dict[str, Loss],
    short: Callable[..., dict[str, Tensor]], kind: str,
) -> None:  # fmt: skip
    """Of a large catalogue a few items, numbered in another order than they would be alone."""
    many = 40
    data = world([16, 3, 11, 13], items=ITEMS, seed=3)
    data = replace(data, item=(many - 3 - 7 * data.item).astype(data.item.dtype))
    stream = stream_of([data] * RUNS)
    rest = {"items": many, "dim": DIM, "inner_steps": 3}
    stack = StackedRecommenders.of([dot(losses["mse"], seed=seed, **rest) for seed in range(RUNS)])
    policy: Policy = Hardest() if kind == "hardest" else Influence(2)
    if kind == "paper":
        made = [shaken(PaperNetwork(items=many, hidden=5), seed) for seed in range(RUNS)]
        policy = StackedPolicies.of(made)
    elif kind == "set":
        policy = networks_of(kind)
    walk = (stream, policy, stack, 2, (1,))
    notes: dict[str, Any] = {} if kind in ("set", "paper") else {"noted": []}
    same(short(*walk, **notes), walk_long(*walk, **notes))


def test_stretches_are_one_walk(
    stream: Stream, stack: StackedRecommenders, short: Callable[..., dict[str, Tensor]]
) -> None:
    walk = (stream, networks_of("set"), stack, 2, (3, 5, 2))
    same(short(*walk, stretch=4), walk_long(*walk))


@pytest.mark.parametrize("kind", ["set", "paper"])
def test_notes_can_be_left_out_and_a_network_can_stand_alone(
    stream: Stream, stack: StackedRecommenders, short: Callable[..., dict[str, Tensor]], kind: str
) -> None:
    one = replace(stream, **{f: getattr(stream, f)[:1] for f in ("start", "length", "warmup")})
    one = replace(one, user=stream.user[:1], identity=stream.identity[:1])
    alone = networks_of(kind).one(1).eval()
    assert isinstance(alone, Policy)
    walk = (one, alone, stack.select([1]), 2, (4,))
    same(short(*walk, with_scores=False, noted=[]), walk_long(*walk, with_scores=False, noted=[]))


def test_scores_that_are_no_numbers_disturb_nobody(
    stream: Stream, stack: StackedRecommenders, short: Callable[..., dict[str, Tensor]]
) -> None:
    """A run that has diverged keeps something, and the other what it would keep anyway."""
    networks = networks_of("set")
    whole = short(stream, networks, stack, 2, (3,))
    networks.state["last"][0] = torch.nan
    found = short(stream, networks, stack, 2, (3,))
    users = stream.start.shape[1]
    for name in ("final.position", "final.repeats"):
        assert torch.equal(found[name][users:], whole[name][users:])
    there = stream.length[0] > 1
    assert bool((found["final.position"][:users].diff()[there] > 0).all())  # distinct, in order


def test_a_network_that_looks_at_no_item(
    stream: Stream, stack: StackedRecommenders, short: Callable[..., dict[str, Tensor]]
) -> None:
    walk = (stream, networks_of("set", dim=0), stack, 2, (4,))
    same(short(*walk), walk_long(*walk))


def test_without_a_reader_residuals_are_zero(
    stream: Stream, stack: StackedRecommenders, short: Callable[..., dict[str, Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As they are where the spread is so wide that they round to 0."""
    walk = (stream, networks_of("set", spread=2.0**60), stack, 2, (4,))
    monkeypatch.setattr(compiled, "teller_of", lambda *_: None)
    same(short(*walk, noted=[]), walk_long(*walk, noted=[]))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which programs would have been launched, whether there is numba or not."""
    names: list[str] = []
    monkeypatch.setattr(compiled, "installed", lambda _: True)
    monkeypatch.setattr(numba_launch, "walk_set", lambda *_: names.append("set"))
    monkeypatch.setattr(numba_launch, "walk_items", lambda *_: names.append("paper"))
    monkeypatch.setattr(numba_launch, "walk_hardest", lambda *_: names.append("hardest"))
    monkeypatch.setattr(numba_launch, "walk_influence", lambda *_: names.append("influence"))
    return names


@pytest.mark.parametrize("kind", ["set", "paper"])
def test_who_may_take_the_short_way(
    stream: Stream, stack: StackedRecommenders, taken: list[str], kind: str
) -> None:
    everything(stream, networks_of(kind), stack, 2, (1,))
    assert taken == [kind]


def test_vectors_that_are_too_wide_for_a_hunch(
    stream: Stream, dot: Dot, losses: dict[str, Loss], taken: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    stack = StackedRecommenders.of([dot(losses["softmax"], items=ITEMS, dim=DIM)] * RUNS)
    for widest, goes in ((DIM, ["set"]), (DIM - 1, ["set"])):
        monkeypatch.setitem(compiled.HOLDS, "numba", (64, 128, widest))
        everything(stream, networks_of("set", predicted_score=True), stack, 2, (1,))
        assert taken == goes  # the second time nobody went
    everything(stream, networks_of("set"), StackedRecommenders.of([dot(losses["mse"], items=ITEMS, dim=DIM)] * 2),
                2, (1,))  # fmt: skip
    assert taken == ["set", "set"]  # residuals need no square


def test_who_may_not(
    stream: Stream, stack: StackedRecommenders, taken: list[str], losses: dict[str, Loss],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each of these is one step away from what may."""
    networks, paper = networks_of("set"), networks_of("paper")
    rest = {"items": ITEMS, "dim": DIM}
    bce = StackedRecommenders.of([DotProduct(loss=losses["bce"], **rest)] * RUNS)
    deep = StackedRecommenders.of([MLP(loss=losses["mse"], **rest)] * RUNS)
    timed = SideInformation(time=True)
    told = StackedPolicies.of([PaperNetwork(items=ITEMS, hidden=5, sides=timed)] * RUNS)
    everything(stream, networks, stack, 2, (1,), selector=Sampled())
    everything(stream, networks, bce, 2, (1,))
    everything(stream, networks, deep, 2, (1,))
    everything(stream, told, stack, 2, (1,))
    everything(stream, paper.with_dropout(True), stack, 2, (1,))
    everything(stream, Last(), stack, 2, (1,))
    limits = [("HOLDS", {"numba": held}) for held in ((1, 9, 9), (9, 2, 9))]
    for name, value in (("COMPILERS", {}), ("ROOM", 10), *limits):
        with monkeypatch.context() as patch:
            patch.setattr(compiled, name, value)
            everything(stream, networks, stack, 2, (1,))
    monkeypatch.setattr(compiled, "installed", lambda _: False)
    everything(stream, networks, stack, 2, (1,))
    assert taken == []


@pytest.mark.parametrize(("rule", "name"), [(Hardest(), "hardest"), (Influence(2), "influence")])
def test_rules_that_may(
    stream: Stream, stack: StackedRecommenders, taken: list[str], rule: Policy, name: str
) -> None:
    everything(stream, rule, stack, 2, (1,), noted=[])
    assert taken == [name]


@pytest.mark.parametrize("rule", [Hardest(), Influence(2)])
def test_rules_that_may_not(
    stream: Stream, stack: StackedRecommenders, taken: list[str], losses: dict[str, Loss], rule: Policy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each of these is one step away from what may."""
    rest = {"items": ITEMS, "dim": DIM}
    bce = StackedRecommenders.of([DotProduct(loss=losses["bce"], **rest)] * RUNS)
    deep = StackedRecommenders.of([MLP(loss=losses["mse"], **rest)] * RUNS)
    timed = StackedRecommenders.of(
        [DotProduct(loss=losses["mse"], sides=SideInformation(clock=(0.0, 1.0)), **rest)] * RUNS
    )
    for other in (bce, deep, timed):
        everything(stream, rule, other, 2, (1,), noted=[])
    everything(stream, rule, stack, 2, (1,), noted=[], selector=Sampled())
    limits = [("HOLDS", {"numba": held}) for held in ((1, 9, 9), (9, 2, 9))]
    for name, value in (("COMPILERS", {}), *limits):
        with monkeypatch.context() as patch:
            patch.setattr(compiled, name, value)
            everything(stream, rule, stack, 2, (1,), noted=[])
    everything(stream, Hardest(), stack, 2, (1,), noted=["loss"])
    everything(stream, Hardest(2.0), stack, 2, (1,), noted=[])
    everything(stream, Influence(2, half_life=3.0), stack, 2, (1,), noted=[])
    everything(stream, Influence(2), stack, 2, (2,), noted=[])  # read by vectors
    everything(stream, Influence(3), stack, 2, (1,), noted=[])  # of another size
    assert taken == []
