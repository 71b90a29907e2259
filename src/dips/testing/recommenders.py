"""Checks of a recommender: independent rows, twice differentiable, the same in any batch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from dips.numerics.fixed_point import SCORE_BITS, quantize
from dips.numerics.stacking import call_stacked
from dips.plugins.loading import construct
from dips.recommender.base import Evidence, Recommender
from dips.recommender.losses import SquaredError
from dips.recommender.registry import RecommenderSpec, settings_of
from dips.recommender.sequential import Sequential
from dips.recommender.signals import recommender_signals
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.records import Candidates, Sketch
from dips.testing.require import close, require, same
from dips.testing.state import require_tensors_in_state
from dips.testing.worlds import random_candidates

ROWS, WIDTH = 4, 3
LOOSE, TIGHT = 1e-4, 1e-8
RATING_VALUES = (1.0, 2.0, 3.0, 4.0, 5.0)


def check_recommender(
    recommender: Recommender | Callable[..., Recommender], loss: str = "mse"
) -> None:
    """Run every check on a recommender.

    Args:
        recommender: A recommender, or a class or function that makes one from a run's settings.
        loss: Name of the loss that a class is made with: mse, bce, cce or softmax.

    Raises:
        AssertionError: If a check fails; the message says what to change.

    Example:
        >>> from dips.testing import FakeRecommender
        >>> check_recommender(FakeRecommender)
    """
    made = recommender if isinstance(recommender, Recommender) else _small(recommender, loss)
    for check in RECOMMENDER_CHECKS:
        check(made)


def one_output_per_item(model: Recommender) -> None:
    """Check that outputs are [rows, n] or [rows, n, channels], and finite."""
    user, item, _ = _case(model)
    output = model.predict(user, item)
    channels = () if model.loss.channels == 1 else (model.loss.channels,)
    require(
        tuple(output.shape) == (ROWS, WIDTH, *channels),
        f"{_name(model)}.predict returned the shape {tuple(output.shape)} for {ROWS} users, "
        f"{WIDTH} items and {model.loss.channels} channels",
    )
    require(bool(output.isfinite().all()), f"{_name(model)}.predict is not finite")


def one_vector_per_item(model: Recommender) -> None:
    """Check that `embedding` returns one detached vector per item."""
    _, item, _ = _case(model)
    vectors = model.embedding(item)
    require(
        vectors.dim() == 3 and tuple(vectors.shape[:2]) == (ROWS, WIDTH),
        f"{_name(model)}.embedding returned the shape {tuple(vectors.shape)} for items of "
        f"{(ROWS, WIDTH)}: one vector per item is needed",
    )
    require(
        not vectors.requires_grad,
        f"{_name(model)}.embedding lets gradients through: return it detached",
    )


def ignores_other_rows(model: Recommender) -> None:
    """Check that outputs depend neither on other users nor on the order of items."""
    user, item, _ = _case(model)
    output = model.predict(user, item)
    for row in range(ROWS):
        alone = model.predict(user[row : row + 1], item[row : row + 1])
        require(
            close(alone, output[row : row + 1], LOOSE),
            f"{_name(model)}.predict gives a user other outputs alone than in a batch",
        )
    order = torch.tensor([2, 0, 1])
    require(
        close(model.predict(user, item[:, order]), output[:, order], LOOSE),
        f"{_name(model)}.predict depends on the order of the items",
    )


def differentiable_in_the_user(model: Recommender) -> None:
    """Check that losses have finite, non-zero gradients in the user vector."""
    user, item, rating = _case(model)
    gradients = model.loss_gradients(user, item, rating)
    require(
        bool(gradients.isfinite().all()),
        f"{_name(model)}.losses have gradients that are not finite",
    )
    require(
        bool((gradients != 0).any()),
        f"{_name(model)}.losses do not depend on the user vector: the inner loop cannot change it",
    )


def ignores_empty_entries(model: Recommender) -> None:
    """Check that an empty sketch gives the prior and that entries of weight 0 do not matter.

    The order of entries matters to sequential recommenders only.
    """
    _, item, rating = _case(model)
    name = _name(model)
    nothing = model.read(_evidence(item, rating, torch.zeros(ROWS, WIDTH)))
    prior = model.user_prior.expand(ROWS, -1)
    require(close(nothing, prior, LOOSE), f"{name}.read changes the user on an empty sketch")
    weight = torch.tensor([1.0, 1.0, 0.0]).expand(ROWS, -1)
    read = model.read(_evidence(item, rating, weight))
    other = (item + (weight == 0)) % model.items
    changed = model.read(_evidence(other, rating + (weight == 0), weight))
    require(close(read, changed, LOOSE), f"{name}.read uses entries of weight 0")
    if isinstance(model, Sequential):
        return
    order = torch.tensor([2, 1, 0])
    reversed_read = model.read(_evidence(item[:, order], rating[:, order], weight[:, order]))
    require(
        close(read, reversed_read, LOOSE),
        f"{name}.read depends on the order of the sketch's entries",
    )


def reduces_the_inner_loss(model: Recommender) -> None:
    """Check that the inner loop lowers the inner loss; sequential recommenders have none."""
    if isinstance(model, Sequential):
        return
    _, item, rating = _case(model)
    user = model.read(_evidence(item, rating, torch.ones(ROWS, WIDTH)))
    before = model.inner_loss(model.user_prior.expand(ROWS, -1), item, rating).sum(1)
    after = model.inner_loss(user, item, rating).sum(1)
    require(
        bool((after <= before * (1 + LOOSE)).all() and after.sum() < before.sum()),
        f"{_name(model)}.read does not lower the loss of the entries: inner_lr "
        f"{float(model.inner_lr):g} is too large, or a gradient has the wrong sign",
    )


def closed_forms_agree(model: Recommender) -> None:
    """Check overridden methods against automatic differentiation, `states` against `read`."""
    exact = copy.deepcopy(model).double().requires_grad_(False)
    user, item, rating = _case(exact)
    weight = torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)).double()
    past = _evidence(item, rating, weight)
    base = Recommender
    reads = {"read": (exact.read(past), base.read(exact, past))}
    if isinstance(exact, Sequential):
        whole = _evidence(item, rating, torch.ones(ROWS, WIDTH))
        reads = {"states": (exact.states(item)[:, -1], exact.read(whole))}
    pairs = {
        **reads,
        "predict_all": (exact.predict_all(user), base.predict_all(exact, user)),
        "losses": (exact.losses(user, item, rating), base.losses(exact, user, item, rating)),
        "loss_gradients": (
            exact.loss_gradients(user, item, rating),
            base.loss_gradients(exact, user, item, rating),
        ),
        "influences": (
            exact.influences(user, item, rating, weight, 0.5),
            base.influences(exact, user, item, rating, weight, 0.5),
        ),
    }
    for name, (own, generic) in pairs.items():
        require(
            own.shape == generic.shape,
            f"{_name(model)}.{name} has the shape {tuple(own.shape)}, not {tuple(generic.shape)}",
        )
        gap = float((own - generic).abs().max())
        require(
            close(own, generic, TIGHT),
            f"{_name(model)}.{name} differs from the generic form by {gap:.1e}",
        )


def second_order_gradients(model: Recommender) -> None:
    """Check the gradient of a prediction loss in the prior, through the inner loop."""
    exact = copy.deepcopy(model).double().requires_grad_(False)
    _, item, rating = _case(exact)
    past = _evidence(item[:, 1:], rating[:, 1:], torch.ones(ROWS, WIDTH - 1).double())

    def loss(prior: Tensor) -> Tensor:
        def task(there: Recommender) -> Tensor:
            return there.losses(there.read(past), item[:, :1], rating[:, :1]).sum()

        result: Tensor = call_stacked(exact, {"user_prior": prior[None]}, task)[0]
        return result

    prior = exact.user_prior.detach()
    gradient = torch.func.grad(loss)(prior)
    small = 1e-5
    for place, step in enumerate(torch.eye(len(prior), dtype=prior.dtype) * small):
        expected = (loss(prior + step) - loss(prior - step)) / (2 * small)
        require(
            abs(float(gradient[place] - expected)) < 1e-5 * (1 + abs(float(expected))),
            f"{_name(model)}: the gradient through `read` in user_prior[{place}] is "
            f"{float(gradient[place]):.6g}, finite differences say {float(expected):.6g}",
        )


def works_stacked(model: Recommender) -> None:
    """Check that two stacked runs read and predict as single runs."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    models = [model, other]
    _, item, rating = _case(model)
    past = _evidence(item, rating, torch.ones(ROWS, WIDTH))

    def task(there: Recommender, item: Tensor, *evidence: Tensor) -> Tensor:
        return there.predict(there.read(Evidence(*evidence)), item)

    twice = [torch.stack([field, field]) for field in (item, *past)]
    try:
        stacked = StackedRecommenders.of(models).call(task, *twice)
    except RuntimeError as error:
        raise AssertionError(
            f"{_name(model)} does not work under torch.func.vmap, which stacks runs: {error}"
        ) from None
    for run, alone in enumerate(models):
        require(
            close(stacked[run], task(alone, item, *past), LOOSE),
            f"{_name(model)} predicts differently in stacked runs than alone",
        )


