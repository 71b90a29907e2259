"""Fixed-point sums have the same bits in any order and any batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import grad, vmap

from dips.errors import ConfigError
from dips.numerics.fixed_point import (
    MAX_TERMS,
    PARAMETER_BITS,
    PARAMETER_LIMIT,
    PROBABILITY_BITS,
    STATE_BITS,
    STATE_LIMIT,
    linear,
    matmul,
    quantize,
    quantize_straight_through,
    softmax,
)


def _normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(st.floats(-1e4, 1e4), st.integers(1, 30))
def test_quantize_returns_the_nearest_multiple(value: float, bits: int) -> None:
    quantized = float(quantize(torch.tensor(value, dtype=torch.float64), bits))
    assert (quantized * 2**bits).is_integer()
    assert abs(quantized - value) <= 0.5 * 2.0**-bits
    again = quantize(torch.tensor(quantized, dtype=torch.float64), bits)
    assert float(again) == quantized


@given(st.integers(0, 10_000))
def test_sums_of_quantized_products_do_not_depend_on_the_order(seed: int) -> None:
    table = quantize(_normal(200, 32, seed=seed), PARAMETER_BITS)
    user = quantize(_normal(9, 32, seed=seed + 1) * 4, STATE_BITS)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(seed))
    together = user @ table.T
    assert torch.equal((user[:, order] @ table[:, order].T), together)
    assert torch.equal(torch.stack([table @ one for one in user]), together)
    assert torch.equal((table[None] * user[:, None]).sum(2), together)


def test_sums_that_are_not_quantized_depend_on_the_order() -> None:
    """Check that the test above can fail."""
    values = _normal(50, 200, seed=0)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(values.sum(1), values[:, order].sum(1))


@given(st.integers(0, 10_000), st.integers(2, 300), st.sampled_from([0.1, 1.0, 10.0]))
def test_softmax_does_not_depend_on_order_or_batch(seed: int, items: int, scale: float) -> None:
    logits = _normal(7, items, seed=seed) * scale
    order = torch.randperm(items, generator=torch.Generator().manual_seed(seed))
    together = softmax(logits)
    assert torch.equal(softmax(logits[:, order]), together[:, order])
    assert torch.equal(torch.cat([softmax(row[None]) for row in logits]), together)
    rounding = items * 2.0**-PROBABILITY_BITS
    torch.testing.assert_close(together, logits.softmax(-1), atol=rounding, rtol=0)
    table = quantize(_normal(items, 4, seed=seed + 1), PARAMETER_BITS)
    assert torch.equal(together[:, order] @ table[order], together @ table)


def test_softmax_of_extreme_logits() -> None:
    logits = torch.tensor([[0.0, 1e6, -1e6], [1e6, 1e6, -1e308], [5.0, 5.0, 5.0]])
    expected = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(softmax(logits.double()).float(), expected)


@given(st.floats(-1e300, 1e300), st.integers(1, 30))
def test_quantized_values_lie_on_the_grid_within_the_limit(value: float, bits: int) -> None:
    for kind in (torch.float32, torch.float64):
        given = torch.tensor(max(-3e38, min(3e38, value)), dtype=kind, requires_grad=True)
        result = quantize_straight_through(given, bits, 100.0)
        assert torch.equal(result, quantize(given.detach().clamp(-100, 100), bits))
        assert torch.autograd.grad(result, given)[0] == 1


def test_gradients_are_straight_through_under_any_transform() -> None:
    def cube(value: torch.Tensor) -> torch.Tensor:
        return (quantize_straight_through(value, 4, 8.0) ** 3).sum()

    values = _normal(6, 3, seed=0)
    on_grid = quantize(values, 4)
    assert torch.equal(grad(cube)(values), 3 * on_grid**2)
    assert torch.equal(vmap(grad(cube))(values), 3 * on_grid**2)
    twice = vmap(grad(lambda value: grad(cube)(value).sum()))(values)
    assert torch.equal(twice, 6 * on_grid)


def test_linear_is_exact_at_its_limits_and_in_any_order() -> None:
    """All terms at their limits and one smallest step: nothing is lost."""
    states = torch.full((1, MAX_TERMS), 1e9)
    weight = torch.full((1, MAX_TERMS), 1e9)
    bias = torch.full((1,), 2.0**-PARAMETER_BITS)
    expected = MAX_TERMS * PARAMETER_LIMIT * STATE_LIMIT + 2.0**-PARAMETER_BITS
    assert float(linear(states, weight, bias)) == expected
    smallest = 2.0 ** -(PARAMETER_BITS + STATE_BITS)
    states[0, 7], weight[0, 7] = 2.0**-STATE_BITS, 2.0**-PARAMETER_BITS
    expected += smallest - PARAMETER_LIMIT * STATE_LIMIT
    assert float(linear(states, weight, bias)) == expected
    with pytest.raises(ConfigError, match="4096 terms: sums are exact up to 4095"):
        matmul(torch.ones(1, MAX_TERMS + 1), torch.ones(MAX_TERMS + 1, 1))


@given(st.integers(0, 10_000))
def test_linear_does_not_depend_on_order_or_batch(seed: int) -> None:
    states, weight, bias = (
        _normal(40, 65, seed=seed) * 9,
        _normal(8, 65, seed=seed + 1),
        _normal(8, seed=3),
    )
    together = linear(states, weight, bias)
    order = torch.randperm(65, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(linear(states[:, order], weight[:, order], bias), together)
    assert torch.equal(torch.cat([linear(row[None], weight, bias) for row in states]), together)
    assert torch.equal(vmap(lambda row: linear(row, weight, bias))(states), together)
    near = torch.nn.functional.linear(states, weight, bias)
    torch.testing.assert_close(together, near, atol=0.1, rtol=1e-3)
