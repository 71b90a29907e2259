"""The numba softmax over all items equals the reference in float64: values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

pytest.importorskip("numba")

from dips.kernels.dispatch import (
    SoftmaxEntryGradients,
    SoftmaxLoss,
    SoftmaxProblem,
    softmax_scores,
)
from dips.numerics.softmax_descent import (
    AllItems,
    InnerProblem,
    backward_pass,
    descend_softmax,
    forward_pass,
)

ITEMS, ENTRIES, STEPS = 300, 3, 6
"""More than a tile, and not a whole number of them."""
ROWS = 45
"""More than a share, and not a whole number of blocks."""
SHAPES = pytest.mark.parametrize(
    ("scale", "penalty", "dim"), [(0.0, 0.0, 5), (0.8, 0.0, 8), (-0.6, 0.3, 6)]
)
Case = dict[str, Tensor]


def _case(scale: float, dim: int, seed: int = 0) -> Case:
    """What is learned; sketches are the same for all seeds."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"table": (ITEMS, dim), "bias": (ITEMS,), "weight": (ROWS, ENTRIES), "start": (dim,)}
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return made | {"weight": made["weight"].abs(), "repeat_scale": torch.tensor(scale)}


def _fixed() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Items [rows, entries], what is predicted, how much it counts, and step sizes [rows]."""
    generator = torch.Generator().manual_seed(7)
    item = torch.randint(ITEMS, (ROWS, ENTRIES), generator=generator)
    item[0] = item[0, 0]  # one that came back
    target = torch.randint(ITEMS, (ROWS,), generator=generator)
    target[1] = item[1, 1]
    weights = torch.rand(ROWS, generator=generator)
    weights[3] = 0.0
    return item, target, weights, torch.rand(ROWS, generator=generator) * 0.3


FIXED = _fixed()
NO_ITEMS = torch.zeros(ROWS, 0, dtype=torch.int64)


def _problem(case: Case, penalty: float) -> SoftmaxProblem:
    item, _, _, rate = FIXED
    square, weight = case["repeat_scale"] ** 2, case["weight"]
    feature_sum = (case["table"][item] * weight[:, :, None]).sum(1)
    return SoftmaxProblem(
        case["table"],
        case["bias"],
        square,
        weight,
        case["start"],
        feature_sum,
        rate,
        item,
        penalty,
        STEPS,
    )


def _given(case: Case, penalty: float) -> tuple[AllItems, InnerProblem]:
    """The same for the plain descent, in float64, with an scale entry for every item."""
    item, _, _, rate = FIXED
    case = {name: value.double() for name, value in case.items()}
    weight, scale = case["weight"], case["repeat_scale"] * torch.eye(ITEMS, dtype=torch.float64)
    features = torch.cat([case["table"], scale], 1)
    feature_sum = (features[item] * weight[:, :, None]).sum(1)
    start = torch.nn.functional.pad(case["start"], (0, ITEMS)).expand(ROWS, -1)
    items = AllItems(case["table"], case["bias"], case["repeat_scale"])
    return items, InnerProblem(feature_sum, weight.sum(1), start, rate.double(), penalty)


def _reference_losses(items: AllItems, user: Tensor) -> Tensor:
    _, target, _, _ = FIXED
    return -items.logits(user).log_softmax(1).gather(1, target[:, None])[:, 0]


def _reference(penalty: float) -> Callable[[Case], Tensor]:
    def total(case: Case) -> Tensor:
        items, problem = _given(case, penalty)
        return (_reference_losses(items, descend_softmax(items, problem, STEPS)) * FIXED[2]).sum()

    return total


def _compiled(penalty: float) -> Callable[[Case], Tensor]:
    def total(case: Case) -> Tensor:
        _, target, weights, _ = FIXED
        found: Tensor = SoftmaxLoss.apply(*_problem(case, penalty), target, weights, NO_ITEMS)[0]  # type: ignore[no-untyped-call]
        return found

    return total


def _close(found: Tensor, wanted: Tensor, name: str = "") -> None:
    size = float(wanted.abs().max())
    torch.testing.assert_close(
        found.double(), wanted.double(), atol=5e-5 * size, rtol=1e-5, msg=name or None
    )


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Set how many there are, and put it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@SHAPES
def test_losses_and_gradients(scale: float, penalty: float, dim: int) -> None:
    """Against automatic differentiation of the plain descent in float64."""
    case = _case(scale, dim)
    wanted, value = grad_and_value(_reference(penalty))(case)
    found, total = grad_and_value(_compiled(penalty))(case)
    _close(total, value)
    for name, gradient in wanted.items():
        assert gradient.any() or (name == "repeat_scale" and not scale)
        _close(found[name], gradient, name)


@SHAPES
def test_entry_gradients(scale: float, penalty: float, dim: int) -> None:
    """Against the way back written out."""
    case, target = _case(scale, dim), FIXED[1]
    items, problem = _given(case, penalty)
    taken, user = forward_pass(items, problem, STEPS)
    probability = items.logits(user).softmax(1)
    probability[torch.arange(ROWS), target] -= 1
    backs = list(backward_pass(items, problem, taken, items.mean(probability)))
    rate = problem.rate[:, None]
    repeat_scale = case["repeat_scale"] if scale else None
    loss, feature_sum, common, users = SoftmaxEntryGradients.apply(
        *_problem(case, penalty), target, repeat_scale, None, NO_ITEMS
    )  # type: ignore[no-untyped-call]
    wanted = torch.cat(
        [sum(parts) for parts in zip(*(back.after for back in backs), strict=True)], 1
    )
    _close(loss, _reference_losses(items, user))
    _close(feature_sum, (rate * wanted)[:, : feature_sum.shape[1]])
    assert feature_sum.shape[1] == dim + ITEMS * bool(scale)
    _close(common, problem.rate * sum(back.mean_change for back in backs))
    _close(users, user[:, :dim])


@pytest.mark.parametrize(("weight", "above"), [(1.0, 0.0), (0.4, 0.0), (1.0, 120.0)])
def test_entry_gradients_with_filtered_sketches(weight: float, above: float) -> None:
    """Against the way back from a softmax without it; once or twice, and not what is predicted.

    Also where the first items are so far above the others that only they have a probability.
    """
    case, (item, target, _, _) = _case(0.0, 6), FIXED
    case["bias"][: ITEMS // 2] += above
    items, problem = _given(case, 0.1)
    taken, user = forward_pass(items, problem, STEPS)
    left = torch.ones(ROWS, ITEMS, dtype=torch.float64)
    for slot in range(ENTRIES):
        left[torch.arange(ROWS), item[:, slot]] = 1 - weight
    left[torch.arange(ROWS), target] = 1
    logits = items.logits(user) + left.log()
    probability = logits.softmax(1)
    probability[torch.arange(ROWS), target] -= 1
    backs = list(backward_pass(items, problem, taken, items.mean(probability)))
    filtered = torch.full((ROWS, ENTRIES), weight)
    found = SoftmaxEntryGradients.apply(*_problem(case, 0.1), target, None, filtered, NO_ITEMS)  # type: ignore[no-untyped-call]
    rate, wanted = problem.rate[:, None], sum(back.after[0] for back in backs)
    _close(found[0], -logits.log_softmax(1).gather(1, target[:, None])[:, 0])
    _close(found[1], rate * wanted)
    _close(found[2], problem.rate * sum(back.mean_change for back in backs))


def _seen() -> Tensor:
    """Return items that are filtered, [rows, n]: also the target, one twice, and padding."""
    item, target, _, _ = FIXED
    draw = torch.Generator().manual_seed(9)
    seen = torch.randint(ITEMS, (ROWS, 40), generator=draw)
    seen[:, :ENTRIES], seen[::2, 7], seen[:, 8] = item, target[::2], seen[:, 9]
    seen[torch.arange(ROWS)[:, None] % 4 > torch.arange(40) % 5] = -1
    seen[4] = -1
    return seen


def _left(logits: Tensor) -> Tensor:
    """Return logits without seen items: the oracle has minus infinity there."""
    seen, target = _seen(), FIXED[1]
    gone = (seen[:, :, None] == torch.arange(ITEMS)).any(1)
    gone[torch.arange(ROWS), target] = False
    return logits.masked_fill(gone, -torch.inf)


@pytest.mark.parametrize("above", [0.0, 120.0])
def test_losses_and_gradients_without_seen_items(above: float) -> None:
    """Against the softmax of what is left; also if seen items have almost all probability."""
    case, (item, target, weights, _) = _case(0.0, 6), FIXED
    case["bias"][item[0]] += above
    exact = {name: value.double() for name, value in case.items()}

    def oracle(case: Case) -> Tensor:
        items, problem = _given(case, 0.1)
        logits = _left(items.logits(descend_softmax(items, problem, STEPS)))
        losses = -logits.log_softmax(1).gather(1, target[:, None])[:, 0]
        return (losses * weights).sum()

    def compiled(case: Case) -> Tensor:
        found: Tensor = SoftmaxLoss.apply(*_problem(case, 0.1), target, weights, _seen())[0]  # type: ignore[no-untyped-call]
        return found

    found, value = grad_and_value(compiled)(case)
    wanted, expected = grad_and_value(oracle)(exact)
    _close(value, expected)
    assert abs(float(expected - grad_and_value(_reference(0.1))(exact)[1])) > 0.1
    for name, gradient in wanted.items():
        if name != "repeat_scale":
            _close(found[name], gradient)


def test_entry_gradients_without_seen_items() -> None:
    """Against the way back from a softmax of what is left."""
    case, target = _case(0.0, 6), FIXED[1]
    items, problem = _given(case, 0.1)
    taken, user = forward_pass(items, problem, STEPS)
    logits = _left(items.logits(user))
    probability = logits.softmax(1)
    probability[torch.arange(ROWS), target] -= 1
    backs = list(backward_pass(items, problem, taken, items.mean(probability)))
    found = SoftmaxEntryGradients.apply(*_problem(case, 0.1), target, None, None, _seen())  # type: ignore[no-untyped-call]
    rate, wanted = problem.rate[:, None], sum(back.after[0] for back in backs)
    _close(found[0], -logits.log_softmax(1).gather(1, target[:, None])[:, 0])
    _close(found[1], rate * wanted)
    _close(found[2], problem.rate * sum(back.mean_change for back in backs))


@SHAPES
def test_scores(scale: float, penalty: float, dim: int) -> None:
    """Of all items after problem."""
    case = _case(scale, dim)
    items, problem = _given(case, penalty)
    _close(
        softmax_scores(_problem(case, penalty)),
        items.logits(descend_softmax(items, problem, STEPS)),
    )


def test_stacked_runs_equal_single_runs() -> None:
    """To the bit."""
    cases = [_case(0.8, 6, seed) for seed in range(2)]
    both = {name: torch.stack([case[name] for case in cases]) for name in cases[0]}
    gradients, values = vmap(grad_and_value(_compiled(0.1)))(both)
    target = FIXED[1]

    def gradients_of(case: Case) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = SoftmaxEntryGradients.apply(  # type: ignore[no-untyped-call]
            *_problem(case, 0.1), target, case["repeat_scale"], None, NO_ITEMS
        )
        return found

    effects = vmap(gradients_of)(both)
    for run, case in enumerate(cases):
        alone, value = grad_and_value(_compiled(0.1))(case)
        assert torch.equal(values[run], value)
        assert all(torch.equal(gradients[name][run], alone[name]) for name in alone)
        known = zip(effects, gradients_of(case), strict=True)
        assert all(torch.equal(field[run], of) for field, of in known)


def test_results_do_not_depend_on_the_number_of_threads(threads: Callable[[int], None]) -> None:
    """Leaves the same bits: so does a run that is taken up elsewhere."""
    case = _case(0.8, 6)
    threads(1)
    wanted, value = grad_and_value(_compiled(0.1))(case)
    read = softmax_scores(_problem(case, 0.1))
    threads(3)
    found, again = grad_and_value(_compiled(0.1))(case)
    assert torch.equal(again, value)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert torch.equal(softmax_scores(_problem(case, 0.1)), read)


@pytest.mark.parametrize("name", ["table", "bias", "start", "repeat_scale"])
def test_nan_parameters_give_nan_losses(name: str) -> None:
    """A run that has diverged says so by its loss."""
    case = _case(0.8, 6)
    case[name].view(-1)[0] = torch.nan
    assert _compiled(0.0)(case).isnan()


def test_no_rows() -> None:
    """A process may have no share in a batch."""
    problem = _problem(_case(0.8, 6), 0.1)
    none = problem._replace(weight=problem.weight[:0], rate=problem.rate[:0], item=problem.item[:0])
    total, *gradients = SoftmaxLoss.apply(*none, FIXED[1][:0], FIXED[2][:0], NO_ITEMS[:0])  # type: ignore[no-untyped-call]
    assert total == 0
    assert gradients[0].shape == problem.table.shape
    assert not any(value.any() for value in gradients)
    assert softmax_scores(none).shape == (0, ITEMS)
