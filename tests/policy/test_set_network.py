"""The set network: its initial policies, its formula, and what it does not depend on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from dips.data.side_information import ColumnEncoding, SideInformation
from dips.kernels import dispatch
from dips.numerics import fixed_point
from dips.policy.frequency import Frequent
from dips.policy.hardest import Hardest
from dips.policy.kernel_inputs import set_network_scores
from dips.policy.recency import Last
from dips.policy.registry import make_policy
from dips.policy.set_network import SetNetwork
from dips.policy.stacked import StackedPolicies
from dips.sketch.records import Candidates
from dips.sketch.selection import Greedy
from dips.sketch.signals import Signals
from dips.testing import check_policy, fake_signals, random_candidates

DIM = 4


def _network(dim: int = DIM, seed: int = 0, trained: bool = True) -> SetNetwork:
    generator = torch.Generator().manual_seed(seed)
    network = SetNetwork(dim=dim, hidden=16, center=3.2, spread=1.1, generator=generator)
    if trained:
        with torch.no_grad():
            network.output.copy_(torch.randn(network.output.shape, generator=generator))
            network.direct.copy_(torch.randn(network.direct.shape, generator=generator))
    return network


def _many(users: int, period: int = 2, seed: int = 0) -> Candidates:
    return random_candidates(users=users, size=3, period=period, seed=seed)[1]


def _score(network: SetNetwork, candidates: Candidates) -> Tensor:
    return network.score(candidates, fake_signals(candidates, arrivals=2))


@pytest.mark.parametrize("period", [1, 2, 5])
@pytest.mark.parametrize("dim", [0, DIM])
def test_it_is_last_initially(period: int, dim: int) -> None:
    network, candidates = _network(dim, trained=False), _many(200, period)
    scores = _score(network, candidates)
    slots = Greedy().choose(scores, candidates, 3)
    last = Last().score(candidates, fake_signals(candidates))
    assert torch.equal(slots, Greedy().choose(last, candidates, 3))
    there = candidates.present
    newer = (candidates.position[:, None, :] > candidates.position[:, :, None]).sum(2)
    assert torch.equal(scores[there], -newer[there].double())


def test_it_is_close_to_frequent_initially_if_items_repeat() -> None:
    """Duplicates go first, then items with fewer repeats, then older ones."""
    network = make_policy("learned", size=3, residual=False, repeat_feature=True)
    item, repeats = torch.tensor([[3, 5, 7, 3]]), torch.tensor([[50, 1, 1, 51]])
    rest = torch.zeros(1, 4, dtype=torch.int64)
    position, seen = torch.tensor([[10, 50, 120, 199]]), torch.tensor([200])
    fields = (position, item, torch.ones(1, 4), rest, repeats, rest, seen, seen)
    candidates = Candidates(*fields)
    assert network.required_signals == ()
    for size in (3, 2, 1):
        scores = network.score(candidates, fake_signals(candidates))
        slots = Greedy().choose(scores, candidates, size)
        expected = Frequent().score(candidates, fake_signals(candidates))
        assert torch.equal(slots, Greedy().choose(expected, candidates, size))


@pytest.mark.parametrize("size", [5, 8, 16])
def test_it_keeps_the_newest_and_the_highest_predicted_scores_initially(size: int) -> None:
    """The newest four stay unless little is expected of them; of the others age does not count."""
    network = make_policy("learned", size=size, dim=3, predicted_score=True)
    assert network.required_signals == ("predicted_score", "embedding")
    candidates = random_candidates(users=300, size=size, period=2, seed=size)[1]
    draw = torch.Generator().manual_seed(size)
    signal = torch.randn(candidates.item.shape, generator=draw).double() / 4
    vectors = torch.randn(*signal.shape, 3, generator=draw).double()
    with torch.no_grad():
        scores = network.score(
            candidates, Signals.of({"predicted_score": signal, "embedding": vectors})
        )
    above = (math.log(5) - candidates.age.double().log1p()).clamp_min(0)
    there = candidates.present
    torch.testing.assert_close(scores[there], (signal + 6 * above)[there], atol=1e-3, rtol=0)
    assert bool((above[there] == 0).any())


@pytest.mark.parametrize("size", [1, 2, 4])
def test_with_predicted_scores_small_sketches_are_last_initially(size: int) -> None:
    network = make_policy("learned", size=size, dim=0, predicted_score=True)
    candidates = random_candidates(users=100, size=size, period=1, seed=size)[1]
    signal = torch.randn(candidates.item.shape).double()
    scores = network.score(candidates, Signals.of({"predicted_score": signal}))
    there, place = candidates.present, candidates.position
    newer = (place[:, None, :] > place[:, :, None]).sum(2)
    assert torch.equal(scores[there], -newer[there].double())


@pytest.mark.parametrize(("size", "half_life"), [(3, 4), (6, 6)])
def test_it_is_close_to_hardest_with_a_half_life_initially(size: int, half_life: int) -> None:
    """The rule is linear in two features, where losses and ages are within their limits."""
    network = make_policy("learned", size=size)
    assert network.required_signals == ("residual",)
    draw = torch.Generator().manual_seed(0)
    candidates = random_candidates(users=300, size=size, period=2, seed=1)[1]
    residual = 4 * torch.randn(candidates.item.shape, generator=draw).double()
    residual = residual + 2 * residual.sign()  # far above the scale of the logarithm
    scores = network.score(candidates, Signals.of({"residual": residual}))
    loss = Signals.of({"loss": (residual / 2) ** 2})

    def agreement(rule: Hardest) -> float:
        found = (
            Greedy().choose(made, candidates, size)
            for made in (scores, rule.score(candidates, loss))
        )
        slots, expected = (chosen.sort(1).values for chosen in found)
        return float((slots == expected).all(1).double().mean())

    assert agreement(Hardest(half_life)) > 0.97
    assert agreement(Hardest(half_life)) > max(agreement(Hardest(2)), agreement(Hardest(12)))


def test_the_output_layer_learns_first_then_every_parameter() -> None:
    for trained in (False, True):
        network, candidates = _network(trained=trained), _many(50)
        gradient = torch.randn(50, 5, generator=torch.Generator().manual_seed(0)).double()
        (_score(network, candidates) * gradient * candidates.present).sum().backward()
        moved = {name for name, p in network.named_parameters() if bool((p.grad != 0).any())}
        assert moved >= {"output", "slope"}
        assert trained == (moved == {name for name, _ in network.named_parameters()})


def test_it_equals_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidate by candidate, in plain torch."""
    monkeypatch.setattr(fixed_point, "quantize", lambda value, bits: value.double())
    network, candidates = _network().double(), _many(20)
    signals = fake_signals(candidates, arrivals=2)
    residual, vectors = signals.residual, signals.embedding
    scores = _score(network, candidates)
    for row in range(20):
        slots = [slot for slot in range(5) if candidates.position[row, slot] >= 0]
        clock = max(int(candidates.time[row, slot]) for slot in slots)
        hidden = []
        newer, straight = {}, {}
        for slot in slots:
            place = int(candidates.position[row, slot])
            newer[slot] = sum(int(candidates.position[row, other]) > place for other in slots)
            own = [
                (float(candidates.rating[row, slot]) - 3.2) / 1.1,
                float(residual[row, slot]),
                torch.tensor(int(candidates.seen[row]) - place).double().log(),
                newer[slot] / len(slots),
                torch.tensor(1 + clock - int(candidates.time[row, slot])).double().log() / 16,
                torch.tensor(1 + int(candidates.repeats[row, slot])).double().log(),
                sum(
                    int(candidates.position[row, other]) > place
                    and int(candidates.item[row, other]) == int(candidates.item[row, slot])
                    for other in slots
                ),
                math.log(1 + 16 * abs(float(residual[row, slot]))),
                min(int(candidates.seen[row]) - 1 - place, 64) / 8,
            ]
            known = torch.cat([torch.tensor(own).double(), vectors[row, slot]])
            straight[slot] = known @ network.direct[:, 0]
            hidden.append((network.first.weight @ known + network.first.bias).relu())
        mean = torch.stack(hidden).mean(0)
        for slot, first in zip(slots, hidden, strict=True):
            second = network.candidate.weight @ first + network.candidate.bias
            second = (second + network.context.weight @ mean + network.context.bias).relu()
            expected = second @ network.output[:, 0] + straight[slot] - network.slope * newer[slot]
            torch.testing.assert_close(scores[row, slot], expected, atol=1e-6, rtol=0)


