"""Gradient descent of user vectors on the softmax loss over all items, with its adjoint.

Logits are linear in the user vector. `descend_softmax` is Eq. 7 as it stands. `SoftmaxDescent` is
the same iteration with a backward pass written out. It stores two numbers per item and step, where
automatic differentiation stores every intermediate. It can be differentiated once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dips.numerics.descent import Rounding, identity


class AllItems(NamedTuple):
    """Linear logits of all items: bias + table . shared entries + repeat_scale * repeat entries.

    A user vector holds `dim` shared entries. With the repeat feature one entry per item follows.
    """

    table: Tensor  # [items, dim]
    bias: Tensor  # [items]
    repeat_scale: Tensor | None  # []: factor of the repeat entries; None without the feature

    def split(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shared entries [rows, dim] and the repeat entries [rows, items or 0]."""
        shared = self.table.shape[1]
        return vector[:, :shared], vector[:, shared:]

    def logits(self, user: Tensor) -> Tensor:
        """Return logits [rows, items] of users [rows, dim]."""
        return self.add(self.bias, *self.split(user))

    def along(self, vector: Tensor) -> Tensor:
        """Return the change of the logits [rows, items] along a vector [rows, dim]."""
        return self.add(torch.zeros_like(self.bias), *self.split(vector))

    def add(self, base: Tensor, shared: Tensor, repeat: Tensor) -> Tensor:
        """Return a base plus what a vector adds to the logits, [rows, items]."""
        scores = torch.addmm(base, shared, self.table.T)
        return (
            scores
            if self.repeat_scale is None
            else torch.addcmul(scores, repeat, self.repeat_scale)
        )

    def mean(self, probability: Tensor) -> Tensor:
        """Return feature sums [rows, dim], weighted by [rows, items]: the transpose of `along`."""
        shared = probability @ self.table
        if self.repeat_scale is None:
            return shared
        return torch.cat([shared, self.repeat_scale * probability], 1)


class InnerProblem(NamedTuple):
    """The weighted softmax loss of a sketch (Eq. 8), and how it is descended (Eq. 7)."""

    feature_sum: Tensor  # [rows, dim] weighted sum of the features of the sketch's items
    weight: Tensor  # [rows] sum of the entry weights
    start: Tensor  # [rows, dim] user vectors before the first step
    rate: Tensor  # [rows] step size; a constant
    penalty: float  # weight of the regulariser |user - start|^2 of Eq. 2

    @property
    def step(self) -> Tensor:
        """[rows, 1] factor of the mean item features in a step."""
        return -(self.rate * self.weight)[:, None]

    @property
    def penalty_rate(self) -> Tensor:
        """[rows, 1] share of the distance to the start that a step takes back."""
        return 2 * self.penalty * self.rate[:, None]


def softmax(logits: Tensor) -> Tensor:
    """Return the probabilities of all items. Decisions use a fixed-point version instead."""
    return logits.softmax(-1)


def descend_softmax(
    items: AllItems,
    problem: InnerProblem,
    steps: int,
    softmax: Callable[[Tensor], Tensor] = softmax,
    rounding: Rounding = identity,
) -> Tensor:
    """Return users after gradient descent (Eq. 7) on the weighted softmax loss of a sketch (Eq. 8).

    The gradient is weight * mean - feature_sum, where the mean is over all items' features by
    their probabilities.

    Args:
        items: Linear logits of all items.
        problem: The weighted loss, the start and the step size.
        steps: Number of steps.
        softmax: From logits to probabilities, [rows, items].
        rounding: Applied to the iterate after each step.

    Returns:
        [rows, dim]
    """
    feature_sum, weight, start, rate, penalty = problem
    user = start
    for _ in range(steps):
        gradient = weight[:, None] * items.mean(softmax(items.logits(user))) - feature_sum
        if penalty:
            gradient = gradient + 2 * penalty * (user - start)
        user = rounding(user - rate[:, None] * gradient)
    return user


class ForwardStep(NamedTuple):
    """State before a step of the descent."""

    user: Tensor  # [rows, dim]
    probability: Tensor  # [rows, items]
    mean: Tensor  # [rows, dim] mean of the items' table by these probabilities


class BackwardStep(NamedTuple):
    """Adjoint around a step of the descent; shared and repeat entries are separate."""

    after: tuple[Tensor, Tensor]  # gradient in the user vector after the step
    before: tuple[Tensor, Tensor]  # gradient in the user vector before it
    probability_change: Tensor  # [rows, items] change of the probabilities along `after`
    mean_change: Tensor  # [rows] mean change of the logits along `after`
    repeat_change: Tensor | None  # [rows] part of the repeat entries in it, before their scale


