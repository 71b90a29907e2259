"""A finished bundle at work on data: walk the users under its policy, and score the predictions."""

from __future__ import annotations

from dips.data.interactions import Interactions
from dips.evaluation.progressive import Scores, evaluate
from dips.model.trained_model import Bundle
from dips.recommender.stacked import Stack
from dips.rollout.rollout import rollout
from dips.rollout.trace import Trace
from dips.stream.users import Columns, make_stream


def walk(
    bundle: Bundle, data: Interactions, columns: Columns, *, with_scores: bool = False
) -> tuple[Stack, Trace]:
    """The recommender as a stack of one, and the walk of all users of a part under its policy."""
    stack = Stack.of([bundle.recommender], columns.device)
    stream = make_stream([data], columns)
    trace = rollout(
        stream,
        bundle.policy,
        size=bundle.size,
        schedule=bundle.schedule,
        keys=stream.keys([bundle.seed]),
        recommenders=stack,
        selector=bundle.selector,
        with_scores=with_scores,
    )
    return stack, trace


def score(bundle: Bundle, data: Interactions, columns: Columns) -> Scores:
    """Walk the users of a part, predict every interaction, and pool."""
    stack, trace = walk(bundle, data, columns)
    return evaluate(stack, trace, low=bundle.spec.low, high=bundle.spec.high)[0]
