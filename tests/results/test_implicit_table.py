"""Tables of implicit data: the best of the others is found for each metric, chance is not bold."""

import figure
import implicit_table

from dips.report.results import Comparison


def _row(policy, metric, mean):
    return {"policy": policy, "size": 4, "every": 1, "metric": metric, "mean": mean}


def _pair(a, b, metric, low, high):
    return {"a": a, "b": b, "size": 4, "every": 1, "metric": metric, "low": low, "high": high}


def test_a_table_says_how_far_ours_is_ahead_of_the_best_of_each_metric():
    means = {"last": (0.20, 0.11), "frequent": (0.25, 0.09), "learned": (0.26, 0.10)}
    summary = [
        _row(policy, metric, value)
        for policy, values in means.items()
        for metric, value in zip(("recall@20", "mrr@20"), values, strict=True)
    ]
    paired = [
        _pair("last", "learned", "mrr@20", -0.02, 0.01),
        _pair("frequent", "learned", "recall@20", -0.02, -0.01),
    ]
    part = Comparison("made", "made", [], summary, paired, [], {})
    assert implicit_table.tables([("somewhere", part)], figure.header).splitlines() == [
        "| somewhere | K=4 |",
        "|---|---|",
        "| `last` | 0.2000 / 0.1100 |",
        "| `frequent` | 0.2500 / 0.0900 |",
        "| `learned` | 0.2600 / 0.1000 |",
        "| `learned` to the best | **+4.0 %** / -9.1 % |",
    ]
