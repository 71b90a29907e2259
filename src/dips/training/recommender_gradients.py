"""The recommender's meta-gradient from a batch of predictions, through the inner loop."""

from __future__ import annotations

from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_map

from dips.recommender.base import Evidence, Recommender
from dips.recommender.stack import Stack, State
from dips.trace import Trace


def recommender_gradients(
    stack: Stack, trace: Trace, rows: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean loss [runs] of a batch of predictions [runs, batch], and its meta-gradients."""
    mass = (rows >= 0).float()
    place = rows.clamp_min(0)
    evidence = trace.evidence(place)
    event = trace.event[place]
    target = (trace.columns.token[event], trace.columns.rating[event])
    trained = {name: stack.state[name] for name in stack.trainable}
    fixed = {name: value for name, value in stack.state.items() if name not in trained}

    def loss(
        parameters: State,
        buffers: State,
        past: Evidence,
        item: Tensor,
        rating: Tensor,
        mass: Tensor,
    ) -> Tensor:
        def task(model: Recommender) -> Tensor:
            losses = model.losses(model.read(past), item[:, None], rating[:, None])[:, 0]
            return (losses * mass).sum() / mass.sum().clamp_min(1)

        result: Tensor = functional_call(stack.template, {**parameters, **buffers}, (task,))
        return result

    arguments = (trained, fixed, evidence, *target, mass)
    if stack.runs == 1:
        alone = grad_and_value(loss)(*tree_map(lambda leaf: leaf[0], arguments))
        gradients, value = tree_map(lambda leaf: leaf[None], alone)
    else:
        gradients, value = vmap(grad_and_value(loss))(*arguments)
    return value, gradients
