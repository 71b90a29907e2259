"""Compiled loops over all items: the same as the plain descent, values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

pytest.importorskip("numba")

from dips.kernels.softmax_cpu import Effects, Reading, Total, scores
from dips.numerics.softmax_descent import AllItems, Setting, descend_softmax, path, way_back

ITEMS, ENTRIES, STEPS = 300, 3, 6
"""More than a tile, and not a whole number of them."""
ROWS = 45
"""More than a share, and not a whole number of blocks."""
SHAPES = pytest.mark.parametrize(
    ("own", "pull", "dim"), [(0.0, 0.0, 5), (0.8, 0.0, 8), (-0.6, 0.3, 6)]
)
Case = dict[str, Tensor]


def _case(own: float, dim: int, seed: int = 0) -> Case:
    """What is learned; sketches are the same for all seeds."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"table": (ITEMS, dim), "bias": (ITEMS,), "weight": (ROWS, ENTRIES), "start": (dim,)}
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return made | {"weight": made["weight"].abs(), "loading": torch.tensor(own)}


def _fixed() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Items [rows, entries], what is predicted, how much it counts, and step sizes [rows]."""
    generator = torch.Generator().manual_seed(7)
    item = torch.randint(ITEMS, (ROWS, ENTRIES), generator=generator)
    item[0] = item[0, 0]  # one that came back
    target = torch.randint(ITEMS, (ROWS,), generator=generator)
    target[1] = item[1, 1]
    mass = torch.rand(ROWS, generator=generator)
    mass[3] = 0.0
    return item, target, mass, torch.rand(ROWS, generator=generator) * 0.3


FIXED = _fixed()


def _reading(case: Case, pull: float) -> Reading:
    item, _, _, rate = FIXED
    square, weight = case["loading"] ** 2, case["weight"]
    pulled = (case["table"][item] * weight[:, :, None]).sum(1)
    return Reading(
        case["table"], case["bias"], square, weight, case["start"], pulled, rate, item, pull, STEPS
    )


def _given(case: Case, pull: float) -> tuple[AllItems, Setting]:
    """The same for the plain descent, in float64, with an own entry for every item."""
    item, _, _, rate = FIXED
    case = {name: value.double() for name, value in case.items()}
    weight, own = case["weight"], case["loading"] * torch.eye(ITEMS, dtype=torch.float64)
    features = torch.cat([case["table"], own], 1)
    pulled = (features[item] * weight[:, :, None]).sum(1)
    start = torch.nn.functional.pad(case["start"], (0, ITEMS)).expand(ROWS, -1)
    items = AllItems(case["table"], case["bias"], case["loading"])
    return items, Setting(pulled, weight.sum(1), start, rate.double(), pull)


def _plain_losses(items: AllItems, user: Tensor) -> Tensor:
    _, target, _, _ = FIXED
    return -items.logits(user).log_softmax(1).gather(1, target[:, None])[:, 0]


def _plain(pull: float) -> Callable[[Case], Tensor]:
    def total(case: Case) -> Tensor:
        items, setting = _given(case, pull)
        return (_plain_losses(items, descend_softmax(items, setting, STEPS)) * FIXED[2]).sum()

    return total


def _fast(pull: float) -> Callable[[Case], Tensor]:
    def total(case: Case) -> Tensor:
        _, target, mass, _ = FIXED
        found: Tensor = Total.apply(*_reading(case, pull), target, mass)[0]  # type: ignore[no-untyped-call]
        return found

    return total


def _close(found: Tensor, wanted: Tensor, name: str = "") -> None:
    size = float(wanted.abs().max())
    torch.testing.assert_close(
        found.double(), wanted.double(), atol=2e-5 * size, rtol=1e-5, msg=name or None
    )


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Set how many there are, and put it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@SHAPES
def test_losses_and_gradients(own: float, pull: float, dim: int) -> None:
    """Against automatic differentiation of the plain descent in float64."""
    case = _case(own, dim)
    wanted, value = grad_and_value(_plain(pull))(case)
    found, total = grad_and_value(_fast(pull))(case)
    _close(total, value)
    for name, gradient in wanted.items():
        assert gradient.any() or (name == "loading" and not own)
        _close(found[name], gradient, name)


@SHAPES
def test_effects(own: float, pull: float, dim: int) -> None:
    """Against the way back written out."""
    case, target = _case(own, dim), FIXED[1]
    items, setting = _given(case, pull)
    taken, user = path(items, setting, STEPS)
    chance = items.logits(user).softmax(1)
    chance[torch.arange(ROWS), target] -= 1
    backs = list(way_back(items, setting, taken, items.mean(chance)))
    rate = setting.rate[:, None]
    loading = case["loading"] if own else None
    loss, pulled, common, users = Effects.apply(*_reading(case, pull), target, loading, None)  # type: ignore[no-untyped-call]
    wanted = torch.cat(
        [sum(parts) for parts in zip(*(back.after for back in backs), strict=True)], 1
    )
    _close(loss, _plain_losses(items, user))
    _close(pulled, (rate * wanted)[:, : pulled.shape[1]])
    assert pulled.shape[1] == dim + ITEMS * bool(own)
    _close(common, setting.rate * sum(back.centre for back in backs))
    _close(users, user[:, :dim])


@pytest.mark.parametrize(("weight", "above"), [(1.0, 0.0), (0.4, 0.0), (1.0, 120.0)])
def test_effects_on_what_is_not_struck_out(weight: float, above: float) -> None:
    """Against the way back from a softmax without it; once or twice, and not what is predicted.

    Also where the first items are so far above the others that only they have a chance.
    """
    case, (item, target, _, _) = _case(0.0, 6), FIXED
    case["bias"][: ITEMS // 2] += above
    items, setting = _given(case, 0.1)
    taken, user = path(items, setting, STEPS)
    left = torch.ones(ROWS, ITEMS, dtype=torch.float64)
    for slot in range(ENTRIES):
        left[torch.arange(ROWS), item[:, slot]] = 1 - weight
    left[torch.arange(ROWS), target] = 1
    logits = items.logits(user) + left.log()
    chance = logits.softmax(1)
    chance[torch.arange(ROWS), target] -= 1
    backs = list(way_back(items, setting, taken, items.mean(chance)))
    struck = torch.full((ROWS, ENTRIES), weight)
    found = Effects.apply(*_reading(case, 0.1), target, None, struck)  # type: ignore[no-untyped-call]
    rate, wanted = setting.rate[:, None], sum(back.after[0] for back in backs)
    _close(found[0], -logits.log_softmax(1).gather(1, target[:, None])[:, 0])
    _close(found[1], rate * wanted)
    _close(found[2], setting.rate * sum(back.centre for back in backs))


@SHAPES
def test_scores(own: float, pull: float, dim: int) -> None:
    """Of all items after reading."""
    case = _case(own, dim)
    items, setting = _given(case, pull)
    _close(scores(_reading(case, pull)), items.logits(descend_softmax(items, setting, STEPS)))


def test_runs_side_by_side_are_runs_alone() -> None:
    """To the bit."""
    cases = [_case(0.8, 6, seed) for seed in range(2)]
    both = {name: torch.stack([case[name] for case in cases]) for name in cases[0]}
    gradients, values = vmap(grad_and_value(_fast(0.1)))(both)
    target = FIXED[1]

    def affect(case: Case) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = Effects.apply(  # type: ignore[no-untyped-call]
            *_reading(case, 0.1), target, case["loading"], None
        )
        return found

    effects = vmap(affect)(both)
    for run, case in enumerate(cases):
        alone, value = grad_and_value(_fast(0.1))(case)
        assert torch.equal(values[run], value)
        assert all(torch.equal(gradients[name][run], alone[name]) for name in alone)
        known = zip(effects, affect(case), strict=True)
        assert all(torch.equal(field[run], of) for field, of in known)


def test_any_number_of_threads(threads: Callable[[int], None]) -> None:
    """Leaves the same bits: so does a run that is taken up elsewhere."""
    case = _case(0.8, 6)
    threads(1)
    wanted, value = grad_and_value(_fast(0.1))(case)
    read = scores(_reading(case, 0.1))
    threads(3)
    found, again = grad_and_value(_fast(0.1))(case)
    assert torch.equal(again, value)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert torch.equal(scores(_reading(case, 0.1)), read)


@pytest.mark.parametrize("name", ["table", "bias", "start", "loading"])
def test_what_is_no_number_is_seen(name: str) -> None:
    """A run that has diverged says so by its loss."""
    case = _case(0.8, 6)
    case[name].view(-1)[0] = torch.nan
    assert _fast(0.0)(case).isnan()


def test_no_rows() -> None:
    """A process may have no share in a batch."""
    reading = _reading(_case(0.8, 6), 0.1)
    none = reading._replace(weight=reading.weight[:0], rate=reading.rate[:0], item=reading.item[:0])
    total, *gradients = Total.apply(*none, FIXED[1][:0], FIXED[2][:0])  # type: ignore[no-untyped-call]
    assert total == 0
    assert gradients[0].shape == reading.table.shape
    assert not any(value.any() for value in gradients)
    assert scores(none).shape == (0, ITEMS)
