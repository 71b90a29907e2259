"""Judge one run: is its policy better than the best baseline, and do the sketches make the gain?

The model is chosen on one half of the validation users. The verdict comes from the other half, so
the choice does not flatter it. Knows nothing about training or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from dips.data.interactions import Int64
from dips.evaluation.comparison import Float64, resample_sums
from dips.evaluation.crossing import Combination, cross_traces, source_sketches
from dips.evaluation.metrics import LOWER_IS_BETTER, pool_metrics, primary_metric
from dips.evaluation.progressive import Scores
from dips.evaluation.transfer import SourcePolicy
from dips.model.trained_model import TrainedModel
from dips.policy.settings import PRETRAINED
from dips.rollout.trace import StoredTrace
from dips.stream.users import Stream

RESAMPLES = 2_000
"""Bootstrap resamples; fewer than in a comparison, as a run should end quickly."""
EQUIVALENT = 0.005
"""Relative gain below which two policies count as equivalent in practice."""
UNDECIDED = "undecided"
OWN, BASELINE = "own", "baseline"


class Interval(NamedTuple):
    """A relative gain over the baseline, above 0 is better, and its 95 % interval over users."""

    gain: float
    low: float
    high: float

    def __str__(self) -> str:
        low, high = _percent(self.low), _percent(self.high)
        return f"{_percent(self.gain)} (95 % interval {low} to {high})"


@dataclass(frozen=True)
class GainParts:
    """The gain of a policy over a baseline on some users, and where it comes from."""

    metric: str
    total: Interval
    sketches: Interval
    """Effect of the sketches: the mean over both recommenders (Shapley value)."""
    recommender: Interval
    """Effect of the recommender: the mean over both policies' sketches."""
    sketches_differ: float
    """Share of users with at least one prediction from different sketches."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Which policy to use, why, and what the run holds. Gains are relative, above 0 is better."""

    advice: str
    """Name of a policy, or "undecided"."""
    reason: str
    kept: str
    """What the run really is: the policy that was asked for, its initial state, or a baseline."""
    baseline: str
    """The best baseline on the users that select the model."""
    metric: str
    part: str = "valid"
    """Where the gain was measured: validation users that did not select the model."""
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    sketches_differ: float | None = None
    """Share of users whose sketches differ from the baseline's."""
    gain_from_sketches: float | None = None
    gain_from_recommender: float | None = None
    test: Mapping[str, float] | None = None
    """Gain, low and high on the test users; None if they were not scored."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entry `verdict` of metrics.json."""
        return {**asdict(self), "test": dict(self.test) if self.test else None}

    def __str__(self) -> str:
        return f"{self.advice}: {self.reason}"


def measure_gain(own: TrainedModel, baseline: TrainedModel, stream: Stream) -> GainParts:
    """Measure the gain of a model over a baseline, and attribute it to sketches and recommender.

    Both recommenders predict from both policies' sketches (`crossing`). Users are resampled.

    Args:
        own: The model with the policy that was asked for.
        baseline: The model with the baseline's policy.
        stream: The users to score, of one run.
    """
    models = {OWN: own, BASELINE: baseline}
    traces = {
        name: source_sketches(SourcePolicy.of(model), stream) for name, model in models.items()
    }
    scores = cross_traces(models, traces)
    return gain_parts(scores, share_of_different_sketches(traces[OWN], traces[BASELINE]))


def gain_parts(scores: Mapping[Combination, Scores], sketches_differ: float) -> GainParts:
    """Return the parts of a gain from the scores of (recommender, policy) combinations.

    Args:
        scores: Scores of the four combinations of "own" and "baseline", for the same users.
        sketches_differ: Share of users whose sketches differ.
    """
    metric = primary_metric(scores[OWN, OWN].metrics)
    order = [(a, b) for a in (OWN, BASELINE) for b in (OWN, BASELINE)]
    effects = _effects([scores[pair] for pair in order], metric)
    return GainParts(metric, *effects, sketches_differ)


def compare_on_test(own: Scores, baseline: Scores) -> Interval:
    """Return the relative gain on the test users."""
    metric = primary_metric(own.metrics)
    return _effects([own, own, baseline, baseline], metric)[0]


def _effects(scores: list[Scores], metric: str) -> tuple[Interval, Interval, Interval]:
    """Return the gain in all, by sketches and by recommender.

    Args:
        scores: Of (own, own), (own, baseline), (baseline, own), (baseline, baseline), each a pair
            of recommender and sketches.
        metric: The metric to compare.
    """
    term = "squared_error" if metric == "rmse" else metric
    columns = [scores[0].count, *(one.sums[term] for one in scores)]
    table = np.stack([np.asarray(column) for column in columns], 1)
    totals = np.concatenate([table.sum(0)[None], resample_sums(table, 0, RESAMPLES)])
    values = totals[:, 1:] / totals[:, :1]
    if term == "squared_error":
        values = np.sqrt(values)
    relative = (-1 if metric in LOWER_IS_BETTER else 1) * values / _base(values[:, 3])[:, None]
    both, own_reads, own_kept, none = relative.T
    sketches = ((both - own_reads) + (own_kept - none)) / 2
    recommender = ((both - own_kept) + (own_reads - none)) / 2
    return _interval(both - none), _interval(sketches), _interval(recommender)


