"""Stacked policies equal single policies, in scores and in gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dips.errors import ConfigError
from dips.policy.base import Policy
from dips.policy.network import Network
from dips.policy.paper_network import PaperNetwork
from dips.policy.recency import Last
from dips.policy.set_network import SetNetwork
from dips.policy.stacked import StackedPolicies
from dips.recommender.dot import DotProduct
from dips.recommender.losses import Loss
from dips.recommender.signals import recommender_signals
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.records import Candidates, Sketch
from dips.sketch.signals import Signals
from dips.testing import check_policy, fake_signals, random_candidates

RUNS, USERS = 3, 20


class Own(nn.Module, Policy):
    """A user's own policy: one method."""

    required_signals = True

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def score(self, candidates: Candidates, signals: Signals) -> Tensor:
        return signals.loss - self.slope * candidates.age


def _made(kind: str, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    if kind == "own":
        policy: nn.Module = Own()
    elif kind == "rating":
        policy = PaperNetwork(items=8, hidden=16, dropout=0.3, generator=generator)
    else:
        policy = SetNetwork(dim=4, hidden=16, center=3.0, generator=generator)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return policy


@pytest.fixture(params=["own", "rating", "set"])
def policies(request: pytest.FixtureRequest) -> list[nn.Module]:
    return [_made(request.param, seed) for seed in range(RUNS)]


def _candidates(runs: int = RUNS) -> Candidates:
    return random_candidates(users=runs * USERS, size=3, period=2)[1]


def _part(candidates: Candidates, run: int) -> Candidates:
    return Candidates(*(field[run * USERS : (run + 1) * USERS] for field in candidates))


def _signals(candidates: Candidates) -> Signals:
    return fake_signals(candidates, arrivals=2)


@pytest.mark.parametrize("dropout", [False, True])
def test_stacked_policies_score_as_single_ones(policies: list[nn.Module], dropout: bool) -> None:
    candidates = _candidates()
    stacked = StackedPolicies.of(policies).with_dropout(dropout)
    together = stacked.score(candidates, _signals(candidates))
    assert not together.requires_grad
    for run, policy in enumerate(policies):
        part = _part(candidates, run)
        alone = policy.train(dropout).score(part, _signals(part))  # type: ignore[operator]
        rows = together[run * USERS : (run + 1) * USERS]
        assert torch.equal(rows, alone)
        single = StackedPolicies.of([policy]).with_dropout(dropout)
        assert torch.equal(single.score(part, _signals(part)), alone)
    if isinstance(policies[0], PaperNetwork):
        still = stacked.with_dropout(not dropout).score(candidates, _signals(candidates))
        assert not torch.equal(still, together)


@pytest.mark.parametrize("runs", [1, RUNS])
def test_gradients_in_the_parameters(policies: list[nn.Module], runs: int) -> None:
    """By torch.func and by autograd, against each policy's own backward pass."""
    candidates = _candidates(runs)
    stacked, signals = StackedPolicies.of(policies[:runs]), _signals(candidates)
    answers = signals.select(stacked.required_signals)
    gradient = torch.randn(runs * USERS, 5, generator=torch.Generator().manual_seed(1)).double()
    gradient = gradient * candidates.present

    def total(state: dict[str, Tensor]) -> Tensor:
        return (stacked.call(state, candidates, answers) * gradient).sum()

    found = torch.func.grad(total)(stacked.state)
    state = {name: value.clone().requires_grad_() for name, value in stacked.state.items()}
    total(state).backward()
    for run, policy in enumerate(policies[:runs]):
        part = _part(candidates, run)
        policy.eval().zero_grad()
        scores = policy.score(part, _signals(part))  # type: ignore[operator]
        (scores * gradient[run * USERS : (run + 1) * USERS]).sum().backward()
        for name, parameter in policy.named_parameters():
            torch.testing.assert_close(found[name][run], parameter.grad)
            torch.testing.assert_close(state[name].grad[run], parameter.grad)  # type: ignore[index]


def test_gradients_in_the_weights(policies: list[nn.Module]) -> None:
    candidates = _candidates()
    stacked, signals = StackedPolicies.of(policies), _signals(candidates)
    answers = signals.select(stacked.required_signals)
    weight = torch.rand(RUNS * USERS, 5, generator=torch.Generator().manual_seed(0)).double()
    assert stacked.takes_weights == isinstance(policies[0], Network)
    if not stacked.takes_weights:
        with pytest.raises(ConfigError, match="Own takes no weights of candidates"):
            stacked.call(stacked.state, candidates, answers, weight)
        return
    together = stacked.call(stacked.state, candidates, answers, weight)
    for run, policy in enumerate(policies):
        assert isinstance(policy, Network)
        part, rows = _part(candidates, run), slice(run * USERS, (run + 1) * USERS)
        alone = policy.eval().score_weighted(part, _signals(part), weight[rows])
        assert torch.equal(together[rows], alone)
    slope = torch.func.grad(
        lambda w: stacked.call(stacked.state, candidates, answers, w)[candidates.present].sum()
    )(weight)
    assert bool((slope[candidates.present] != 0).any())


def test_select_one_and_flags(policies: list[nn.Module]) -> None:
    stacked = StackedPolicies.of(policies)
    assert stacked.runs == RUNS
    assert stacked.trainable == [name for name, _ in policies[0].named_parameters()]
    chosen = stacked.select([2, 0])
    name = stacked.trainable[0]
    assert torch.equal(chosen.state[name], stacked.state[name][[2, 0]])
    assert isinstance(chosen, StackedPolicies)
    one = stacked.one(1)
    assert not one.training
    for name, value in policies[1].state_dict().items():
        assert torch.equal(one.state_dict()[name], value)
    wanted = {Own: ("loss", "residual", "predicted_score", "embedding"), PaperNetwork: (),
              SetNetwork: ("residual", "embedding")}  # fmt: skip
    assert stacked.required_signals == wanted[type(policies[0])]
    assert (stacked.is_random, stacked.keeps_all) == (False, False)
    assert policies[0].training  # the policy itself is as it was


def test_only_required_signals_are_computed() -> None:
    signals = _signals(_candidates())
    stacked = StackedPolicies.of([_made("set", seed) for seed in range(RUNS)])
    stacked.score(_candidates(), signals)
    assert list(signals.computed) == ["residual", "embedding"]


def test_policies_that_cannot_be_stacked_are_refused() -> None:
    policy = Own()
    policy.required_signals = ("read",)  # type: ignore[assignment]
    with pytest.raises(
        ConfigError, match="Own has parameters: it cannot require the signal 'read'"
    ):
        StackedPolicies.of([policy])
    with pytest.raises(ConfigError, match="Linear is not a policy with parameters"):
        StackedPolicies.of([nn.Linear(2, 2)])


def test_a_user_policy_passes_all_checks() -> None:
    check_policy(Own)
    check_policy(Last)


def test_each_run_reads_the_signals_of_its_recommender(losses: dict[str, Loss]) -> None:
    """Scores with stacked recommenders equal those of single ones."""
    sketch, candidates = random_candidates(users=2 * USERS, size=3, period=2)
    made = [torch.Generator().manual_seed(seed) for seed in range(2)]
    models = [DotProduct(items=8, loss=losses["mse"], dim=4, generator=g) for g in made]
    policies = [_made("set", seed) for seed in range(2)]
    signals = recommender_signals(StackedRecommenders.of(models).quantized(), sketch, candidates)
    together = StackedPolicies.of(policies).score(candidates, signals)
    for run in range(2):
        rows = slice(run * USERS, (run + 1) * USERS)
        alone = recommender_signals(
            StackedRecommenders.of([models[run]]).quantized(),
            Sketch(*(field[rows] for field in sketch)),
            _part(candidates, run),
        )
        one = StackedPolicies.of([policies[run]]).score(_part(candidates, run), alone)
        assert torch.equal(together[rows], one)
