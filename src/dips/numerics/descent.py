"""The inner loop: a user's vector descends on the weighted losses of a sketch (Eq. 7).

Two forms of the same iteration: by automatic differentiation for any loss, and a closed form for
scores that are linear in the user's vector (that of the softmax over all items stands in
`softmax_descent`). Both can be differentiated again. `rounding` rounds the iterate after each step;
it is the identity except at decision time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Rounding = Callable[[Tensor], Tensor]


def keep(value: Tensor) -> Tensor:
    """Do not round: the `rounding` of training and prediction."""
    return value


def descend(
    objective: Callable[[Tensor], Tensor],
    start: Tensor,
    rate: Tensor,
    steps: int,
    pull: float = 0.0,
    rounding: Rounding = keep,
) -> Tensor:
    """Gradient descent on `objective(user) -> [rows]`, each row on its own.

    `start` [rows, dim], `rate` [rows]; `pull` weighs the regulariser |user - start|^2 of Eq. 2.
    """
    gradient = torch.func.grad(lambda user: objective(user).sum())
    user = start
    for _ in range(steps):
        slope = gradient(user)
        if pull:
            slope = slope + 2 * pull * (user - start)
        user = rounding(user - rate[:, None] * slope)
    return user


def descend_linear(
    features: Tensor,
    intercept: Tensor,
    slope: Callable[[Tensor], Tensor],
    start: Tensor,
    rate: Tensor,
    steps: int,
    pull: float = 0.0,
    rounding: Rounding = keep,
) -> Tensor:
    """The same for scores `intercept + features . user`, given d objective / d score.

    `features` [rows, n, dim], `intercept` [rows, n], `slope(scores) -> [rows, n]`. The iterate
    moves in the span of the features, user = start + features' c, so with fewer features than
    dimensions it is the n coefficients c that descend.
    """
    scores = intercept + (features @ start[:, :, None])[:, :, 0]
    step = rate[:, None]
    if features.shape[1] < features.shape[2]:
        gram = rounding(features @ features.transpose(1, 2))  # [rows, n, n]
        first, coefficients = scores, torch.zeros_like(scores)
        for _ in range(steps):
            fall = slope(scores)
            if pull:
                fall = fall + 2 * pull * coefficients
            coefficients = rounding(coefficients - step * fall)
            scores = first + (gram * coefficients[:, None, :]).sum(2)
        return rounding(start + (features.transpose(1, 2) @ coefficients[:, :, None])[:, :, 0])
    user = start
    for _ in range(steps):
        fall = (features.transpose(1, 2) @ slope(scores)[:, :, None])[:, :, 0]
        if pull:
            fall = fall + 2 * pull * (user - start)
        user = rounding(user - step * fall)
        scores = intercept + (features @ user[:, :, None])[:, :, 0]
    return user
