"""Adam for embedding tables of which a step reads few rows: only these rows are updated."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import final

import torch
from torch import Tensor

from dips.training.optimizers import BETAS, StackedAdam, adam_step

NOWHERE = torch.iinfo(torch.int64).max
"""Stands for no row."""


def touched_rows(items: Tensor) -> Tensor:
    """Return the distinct rows among `items` [runs, n], ascending, as [runs, n]; -1 names none.

    The result is as wide as the input, so that nothing waits for the device.

    >>> touched_rows(torch.tensor([[3, -1, 2, 3]]))[:, :2]
    tensor([[2, 3]])
    """
    ranked = torch.where(items >= 0, items, NOWHERE).sort(1).values
    again = torch.zeros_like(ranked, dtype=torch.bool)
    again[:, 1:] = ranked[:, 1:] == ranked[:, :-1]
    return torch.where(again, NOWHERE, ranked).sort(1).values


def pick_rows(table: Tensor, rows: Tensor) -> Tensor:
    """Return these rows of a table [runs, items, ...] as [runs, n, ...]; NOWHERE gives any row."""
    run = torch.arange(len(rows), device=rows.device)[:, None]
    return table[run, torch.where(rows < NOWHERE, rows, 0)]


@final
class LazyAdam:
    """Adam that updates a row of a table only in the steps that read it.

    Moments of other rows are kept. The bias correction counts the updates of the row itself; with
    the count of all steps, a row that is first read late would take too large a step. The
    weight decay of skipped steps is added at the next update: weight_decay * value for each of
    them. So a row has the same fixed point as under `StackedAdam`, and a row that every step reads
    is updated exactly as there.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        weight_decay: Tensor,
        undecayed: Collection[str],
        tables: Collection[str],
    ) -> None:
        self.tables = [name for name in parameters if name in tables]
        rest = {name: value for name, value in parameters.items() if name not in tables}
        self.rest = StackedAdam(rest, weight_decay, undecayed)
        lazy = {name: parameters[name] for name in self.tables}
        self.first = {name: torch.zeros_like(value) for name, value in lazy.items()}
        self.second = {name: torch.zeros_like(value) for name, value in lazy.items()}
        shape = next(iter(lazy.values())).shape[:2]
        self.moved = torch.zeros(shape, dtype=torch.int32, device=weight_decay.device)
        """Updates of each row, [runs, items]."""
        self.seen = torch.zeros_like(self.moved)
        """Step of its last update, [runs, items]."""

    @property
    def steps(self) -> Tensor:
        """Return the number of updates of each run, [runs]."""
        return self.rest.steps

    def step(
        self,
        parameters: dict[str, Tensor],
        gradients: Mapping[str, Tensor],
        rate: Tensor,
        active: Tensor,
        rows: Tensor | None = None,
    ) -> None:
        """Update the `active` [runs] runs, in place; of tables only `rows` [runs, n], None: all.

        Gradients of tables are those of these rows, [runs, n, ...].
        """
        if rows is None:
            rows = torch.arange(self.moved.shape[1], device=rate.device).expand_as(self.moved)
        others = {name: value for name, value in parameters.items() if name not in self.first}
        self.rest.step(others, gradients, rate, active)
        updated = (rows < NOWHERE) & (active > 0)[:, None]  # [runs, n]
        count = pick_rows(self.moved, rows) + updated
        step_count = count.clamp_min(1).double()
        bias = [1 - beta**step_count for beta in BETAS]
        # active, step_size and sqrt_bias2 of `adam_step`
        factors = updated, rate[:, None] / bias[0], bias[1].sqrt()
        passed = self.steps[:, None] - pick_rows(self.seen, rows)
        penalty = self.rest.weight_decay[:, None] * passed
        for name in self.tables:
            table, first, second = parameters[name], self.first[name], self.second[name]
            value, *moments = (pick_rows(whole, rows) for whole in (table, first, second))
            shape = (*rows.shape, *[1] * (value.dim() - 2))
            broadcast = [factor.view(shape).to(value.dtype) for factor in factors]
            gradient = gradients[name]
            if name not in self.rest.undecayed:
                gradient = gradient + penalty.view(shape).to(value.dtype) * value
            value -= adam_step(gradient, *moments, *broadcast)
            for whole, part in zip((table, first, second), (value, *moments), strict=True):
                _put_rows(whole, rows, part)
        _put_rows(self.moved, rows, count)
        now = torch.where(updated, self.steps[:, None].int(), pick_rows(self.seen, rows))
        _put_rows(self.seen, rows, now)

    def state(self) -> dict[str, Tensor]:
        """Return all tensors of a checkpoint."""
        named = {f"first.{name}": value for name, value in self.first.items()}
        named |= {f"second.{name}": value for name, value in self.second.items()}
        return self.rest.state() | named | {"moved": self.moved, "seen": self.seen}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore the tensors of a checkpoint."""
        self.rest.load(state)
        for name, value in self.state().items():
            value.copy_(state[name])


def _put_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Write rows of a table in place; NOWHERE writes the first row once more."""
    there = rows < NOWHERE
    shape = (*rows.shape, *[1] * (values.dim() - 2))
    place = torch.where(there, rows, torch.where(there[:, :1], rows[:, :1], 0))
    run = torch.arange(len(rows), device=rows.device)[:, None]
    table[run, place] = torch.where(there.view(shape), values, values[:, :1])
