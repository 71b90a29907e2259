"""The figures of the paper's tables, for the data sets that it covers (paper.csv beside this)."""

from __future__ import annotations

import csv
from functools import cache
from typing import NamedTuple

from dips.report.page import asset

OURS = {"learned": "dips"}
"""Which of the paper's methods ours is held against where it is not in the paper."""
TITLES = {
    "reservoir": "Random", "hardest": "Hardest", "influence": "Influence", "dips@1": "DiPS@1",
    "dips": "DiPS",
}  # fmt: skip
TABLES = {"rmse": "Table 2", "recall@20": "Table 3", "mrr@20": "Table 4"}
CLAIMS = {
    "transfer": "The paper: DiPS needs up to 50 % fewer sketch items than reservoir sampling for "
    "the same recommendation quality of a GRU4Rec trained on whole histories.",
    "session": "The paper: historical sketch items improve a session-based GRU4Rec by more than "
    "20 %, and DiPS matches reservoir sampling with 50 % fewer of them.",
}
"""What the paper says of its figures."""


class Figure(NamedTuple):
    """A number of the paper."""

    method: str
    mean: float
    std: float


@cache
def _figures() -> dict[tuple[str, str, int, int, str], tuple[float, float]]:
    rows = csv.DictReader(asset("paper.csv").splitlines())
    return {
        (row["data"], row["metric"], int(row["every"]), int(row["size"]), row["policy"]): (
            float(row["mean"]),
            float(row["std"]),
        )
        for row in rows
    }


def paper_figure(data: str, metric: str, every: int, size: int, policy: str) -> Figure | None:
    """What the paper has for a cell; None where it has nothing."""
    method = OURS.get(policy, policy)
    found = _figures().get((data, metric, every, size, method))
    return None if found is None else Figure(TITLES[method], *found)
