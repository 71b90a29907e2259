"""The true gradient of a policy at one time step, as in the paper's gradient study.

Every history is sketched again from its first interaction under the current parameters, with new
greedy choices. The loss of the next interaction is differentiated along all paths (Eq. 9). A hard
choice has the straight-through slope. Dropout is off.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dips.credit.replay import replay, whole_histories
from dips.policy.stacked import StackedPolicies
from dips.recommender.base import Recommender
from dips.recommender.stacked import StackedRecommenders, StateDict
from dips.rollout.trace import StoredTrace
from dips.sketch.records import Candidates
from dips.stream.schedule import Schedule


def history(trace: StoredTrace, row: Tensor) -> Candidates:
    """Return all interactions up to the predicted one.

    Args:
        trace: Trace of a rollout that recorded the decision inputs.
        row: Rows of the trace, [users]; all are predictions of the same step t.

    Returns:
        [users, t + 1]
    """
    assert trace.inputs is not None
    first, length = trace.event[row] - trace.step[row], trace.step[row] + 1
    return whole_histories(trace.columns, first, length, trace.inputs.key[row])


def true_gradient(
    stack: StackedRecommenders,
    policies: StackedPolicies,
    past: Candidates,
    size: int,
    schedule: Schedule,
    *,
    identity: bool = False,
) -> StateDict:
    """Return the gradient of the mean loss of the last interactions in the policy's parameters.

    Refreshes are recomputed in the backward pass, so memory does not grow with the network.

    Args:
        stack: One recommender.
        policies: One policy; it takes weights and reads no signals.
        past: Whole histories, [users, t + 1], of equal length.
        size: Sketch size K.
        schedule: When sketches are refreshed.
        identity: Follow only the paths of Eq. 10.

    Returns:
        One gradient per trainable parameter, with a leading axis of 1.
    """
    names = policies.trainable
    state = {n: value.detach().requires_grad_(n in names) for n, value in policies.state.items()}
    last = past.item.shape[1] - 1

    def weigh(candidates: Candidates, weight: Tensor) -> Tensor:
        scores: Tensor = checkpoint(
            policies.call, state, candidates, {}, weight, use_reentrant=False
        )
        return scores

    def losses(model: Recommender) -> Tensor:
        return replay(weigh, model, past, size, schedule, identity=identity, since=last).losses

    with torch.enable_grad():
        mean = stack.call(losses).mean()
        found = torch.autograd.grad(mean, [state[name] for name in names])
    return dict(zip(names, found, strict=True))
