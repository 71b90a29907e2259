"""The inner loop for the softmax over all items, and its way back (adjoint) written out.

Logits are linear in the user's vector. `descend_softmax` is the iteration as it stands in Eq. 7.
`Descent` is the same with a way back of its own: of a step it keeps the users' vectors and the
chances, two numbers for each item, where automatic differentiation would keep every intermediate.
It can be differentiated once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dips.numerics.descent import Rounding, keep


class AllItems(NamedTuple):
    """What makes logits of a user's vector: bias + table . shared entries, + loading * own ones."""

    table: Tensor  # [items, dim]
    bias: Tensor  # [items]
    loading: Tensor | None  # []: if given, each item has an entry of its own after the shared ones

    def split(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Entries that all items share, and those that are an item's own."""
        shared = self.table.shape[1]
        return vector[:, :shared], vector[:, shared:]

    def logits(self, user: Tensor) -> Tensor:
        """[rows, items] of users [rows, dim]."""
        return self.add(self.bias, *self.split(user))

    def along(self, vector: Tensor) -> Tensor:
        """[rows, items] how the logits change along a vector [rows, dim]."""
        return self.add(torch.zeros_like(self.bias), *self.split(vector))

    def add(self, base: Tensor, shared: Tensor, own: Tensor) -> Tensor:
        """[rows, items] what a vector adds to the logits, on top of a base."""
        scores = torch.addmm(base, shared, self.table.T)
        return scores if self.loading is None else torch.addcmul(scores, own, self.loading)

    def mean(self, chance: Tensor) -> Tensor:
        """[rows, dim] the transpose of `along`: sums over items with weights [rows, items]."""
        shared = chance @ self.table
        return shared if self.loading is None else torch.cat([shared, self.loading * chance], 1)


class Setting(NamedTuple):
    """What a descent is given besides the items."""

    pulled: Tensor  # [rows, dim] the weighted sum of the features of the sketch's items
    weight: Tensor  # [rows] the sum of their weights
    start: Tensor  # [rows, dim]
    rate: Tensor  # [rows] a constant
    pull: float  # weighs the regulariser |user - start|^2 of Eq. 2

    @property
    def step(self) -> Tensor:
        """[rows, 1] what a step adds of the items' mean."""
        return -(self.rate * self.weight)[:, None]

    @property
    def tether(self) -> Tensor:
        """[rows, 1] the share of the way back to the start that a step goes."""
        return 2 * self.pull * self.rate[:, None]


def softmax(logits: Tensor) -> Tensor:
    """Chances of all items; at decision time there is another one, on the grid."""
    return logits.softmax(-1)


def descend_softmax(
    items: AllItems,
    setting: Setting,
    steps: int,
    softmax: Callable[[Tensor], Tensor] = softmax,
    rounding: Rounding = keep,
) -> Tensor:
    """Gradient descent on the weighted losses of a sketch, each row on its own.

    The gradient is weight * expected - pulled, where `expected` is the mean of the items' features
    by their chances.
    """
    pulled, weight, start, rate, pull = setting
    user = start
    for _ in range(steps):
        slope = weight[:, None] * items.mean(softmax(items.logits(user))) - pulled
        if pull:
            slope = slope + 2 * pull * (user - start)
        user = rounding(user - rate[:, None] * slope)
    return user


class Step(NamedTuple):
    """What a step of the descent knows before it is taken."""

    user: Tensor  # [rows, dim]
    chance: Tensor  # [rows, items]
    mean: Tensor  # [rows, dim] of the items' table, by their chances


class Back(NamedTuple):
    """What a step on the way back knows; gradients in shared and own entries stand apart."""

    after: tuple[Tensor, Tensor]  # in the vector after the step
    before: tuple[Tensor, Tensor]  # in the vector before it
    spread: Tensor  # [rows, items] how the chances change along `after`
    centre: Tensor  # [rows] mean over items of how their logits change along it
    within: Tensor | None  # [rows] the part of own entries in that, before their loading


def path(items: AllItems, setting: Setting, steps: int) -> tuple[list[Step], Tensor]:
    """The steps of `descend_softmax`, and the vectors [rows, dim] after the last."""
    lift = setting.rate[:, None] * setting.pulled + setting.tether * setting.start
    step, stay = setting.step, 1 - setting.tether
    taken, user = list[Step](), setting.start
    for _ in range(steps):
        chance = softmax(items.logits(user))
        taken.append(Step(user, chance, chance @ items.table))
        user = torch.addcmul(lift, user, stay)
        shared, own = items.split(user)
        shared += step * taken[-1].mean
        if items.loading is not None:
            own += step * items.loading * chance
    return taken, user


def way_back(
    items: AllItems, setting: Setting, taken: Sequence[Step], along: Tensor
) -> Iterator[Back]:
    """From the gradient [rows, dim] in the last vector back to the first, step by step.

    The Hessian is the covariance of the items' features.
    """
    step, stay = setting.step, 1 - setting.tether
    shared, own = after = items.split(along)
    for _, chance, mean in reversed(taken):
        centre, within = (mean * shared).sum(1), None
        if items.loading is not None:
            within = (chance * own).sum(1)
            centre = centre + items.loading * within
        spread = items.add(-centre[:, None], shared, own) * chance
        shared = torch.addcmul(shared * stay, spread @ items.table, step)
        if items.loading is not None:
            own = torch.addcmul(own * stay if setting.pull else own, spread, step * items.loading)
        yield Back(after, (shared, own), spread, centre, within)
        after = shared, own


class Descent(torch.autograd.Function):
    """`descend_softmax` with a backward pass of its own; for several runs by `vmap` too.

    Its outputs are the vectors after the last step, which can be differentiated, and what its steps
    know, which cannot. The rate is a constant.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        table: Tensor,
        bias: Tensor,
        loading: Tensor | None,
        pulled: Tensor,
        weight: Tensor,
        start: Tensor,
        rate: Tensor,
        pull: float,
        steps: int,
    ) -> tuple[Tensor, ...]:
        """Vectors [rows, dim] after the last step; then vectors, chances and means of the steps."""
        setting = Setting(pulled, weight, start, rate, pull)
        taken, user = path(AllItems(table, bias, loading), setting, steps)
        users, chances, means = zip(*taken, strict=True)
        return user, *users[1:], *chances, *means

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep all of it."""
        *tensors, ctx.pull, ctx.steps = inputs
        ctx.save_for_backward(*tensors, *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # no zeros for what cannot be differentiated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in everything that was given, but the rate."""
        table, bias, loading, pulled, weight, start, rate, *known = ctx.saved_tensors
        items = AllItems(table, bias, loading)
        setting = Setting(pulled, weight, start, rate, ctx.pull)
        known, step = [start, *known], setting.step
        taken = [Step(*known[at :: ctx.steps]) for at in range(ctx.steps)]
        to_table, to_bias = torch.zeros_like(table), torch.zeros_like(bias)
        to_loading = None if loading is None else torch.zeros_like(loading)
        shared_sum, own_sum = items.split(torch.zeros_like(start))
        centres, before = torch.zeros_like(rate), items.split(gradients[0])
        backs = way_back(items, setting, taken, gradients[0])
        for (user, chance, _), back in zip(reversed(taken), backs, strict=True):
            shared, own = items.split(user)
            to_table = torch.addmm(to_table, back.spread.T, step * shared)
            to_table = torch.addmm(to_table, chance.T, step * back.after[0])
            to_bias = to_bias + back.spread.T @ step[:, 0]
            if to_loading is not None and back.within is not None:
                along_own = (back.spread * own).sum(1) + back.within
                to_loading = to_loading + along_own @ step[:, 0]
            shared_sum, own_sum = shared_sum + back.after[0], own_sum + back.after[1]
            centres, before = centres + back.centre, back.before
        total = torch.cat([shared_sum, own_sum], 1)
        to_start = torch.cat(before, 1) + setting.tether * total
        to_setting = rate[:, None] * total, -rate * centres, to_start
        return to_table, to_bias, to_loading, *to_setting, None, None, None
