"""Score a target model on the sketches of a policy that was trained with another recommender.

Trains nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, final

from torch import nn

from dips.data.interactions import Interactions
from dips.data.side_information import NO_SIDE_INFORMATION, SideInformation
from dips.evaluation.equal_quality_size import EqualQualitySize, equal_quality_size
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
from dips.stream.users import EventColumns, Stream, make_stream


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class SourcePolicy:
    """A policy whose sketches a target model reads, with the recommender that gives its signals."""

    name: str
    """Name of the policy; of a run that kept a baseline, the baseline."""
    policy: Policy
    size: int
    schedule: Schedule
    seed: int = 0
    selector: Selector = field(default_factory=Greedy)
    recommender: Recommender | None = None
    sides: SideInformation = NO_SIDE_INFORMATION

    @classmethod
    def of(cls, trained: TrainedModel) -> SourcePolicy:
        """Return the policy of a trained model, with its size, schedule and recommender."""
        return cls(
            name=trained.policy_spec.name,
            policy=trained.policy,
            size=trained.size,
            schedule=trained.schedule,
            seed=trained.seed,
            selector=trained.selector,
            recommender=trained.recommender,
            sides=trained.side,
        )

    def roll_out(self, stream: Stream, epoch: int = 0) -> Trace:
        """Return the sketches of all users of a stream of one run.

        Args:
            stream: Users of one run.
            epoch: Selects the random priorities of random policies.
        """
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


def score_transfer(
    target: Recommender, source_policy: SourcePolicy, part: Interactions, columns: EventColumns
) -> Scores:
    """Score a target model on the sketches that a source policy keeps of the users of a part."""
    trace = source_policy.roll_out(make_stream([part], columns))
    return evaluate(StackedRecommenders.of([target], columns.device), trace)[0]


def size_ratios(summary: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the size that each policy needs for the quality of each other policy, per metric.

    Args:
        summary: Rows with `metric`, `policy`, `size` and `mean`. Quality is interpolated linearly
            in the logarithm of the size.

    Returns:
        One row per metric, policy, size and other policy (`against`): `equal_size` is the other's
        size of equal quality, `share` the size divided by it. `bound` is "above" or "below" if
        the other's size lies outside the sizes that were tried.
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
            equal = equal_quality_size(
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


def largest_saving(
    ratios: Sequence[Mapping[str, Any]], metric: str, policy: str, against: str
) -> dict[str, Any] | None:
    """Return the row in which a policy needs the smallest share of another's size; None if none."""
    rows = [
        dict(row)
        for row in ratios
        if (row["metric"], row["policy"], row["against"]) == (metric, policy, against)
    ]
    # A policy that is worse than the other's smallest size has no share: such rows come last.
    return min(rows, key=lambda row: (row["bound"] == "below", float(row["share"])), default=None)


def describe_largest_saving(row: Mapping[str, Any]) -> str:
    """Describe the row of `largest_saving`; if it has no equal size, no other row has one."""
    if row["bound"] == "below":
        return f"{row['policy']} is never as good as {row['against']} at the sizes tried"
    return describe_ratio(row)


def describe_ratio(row: Mapping[str, Any]) -> str:
    """Return a row of `size_ratios` as 'learned at 8 equals reservoir at 14.2: 44 % fewer'."""
    policy, size, other = row["policy"], row["size"], row["against"]
    equal = EqualQualitySize(row["equal_size"], row["bound"])
    if equal.bound == "below":
        return f"{policy} at {size} is worse than {other} at {equal.size:.3g}"
    saved = round(100 * (1 - row["share"]))
    if equal.bound == "above":
        beyond = f": more than {saved} % fewer" if saved > 0 else ""
        return f"{policy} at {size} is better than {other} at any size to {equal.size:.3g}{beyond}"
    many = f": {abs(saved)} % {'fewer' if saved > 0 else 'more'}" if saved else ""
    return f"{policy} at {size} equals {other} at {equal.size:.3g}{many}"
