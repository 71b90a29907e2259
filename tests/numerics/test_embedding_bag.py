"""Sums of embedding rows against loops; their gradients."""

from __future__ import annotations

import torch
from torch.autograd import gradcheck

from dips.numerics.embedding_bag import sum_rows


def test_sums_the_rows_of_all_codes() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(5, 3, generator=generator).double()
    codes = torch.randint(-1, 5, (4, 6, 3), generator=generator)
    found = sum_rows(table, codes)
    for row in range(4):
        for place in range(6):
            named = [table[code] for code in codes[row, place].tolist() if code >= 0]
            expected = sum(named, torch.zeros(3).double())
            torch.testing.assert_close(found[row, place], expected)


def test_gradient_is_that_of_a_sum() -> None:
    codes = torch.tensor([[0, 2, 2], [-1, -1, -1], [1, -1, 0]])
    table = torch.randn(3, 2, generator=torch.Generator().manual_seed(1)).double()
    assert gradcheck(lambda t: sum_rows(t, codes), table.requires_grad_())
    (gradient,) = torch.autograd.grad(sum_rows(table, codes).sum(), table)
    assert gradient[:, 0].tolist() == [2.0, 1.0, 2.0]


def test_stacked_runs() -> None:
    table = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(2))
    codes = torch.randint(-1, 4, (2, 5, 2), generator=torch.Generator().manual_seed(3))
    both = torch.func.vmap(sum_rows)(table, codes)
    assert torch.equal(both[1], sum_rows(table[1], codes[1]))
