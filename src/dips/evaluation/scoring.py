"""Apply a trained model to data: roll out its policy, and score the predictions."""

from __future__ import annotations

from dips.data.interactions import Interactions
from dips.evaluation.progressive import Scores, evaluate
from dips.model.trained_model import TrainedModel
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import Trace
from dips.stream.users import EventColumns, make_stream


def roll_out(
    trained: TrainedModel, data: Interactions, columns: EventColumns, *, with_scores: bool = False
) -> tuple[StackedRecommenders, Trace]:
    """Roll out a model's policy over all users of a part.

    Args:
        trained: The model.
        data: Users with the model's item indices.
        columns: The events of `data`.
        with_scores: Whether the trace records the policy's scores.

    Returns:
        The recommender as a stack of one, and the trace of all sketches.
    """
    stack = StackedRecommenders.of([trained.recommender], columns.device)
    stream = make_stream([data], columns)
    trace = rollout(
        stream,
        trained.policy,
        size=trained.size,
        schedule=trained.schedule,
        keys=stream.keys([trained.seed]),
        recommenders=stack,
        selector=trained.selector,
        with_scores=with_scores,
    )
    return stack, trace


def score_users(trained: TrainedModel, data: Interactions, columns: EventColumns) -> Scores:
    """Return the scores of a model on all users of a part, by progressive evaluation."""
    stack, trace = roll_out(trained, data, columns)
    return evaluate(stack, trace, low=trained.spec.low, high=trained.spec.high)[0]
