"""The softmax denominator in chunks equals the one from all logits, with its gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import grad, vmap

from dips.numerics import chunks
from dips.numerics.log_sum_exp import LogSumExp, StoredLogSumExp, can_store

ROWS, ITEMS, DIM = 5, 7, 3
TIGHT = {"atol": 1e-12, "rtol": 1e-12}
Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def _given(*runs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return item vectors, biases and users."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((*runs, ITEMS, DIM), (*runs, ITEMS), (*runs, ROWS, DIM))
    table, bias, user = (
        torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes
    )
    return table, bias, user


def _fast(table: Tensor, bias: Tensor, user: Tensor) -> Tensor:
    norm: Tensor = LogSumExp.apply(table, bias, user)[0]  # type: ignore[no-untyped-call]
    return norm


def _plain(table: Tensor, bias: Tensor, user: Tensor) -> Tensor:
    return (user @ table.T + bias).logsumexp(1)


def _gradients(function: Function) -> Callable[..., tuple[Tensor, ...]]:
    """Return gradients in all inputs of a sum that weighs rows differently."""
    weight = torch.arange(1.0, ROWS + 1, dtype=torch.float64)
    return grad(lambda *given: (function(*given) * weight).sum(), argnums=(0, 1, 2))


@pytest.fixture(params=[1, 2, ROWS, 100])
def rows_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one row, of some rows with a rest, of exactly all rows, and of more."""
    monkeypatch.setitem(chunks.MAX_ELEMENTS, "cpu", request.param * ITEMS)


@pytest.mark.usefixtures("rows_at_once")
def test_equals_logsumexp_of_all_logits_in_any_chunks() -> None:
    given = _given()
    torch.testing.assert_close(_fast(*given), _plain(*given), **TIGHT)
    found, wanted = (_gradients(function)(*given) for function in (_fast, _plain))
    torch.testing.assert_close(found, wanted, **TIGHT)


@pytest.mark.usefixtures("rows_at_once")
def test_the_second_output_is_the_mean_by_probability() -> None:
    table, bias, user = _given()
    mean = LogSumExp.apply(table, bias, user)[1]  # type: ignore[no-untyped-call]
    torch.testing.assert_close(mean, (user @ table.T + bias).softmax(1) @ table, **TIGHT)


def test_gradients_equal_finite_differences() -> None:
    """In each input alone, and in all of them."""
    for places in ((0,), (1,), (2,), (0, 1, 2)):
        inputs = [tensor.requires_grad_(at in places) for at, tensor in enumerate(_given())]
        assert gradcheck(_fast, inputs)


@pytest.mark.usefixtures("rows_at_once")
def test_vmap_over_runs_equals_each_run() -> None:
    together = _given(2)
    norms, slopes = vmap(_fast)(*together), vmap(_gradients(_fast))(*together)
    for run in range(2):
        single = tuple(tensor[run] for tensor in together)
        torch.testing.assert_close(norms[run], _plain(*single), **TIGHT)
        wanted = _gradients(_plain)(*single)
        torch.testing.assert_close(tuple(slope[run] for slope in slopes), wanted, **TIGHT)


def test_large_logits_do_not_overflow() -> None:
    table, bias, user = (tensor.float() for tensor in _given())
    norm = _fast(table, bias + 500, user)
    torch.testing.assert_close(norm, _plain(table, bias, user) + 500)


