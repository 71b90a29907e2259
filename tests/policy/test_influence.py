"""Influence against a greedy coreset built with dense Hessians, one user at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from dips.errors import ConfigError
from dips.policy.hardest import Hardest
from dips.policy.influence import Influence, first_largest
from dips.recommender.dot import DotProduct
from dips.recommender.losses import Loss
from dips.recommender.signals import recommender_signals
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.records import Candidates
from dips.testing import fake_signals, random_candidates

SIZE = 3


def _linear(model: DotProduct, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features and intercepts of a pointwise dot model, in numpy."""
    vectors = model.vectors.detach().numpy()[items]
    loading = np.full((len(items), 1), float(model.user_bias_scale))
    bias = model.bias.detach().numpy()[items, 0] + float(model.offset)
    return np.hstack([vectors, loading]), bias


def _greedy_squares(
    model: DotProduct, items: np.ndarray, rating: np.ndarray, age: np.ndarray,
    damping: float, half_life: float | None, rate: float,
) -> list[int]:  # fmt: skip
    """The order in which a plain reference picks candidates, for squared errors."""
    features, bias = _linear(model, items)
    decay = np.ones(len(items)) if half_life is None else 0.5 ** (age / half_life)
    hessian = 2 * features.T @ features + damping * np.eye(features.shape[1])
    picked: list[int] = []
    while len(picked) < min(SIZE, len(items)):
        user = model.user_prior.detach().numpy().copy()
        for _ in range(model.inner_steps):
            error = features[picked] @ user + bias[picked] - rating[picked]
            user = user - rate * 2 * features[picked].T @ error
        slopes = 2 * (features @ user + bias - rating)[:, None] * features
        gain = slopes @ np.linalg.solve(hessian, slopes.sum(0)) * decay
        gain[picked] = -np.inf
        picked.append(int(np.argmax(gain)))
    return picked


def _quantized(model: DotProduct) -> tuple[StackedRecommenders, DotProduct]:
    quantized = StackedRecommenders.of([model]).quantized()
    one = quantized.one(0)
    assert isinstance(one, DotProduct)
    return quantized, one


@pytest.mark.parametrize("half_life", [None, 3.0])
@pytest.mark.parametrize("damping", [0.05, 1.0, 20.0])
def test_squared_error_against_numpy(
    dot: Callable[..., DotProduct], losses: dict[str, Loss], damping: float, half_life: float | None
) -> None:
    model = dot(losses["mse"], inner_lr=0.1)
    quantized, exact = _quantized(model)
    sketch, candidates = random_candidates(users=30, size=SIZE, period=3, seed=1, distinct=True)
    signals = recommender_signals(quantized, sketch, candidates)
    scores = Influence(SIZE, damping, half_life).score(candidates, signals)
    firsts = set()
    for row in range(30):
        slots = torch.nonzero(candidates.present[row])[:, 0]
        order = _greedy_squares(
            exact,
            candidates.item[row, slots].numpy(),
            candidates.rating[row, slots].double().numpy(),
            candidates.age[row, slots].numpy(),
            damping,
            half_life,
            float(model.inner_lr.double()),
        )
        expected = torch.zeros(SIZE + 3).double()
        for turn, place in enumerate(order):
            expected[slots[place]] = SIZE - turn
        assert torch.equal(scores[row], expected)
        firsts.add(order[0])
    assert len(firsts) > 2  # the choice is not always the same place


def _greedy_any(model: DotProduct, items: Tensor, rating: Tensor, damping: float) -> list[int]:
    """The same for any loss: autograd slopes, a dense Hessian, a dense solver."""
    picked: list[int] = []

    def losses(user: Tensor) -> Tensor:
        return model.losses(user[None], items[None], rating[None])[0]

    while len(picked) < min(SIZE, len(items)):
        user = model.user_prior.detach()
        rate = model.inner_lr * min(1.0, 4 / max(1, len(picked)))
        for _ in range(model.inner_steps if picked else 0):
            chosen = torch.autograd.functional.jacobian(lambda u: losses(u)[picked].sum(), user)
            user = user - rate * chosen
        slopes = torch.autograd.functional.jacobian(losses, user)
        hessian = torch.autograd.functional.hessian(lambda u: losses(u).sum(), user)
        eye = damping * torch.eye(len(user), dtype=user.dtype)
        gain = slopes @ torch.linalg.solve(hessian + eye, slopes.sum(0))
        gain[picked] = -torch.inf
        picked.append(int(gain.argmax()))
    return picked


@pytest.mark.parametrize("damping", [0.05, 1.0])
@pytest.mark.parametrize("name", ["mse", "bce", "cce", "softmax"])
def test_any_loss_against_dense_hessians(
    dot: Callable[..., DotProduct], losses: dict[str, Loss], name: str, damping: float
) -> None:
    model = dot(losses[name], items=12)
    quantized, exact = _quantized(model)
    sketch, candidates = random_candidates(
        users=20, size=SIZE, period=2, items=12, seed=5, distinct=True
    )
    signals = recommender_signals(quantized, sketch, candidates)
    scores = Influence(SIZE, damping).score(candidates, signals)
    for row in range(20):
        slots = torch.nonzero(candidates.present[row])[:, 0]
        rating = candidates.rating[row, slots].double()
        order = _greedy_any(exact, candidates.item[row, slots], rating, damping)
        mine = [int(slot) for slot in scores[row].argsort(descending=True)[: len(order)]]
        assert mine == slots[order].tolist()


def test_the_last_slot_wins_ties_and_empty_rows_select_nothing() -> None:
    values = torch.tensor([[1.0, 3.0, 3.0], [5.0, 5.0, 1.0], [1.0, 2.0, 3.0]]).double()
    allowed = torch.tensor([[True, True, True], [True, True, True], [False, False, False]])
    assert first_largest(values, allowed).tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 0]]
    close = torch.tensor([[1.0 + 2.0**-30, 1.0]]).double()  # closer than the grid: a tie
    assert first_largest(close, torch.ones(1, 2, dtype=torch.bool)).tolist() == [[0, 1]]


def test_scores_count_down_from_the_size() -> None:
    candidates: Candidates = random_candidates(users=12, size=SIZE, period=2, seed=3)[1]
    scores = Influence(SIZE).score(candidates, fake_signals(candidates, arrivals=2))
    there = candidates.present.sum(1).clamp_max(SIZE)
    assert torch.equal((scores > 0).sum(1), there)
    assert bool((scores[~candidates.present] == 0).all())


@pytest.mark.parametrize("make", [lambda h: Hardest(h), lambda h: Influence(2, 1.0, h)])
def test_half_lives_are_positive(make: Callable[[float], object]) -> None:
    for bad in (0.0, -3.0, float("nan")):
        with pytest.raises(ConfigError, match="half-life in steps must be positive"):
            make(bad)


def test_damping_is_positive() -> None:
    with pytest.raises(ConfigError, match=r"damping 0\.0: must be positive"):
        Influence(2, 0.0)