def ignores_other_users(model: Recommender) -> None:
    """Check that the losses that policies read do not depend on the batch."""
    sketch, candidates = random_candidates(items=model.items)
    quantized = StackedRecommenders.of([model]).quantized()
    together = _quantized_losses(quantized, sketch, candidates)
    for user in range(len(together)):
        row = slice(user, user + 1)
        alone = _quantized_losses(
            quantized,
            Sketch(*(field[row] for field in sketch)),
            Candidates(*(field[row] for field in candidates)),
        )
        require(
            same(alone, together[row]),
            f"{_name(model)}: the loss of a candidate differs between a batch and a user alone",
        )


def has_all_tensors_in_state(model: Recommender) -> None:
    """Check that all tensors are in the state."""
    require_tensors_in_state(model)


RECOMMENDER_CHECKS: tuple[Callable[[Recommender], None], ...] = (
    one_output_per_item,
    one_vector_per_item,
    ignores_other_rows,
    differentiable_in_the_user,
    ignores_empty_entries,
    reduces_the_inner_loss,
    closed_forms_agree,
    second_order_gradients,
    works_stacked,
    ignores_other_users,
    has_all_tensors_in_state,
)
"""Every check of a recommender; each raises AssertionError."""


def _small(make: Callable[..., Recommender], loss: str) -> Recommender:
    """Return a recommender of eight items with ratings from one to five."""
    fits = not isinstance(make, type) or issubclass(make, Recommender)
    require(fits, f"{make!r} is not a dips Recommender: subclass it")
    center, spread = (3.0, 1.25) if loss == "mse" else (0.0, 1.0)
    spec = RecommenderSpec(
        kind="",
        loss=loss,
        items=8,
        dim=4,
        low=1.0,
        high=5.0,
        rating_values=RATING_VALUES,
        rating_center=center,
        rating_spread=spread,
    )
    made = construct(make, Recommender, 0, settings_of(spec))
    require(isinstance(made, Recommender), f"{made!r} is not a dips Recommender: subclass it")
    return made


def _case(model: Recommender) -> tuple[Tensor, Tensor, Tensor]:
    """Return users near the prior, items and ratings; ratings near the mean for squared error."""
    generator = torch.Generator().manual_seed(1)
    prior = model.user_prior.detach()
    noise = torch.randn(ROWS, len(prior), generator=generator).to(prior.dtype)
    item = torch.randint(model.items, (ROWS, WIDTH), generator=generator)
    rating = torch.randint(1, 6, (ROWS, WIDTH), generator=generator).to(prior.dtype)
    if isinstance(model.loss, SquaredError):
        rating = model.rating_center + (rating - 3) / 2
    return prior + noise / 2, item, rating


def _evidence(item: Tensor, rating: Tensor, weight: Tensor) -> Evidence:
    return Evidence.new(item, rating, weight.to(rating.dtype), (weight > 0).sum(1))


def _quantized_losses(
    quantized: StackedRecommenders, sketch: Sketch, candidates: Candidates
) -> Tensor:
    return quantize(recommender_signals(quantized, sketch, candidates).loss, SCORE_BITS)


def _name(model: Recommender) -> str:
    return type(model).__name__
