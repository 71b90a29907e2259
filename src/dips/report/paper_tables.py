"""Results that the paper reports, from paper_tables.csv."""

from __future__ import annotations

import csv
from functools import cache
from typing import NamedTuple

from dips.report.page import asset

PAPER_METHOD = {"learned": "dips"}
"""Method of the paper that a policy is compared with, if the paper does not have the policy."""
METHOD_NAMES = {
    "reservoir": "Random", "hardest": "Hardest", "influence": "Influence", "dips@1": "DiPS@1",
    "dips": "DiPS",
}  # fmt: skip
TABLES = {"rmse": "Table 2", "recall@20": "Table 3", "mrr@20": "Table 4"}
USERS = {
    "ml-1m": 6_000, "ml-10m": 70_000, "netflix": 430_000, "amazon-books": 22_000,
    "foursquare": 52_000,
}  # fmt: skip
"""Users of the paper's data sets, to thousands (its Table 1)."""
CLAIMS = {
    "transfer": "The paper: DiPS needs up to 50 % fewer sketch items than reservoir sampling for "
    "the same recommendation quality of a GRU4Rec trained on whole histories.",
    "session": "The paper: historical sketch items improve a session-based GRU4Rec by more than "
    "20 %, and DiPS matches reservoir sampling with 50 % fewer of them.",
}
"""Conclusions of the paper, by experiment."""


class PublishedResult(NamedTuple):
    """Mean and standard deviation of one method in a table of the paper."""

    method: str
    mean: float
    std: float


@cache
def _published_results() -> dict[tuple[str, str, int, int, str], tuple[float, float]]:
    rows = csv.DictReader(asset("paper_tables.csv").splitlines())
    return {
        (row["data"], row["metric"], int(row["every"]), int(row["size"]), row["policy"]): (
            float(row["mean"]),
            float(row["std"]),
        )
        for row in rows
    }


def published_result(
    data: str, metric: str, every: int, size: int, policy: str
) -> PublishedResult | None:
    """Return what the paper reports for one cell, or None.

    Args:
        data: Name of the dataset, such as `ml-1m`.
        metric: Name of the metric, such as `rmse`.
        every: Refresh period.
        size: Sketch size K.
        policy: Name of the policy; `learned` is compared with DiPS.
    """
    method = PAPER_METHOD.get(policy, policy)
    found = _published_results().get((data, metric, every, size, method))
    return None if found is None else PublishedResult(METHOD_NAMES[method], *found)
