"""Rollouts by kernels equal the reference path bit for bit, or fall back to it.

Triton's programs run in its interpreter. Tests of a compiler that is not installed are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from dips.data.interactions import Interactions
from dips.data.side_information import SideInformation
from dips.kernels import dispatch, layout
from dips.policy.base import Policy
from dips.policy.hardest import Hardest
from dips.policy.influence import Influence
from dips.policy.last_top import LastTop
from dips.policy.paper_network import PaperNetwork
from dips.policy.recency import Last
from dips.policy.registry import make_policy
from dips.policy.stacked import StackedPolicies
from dips.recommender import predicted_score as predicted_scores
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import FullSoftmax, Loss, SampledSoftmax
from dips.recommender.mlp import MLP
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.selection import Sampled
from dips.stream.users import Stream
from tests.rollout.both_paths import (
    DIM,
    ITEMS,
    RUNS,
    assert_same,
    compiled,
    everything,
    networks_of,
    randomized,
    reference,
)

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, by the first rollout

World = Callable[..., Interactions]
StreamOf = Callable[[Sequence[Interactions]], Stream]
Dot = Callable[..., DotProduct]
Linearised = Callable[..., LinearisedDotProduct]
Rollout = Callable[..., dict[str, Tensor]]
PERIODS = {"online": (1,), "batch": (4,), "varying": (3, 5, 2)}
EXHAUSTIVE = pytest.mark.exhaustive


def combinations(values: Sequence[Any], pairs: Sequence[tuple[Any, str]]) -> list[Any]:
    """Return all values x periods; those that are not in `pairs` are marked exhaustive."""
    return [
        pytest.param(
            value,
            PERIODS[name],
            marks=[] if (value, name) in pairs else [EXHAUSTIVE],
            id=f"{value}-{name}",
        )
        for value in values
        for name in PERIODS
    ]


@pytest.fixture
def stream(world: World, stream_of: StreamOf) -> Stream:
    """Two runs of a few users with repeated items; some predictions are not recorded."""
    data = world([16, 3, 11, 13], items=ITEMS, seed=3)
    made = stream_of([data, data.select([0, 2])])
    return replace(
        made, warmup=torch.minimum(made.length, torch.tensor([[0, 7, 0, 2], [6, 0, 0, 0]]))
    )


@pytest.fixture
def stack(dot: Dot, losses: dict[str, Loss]) -> StackedRecommenders:
    """A recommender for each run, each with its own unit of ratings."""
    rest = {"items": ITEMS, "dim": DIM, "inner_steps": 3, "prior_penalty": 0.05}
    scales = [
        {"rating_center": 2.9 + seed / 7, "rating_spread": 1.2 + seed} for seed in range(RUNS)
    ]
    made = [dot(losses["mse"], seed=seed, **rest, **scales[seed]) for seed in range(RUNS)]
    return StackedRecommenders.of(made)


@pytest.fixture(params=["numba", "triton"])
def by_kernel(request: pytest.FixtureRequest) -> Rollout:
    """Roll out by the kernels of one compiler."""
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return partial(compiled, request.param)


@pytest.fixture
def by_numba() -> Rollout:
    """Roll out by numba."""
    pytest.importorskip("numba")
    return partial(compiled, "numba")


@pytest.mark.parametrize(
    ("size", "periods"),
    combinations([1, 2, 4, 8], [(1, "online"), (2, "batch"), (4, "varying"), (8, "online")]),
)
@pytest.mark.parametrize("kind", ["set", "paper"])
def test_networks_decide_as_on_the_reference_path(
    stream: Stream, stack: StackedRecommenders, by_kernel: Rollout, kind: str, size: int,
    periods: tuple[int, ...],
) -> None:  # fmt: skip
    """Sketches, repeats, signals and scores; the inner loop by coefficients and by vectors."""
    case = (stream, networks_of(kind), stack, size, periods)
    assert_same(by_kernel(*case), reference(*case))


@pytest.mark.parametrize(
    ("setting", "periods"),
    combinations(
        [(1, True, 0.1), (2, False, 9.0), (8, True, 1.0), (8, False, 0.1)],
        [((1, True, 0.1), "batch"), ((2, False, 9.0), "online"), ((8, True, 1.0), "varying")],
    ),
)
def test_predicted_scores_equal_the_reference_path(
    stream: Stream, dot: Dot, losses: dict[str, Loss], by_kernel: Rollout,
    setting: tuple[int, bool, float], periods: tuple[int, ...], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Some entries are older than the table of ages, steps are shortened, items are many."""
    size, recency_decay, inner_lr = setting
    monkeypatch.setattr(predicted_scores, "MAX_AGE", 5)
    rest = {"recency_decay": recency_decay, "tie_embeddings": False, "inner_lr": inner_lr}
    made = [
        dot(losses["softmax"], seed=seed, items=ITEMS + 5, dim=DIM, **rest) for seed in range(RUNS)
    ]
    networks = networks_of("set", predicted_score=True)
    case = (stream, networks, StackedRecommenders.of(made), size, periods)
    found = by_kernel(*case)
    assert_same(found, reference(*case))
    assert len(found["predicted_score"].unique()) > 12


