"""The inner loop: a user vector descends on the weighted losses of a sketch (Eq. 7 on Eq. 8).

There are two forms of one iteration: by automatic differentiation for any loss, and in closed form
for scores that are linear in the user vector. `softmax_descent` has the form for the softmax over
all items. All can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Rounding = Callable[[Tensor], Tensor]
"""Applied to the iterate after each step; rounds to the fixed-point grid at decision time."""


def identity(value: Tensor) -> Tensor:
    """Return the value unchanged: the rounding of training and prediction."""
    return value


def descend(
    objective: Callable[[Tensor], Tensor],
    start: Tensor,
    rate: Tensor,
    steps: int,
    penalty: float = 0.0,
    rounding: Rounding = identity,
) -> Tensor:
    """Return users after gradient descent (Eq. 7), each row on its own objective.

    Args:
        objective: From users [rows, dim] to losses [rows]: the weighted sum of Eq. 8.
        start: Users before the first step, [rows, dim].
        rate: Step size (alpha), [rows].
        steps: Number of steps.
        penalty: Weight of the regulariser |user - start|^2 of Eq. 2.
        rounding: Applied to the iterate after each step.

    Returns:
        [rows, dim], differentiable in everything that the objective depends on.
    """
    gradient = torch.func.grad(lambda user: objective(user).sum())
    user = start
    for _ in range(steps):
        slope = gradient(user)
        if penalty:
            slope = slope + 2 * penalty * (user - start)
        user = rounding(user - rate[:, None] * slope)
    return user


def descend_linear(
    features: Tensor,
    intercept: Tensor,
    derivative: Callable[[Tensor], Tensor],
    start: Tensor,
    rate: Tensor,
    steps: int,
    penalty: float = 0.0,
    rounding: Rounding = identity,
) -> Tensor:
    """Return users after gradient descent (Eq. 7) for scores `intercept + features . user`.

    The iterate stays in the span of the features, user = start + features' c. With fewer features
    than dimensions the n coefficients c descend instead of the user.

    Args:
        features: [rows, n, dim]
        intercept: [rows, n]
        derivative: From scores [rows, n] to d objective / d score, [rows, n].
        start: Users before the first step, [rows, dim].
        rate: Step size (alpha), [rows].
        steps: Number of steps.
        penalty: Weight of the regulariser |user - start|^2 of Eq. 2.
        rounding: Applied to the iterate after each step.

    Returns:
        [rows, dim]
    """
    scores = intercept + (features @ start[:, :, None])[:, :, 0]
    step = rate[:, None]
    if features.shape[1] < features.shape[2]:
        gram = rounding(features @ features.transpose(1, 2))  # [rows, n, n]
        first, coefficients = scores, torch.zeros_like(scores)
        for _ in range(steps):
            slope = derivative(scores)
            if penalty:
                slope = slope + 2 * penalty * coefficients
            coefficients = rounding(coefficients - step * slope)
            scores = first + (gram * coefficients[:, None, :]).sum(2)
        return rounding(start + (features.transpose(1, 2) @ coefficients[:, :, None])[:, :, 0])
    user = start
    for _ in range(steps):
        slope = (features.transpose(1, 2) @ derivative(scores)[:, :, None])[:, :, 0]
        if penalty:
            slope = slope + 2 * penalty * (user - start)
        user = rounding(user - step * slope)
        scores = intercept + (features @ user[:, :, None])[:, :, 0]
    return user
