"""The true gradient at one step is the derivative of a replay's last loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dips.credit.replay import replay
from dips.credit.true_gradient import history, true_gradient
from dips.policy.paper_network import PaperNetwork
from dips.policy.stacked import StackedPolicies
from dips.recommender.base import Recommender
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import Rollout
from dips.sketch.records import Candidates
from dips.stream.schedule import Schedule
from dips.stream.users import EventColumns, make_stream
from dips.testing import random_world

Make = Callable[..., Recommender]
SIZE, LENGTHS = 2, (9, 6, 8)
SCHEDULES = [Schedule((1,)), Schedule((3,))]


def _past(t: int, schedule: Schedule) -> Candidates:
    """Return the histories of users with a prediction at step t."""
    data = random_world(LENGTHS, items=8, seed=4)
    stream = make_stream([data], EventColumns.of(data))
    rollout = Rollout(
        stream, size=SIZE, schedule=schedule, keys=stream.keys([0]), recorded_signals=[]
    )
    found = history(rollout.trace, (rollout.base + t)[stream.length > t])
    return found._replace(rating=found.rating.double())


def test_a_history_ends_with_the_predicted_interaction() -> None:
    data = random_world(LENGTHS, items=8, seed=4)
    past = _past(6, SCHEDULES[0])
    assert past.position.tolist() == [list(range(7))] * 2
    assert past.seen.tolist() == [7, 7]
    for row, user in enumerate((0, 2)):  # the longest first; user 1 has ended
        events = data.events(user)
        assert past.item[row].tolist() == data.item[events][:7].tolist()
        assert data.rating is not None
        assert past.rating[row].tolist() == data.rating[events][:7].tolist()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("since", [0, 1, 2, 4, 5, 7])
def test_losses_can_be_left_out(make: Make, schedule: Schedule, since: int) -> None:
    model, past = make("dot", "mse"), _past(7, schedule)

    def weigh(candidates: Candidates, weight: torch.Tensor) -> torch.Tensor:
        return weight * candidates.rating

    whole = replay(weigh, model, past, SIZE, schedule).losses
    some = replay(weigh, model, past, SIZE, schedule, since=since).losses
    assert whole.shape == (2, 8)
    assert torch.equal(some, whole[:, since:])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_true_gradient_is_the_derivative_of_the_last_loss(make: Make, schedule: Schedule) -> None:
    model, past = make("dot", "mse"), _past(7, schedule)
    policy = PaperNetwork(items=8, hidden=5, dropout=0.0).double()
    policies = StackedPolicies.of([policy])
    found = true_gradient(StackedRecommenders.of([model]), policies, past, SIZE, schedule)
    for name in policies.trainable:
        policies.state[name].requires_grad_()
    state, trained = policies.state, [policies.state[name] for name in policies.trainable]
    losses = replay(lambda c, w: policies.call(state, c, {}, w), model, past, SIZE, schedule).losses
    expected = torch.autograd.grad(losses[:, -1].mean(), trained)
    assert list(found) == policies.trainable
    for mine, value in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(mine, value, atol=1e-14, rtol=1e-10)
    assert max(float(value.abs().max()) for value in expected) > 1e-4