@pytest.mark.parametrize(
    ("setting", "periods"),
    combinations(
        [(1, False, 9.0), (2, True, 0.1), (8, True, 1.0)],
        [((2, True, 0.1), "online"), ((8, True, 1.0), "varying")],
    ),
)
def test_scores_of_a_linearised_inner_loop_equal_the_reference_path(
    stream: Stream, linearised: Linearised, by_kernel: Rollout, setting: tuple[int, bool, float],
    periods: tuple[int, ...],
) -> None:  # fmt: skip
    """The inner loss has a scale; the loss over sampled items changes no decision."""
    size, recency_decay, inner_lr = setting
    rest = {"recency_decay": recency_decay, "tie_embeddings": False, "inner_lr": inner_lr}
    made = [
        linearised(seed=seed, items=ITEMS + 5, dim=DIM, loss=SampledSoftmax(4), **rest)
        for seed in range(RUNS)
    ]
    networks, stack = networks_of("set", predicted_score=True), StackedRecommenders.of(made)
    case = (stream, networks, stack, size, periods)
    found = by_kernel(*case)
    assert_same(found, reference(*case))
    assert len(found["predicted_score"].unique()) > 12
    stack.state["log_entry_scale"] += 1.0
    assert not torch.equal(reference(*case)["predicted_score"], found["predicted_score"])


@pytest.mark.parametrize(
    ("setting", "periods"),
    combinations(
        [(1, 0.0), (2, 0.05), (8, 0.0)],
        [((1, 0.0), "varying"), ((2, 0.05), "online"), ((8, 0.0), "batch")],
    ),
)
@pytest.mark.parametrize("rule", [Hardest, Influence])
def test_rules_with_signals_decide_as_on_the_reference_path(
    stream: Stream, dot: Dot, losses: dict[str, Loss], by_kernel: Rollout,
    rule: type[Hardest | Influence], setting: tuple[int, float], periods: tuple[int, ...],
) -> None:  # fmt: skip
    """The largest losses, and the greedy coreset."""
    size, penalty = setting
    dim = DIM if rule is Hardest else 14  # by vectors, or by coefficients
    rest = {"items": ITEMS, "dim": dim, "inner_steps": 3, "prior_penalty": penalty}
    stack = StackedRecommenders.of([dot(losses["mse"], seed=seed, **rest) for seed in range(RUNS)])
    policy = Hardest() if rule is Hardest else Influence(size, damping=0.3)
    case = (stream, policy, stack, size, periods)
    assert_same(by_kernel(*case), reference(*case))