def test_the_gradient_in_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_point, "quantize", lambda value, bits: value.double())
    network, candidates = _network().double(), _many(4)
    signals = fake_signals(candidates, arrivals=2)
    weight = torch.rand(4, 5, generator=torch.Generator().manual_seed(1)).double() + 0.5
    assert gradcheck(
        lambda w: network.score_weighted(candidates, signals, w), weight.requires_grad_()
    )


def test_candidates_of_weight_zero_have_scores_and_no_effect() -> None:
    network, candidates = _network(), _many(50)
    dropped = torch.rand(50, 5, generator=torch.Generator().manual_seed(2)) < 0.4
    dropped[:, -1] = False  # the newest sets the clock, and is never one
    signals = fake_signals(candidates, arrivals=2)
    with_dropped_candidates = network.score_weighted(
        candidates, signals, (candidates.present & ~dropped).double()
    )
    gone = candidates._replace(position=candidates.position.masked_fill(dropped, -1))
    answers = {"residual": signals.residual, "embedding": signals.embedding}
    without = network.score(gone, Signals.of(answers))
    assert torch.equal(with_dropped_candidates[gone.present], without[gone.present])
    assert bool(with_dropped_candidates[candidates.present].isfinite().all())


def test_scores_do_not_depend_on_the_batch() -> None:
    network, candidates = _network(), _many(1000)
    together = _score(network, candidates)
    for piece in (1, 7):
        parts = [
            _score(network, Candidates(*(field[low : low + piece] for field in candidates)))
            for low in range(0, 70, piece)
        ]
        assert torch.equal(torch.cat(parts), together[:70])
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    shuffled = _score(network, Candidates(*(field[order] for field in candidates)))
    assert torch.equal(shuffled, together[order])


