"""Sketches of one recommender's policy, read by another: walk, read, score. Trains nothing."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, final

from torch import nn

from dips.data.interactions import Interactions
from dips.data.side_information import NOTHING, SideInformation
from dips.evaluation.equivalence import EqualSize, equal_size
from dips.evaluation.metrics import LOWER_IS_BETTER
from dips.evaluation.progressive import Scores, evaluate
from dips.model.trained_model import TrainedModel
from dips.policy.base import Policy
from dips.recommender.base import Recommender
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import Trace
from dips.sketch.selection import Greedy, Selector
from dips.stream.schedule import Schedule
from dips.stream.users import Columns, Stream, make_stream


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class SourcePolicy:
    """A policy, and the recommender that it asks if it asks: it chooses, and others read."""

    name: str
    """The policy that chooses: of a run whose rival was better, the rival."""
    policy: Policy
    size: int
    schedule: Schedule
    seed: int = 0
    selector: Selector = field(default_factory=Greedy)
    recommender: Recommender | None = None
    sides: SideInformation = NOTHING

    @classmethod
    def of(cls, trained: TrainedModel) -> SourcePolicy:
        """As it was trained."""
        return cls(
            name=trained.policy_spec.name,
            policy=trained.policy,
            size=trained.size,
            schedule=trained.schedule,
            seed=trained.seed,
            selector=trained.selector,
            recommender=trained.recommender,
            sides=trained.sides,
        )

    def walk(self, stream: Stream, epoch: int = 0) -> Trace:
        """The sketches of all users of a stream of one run; lots are drawn for the epoch."""
        device = stream.columns.item.device
        policy = self.policy
        if isinstance(policy, nn.Module) and device.type != "cpu":
            policy = copy.deepcopy(policy).to(device)
        return rollout(
            stream,
            policy,
            size=self.size,
            schedule=self.schedule,
            keys=stream.keys([self.seed], epoch),
            recommenders=None
            if self.recommender is None
            else StackedRecommenders.of([self.recommender], device),
            selector=self.selector,
        )


def read_with(
    reader: Recommender, source_policy: SourcePolicy, part: Interactions, columns: Columns
) -> Scores:
    """Score the predictions that one recommender makes from sketches chosen with another."""
    trace = source_policy.walk(make_stream([part], columns))
    return evaluate(StackedRecommenders.of([reader], columns.device), trace)[0]


def size_ratios(summary: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """At which size each policy is as good as each other one at its sizes, metric by metric.

    Means over seeds, linear in log size between the sizes tried. `share` is the part of the other's
    items that suffices; where there is a `bound`, the other's size lies beyond what was tried.
    """
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for row in summary:
        curves.setdefault((row["metric"], row["policy"]), {})[row["size"]] = row["mean"]
    found = []
    for (metric, policy), (other_metric, other) in permutations(curves, 2):
        if metric != other_metric:
            continue
        curve = curves[metric, other]
        for size, quality in curves[metric, policy].items():
            equal = equal_size(
                list(curve), list(curve.values()), quality,
                lower_is_better=metric in LOWER_IS_BETTER,
            )  # fmt: skip
            found.append(
                {
                    "metric": metric,
                    "policy": policy,
                    "size": size,
                    "quality": quality,
                    "against": other,
                    "equal_size": equal.size,
                    "bound": equal.bound,
                    "share": size / equal.size,
                }
            )
    return found


def most_saved(
    ratios: Sequence[Mapping[str, Any]], metric: str, policy: str, against: str
) -> dict[str, Any] | None:
    """The size at which a policy needs the smallest share of another's items; None without any."""
    rows = [
        dict(row)
        for row in ratios
        if (row["metric"], row["policy"], row["against"]) == (metric, policy, against)
    ]
    # Worse than the other's smallest says less than any size at which they are equal.
    return min(rows, key=lambda row: (row["bound"] == "below", float(row["share"])), default=None)


def best_in_words(row: Mapping[str, Any]) -> str:
    """The most that is saved; if that is worse than the other's smallest, so are all sizes."""
    if row["bound"] == "below":
        return f"{row['policy']} is never as good as {row['against']} at the sizes tried"
    return in_words(row)


def in_words(row: Mapping[str, Any]) -> str:
    """'learned at 8 equals reservoir at 14.2: 44 % fewer', or what is known of it."""
    policy, size, other = row["policy"], row["size"], row["against"]
    equal = EqualSize(row["equal_size"], row["bound"])
    if equal.bound == "below":
        return f"{policy} at {size} is worse than {other} at {equal.size:.3g}"
    saved = round(100 * (1 - row["share"]))
    if equal.bound == "above":
        beyond = f": more than {saved} % fewer" if saved > 0 else ""
        return f"{policy} at {size} is better than {other} at any size to {equal.size:.3g}{beyond}"
    many = f": {abs(saved)} % {'fewer' if saved > 0 else 'more'}" if saved else ""
    return f"{policy} at {size} equals {other} at {equal.size:.3g}{many}"
