"""Hand a rollout to the kernels: all users and refreshes in one launch, where kernels exist.

`dips.kernels.dispatch` has the table of what is supported. The result equals the reference path
(`dips.rollout.rollout`) bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dips.kernels import dispatch
from dips.kernels.layout import RolloutInputs, RolloutState, Scorer
from dips.policy.base import Policy, signals_of
from dips.policy.kernel_inputs import decision_spec, scorer_of
from dips.policy.stacked import StackedPolicies
from dips.recommender.kernel_inputs import item_vectors, model_spec, signal_model
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import RecordedInputs
from dips.sketch.records import Sketch
from dips.sketch.selection import Greedy, Selector
from dips.stream.users import Stream

Refresh = tuple[int, int, int]
"""Interactions seen, how many of them are new, predictions that follow."""


@torch.no_grad()
def advance(
    policy: Policy,
    recommenders: StackedRecommenders | None,
    selector: Selector,
    stream: Stream,
    keys: Tensor,
    first_row: Tensor,
    refreshes: Sequence[Refresh],
    sketch: Sketch,
    events: Tensor,
    repeats: Tensor,
    scores: tuple[Tensor, Tensor] | None,
    recorded: RecordedInputs | None,
) -> bool:
    """Refresh the sketches of all users with kernels, if kernels exist.

    Item tables hold only the items of the stream's events, so the size of the catalogue does not
    matter, except for predicted scores, which sum over it once.

    Args:
        policy: One policy, or the policies of all runs.
        recommenders: The recommenders of all runs, if the policy reads signals.
        selector: Only `Greedy` has kernels.
        stream: The users of all runs.
        keys: [runs, users] keys of random priorities.
        first_row: [runs, users] prediction t of a user is row first_row + t of the records.
        refreshes: The refreshes to compute, in order.
        sketch: [runs * users, size] current sketches; changed in place.
        events: [predictions, size] int32 record of the sketches; filled in place.
        repeats: [predictions, size] int32 record of their repeat counts.
        scores: Records of scores, [predictions, size] and [runs * users, size]; None: not recorded.
        recorded: Records of signals; None: not recorded.

    Returns:
        False if kernels do not support this rollout; nothing was changed then.
    """
    if not refreshes:
        return False
    size, period = events.shape[1], max(new for _, new, _ in refreshes)
    signals = {} if recorded is None else recorded.signals
    stacked = policy if isinstance(policy, StackedPolicies) else None
    template = policy if stacked is None else stacked.template
    assert isinstance(template, Policy)
    stacks = (stacked, recommenders)
    if any(stack is not None and stack.runs != stream.runs for stack in stacks):
        return False
    has_tables = isinstance(template, nn.Module) or recommenders is not None
    spec = decision_spec(
        template,
        None if recommenders is None else model_spec(recommenders.template),
        size=size,
        period=period,
        is_greedy=isinstance(selector, Greedy),
        recorded=tuple(signals),
        items=len(stream.columns.item_index[0]) if has_tables else 0,
        rows=stream.start.numel(),
        runs=stream.runs,
    )
    compiler = dispatch.compiler_for(spec, events.device)
    if not compiler:
        return False
    if stacked is None and isinstance(template, nn.Module):
        stacked = StackedPolicies.of([template] * stream.runs, stream.start.device)
    state = RolloutState(
        sketch.position,
        sketch.repeats,
        events,
        repeats,
        signals.get("predicted_score", signals.get("residual")),
        *(scores or (None, None)),
    )
    inputs = _inputs(stream, keys, first_row, refreshes, has_tables)
    scorer = _scorer(template, stacked, recommenders, stream, size)
    dispatch.roll_out(compiler, inputs, state, scorer)
    _look_up(sketch, stream)
    return True


def _scorer(
    template: Policy,
    stacked: StackedPolicies | None,
    recommenders: StackedRecommenders | None,
    stream: Stream,
    size: int,
) -> Scorer:
    """Return the policies of all runs as kernels compute them."""
    names, model, vectors, items = signals_of(template), None, None, None
    if stacked is not None or recommenders is not None:
        items = stream.columns.item_index[0]
    if recommenders is not None and items is not None:
        quantized = recommenders.among(items).quantized()
        model = signal_model(names, recommenders, quantized, items, size)
        vectors = item_vectors(quantized) if "embedding" in names else None
    return scorer_of(
        template,
        {} if stacked is None else stacked.state,
        runs=stream.runs,
        signal_model=model,
        vectors=vectors,
        items=items,
        longest=stream.longest,
        table_rows=0 if items is None else len(items),
    )


def _inputs(
    stream: Stream,
    keys: Tensor,
    first_row: Tensor,
    refreshes: Sequence[Refresh],
    has_tables: bool,
) -> RolloutInputs:
    """Return users, refreshes and events as kernels read them.

    With item tables, items are numbered as in the tables.
    """
    table = torch.tensor(refreshes, device=first_row.device)  # [refreshes, 3]
    length = stream.length.flatten()
    columns = stream.columns
    return RolloutInputs(
        stream.start.flatten(),
        length,
        stream.warmup.flatten(),
        first_row.flatten(),
        torch.searchsorted(table[:, 0].contiguous(), length, right=True),
        table,
        columns.item_index[1] if has_tables else columns.item,
        columns.rating,
        columns.time,
        keys.flatten(),
    )


def _look_up(sketch: Sketch, stream: Stream) -> None:
    """Write items, ratings, times and side information of the sketches' positions."""
    columns, there = stream.columns, sketch.present
    event = torch.where(there, stream.start.flatten()[:, None] + sketch.position, 0)
    for name in ("item", "rating", "time", "side"):
        column: Tensor = getattr(columns, name)
        getattr(sketch, name).copy_(torch.where(there, column[event], 0))
