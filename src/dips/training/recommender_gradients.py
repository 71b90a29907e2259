"""Meta-gradients of the recommender: the loss of Eq. 1, differentiated through the inner loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_map

from dips.numerics.chunks import split_into_chunks
from dips.recommender.base import Evidence, Recommender
from dips.recommender.compiled_softmax import has_compiled_softmax, total_loss
from dips.recommender.filtered_loss import losses_without
from dips.recommender.losses import FullSoftmax
from dips.recommender.stacked import StackedRecommenders, StateDict
from dips.rollout.trace import Trace
from dips.stream.side_information import item_of
from dips.training.lazy_adam import NOWHERE, pick_rows


def items_read(trace: Trace, rows: Tensor, negatives: Tensor | None = None) -> Tensor:
    """Return the items of a batch: predicted items, items of the sketches, and negatives.

    Args:
        trace: Predictions and their sketches.
        rows: Rows of the trace, [runs, batch]; -1 pads.
        negatives: Sampled items of the batch, [runs, n].

    Returns:
        [runs, n]; -1 where there is none, so padding adds no item.
    """
    place = rows.clamp_min(0)
    evidence = trace.evidence(place)
    kept = torch.where(evidence.weight > 0, item_of(evidence.item), -1)
    items = torch.cat([item_of(trace.columns.token[trace.event[place]])[..., None], kept], -1)
    found = torch.where((rows >= 0)[..., None], items, -1).flatten(1)
    return found if negatives is None else torch.cat([found, negatives], 1)


def recommender_gradients(
    stack: StackedRecommenders, trace: Trace, rows: Tensor, touched: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss of a batch of predictions, and its gradient through the inner loop.

    Args:
        stack: Recommenders of all runs.
        trace: Predictions and their sketches.
        rows: Rows of the trace, [runs, batch]; -1 pads.
        touched: Items of the batch, [runs, n], ascending. If given, item tables have gradients for
            these rows only.

    Returns:
        Mean losses, [runs], and one gradient per trainable parameter, with a leading axis of runs.
    """
    mask = (rows >= 0).float()  # 1 for a prediction, 0 for padding
    place = rows.clamp_min(0)
    evidence = trace.evidence(place)
    event = trace.event[place]
    target = (trace.columns.token[event], trace.columns.rating[event])
    seen = trace.seen_items(place, filtered=stack.template.masks_seen)
    state = stack.state
    if touched is not None:
        evidence = evidence._replace(item=_renumbered(touched, evidence.item))
        target = (_renumbered(touched, target[0]), target[1])
        seen = _renumbered_known(touched, seen)
        state = _with_rows(stack, touched)
        if "negatives" in state:
            state["negatives"] = _renumbered(touched, state["negatives"])
    trained = {name: state[name] for name in stack.trainable}
    fixed = {name: value for name, value in state.items() if name not in trained}

    def loss(
        parameters: StateDict,
        buffers: StateDict,
        past: Evidence,
        item: Tensor,
        rating: Tensor,
        mask: Tensor,
        seen: Tensor,
        count: Tensor,
    ) -> Tensor:
        def mean_loss(model: Recommender) -> Tensor:
            if has_compiled_softmax(model):
                return total_loss(model, past, item, mask, seen) / count
            user = model.read(past)
            losses = losses_without(model, user, item[:, None], rating[:, None], seen)[:, 0]
            return (losses * mask).sum() / count

        # The template's forward applies `mean_loss` to itself with these parameters.
        result: Tensor = functional_call(stack.template, {**parameters, **buffers}, (mean_loss,))
        return result

    each = vmap(grad_and_value(loss)) if stack.runs > 1 else _one_run(loss)
    count = mask.sum(1).clamp_min(1)
    rows_of_batch = (evidence, *target, mask, seen)
    chunked = isinstance(stack.template.loss, FullSoftmax) and not has_compiled_softmax(
        stack.template
    )
    chunks = split_into_chunks(rows_of_batch, stack.template.elements_per_row * stack.runs, axis=1)
    parts = (
        each(trained, fixed, *chunk, count) for chunk in (chunks if chunked else [rows_of_batch])
    )
    gradients, value = reduce(partial(tree_map, torch.add), parts)
    return value, gradients


def touched_sums(stack: StackedRecommenders, touched: Tensor) -> Tensor:
    """Return what rows of the item tables add to `stored_sums`, [runs, dim + 1, dim + 1].

    Args:
        stack: Recommenders with a linearised inner loop.
        touched: Rows, [runs, n], ascending.
    """
    state = _with_rows(stack, touched)
    state["bias"] = state["bias"].masked_fill((touched == NOWHERE)[..., None], -torch.inf)
    few = StackedRecommenders(stack.template, state)
    sums: Tensor = few.call(lambda model: model.item_sums())
    return sums


def _with_rows(stack: StackedRecommenders, touched: Tensor) -> StateDict:
    """Return the state with these rows [runs, n] of the item tables only."""
    tables = [name for name in stack.state if name in stack.template.item_tables]
    return stack.state | {name: pick_rows(stack.state[name], touched) for name in tables}


def _one_run(loss: Callable[..., Tensor]) -> Callable[..., tuple[StateDict, Tensor]]:
    """Return gradients and loss of a stack of one run, by autograd without `vmap`.

    `torch.func.grad` would import torch's compiler, which takes seconds.
    """

    def call(parameters: StateDict, *rest: Any) -> tuple[StateDict, Tensor]:
        own = {name: value[0].detach().requires_grad_() for name, value in parameters.items()}
        with torch.enable_grad():
            value = loss(own, *tree_map(lambda leaf: leaf[0], rest))
        found = torch.autograd.grad(value, list(own.values()), materialize_grads=True)
        gradients = {name: each[None] for name, each in zip(own, found, strict=True)}
        return gradients, value.detach()[None]

    return call


def _renumbered(touched: Tensor, tokens: Tensor) -> Tensor:
    """Return tokens [runs, ...] with items numbered by their place in `touched`.

    A token is item + (time << 32), see `item_of`; the time is kept. Values in padded places are
    arbitrary.
    """
    item = item_of(tokens)
    place = torch.searchsorted(touched, item.flatten(1)).clamp_max(touched.shape[1] - 1)
    return tokens - item + place.view_as(item)


def _renumbered_known(touched: Tensor, items: Tensor) -> Tensor:
    """Return items [runs, ...] by their place in `touched`; -1 where they are not in it."""
    place = _renumbered(touched, items.clamp_min(0))
    found = touched.gather(1, place.flatten(1)).view_as(items)
    return torch.where((items >= 0) & (found == items), place, -1)