def test_item_numbers_do_not_matter() -> None:
    """Its size is that of its inputs; items it never saw have scores, whatever their vectors."""
    network, candidates = _network(), _many(10)
    assert sum(p.numel() for p in network.parameters()) < 1000
    strange = candidates._replace(item=candidates.item + 10**9)
    answers = {"residual": torch.zeros(10, 5), "embedding": torch.zeros(10, 5, DIM)}
    scores = network.score(strange, Signals.of(answers))
    assert torch.equal(scores, network.score(candidates, Signals.of(answers)))
    assert network.required_signals == ("residual", "embedding")
    assert _network(dim=0).required_signals == ("residual",)


def test_extreme_inputs_have_scores() -> None:
    network, candidates = _network(), _many(10)
    far = candidates._replace(
        rating=candidates.rating * 1e30,
        time=candidates.time * 10**15,
        seen=candidates.seen + 2**40,
    )
    answers = {"residual": torch.full((10, 5), -1e30), "embedding": torch.full((10, 5, DIM), 1e30)}
    assert bool(network.score(far, Signals.of(answers))[far.present].isfinite().all())


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("dim", [0, DIM])
def test_it_passes_all_checks(dim: int, trained: bool) -> None:
    check_policy(_network(dim, trained=trained))


def test_stacked_runs_have_their_own_scale_of_ratings() -> None:
    networks = [SetNetwork(dim=0, hidden=8, center=center) for center in (1.0, 4.0)]
    for network in networks:
        torch.nn.init.ones_(network.direct)
    candidates = _many(10)
    twice = Candidates(*(torch.cat([field, field]) for field in candidates))
    residual = fake_signals(candidates, arrivals=2).residual
    together = StackedPolicies.of(networks).score(
        twice, Signals.of({"residual": torch.cat([residual] * 2)})
    )
    alone = [network.score(candidates, Signals.of({"residual": residual})) for network in networks]
    assert torch.equal(together, torch.cat(alone))
    assert not torch.equal(*alone)


@pytest.mark.parametrize("dim", [0, DIM])
@pytest.mark.parametrize("users", [1, 7, 1200])
def test_compiled_scores_are_the_same(dim: int, users: int) -> None:
    """Several runs; empty slots, dropped_candidates and uneven weights; threads share many rows."""
    pytest.importorskip("numba")
    stacked = StackedPolicies.of([_network(dim, seed) for seed in (1, 2)])
    candidates = random_candidates(users=2 * users, size=5, period=3, items=4, seed=users)[1]
    generator = torch.Generator().manual_seed(users)
    candidates = candidates._replace(seen=candidates.seen + 5000)  # beyond the table of logarithms
    weight = torch.rand(candidates.item.shape, generator=generator).double().round(decimals=1)
    residual = torch.randn(candidates.item.shape, generator=generator).double()
    vectors = torch.randn(*candidates.item.shape, dim, generator=generator).double()
    answers = {"residual": residual, "embedding": vectors} if dim else {"residual": residual}
    for mass in (None, weight, (weight > 0.5).double()):
        found = stacked.call(stacked.state, candidates, answers, mass)  # differentiable: torch's
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            with torch.no_grad():
                quick = set_network_scores(
                    stacked.template, stacked.state, candidates, answers, mass
                )
        finally:
            torch.set_num_threads(threads)
        assert quick is not None
        assert torch.equal(quick, found.detach())


def test_what_compiled_loops_do_not_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """Side information, and machines without numba."""
    signal = SetNetwork(
        dim=0, hidden=4, items=8, side=SideInformation(columns=(ColumnEncoding("price", 0),))
    )
    plain = SetNetwork(dim=0, hidden=4)
    candidates = _many(3)
    answers = {"residual": candidates.rating}

    def scores(network: SetNetwork) -> Tensor | None:
        return set_network_scores(
            network, StackedPolicies.of([network]).state, candidates, answers, None
        )

    monkeypatch.setattr(dispatch, "installed", lambda _: True)
    assert scores(signal) is None
    monkeypatch.setattr(dispatch, "installed", lambda _: False)
    assert scores(plain) is None
