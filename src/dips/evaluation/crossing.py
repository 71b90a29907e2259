"""Whose sketches, whose recommender? Every recommender reads every policy's sketches. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dips.data.interactions import Interactions
from dips.errors import ConfigError
from dips.evaluation.comparison import Cell, UserSums, compare_pairs
from dips.evaluation.progressive import Scores, evaluate
from dips.evaluation.transfer import SourcePolicy
from dips.model.trained_model import TrainedModel
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import StoredTrace, Trace
from dips.stream.users import Stream

Places = tuple[str, str]
"""Who reads, and whose sketches."""


def walk(source_policy: SourcePolicy, stream: Stream) -> StoredTrace:
    """The sketches that a policy keeps; one that keeps everything has none."""
    trace = source_policy.walk(stream)
    if not isinstance(trace, StoredTrace):
        raise ConfigError(f"the policy '{source_policy.name}' keeps everything: there is no sketch")
    return trace


def read(reader: TrainedModel, trace: Trace) -> Scores:
    """Score the predictions that a bundle's recommender makes from any policy's sketches."""
    stack = StackedRecommenders.of([reader.recommender], trace.event.device)
    return evaluate(stack, trace, low=reader.spec.low, high=reader.spec.high)[0]


def cross(
    readers: Mapping[str, TrainedModel], choosers: Mapping[str, SourcePolicy], stream: Stream
) -> dict[Places, Scores]:
    """Scores of every recommender with everyone's sketches, for the users of one stream."""
    traces = {name: walk(source_policy, stream) for name, source_policy in choosers.items()}
    return {
        (reader, name): read(trained, trace)
        for reader, trained in readers.items()
        for name, trace in traces.items()
    }


def by_user(scores: Scores, part: Interactions) -> UserSums:
    """What each user of a part adds, under original ids, for paired tests over splits."""
    users = [part.user_id(user) for user in range(len(scores.count))]
    sums = {name: np.asarray(total) for name, total in scores.sums.items()}
    return UserSums(users, np.asarray(scores.count), sums)


def effects(found: Mapping[Places, Sequence[UserSums]], old: str, new: str) -> list[dict[str, Any]]:
    """What the new sketches do, and what the new recommender does, each with either of the other.

    `found` has one entry per split. Differences are new minus old, with 95 % intervals from a
    paired bootstrap over users.
    """
    order = [(new, new), (new, old), (old, new), (old, old)]
    cells = {place: Cell(f"{place[0]}/{place[1]}", 0, 0) for place in order}
    pairs = compare_pairs({cells[place]: found[place] for place in order})
    asked = {
        ("sketches", f"read by {old}"): ((old, new), (old, old)),
        ("sketches", f"read by {new}"): ((new, new), (new, old)),
        ("recommender", f"with sketches of {old}"): ((new, old), (old, old)),
        ("recommender", f"with sketches of {new}"): ((new, new), (old, new)),
        ("both", ""): ((new, new), (old, old)),
    }
    return [
        {"changed": changed, "while": fixed}
        | {name: row[name] for name in ("metric", "diff", "low", "high", "p")}
        for (changed, fixed), (a, b) in asked.items()
        for row in pairs
        if (row["a"], row["b"]) == (cells[a].policy, cells[b].policy)
    ]


def shares(effects: Sequence[Mapping[str, Any]], metric: str) -> dict[str, float]:
    """How the whole difference parts into sketches and recommender: the mean of both orders."""
    rows = [row for row in effects if row["metric"] == metric]
    return {
        changed: float(np.mean([row["diff"] for row in rows if row["changed"] == changed]))
        for changed in ("sketches", "recommender", "both")
    }
