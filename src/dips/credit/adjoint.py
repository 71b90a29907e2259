"""Gradients of a prediction's loss with respect to entry weights, by the adjoint of the inner loop.

Let theta_0, ..., theta_S be the iterates of the inner loop (Eq. 7) on the weighted sketch loss
(Eq. 8). Let lambda_s be the gradient of the predicted interaction's loss with respect to theta_s:

    lambda_s = lambda_{s+1} - alpha * H_s lambda_{s+1},    H_s the Hessian of the weighted loss

The gradient with respect to the weight of any interaction i, in the sketch or not, is

    v[i] = d loss / d z_i = - alpha * sum_s lambda_{s+1} . grad loss_i(theta_s)

It is the v of Eq. 10. As S grows, it tends to the influence function of Eq. 11.

| recommender and loss                 | adjoint                  | entry gradient                |
|--------------------------------------|--------------------------|-------------------------------|
| dot product, squared error           | `SquaredErrorAdjoint`    | quadratic in the item vector  |
| dot product, softmax over all items  | `SoftmaxAdjoint`         | linear in the item vector     |
| dot product, linearised inner loss   | `SoftmaxAdjoint`         | linear in the item vector     |
| the same, sketch filtered            | `FilteredSoftmaxAdjoint` | linear, less a probability    |
| the same, with repeat scores         | `RepeatSoftmaxAdjoint`   | linear, and the score's slope |
| gru, sasrec: any `Sequential`        | `SequentialAdjoint`      | by autograd through `read`    |
| any other                            | `TrajectoryAdjoint`      | by autograd through each step |

Seen items that are filtered (`filter_seen`) change no form: they do not depend on entry weights.
An adjoint is a constant: nothing here is differentiated again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dips.credit.sequential_adjoint import (
    SequentialAdjoint,
    sequential_adjoint,
    sequential_entry_gradient,
)
from dips.kernels import dispatch
from dips.numerics import linearised_descent
from dips.numerics.chunks import split_into_chunks
from dips.numerics.linearised_descent import iterates
from dips.numerics.softmax_descent import backward_pass, forward_pass
from dips.recommender.base import Evidence, Recommender
from dips.recommender.compiled_softmax import compiled_adjoint, has_compiled_softmax
from dips.recommender.dot import DotProduct
from dips.recommender.filtered_loss import (
    MIN_REMAINING,
    filtered_probabilities,
    filters_in_loss,
    losses_without,
    remaining_probability,
    without_target,
)
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import FullSoftmax, SquaredError
from dips.recommender.sequential import Sequential


class TrajectoryAdjoint(NamedTuple):
    """Iterates of the inner loop with the adjoint at each: v[i] = -sum_s adjoint_s . grad loss_i.

    It fits every recommender with an inner loop. It ignores the filter of sketch items.
    """

    users: Tensor  # [rows, steps, dim] theta_s
    adjoints: Tensor  # [rows, steps, dim] alpha * lambda_{s+1}


class SquaredErrorAdjoint(NamedTuple):
    """Adjoint for squared error, scores b + e . user: v = -2 (e' outer e + (b - r) e . total)."""

    outer: Tensor  # [rows, dim, dim] sum_s theta_s (alpha * lambda_{s+1})'
    total: Tensor  # [rows, dim] sum_s alpha * lambda_{s+1}


class SoftmaxAdjoint(NamedTuple):
    """Adjoint for softmax or linearised inner loss, scores b + e . user: v = e . total - common."""

    total: Tensor  # [rows, dim] sum_s alpha * lambda_{s+1}
    common: Tensor  # [rows] the term that all interactions share


class FilteredSoftmaxAdjoint(NamedTuple):
    """Adjoint for the softmax when sketch items are filtered: v = e . total - common - probability.

    A sketch item is removed from the softmax, so its weight also removes its probability. If an
    item is in the sketch twice, each of both entries gets the whole term. That is rare, because
    items are filtered only where users do not repeat them.
    """

    total: Tensor  # [rows, dim] as in SoftmaxAdjoint
    common: Tensor  # [rows] as in SoftmaxAdjoint
    user: Tensor  # [rows, dim] user vector after the inner loop
    log_norm: Tensor  # [rows] logarithm of the softmax denominator over the items that are left
    target: Tensor  # [rows] predicted item; it is never filtered


class RepeatSoftmaxAdjoint(NamedTuple):
    """Adjoint when items of the sketch have a score of their own (`repeat_feature`, linearised).

    v = e . total - common + (probability - 1 for the target) * slope of the item's score.
    """

    total: Tensor  # [rows, dim] as in SoftmaxAdjoint
    common: Tensor  # [rows] as in SoftmaxAdjoint
    user: Tensor  # [rows, wide] user vector after the inner loop, with the repeat scores
    log_norm: Tensor  # [rows] logarithm of the softmax denominator
    target: Tensor  # [rows] predicted item


Adjoint = (
    TrajectoryAdjoint
    | SquaredErrorAdjoint
    | SoftmaxAdjoint
    | FilteredSoftmaxAdjoint
    | RepeatSoftmaxAdjoint
    | SequentialAdjoint
)


def is_additive(adjoint: Adjoint) -> bool:
    """Return whether summed fields give the summed entry gradients (for entries of equal age)."""
    return isinstance(adjoint, SquaredErrorAdjoint | SoftmaxAdjoint)


@torch.no_grad()
def loss_and_adjoint(
    model: Recommender,
    evidence: Evidence,
    item: Tensor,
    rating: Tensor,
    seen: Tensor | None = None,
) -> tuple[Tensor, Adjoint]:
    """Return the loss of each prediction and the adjoint of its inner loop.

    Args:
        model: Recommender that adapts the user to the sketch, or reads it in order.
        evidence: Sketches, [rows, n].
        item: Predicted items, [rows].
        rating: Their ratings, [rows].
        seen: Items that are filtered from the loss whatever is kept (`filter_seen`), [rows, m];
            -1 pads. They do not depend on entry weights, so they add no term to the gradients.

    Returns:
        Losses, [rows], and the adjoint in the closed form that fits the model (see the table).
    """
    if seen is None:
        seen = item.new_zeros(len(item), 0)
    if has_compiled_softmax(model):
        loss, total, common, user = compiled_adjoint(model, evidence, item, seen)
        return loss, _filtered(model, SoftmaxAdjoint(total, common), user, loss, item)
    rows = (evidence, item, rating, seen)
    found = [
        _chunk_adjoint(model, *chunk) for chunk in split_into_chunks(rows, model.elements_per_row)
    ]
    losses, parts = zip(*found, strict=True)
    return torch.cat(losses), type(parts[0])(*map(torch.cat, zip(*parts, strict=True)))


def _chunk_adjoint(
    model: Recommender, evidence: Evidence, item: Tensor, rating: Tensor, seen: Tensor
) -> tuple[Tensor, Adjoint]:
    """Return losses and adjoint of a chunk of predictions, all rows at once."""
    if isinstance(model, DotProduct) and isinstance(model.loss, SquaredError):
        return _squared_error_adjoint(model, evidence, item, rating)
    if isinstance(model, DotProduct) and isinstance(model.loss, FullSoftmax):
        return _softmax_adjoint(model, evidence, item, rating, seen)
    if isinstance(model, LinearisedDotProduct):
        return _linearised_adjoint(model, evidence, item, rating, seen)
    if isinstance(model, Sequential):
        return sequential_adjoint(model, evidence, item, rating, seen)
    return trajectory_adjoint(model, evidence, item, rating, seen)


@torch.no_grad()
def entry_gradient(model: Recommender, adjoint: Adjoint, entries: Evidence) -> Tensor:
    """Return the gradient of each prediction's loss with respect to entry weights: v of Eq. 10.

    Args:
        model: Recommender of the adjoint.
        adjoint: Adjoint of each prediction, from `loss_and_adjoint`.
        entries: Interactions in question, [rows, n], in the sketch or not. Ages are those at the
            prediction. A positive `weight` marks interactions whose repeats count; `slots` is not
            read.

    Returns:
        d loss / d weight, [rows, n].
    """
    if isinstance(adjoint, TrajectoryAdjoint):
        if isinstance(model, DotProduct) and not model.loss.listwise:
            return _linear_entry_gradient(model, adjoint, entries)
        chunks = split_into_chunks((adjoint, entries), model.elements_per_row)
        return torch.cat([trajectory_entry_gradient(model, *chunk) for chunk in chunks])
    if isinstance(adjoint, SequentialAdjoint):
        rows = split_into_chunks((adjoint, entries), model.elements_per_row)
        return torch.cat([sequential_entry_gradient(model, *chunk) for chunk in rows])
    if not isinstance(adjoint, SquaredErrorAdjoint):
        assert isinstance(model, DotProduct | LinearisedDotProduct)
        value = model.input_products(entries.item, adjoint.total) - adjoint.common[:, None]
        if model.has_recency_decay or model.counts_repeats:
            value = model.weight_factor(entries.age, entries.repeats) * value
        if isinstance(adjoint, FilteredSoftmaxAdjoint):
            value = value - _filtered_probability(model, adjoint, entries.item)
        if isinstance(adjoint, RepeatSoftmaxAdjoint):
            assert isinstance(model, LinearisedDotProduct)
            slope = model.repeat_slope(adjoint.user, entries)
            probability = (
                model.predict(adjoint.user, entries.item) - adjoint.log_norm[:, None]
            ).exp()
            hit = entries.item == adjoint.target[:, None]
            value = value + slope * (probability - hit.to(probability.dtype))
        return value
    assert isinstance(model, DotProduct)
    features = model.features(entries.item)  # [rows, n, dim]
    slope = _product(features, adjoint.total)
    curvature = ((features @ adjoint.outer) * features).sum(2)
    error = model.intercept(entries.item) - model.standardise(entries.rating)
    return -2 * (curvature + error * slope)


@torch.no_grad()
def trajectory_adjoint(
    model: Recommender,
    evidence: Evidence,
    item: Tensor,
    rating: Tensor,
    seen: Tensor | None = None,
) -> tuple[Tensor, TrajectoryAdjoint]:
    """Return losses and adjoint of predictions for any recommender, from its `inner_gradient` only.

    Args:
        model: Recommender that adapts by gradient descent (Eq. 7).
        evidence: Sketches, [rows, n].
        item: Predicted items, [rows].
        rating: Their ratings, [rows].
        seen: Items that are filtered from the loss (`filter_seen`), [rows, m]; -1 pads.

    Returns:
        Losses, [rows], and the adjoint at every step.
    """
    start = model.initial_user(len(item))
    rate = model.step_size(evidence)[:, None]

    def step(user: Tensor) -> Tensor:  # Eq. 7
        gradient = model.inner_gradient(user, evidence) + 2 * model.prior_penalty * (user - start)
        return user - rate * gradient

    users = [start]
    for _ in range(model.inner_steps):
        users.append(step(users[-1]))
    loss, adjoint = _target_gradient(model, users.pop(), item, rating, seen)
    adjoints = []
    for user in reversed(users):
        adjoints.append(rate * adjoint)
        adjoint = torch.func.vjp(step, user)[1](adjoint)[0]
    return loss, TrajectoryAdjoint(torch.stack(users, 1), torch.stack(adjoints[::-1], 1))


def trajectory_entry_gradient(
    model: Recommender, adjoint: TrajectoryAdjoint, entries: Evidence
) -> Tensor:
    """Return entry gradients, [rows, n], for any recommender: autograd through each step."""
    zero = torch.zeros_like(entries.rating)
    total = zero
    for user, along in zip(adjoint.users.unbind(1), adjoint.adjoints.unbind(1), strict=True):

        def product(weight: Tensor, user: Tensor = user, along: Tensor = along) -> Tensor:
            return (model.inner_gradient(user, entries._replace(weight=weight)) * along).sum()

        total = total - torch.func.grad(product)(zero)
    return total


def _linear_entry_gradient(
    model: DotProduct, adjoint: TrajectoryAdjoint, entries: Evidence
) -> Tensor:
    """Return entry gradients [rows, n] for linear scores and pointwise losses, in closed form."""
    features = model.features(entries.item)  # [rows, n, dim] or [rows, n, channels, dim]
    flat = features.flatten(1, -2).transpose(1, 2)
    shape = (len(entries.item), -1, *features.shape[1:-1])
    scores, along = ((vectors @ flat).reshape(shape) for vectors in adjoint)  # [rows, steps, n, .]
    intercept = model.intercept(entries.item)[:, None]
    rating = model.standardise(entries.rating)[:, None]
    gradient = (model.loss.derivative(intercept + scores, rating) * along).sum(1)
    return -(gradient if model.loss.channels == 1 else gradient.sum(2))


def _filtered_probability(
    model: Recommender, adjoint: FilteredSoftmaxAdjoint, item: Tensor
) -> Tensor:
    """Return the probability [rows, n] of items among those that are not filtered."""
    score = model.predict(adjoint.user, item) - adjoint.log_norm[:, None]
    probability = score.clamp_max(-math.log(MIN_REMAINING)).exp()
    return torch.where(item == adjoint.target[:, None], 0.0, probability)


def _squared_error_adjoint(
    model: DotProduct, evidence: Evidence, item: Tensor, rating: Tensor
) -> tuple[Tensor, SquaredErrorAdjoint]:
    """Return losses and adjoint: the inner step is linear, so lambda takes it with targets of 0."""
    features = model.features(evidence.item)
    residual = model.standardise(evidence.rating) - model.intercept(evidence.item)
    start = model.initial_user(len(item))
    rate = model.step_size(evidence)[:, None]

    def step(vector: Tensor, target: Tensor | float, prior: Tensor | float) -> Tensor:  # Eq. 7
        error = evidence.weight * (_product(features, vector) - target)
        penalty = model.prior_penalty * (vector - prior)
        return vector - 2 * rate * (_product(features.transpose(1, 2), error) + penalty)

    users = [start]
    for _ in range(model.inner_steps):
        users.append(step(users[-1], residual, start))
    loss, adjoint = _target_gradient(model, users.pop(), item, rating)
    scaled = []
    for _ in users:
        scaled.append(rate * adjoint)
        adjoint = step(adjoint, 0.0, 0.0)
    adjoints = torch.stack(scaled[::-1], 1)  # [rows, steps, dim]
    return loss, SquaredErrorAdjoint(torch.stack(users, 2) @ adjoints, adjoints.sum(1))


def _softmax_adjoint(
    model: DotProduct, evidence: Evidence, item: Tensor, rating: Tensor, seen: Tensor
) -> tuple[Tensor, SoftmaxAdjoint | FilteredSoftmaxAdjoint]:
    """Return losses and adjoint from the backward pass of the softmax descent."""
    items, problem = model.all_items, model.inner_problem(evidence)
    if model.fused:
        gone = dispatch.cuda_forward_pass(items, problem, model.inner_steps)
        user = gone.users[-1]
        loss, adjoint = _filtered_target_gradient(model, user, evidence, item, rating, seen)
        slopes, centres, _ = dispatch.cuda_backward_pass(items, problem, gone, adjoint)
        total, common = slopes[1:].sum(0), centres.sum(0)
    else:
        taken, user = forward_pass(items, problem, model.inner_steps)
        loss, adjoint = _filtered_target_gradient(model, user, evidence, item, rating, seen)
        total, common = torch.zeros_like(adjoint), torch.zeros_like(loss)
        shared, repeat = items.split(total)
        for back in backward_pass(items, problem, taken, adjoint):
            shared += back.after[0]
            repeat += back.after[1]
            common += back.mean_change
    found = SoftmaxAdjoint(problem.rate[:, None] * total, problem.rate * common)
    return loss, _filtered(model, found, user, loss, item)


def _linearised_adjoint(
    model: LinearisedDotProduct, evidence: Evidence, item: Tensor, rating: Tensor, seen: Tensor
) -> tuple[Tensor, SoftmaxAdjoint | FilteredSoftmaxAdjoint | RepeatSoftmaxAdjoint]:
    """Return losses and adjoint: the inner step is linear, with one matrix for all users."""
    problem = model.inner_problem(evidence)
    users = iterates(problem, model.inner_steps)
    user = model.with_repeat_scores(users[-1], evidence)
    loss, gradient = _filtered_target_gradient(model, user, evidence, item, rating, seen)
    gradient = gradient[:, : users[-1].shape[1]]
    found = SoftmaxAdjoint(*linearised_descent.adjoint(problem, users, gradient))
    if model.has_repeat_feature:
        log_norm = loss + model.predict(user, item[:, None])[:, 0]
        return loss, RepeatSoftmaxAdjoint(*found, user, log_norm, item)
    return loss, _filtered(model, found, user, loss, item)


def _filtered(
    model: Recommender, adjoint: SoftmaxAdjoint, user: Tensor, loss: Tensor, item: Tensor
) -> SoftmaxAdjoint | FilteredSoftmaxAdjoint:
    """Return the adjoint with what the filter needs, if the model filters sketch items."""
    if not filters_in_loss(model):
        return adjoint
    log_norm = loss + model.predict(user, item[:, None])[:, 0]
    return FilteredSoftmaxAdjoint(*adjoint, user, log_norm, item)


def _filtered_target_gradient(
    model: DotProduct | LinearisedDotProduct,
    user: Tensor,
    evidence: Evidence,
    item: Tensor,
    rating: Tensor,
    seen: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return loss [rows] and its user gradient [rows, dim], without filtered items."""
    loss, gradient = _target_gradient(model, user, item, rating, seen)
    if not filters_in_loss(model):
        return loss, gradient
    own = model.item_vectors(item[:, None])[:, 0]
    log_norm = loss[:, None] + model.predict(user, item[:, None])
    gone = without_target(item, evidence, filtered_probabilities(model, user, evidence, log_norm))
    mean = gradient + own - (gone[:, :, None] * model.item_vectors(evidence.item)).sum(1)
    rest = remaining_probability(gone)
    return loss + rest.log(), mean / rest[:, None] - own


def _target_gradient(
    model: Recommender, user: Tensor, item: Tensor, rating: Tensor, seen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the loss [rows] of the predicted interaction and its user gradient [rows, dim]."""
    seen = item.new_zeros(len(item), 0) if seen is None else seen
    item, rating = item[:, None], rating[:, None]
    if not isinstance(model, LinearisedDotProduct) and not seen.shape[1]:
        losses = model.losses(user, item, rating)[:, 0]
        return losses, model.loss_gradients(user, item, rating)[:, 0]

    def total(vector: Tensor) -> tuple[Tensor, Tensor]:
        losses = losses_without(model, vector, item, rating, seen)[:, 0]
        return losses.sum(), losses

    gradient, losses = torch.func.grad(total, has_aux=True)(user)
    return losses, gradient


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return matrices [rows, n, m] times vectors [rows, m], row by row."""
    return (matrix @ vector[:, :, None])[:, :, 0]
