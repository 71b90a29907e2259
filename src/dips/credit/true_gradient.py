"""The true gradient of a policy at one step, as the paper's gradient study means it.

Every history is sketched again from its first interaction under the current parameters, with new
greedy choices, and the loss of the next interaction is differentiated along all paths through the
intermediate sketches. Only a hard choice has the slope of the soft one (straight-through), and
dropout is off.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dips.credit.replay import replay
from dips.policy.stacked import StackedPolicies
from dips.recommender.base import Recommender
from dips.recommender.stacked import StackedRecommenders, State
from dips.rollout.trace import StoredTrace
from dips.sketch.records import Candidates
from dips.stream.schedule import Schedule


def history(trace: StoredTrace, row: Tensor) -> Candidates:
    """[users, t + 1] all interactions up to those that are predicted in these rows [users].

    All rows are of one step t, of a walk that noted what the policy was asked.
    """
    assert trace.asked is not None
    seen = trace.step[row] + 1
    place = torch.arange(int(seen[0]), device=row.device)
    event = (trace.event[row] - trace.step[row])[:, None] + place
    columns = trace.columns
    return Candidates(
        place.expand_as(event),
        columns.item[event],
        columns.rating[event],
        columns.time[event],
        torch.ones_like(event),
        columns.side[event],
        seen,
        trace.asked.key[row],
    )


def true_gradient(
    stack: StackedRecommenders,
    policies: StackedPolicies,
    past: Candidates,
    size: int,
    schedule: Schedule,
    *,
    identity: bool = False,
) -> State:
    """Gradient of the mean loss of the last interactions in the parameters of the one policy.

    On the way back every refresh is computed again: what is stored does not grow with the width of
    the network. With `identity` only the paths that the paper's queue knows.
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
