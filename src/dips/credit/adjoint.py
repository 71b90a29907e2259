"""The effect of a weight: how a prediction's loss changes with the weight of any interaction.

For one prediction, let theta_s be the iterates of the inner loop and lambda_s the gradient of the
predicted interaction's loss in theta_s. The weight of an interaction i, in the sketch or not, has
the effect  v[i] = - rate * sum_s lambda_{s+1} . grad l_i(theta_s),  less, where what was read is
struck out, the chance of its item among what is left. An `Effect` holds what this takes for every i
at once; it is a constant, never differentiated.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dips.kernels import softmax_cuda
from dips.numerics.chunks import pieces
from dips.numerics.softmax_descent import path, way_back
from dips.recommender.base import Evidence, Recommender
from dips.recommender.compiled_softmax import effects, is_looped
from dips.recommender.dot import DotProduct
from dips.recommender.losses import FullSoftmax, SquaredError
from dips.recommender.sketch_filter import LEAST, before, is_struck, left, struck


class Path(NamedTuple):
    """The effect for any recommender: v[i] = - sum_s pulls_s . grad l_i(users_s)."""

    users: Tensor  # [rows, steps, dim] theta_s
    pulls: Tensor  # [rows, steps, dim] rate * lambda_{s+1}


class Quadratic(NamedTuple):
    """The effect for squared error and scores b + e . user: -2 (e' outer e + (b - r) e . pull)."""

    outer: Tensor  # [rows, dim, dim] sum_s theta_s (rate * lambda_{s+1})'
    pull: Tensor  # [rows, dim] sum_s rate * lambda_{s+1}


class Listwise(NamedTuple):
    """The effect for the softmax over all items and scores b + e . user: e . pull - common."""

    pull: Tensor  # [rows, dim] sum_s rate * lambda_{s+1}
    common: Tensor  # [rows] the same for every interaction


class Struck(NamedTuple):
    """The same where what was read is struck out: less the chance that an item takes with it.

    Of an item that stands there twice either entry earns the whole of it: that is rare, where items
    do not come back.
    """

    pull: Tensor
    common: Tensor
    user: Tensor  # [rows, dim] after reading
    norm: Tensor  # [rows] logarithm of the sum of the chances that are left
    target: Tensor  # [rows] what is predicted: it is never struck out


Effect = Path | Quadratic | Listwise | Struck


def additive(effect: Effect) -> bool:
    """Whether the effect on a sum of predictions is the sum of the fields, for the same ages."""
    return not isinstance(effect, Path | Struck)


@torch.no_grad()
def effect_of(
    model: Recommender, evidence: Evidence, item: Tensor, rating: Tensor
) -> tuple[Tensor, Effect]:
    """[rows] losses of predicting `item` [rows] from these sketches, and the effects on them."""
    if is_looped(model):
        loss, pull, common, user = effects(model, evidence, item)
        return loss, _told(model, Listwise(pull, common), user, loss, item)
    rows = (evidence, item, rating)
    found = [_effect_of(model, *piece) for piece in pieces(rows, model.breadth)]
    losses, parts = zip(*found, strict=True)
    return torch.cat(losses), type(parts[0])(*map(torch.cat, zip(*parts, strict=True)))


def _effect_of(
    model: Recommender, evidence: Evidence, item: Tensor, rating: Tensor
) -> tuple[Tensor, Effect]:
    """The same, all rows at once."""
    if isinstance(model, DotProduct) and isinstance(model.loss, SquaredError):
        return _quadratic(model, evidence, item, rating)
    if isinstance(model, DotProduct) and isinstance(model.loss, FullSoftmax):
        return _listwise(model, evidence, item, rating)
    return path_of(model, evidence, item, rating)


@torch.no_grad()
def worth(
    model: Recommender, effect: Effect, item: Tensor, rating: Tensor, age: Tensor | None = None,
    repeats: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """[rows, n] effect of the weight of these interactions, in the sketch or not.

    Their age is that at the prediction; none: they are new. No repeats: once each.
    """
    age = torch.zeros_like(rating) if age is None else age
    repeats = torch.ones_like(rating) if repeats is None else repeats
    if isinstance(effect, Path):
        if isinstance(model, DotProduct) and not model.loss.listwise:
            return _linear_worth(model, effect, item, rating)
        rows = pieces((effect, item, rating, age, repeats), model.breadth)
        return torch.cat([path_worth(model, *piece) for piece in rows])
    assert isinstance(model, DotProduct)
    if isinstance(effect, Listwise | Struck):
        value = model.worth(item, effect.pull) - effect.common[:, None]
        if model.has_recency_decay or model.counts_repeats:
            value = model.strength(age, repeats) * value
        return value - _chances(model, effect, item) if isinstance(effect, Struck) else value
    features = model.features(item)  # [rows, n, dim]
    along = _product(features, effect.pull)
    curve = ((features @ effect.outer) * features).sum(2)
    return -2 * (curve + (model.intercept(item) - rating) * along)


@torch.no_grad()
def path_of(
    model: Recommender, evidence: Evidence, item: Tensor, rating: Tensor
) -> tuple[Tensor, Path]:
    """The same as `effect_of` in the form that suits every recommender; needs only its `slope`.

    It knows nothing of what is struck out.
    """
    start = model.start(len(item))
    rate = model.rate(evidence)[:, None]

    def step(user: Tensor) -> Tensor:
        fall = model.slope(user, evidence) + 2 * model.prior_penalty * (user - start)
        return user - rate * fall

    users = [start]
    for _ in range(model.inner_steps):
        users.append(step(users[-1]))
    loss, along = _target(model, users.pop(), item, rating)
    pulls = []
    for user in reversed(users):
        pulls.append(rate * along)
        along = torch.func.vjp(step, user)[1](along)[0]
    return loss, Path(torch.stack(users, 1), torch.stack(pulls[::-1], 1))


def path_worth(
    model: Recommender, path: Path, item: Tensor, rating: Tensor, age: Tensor, repeats: Tensor
) -> Tensor:
    """`worth` for every recommender: pull back through each step's slope to the weights."""
    slots = torch.zeros_like(item[:, 0])
    nothing = torch.zeros_like(rating)
    total = nothing
    for user, pull in zip(path.users.unbind(1), path.pulls.unbind(1), strict=True):

        def fall(weight: Tensor, user: Tensor = user, pull: Tensor = pull) -> Tensor:
            past = Evidence(item, rating, weight, slots, age, repeats)
            return (model.slope(user, past) * pull).sum()

        total = total - torch.func.grad(fall)(nothing)
    return total


def _linear_worth(model: DotProduct, path: Path, item: Tensor, rating: Tensor) -> Tensor:
    """Slopes of the scores times what the pulls do to them, all steps at once."""
    features = model.features(item)  # [rows, n, dim] or [rows, n, channels, dim]
    flat = features.flatten(1, -2).transpose(1, 2)
    shape = (len(item), -1, *features.shape[1:-1])
    scores, along = ((vectors @ flat).reshape(shape) for vectors in path)  # [rows, steps, n, ...]
    slope = model.loss.slope(model.intercept(item)[:, None] + scores, rating[:, None])
    effect = (slope * along).sum(1)
    return -(effect if model.loss.channels == 1 else effect.sum(2))


def _chances(model: DotProduct, effect: Struck, item: Tensor) -> Tensor:
    """[rows, n] those of items, to what is left."""
    score = model.predict(effect.user, item) - effect.norm[:, None]
    chance = score.clamp_max(-math.log(LEAST)).exp()
    return torch.where(item == effect.target[:, None], 0.0, chance)


def _quadratic(
    model: DotProduct, evidence: Evidence, item: Tensor, rating: Tensor
) -> tuple[Tensor, Quadratic]:
    """The step is linear, so lambda takes the same one with the targets at 0."""
    features = model.features(evidence.item)
    wanted = evidence.rating - model.intercept(evidence.item)
    start = model.start(len(item))
    rate = model.rate(evidence)[:, None]

    def step(vector: Tensor, aim: Tensor | float, home: Tensor | float) -> Tensor:
        error = evidence.weight * (_product(features, vector) - aim)
        fall = _product(features.transpose(1, 2), error) + model.prior_penalty * (vector - home)
        return vector - 2 * rate * fall

    users = [start]
    for _ in range(model.inner_steps):
        users.append(step(users[-1], wanted, start))
    loss, along = _target(model, users.pop(), item, rating)
    pulls = []
    for _ in users:
        pulls.append(rate * along)
        along = step(along, 0.0, 0.0)
    pull = torch.stack(pulls[::-1], 1)  # [rows, steps, dim]
    return loss, Quadratic(torch.stack(users, 2) @ pull, pull.sum(1))


def _listwise(
    model: DotProduct, evidence: Evidence, item: Tensor, rating: Tensor
) -> tuple[Tensor, Listwise | Struck]:
    """Gradients in what the items of the sketch sum up to, and in their weights."""
    items, setting = model.all_items, model.descent(evidence)
    if model.fused:
        gone = softmax_cuda.course(items, setting, model.inner_steps)
        user = gone.users[-1]
        loss, along = _after(model, user, evidence, item, rating)
        slopes, centres, _ = softmax_cuda.way_back(items, setting, gone, along)
        pull, common = slopes[1:].sum(0), centres.sum(0)
    else:
        taken, user = path(items, setting, model.inner_steps)
        loss, along = _after(model, user, evidence, item, rating)
        pull, common = torch.zeros_like(along), torch.zeros_like(loss)
        shared, own = items.split(pull)
        for back in way_back(items, setting, taken, along):
            shared += back.after[0]
            own += back.after[1]
            common += back.centre
    effect = Listwise(setting.rate[:, None] * pull, setting.rate * common)
    return loss, _told(model, effect, user, loss, item)


def _told(
    model: DotProduct, effect: Listwise, user: Tensor, loss: Tensor, item: Tensor
) -> Listwise | Struck:
    """The effect, knowing what is struck out where anything is."""
    if not is_struck(model):
        return effect
    return Struck(*effect, user, loss + model.predict(user, item[:, None])[:, 0], item)


def _after(
    model: DotProduct, user: Tensor, evidence: Evidence, item: Tensor, rating: Tensor
) -> tuple[Tensor, Tensor]:
    """`_target`, without what the sketch strikes out."""
    loss, along = _target(model, user, item, rating)
    if not is_struck(model):
        return loss, along
    own = model.rows(item[:, None])[:, 0]
    norm = loss[:, None] + model.predict(user, item[:, None])
    gone = before(item, evidence, struck(model, user, evidence, norm))
    mean = along + own - (gone[:, :, None] * model.rows(evidence.item)).sum(1)
    rest = left(gone)
    return loss + rest.log(), mean / rest[:, None] - own


def _target(
    model: Recommender, user: Tensor, item: Tensor, rating: Tensor
) -> tuple[Tensor, Tensor]:
    """[rows] loss of the predicted interaction, and its gradient [rows, dim] in the user."""
    item, rating = item[:, None], rating[:, None]
    return model.losses(user, item, rating)[:, 0], model.gradients(user, item, rating)[:, 0]


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    """[rows, n, m] times [rows, m], row by row."""
    return (matrix @ vector[:, :, None])[:, :, 0]
