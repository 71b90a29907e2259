"""A finished bundle at work on data: walk the users under its policy, and score the predictions."""

from __future__ import annotations

from dips.data.interactions import Interactions
from dips.evaluation.progressive import Scores, evaluate
from dips.model.trained_model import TrainedModel
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import Trace
from dips.stream.users import Columns, make_stream


def walk(
    trained: TrainedModel, data: Interactions, columns: Columns, *, with_scores: bool = False
) -> tuple[StackedRecommenders, Trace]:
    """The recommender as a stack of one, and the walk of all users of a part under its policy."""
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


def score(trained: TrainedModel, data: Interactions, columns: Columns) -> Scores:
    """Walk the users of a part, predict every interaction, and pool."""
    stack, trace = walk(trained, data, columns)
    return evaluate(stack, trace, low=trained.spec.low, high=trained.spec.high)[0]