def _base(values: Float64) -> Float64:
    """Return values to divide by: 1 where a metric is 0."""
    return np.where(values > 0, values, 1.0)


def _interval(values: Float64) -> Interval:
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return Interval(float(values[0]), float(low), float(high))


def share_of_different_sketches(first: StoredTrace, second: StoredTrace) -> float:
    """Return the share of users with a prediction that reads different interactions.

    Args:
        first: Sketches of one policy, of one run.
        second: Sketches of another policy, for the same users and predictions.
    """
    rows = (first.kept.sort(1).values != second.kept.sort(1).values).any(1)
    differ = torch.zeros(int(first.user.max()) + 1, dtype=torch.bool, device=rows.device)
    differ[first.user[rows]] = True
    users = torch.zeros_like(differ)
    users[first.user] = True
    return float(differ.sum() / users.sum())


def objective_of_users(scores: Scores, users: Int64) -> float:
    """Return the primary metric of some of the users, as a number to minimise."""
    metric, chosen = primary_metric(scores.metrics), torch.from_numpy(users)
    totals = {name: float(total[chosen].sum()) for name, total in scores.sums.items()}
    value = pool_metrics(totals, float(scores.count[chosen].sum()))[metric]
    return value if metric in LOWER_IS_BETTER else -value


def decide(
    name: str,
    baseline: str,
    parts: GainParts,
    *,
    baseline_kept: bool = False,
    is_initial: bool = False,
    test: Interval | None = None,
) -> Verdict:
    """Return the verdict on a policy from its gain over the best baseline.

    | sketches and gain                                          | advice                        |
    |------------------------------------------------------------|-------------------------------|
    | all users have the same sketches                           | baseline                      |
    | the policy is worse: the interval lies below 0             | baseline                      |
    | it is better by less than `EQUIVALENT`, if at all          | baseline                      |
    | it is better, and so are its sketches                      | the policy                    |
    | it is better, and its sketches are not                     | baseline                      |
    | anything else, or another choice on the other half         | "undecided"                   |

    Args:
        name: The policy that was asked for.
        baseline: The best baseline.
        parts: The gain on users that did not select the model.
        baseline_kept: Whether the baseline was better on the users that select the model.
        is_initial: Whether the kept policy has its initial parameters.
        test: The gain on test users.
    """
    advice, why = _advice(name, baseline, parts, baseline_kept)
    kept = baseline if baseline_kept else f"{name} (initial policy)" if is_initial else name
    sentences = [why, _kept_sentence(name, baseline, baseline_kept, is_initial)]
    if test is not None:
        sentences.append(f"On test users: {test}.")
    sentences.append("This is one split; 'dips compare' has several.")
    return Verdict(
        advice=advice,
        reason=" ".join(sentences),
        kept=kept,
        baseline=baseline,
        metric=parts.metric,
        **parts.total._asdict(),
        sketches_differ=parts.sketches_differ,
        gain_from_sketches=parts.sketches.gain,
        gain_from_recommender=parts.recommender.gain,
        test=test._asdict() if test else None,
    )


def diverged_verdict(name: str, baseline: str, metric: str) -> Verdict:
    """Return the verdict on a policy whose training diverged."""
    reason = f"{name} diverged, so the run is the baseline {baseline}."
    return Verdict(advice=baseline, reason=reason, kept=baseline, baseline=baseline, metric=metric)


def _advice(name: str, baseline: str, parts: GainParts, baseline_kept: bool) -> tuple[str, str]:
    """Return the advice, and the sentence that explains it."""
    total, sketches = parts.total, parts.sketches
    against = f"{parts.metric} against {baseline}: {total}"
    if parts.sketches_differ == 0:
        return baseline, f"{name} and {baseline} keep the same interactions for every user."
    if total.high < 0:
        return baseline, f"{name} is worse, {against}."
    if total.high < EQUIVALENT:
        return baseline, f"{name} is not better by {_percent(EQUIVALENT)} or more, {against}."
    if total.low > 0 and not baseline_kept:
        origin = f"{_percent(sketches.gain)} comes from the sketches"
        if sketches.low > 0:
            return name, f"{name} is better, {against}; {origin}."
        if sketches.high < EQUIVALENT:
            return baseline, (
                f"{name} is better, {against}, but only {origin}: the recommender makes the gain."
            )
        return UNDECIDED, (
            f"{name} is better, {against}, but whether its sketches are is open: {sketches}."
        )
    if baseline_kept and total.low > 0:
        return UNDECIDED, (
            f"one half of the validation users prefers {baseline}, the other {name}: {against}."
        )
    return UNDECIDED, f"too little data to tell, {against}."


def _kept_sentence(name: str, baseline: str, baseline_kept: bool, is_initial: bool) -> str:
    if baseline_kept:
        return f"The run is the baseline {baseline}, which was better when the model was selected."
    if is_initial:
        return f"The run is {name} as it was initialised: no training of the policy was kept."
    if name == PRETRAINED:
        return f"The run is {name}: its policy was not trained on this data."
    return f"The run is {name}, trained."


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"
