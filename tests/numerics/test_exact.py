"""Sums on the grid are the same in any order and any batch, to the last bit."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dips.numerics.exact import CHANCE_BITS, PARAMETER_BITS, STATE_BITS, snap, softmax


def _normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(st.floats(-1e4, 1e4), st.integers(1, 30))
def test_snap_is_the_nearest_multiple(value: float, bits: int) -> None:
    snapped = float(snap(torch.tensor(value, dtype=torch.float64), bits))
    assert (snapped * 2**bits).is_integer()
    assert abs(snapped - value) <= 0.5 * 2.0**-bits
    again = snap(torch.tensor(snapped, dtype=torch.float64), bits)
    assert float(again) == snapped


@given(st.integers(0, 10_000))
def test_products_of_snapped_numbers_sum_to_the_same_in_any_order(seed: int) -> None:
    table = snap(_normal(200, 32, seed=seed), PARAMETER_BITS)
    user = snap(_normal(9, 32, seed=seed + 1) * 4, STATE_BITS)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(seed))
    together = user @ table.T
    assert torch.equal((user[:, order] @ table[:, order].T), together)
    assert torch.equal(torch.stack([table @ one for one in user]), together)
    assert torch.equal((table[None] * user[:, None]).sum(2), together)


def test_unsnapped_sums_do_depend_on_the_order() -> None:
    """Or the test above could not fail."""
    values = _normal(50, 200, seed=0)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(values.sum(1), values[:, order].sum(1))


@given(st.integers(0, 10_000), st.integers(2, 300), st.sampled_from([0.1, 1.0, 10.0]))
def test_softmax_in_any_order_and_batch(seed: int, items: int, scale: float) -> None:
    logits = _normal(7, items, seed=seed) * scale
    order = torch.randperm(items, generator=torch.Generator().manual_seed(seed))
    together = softmax(logits)
    assert torch.equal(softmax(logits[:, order]), together[:, order])
    assert torch.equal(torch.cat([softmax(row[None]) for row in logits]), together)
    rounding = items * 2.0**-CHANCE_BITS
    torch.testing.assert_close(together, logits.softmax(-1), atol=rounding, rtol=0)
    table = snap(_normal(items, 4, seed=seed + 1), PARAMETER_BITS)
    assert torch.equal(together[:, order] @ table[order], together @ table)


def test_softmax_of_extreme_logits() -> None:
    logits = torch.tensor([[0.0, 1e6, -1e6], [1e6, 1e6, -1e308], [5.0, 5.0, 5.0]])
    expected = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(softmax(logits.double()).float(), expected)