def test_a_second_derivative_is_refused() -> None:
    table, bias, user = _given()
    user.requires_grad_()
    loss = (_fast(table, bias, user) ** 2).sum()
    (slope,) = torch.autograd.grad(loss, user, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def _stored(table: Tensor, bias: Tensor, user: Tensor) -> Tensor:
    norm: Tensor = StoredLogSumExp.apply(table, bias, user)[0]  # type: ignore[no-untyped-call]
    return norm


@pytest.mark.usefixtures("rows_at_once")
def test_stored_powers_give_the_same_bits_and_the_same_gradients() -> None:
    inputs = [tensor.requires_grad_() for tensor in _given()]
    assert torch.equal(_stored(*inputs), _fast(*inputs))
    weight = torch.arange(1.0, ROWS + 1, dtype=torch.float64)
    found, wanted = (
        torch.autograd.grad((function(*inputs) * weight).sum(), inputs)
        for function in (_stored, _fast)
    )
    torch.testing.assert_close(found, wanted, **TIGHT)
    assert gradcheck(_stored, inputs)


def test_memory_is_shared_by_calls_in_turn_and_never_by_two_graphs() -> None:
    inputs = [tensor.requires_grad_() for tensor in _given()]
    wanted = torch.autograd.grad(_fast(*inputs).sum(), inputs)
    first = _stored(*inputs)
    second = _stored(*(2 * tensor for tensor in inputs))
    for _ in range(2):
        slopes = torch.autograd.grad(first.sum(), inputs, retain_graph=True)
        torch.testing.assert_close(slopes, wanted, **TIGHT)
        _stored(*(3 * tensor for tensor in inputs))  # its memory is not that of `first`
    places = {value.grad_fn.powers.data_ptr() for value in (first, second)}  # type: ignore[union-attr]
    assert len(places) == 2
    del first
    third = _stored(*inputs)
    assert third.grad_fn.powers.data_ptr() in places  # type: ignore[union-attr]


def test_powers_are_not_stored_under_vmap_or_if_they_are_large() -> None:
    table, _, user = _given()
    assert can_store(table, user)
    assert not can_store(table, user.new_empty(1 << 23, DIM))
    seen: list[bool] = []
    vmap(lambda each: seen.append(can_store(table, each)) or each)(user[None])  # type: ignore[func-returns-value]
    assert seen == [False]


FILTERED = torch.tensor([[0, 3, -1], [-1, -1, -1], [2, 2, 6], [5, 4, 0], [-1, 1, -1]])
"""Items that each row leaves out: none, one, three, and one twice; -1 pads."""


def _masked(table: Tensor, bias: Tensor, user: Tensor) -> Tensor:
    """Return the oracle: all logits, those of filtered items at minus infinity."""
    gone = (FILTERED[:, :, None] == torch.arange(ITEMS)).any(1)
    return (user @ table.T + bias).masked_fill(gone, -torch.inf).logsumexp(1)


def _without(function: type[torch.autograd.Function]) -> Function:
    def norm(*given: Tensor) -> Tensor:
        found: Tensor = function.apply(*given, FILTERED)[0]  # type: ignore[no-untyped-call]
        return found

    return norm


@pytest.mark.usefixtures("rows_at_once")
def test_filtered_items_are_left_out_in_any_chunks() -> None:
    given, fast = _given(), _without(LogSumExp)
    torch.testing.assert_close(fast(*given), _masked(*given), **TIGHT)
    wanted = _gradients(_masked)(*given)
    torch.testing.assert_close(_gradients(fast)(*given), wanted, **TIGHT)
    together = tuple(torch.stack([tensor, 2 * tensor]) for tensor in given)
    found = vmap(_gradients(fast))(*together)
    torch.testing.assert_close(tuple(slope[0] for slope in found), wanted, **TIGHT)
    inputs = [tensor.requires_grad_() for tensor in given]
    stored = _without(StoredLogSumExp)(*inputs)
    assert torch.equal(stored, fast(*given))
    weight = torch.arange(1.0, ROWS + 1, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad((stored * weight).sum(), inputs), wanted, **TIGHT
    )


def test_filtered_items_may_have_almost_all_of_the_probability() -> None:
    """In single precision: what is left is summed, not found as a difference."""
    table, bias, user = (tensor.float() for tensor in _given())
    bias[0] += 200
    bias[3] += 200
    for function in (LogSumExp, StoredLogSumExp):
        found = _without(function)(table, bias, user)
        torch.testing.assert_close(found[0], _masked(table, bias, user)[0])
    everything = torch.arange(ITEMS).expand(ROWS, -1)
    norm = LogSumExp.apply(table, bias, user, everything)[0]  # type: ignore[no-untyped-call]
    assert bool((norm < -1e29).all())
    assert bool(norm.isfinite().all())