def forward_pass(
    items: AllItems, problem: InnerProblem, steps: int
) -> tuple[list[ForwardStep], Tensor]:
    """Return the steps of `descend_softmax`, and the user vectors [rows, dim] after the last."""
    constant = problem.rate[:, None] * problem.feature_sum + problem.penalty_rate * problem.start
    step, stay = problem.step, 1 - problem.penalty_rate
    taken, user = list[ForwardStep](), problem.start
    for _ in range(steps):
        probability = softmax(items.logits(user))
        taken.append(ForwardStep(user, probability, probability @ items.table))
        user = torch.addcmul(constant, user, stay)
        shared, repeat = items.split(user)
        shared += step * taken[-1].mean
        if items.repeat_scale is not None:
            repeat += step * items.repeat_scale * probability
    return taken, user


def backward_pass(
    items: AllItems, problem: InnerProblem, taken: Sequence[ForwardStep], gradient: Tensor
) -> Iterator[BackwardStep]:
    """Yield the adjoint of each step, from the last to the first.

    The Hessian of the loss is the covariance of the items' features.

    Args:
        items: Linear logits of all items.
        problem: The weighted loss, the start and the step size.
        taken: Steps from `forward_pass`.
        gradient: Gradient in the user vectors after the last step, [rows, dim].
    """
    step, stay = problem.step, 1 - problem.penalty_rate
    shared, repeat = after = items.split(gradient)
    for _, probability, mean in reversed(taken):
        mean_change, repeat_change = (mean * shared).sum(1), None
        if items.repeat_scale is not None:
            repeat_change = (probability * repeat).sum(1)
            mean_change = mean_change + items.repeat_scale * repeat_change
        change = items.add(-mean_change[:, None], shared, repeat) * probability
        shared = torch.addcmul(shared * stay, change @ items.table, step)
        if items.repeat_scale is not None:
            stayed = repeat * stay if problem.penalty else repeat
            repeat = torch.addcmul(stayed, change, step * items.repeat_scale)
        yield BackwardStep(after, (shared, repeat), change, mean_change, repeat_change)
        after = shared, repeat


class SoftmaxDescent(torch.autograd.Function):
    """`descend_softmax` with its own backward pass; `vmap` over runs works too.

    The first output, the user vectors after the last step, can be differentiated once. The other
    outputs are the states of the steps, without gradients. The step size is a constant.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        table: Tensor,
        bias: Tensor,
        repeat_scale: Tensor | None,
        feature_sum: Tensor,
        weight: Tensor,
        start: Tensor,
        rate: Tensor,
        penalty: float,
        steps: int,
    ) -> tuple[Tensor, ...]:
        """Return user vectors [rows, dim]; then vectors, probabilities and means of the steps."""
        problem = InnerProblem(feature_sum, weight, start, rate, penalty)
        taken, user = forward_pass(AllItems(table, bias, repeat_scale), problem, steps)
        users, probabilities, means = zip(*taken, strict=True)
        return user, *users[1:], *probabilities, *means

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save inputs and states."""
        *tensors, ctx.penalty, ctx.steps = inputs
        ctx.save_for_backward(*tensors, *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # no zeros for outputs without gradients

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients in all inputs but the step size."""
        table, bias, repeat_scale, feature_sum, weight, start, rate, *states = ctx.saved_tensors
        items = AllItems(table, bias, repeat_scale)
        problem = InnerProblem(feature_sum, weight, start, rate, ctx.penalty)
        states, step = [start, *states], problem.step
        taken = [ForwardStep(*states[at :: ctx.steps]) for at in range(ctx.steps)]
        to_table, to_bias = torch.zeros_like(table), torch.zeros_like(bias)
        to_scale = None if repeat_scale is None else torch.zeros_like(repeat_scale)
        shared_sum, repeat_sum = items.split(torch.zeros_like(start))
        mean_changes, before = torch.zeros_like(rate), items.split(gradients[0])
        backs = backward_pass(items, problem, taken, gradients[0])
        for (user, probability, _), back in zip(reversed(taken), backs, strict=True):
            shared, repeat = items.split(user)
            to_table = torch.addmm(to_table, back.probability_change.T, step * shared)
            to_table = torch.addmm(to_table, probability.T, step * back.after[0])
            to_bias = to_bias + back.probability_change.T @ step[:, 0]
            if to_scale is not None and back.repeat_change is not None:
                along_repeat = (back.probability_change * repeat).sum(1) + back.repeat_change
                to_scale = to_scale + along_repeat @ step[:, 0]
            shared_sum, repeat_sum = shared_sum + back.after[0], repeat_sum + back.after[1]
            mean_changes, before = mean_changes + back.mean_change, back.before
        total = torch.cat([shared_sum, repeat_sum], 1)
        to_start = torch.cat(before, 1) + problem.penalty_rate * total
        to_problem = rate[:, None] * total, -rate * mean_changes, to_start
        return to_table, to_bias, to_scale, *to_problem, None, None, None