@pytest.mark.parametrize("periods", PERIODS.values(), ids=PERIODS)
@pytest.mark.parametrize("half_life", [0.001, 2.0, 50.0])
@pytest.mark.parametrize(
    ("by_kernel", "rule"),
    [("numba", "hardest"), ("numba", "influence"), ("triton", "hardest")],
    indirect=["by_kernel"],
)
def test_half_lives_decide_as_on_the_reference_path(
    stream: Stream, dot: Dot, losses: dict[str, Loss], by_kernel: Rollout, rule: str,
    half_life: float, periods: tuple[int, ...], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The factors come from a table that torch computes; old entries may have factor 0.

    NaN lies behind the table in memory: a program that reads too far decides otherwise.
    """
    factors = dispatch.decay_factors
    behind = torch.full((99,), torch.nan, dtype=torch.float64)
    monkeypatch.setattr(
        dispatch, "decay_factors", lambda *given: torch.cat([factors(*given), behind])[:-99]
    )
    rest = {"items": ITEMS, "dim": 14, "inner_steps": 3}
    stack = StackedRecommenders.of([dot(losses["mse"], seed=seed, **rest) for seed in range(RUNS)])
    policy = Hardest(half_life) if rule == "hardest" else Influence(2, half_life=half_life)
    case = (stream, policy, stack, 2, periods)
    assert_same(by_kernel(*case), reference(*case))


@pytest.mark.parametrize("periods", PERIODS.values(), ids=PERIODS)
@pytest.mark.parametrize(
    ("form", "size", "newest"),
    [("dot", 1, 1), ("dot", 4, 1), ("dot", 4, 3), ("dot", 4, 9), ("linearised", 6, 4)],
)
def test_last_top_decides_as_on_the_reference_path(
    stream: Stream, request: pytest.FixtureRequest, by_kernel: Rollout, form: str, size: int,
    newest: int, periods: tuple[int, ...],
) -> None:  # fmt: skip
    rest = {"items": ITEMS, "dim": DIM, "recency_decay": True, "tie_embeddings": False}
    make = request.getfixturevalue(form)
    stack = StackedRecommenders.of([make(FullSoftmax(), seed=seed, **rest) for seed in range(RUNS)])
    stack.state["recency_decay"][1] += 0.3
    case = (stream, LastTop(newest), stack, size, periods)
    assert_same(by_kernel(*case), reference(*case))


@pytest.mark.parametrize("periods", PERIODS.values(), ids=PERIODS)
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    "policy", ["last", "reservoir", "mix:1", "mix:3", "last-distinct", "frequent"]
)
def test_rules_without_signals_decide_as_on_the_reference_path(
    stream: Stream, stack: StackedRecommenders, by_kernel: Rollout, policy: str, size: int,
    periods: tuple[int, ...],
) -> None:  # fmt: skip
    case = (stream, make_policy(policy, size=4), stack, size, periods)
    assert_same(by_kernel(*case), reference(*case))


@pytest.mark.parametrize("policy", ["last-distinct", "frequent"])
def test_sketches_larger_than_the_number_of_items(
    world: World, stream_of: StreamOf, stack: StackedRecommenders, by_kernel: Rollout, policy: str
) -> None:
    """Entries with several newer duplicates are kept, and their scores are recorded."""
    stream = stream_of([world([16, 11], items=2, seed=5)] * RUNS)
    case = (stream, make_policy(policy, size=4), stack, 4, (1,))
    assert_same(by_kernel(*case), reference(*case))


@pytest.mark.parametrize("name", ["vectors", "bias", "user_prior"])
@pytest.mark.parametrize("policy", [Hardest(), Influence(2)])
def test_signals_that_are_nan_decide_as_on_the_reference_path(
    stream: Stream, stack: StackedRecommenders, by_kernel: Rollout, policy: Policy, name: str
) -> None:
    """A diverged run keeps the same entries on both paths."""
    stack.state[name][0, 1] = torch.nan
    case = (stream, policy, stack, 2, (1,))
    assert_same(by_kernel(*case), reference(*case))


@pytest.mark.parametrize("policy", ["set", "paper", "hardest"])
def test_sketches_larger_than_the_limits_of_triton(
    world: World, stream_of: StreamOf, stack: StackedRecommenders, by_numba: Rollout, policy: str
) -> None:
    stream = stream_of([world([90, 71, 3], items=ITEMS, seed=5)] * RUNS)
    chosen = Hardest() if policy == "hardest" else networks_of(policy)
    case = (stream, chosen, stack, 70, (4,))
    assert_same(by_numba(*case), reference(*case))


@pytest.mark.parametrize("kind", ["set", "paper", "hardest", "influence"])
def test_item_tables_hold_only_items_of_the_events(
    world: World, stream_of: StreamOf, dot: Dot, losses: dict[str, Loss], by_kernel: Rollout,
    kind: str,
) -> None:  # fmt: skip
    """A few items of a large catalogue, whose numbers in the tables differ from the catalogue's."""
    many = 40
    data = world([16, 3, 11, 13], items=ITEMS, seed=3)
    data = replace(data, item=(many - 3 - 7 * data.item).astype(data.item.dtype))
    stream = stream_of([data] * RUNS)
    rest = {"items": many, "dim": DIM, "inner_steps": 3}
    stack = StackedRecommenders.of([dot(losses["mse"], seed=seed, **rest) for seed in range(RUNS)])
    policy: Policy = Hardest() if kind == "hardest" else Influence(2)
    if kind == "paper":
        made = [randomized(PaperNetwork(items=many, hidden=5), seed) for seed in range(RUNS)]
        policy = StackedPolicies.of(made)
    elif kind == "set":
        policy = networks_of(kind)
    case = (stream, policy, stack, 2, (1,))
    assert_same(by_kernel(*case), reference(*case))


def test_update_intervals_do_not_change_the_rollout(
    stream: Stream, stack: StackedRecommenders, by_kernel: Rollout
) -> None:
    case = (stream, networks_of("set"), stack, 2, (3, 5, 2))
    assert_same(by_kernel(*case, update_interval=4), reference(*case))


@pytest.mark.parametrize("kind", ["set", "paper"])
def test_records_are_optional_and_one_network_serves_all_runs(
    stream: Stream, stack: StackedRecommenders, by_kernel: Rollout, kind: str
) -> None:
    one = replace(stream, **{f: getattr(stream, f)[:1] for f in ("start", "length", "warmup")})
    one = replace(one, user=stream.user[:1], identity=stream.identity[:1])
    network = networks_of(kind).one(1).eval()
    assert isinstance(network, Policy)
    case = (one, network, stack.select([1]), 2, (4,))
    none = {"with_scores": False, "recorded_signals": []}
    assert_same(by_kernel(*case, **none), reference(*case, **none))


def test_scores_that_are_nan_do_not_disturb_other_runs(
    stream: Stream, stack: StackedRecommenders, by_kernel: Rollout
) -> None:
    """A diverged run keeps distinct entries in order; the other run is unchanged."""
    networks = networks_of("set")
    whole = by_kernel(stream, networks, stack, 2, (3,))
    networks.state["output"][0] = torch.nan
    found = by_kernel(stream, networks, stack, 2, (3,))
    users = stream.start.shape[1]
    for name in ("final.position", "final.repeats"):
        assert torch.equal(found[name][users:], whole[name][users:])
    there = stream.length[0] > 1
    assert bool((found["final.position"][:users].diff()[there] > 0).all())


def test_a_network_without_embeddings(
    stream: Stream, stack: StackedRecommenders, by_kernel: Rollout
) -> None:
    case = (stream, networks_of("set", dim=0), stack, 2, (4,))
    assert_same(by_kernel(*case), reference(*case))


def test_without_a_signal_model_residuals_are_zero(
    stream: Stream, stack: StackedRecommenders, by_kernel: Rollout,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The network does not read its signal here, so the reference path may compute it."""
    networks = networks_of("set")
    for feature in (layout.SIGNAL, layout.LOG_SIGNAL):
        networks.state["first.weight"][..., feature] = 0.0
        networks.state["direct"][:, feature] = 0.0
    case = (stream, networks, stack, 2, (4,))
    monkeypatch.setattr("dips.rollout.compiled.signal_model", lambda *_: None)
    none: dict[str, Any] = {"recorded_signals": []}
    assert_same(by_kernel(*case, **none), reference(*case, **none))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Codes of the scorers that would have been launched, with or without numba."""
    codes: list[int] = []
    monkeypatch.setattr(dispatch, "installed", lambda _: True)
    monkeypatch.setattr(dispatch, "roll_out", lambda *given: codes.append(given[-1].code))
    monkeypatch.setattr("dips.kernels.numba_launch.set_network_scores", lambda *_: None)
    monkeypatch.setattr(dispatch, "has_residuals", lambda *_: False)
    return codes


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("set", layout.SET_NETWORK),
        ("paper", layout.PAPER_NETWORK),
        (Hardest(), layout.HARDEST),
        (Hardest(2.0), layout.HARDEST),
        (Influence(2), layout.INFLUENCE),
        (Influence(2, half_life=3.0), layout.INFLUENCE),
        (Last(), layout.LAST),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_supported_rollouts_are_launched(
    stream: Stream, stack: StackedRecommenders, launched: list[int], policy: Any, code: int
) -> None:
    everything(stream, networks_of(policy) if isinstance(policy, str) else policy, stack, 2, (1,))
    assert launched == [code]


def test_triton_supports_no_half_life_of_influence(
    stream: Stream, stack: StackedRecommenders, launched: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(dispatch.COMPILERS, "cpu", "triton")
    everything(stream, Influence(2, half_life=3.0), stack, 2, (1,))
    assert launched == []
    for policy in (Hardest(), Hardest(2.0), Last(), Influence(2)):
        everything(stream, policy, stack, 2, (1,))
    assert launched == [layout.HARDEST, layout.HARDEST, layout.LAST, layout.INFLUENCE]


def test_vectors_that_are_too_wide_for_the_linearised_softmax(
    stream: Stream, dot: Dot, losses: dict[str, Loss], launched: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    rest = {"items": ITEMS, "dim": DIM}
    softmax = StackedRecommenders.of([dot(losses["softmax"], **rest)] * RUNS)
    squared = StackedRecommenders.of([dot(losses["mse"], **rest)] * RUNS)
    for widest, count in ((DIM, 1), (DIM - 1, 1)):
        monkeypatch.setitem(dispatch.LIMITS, "numba", dispatch.Limits(64, 128, widest))
        everything(stream, networks_of("set", predicted_score=True), softmax, 2, (1,))
        assert len(launched) == count
    everything(stream, networks_of("set"), squared, 2, (1,))
    assert len(launched) == 2  # the limit is for predicted scores only


@pytest.mark.parametrize("kind", ["set", "hardest", "influence"])
def test_unsupported_rollouts_use_the_reference_path(
    stream: Stream, stack: StackedRecommenders, launched: list[int], losses: dict[str, Loss],
    kind: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each of these differs in one property from a supported rollout."""
    rules: dict[str, Policy] = {"hardest": Hardest(), "influence": Influence(2)}
    policy = networks_of("set") if kind == "set" else rules[kind]
    rest = {"items": ITEMS, "dim": DIM}
    timed = SideInformation(clock=(0.0, 1.0))
    for model in (
        DotProduct(loss=losses["bce"], **rest),
        MLP(loss=losses["mse"], **rest),
        DotProduct(loss=losses["mse"], side=timed, **rest),
    ):
        everything(stream, policy, StackedRecommenders.of([model] * RUNS), 2, (1,))
    everything(stream, policy, stack, 2, (1,), selector=Sampled())
    limits = [("LIMITS", {"numba": dispatch.Limits(*held)}) for held in ((1, 9, 9), (9, 2, 9))]
    numbers = [("MOST_NUMBERS", 10)] if kind == "set" else []
    for name, value in (("COMPILERS", {}), *numbers, *limits):
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, name, value)
            everything(stream, policy, stack, 2, (1,))
    monkeypatch.setattr(dispatch, "installed", lambda _: False)
    everything(stream, policy, stack, 2, (1,))
    assert launched == []


def test_unsupported_policies_use_the_reference_path(
    stream: Stream, stack: StackedRecommenders, launched: list[int]
) -> None:
    timed = SideInformation(time=True)
    with_times = StackedPolicies.of([PaperNetwork(items=ITEMS, hidden=5, side=timed)] * RUNS)
    everything(stream, with_times, stack, 2, (1,))
    everything(stream, networks_of("paper").with_dropout(True), stack, 2, (1,))
    everything(stream, Hardest(), stack, 2, (1,), recorded_signals=["loss"])
    everything(stream, Influence(2), stack, 2, (2,))  # more candidates than dimensions
    everything(stream, Influence(3), stack, 2, (1,))  # of another size
    assert launched == []
