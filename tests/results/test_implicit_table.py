"""Tables of implicit data: the best other policy is found per metric; bold needs all splits."""

import figure
import implicit_table

from dips.report.results import Comparison

METRICS = ("recall@20", "mrr@20")
MEANS = {"last": (0.20, 0.11), "frequent": (0.25, 0.09), "learned": (0.26, 0.10)}


def _row(policy, seed, change):
    """A split; `learned` differs from split to split by `change`."""
    shift = change * (-1) ** seed if policy == "learned" else 0.0
    values = {f"test_{m}": v + shift for m, v in zip(METRICS, MEANS[policy], strict=True)}
    return {"policy": policy, "size": 4, "every": 1, "seed": seed, **values}


def _table(change):
    summary = [
        {"policy": policy, "size": 4, "every": 1, "metric": metric, "mean": value}
        for policy, values in MEANS.items()
        for metric, value in zip(METRICS, values, strict=True)
    ]
    rows = [_row(policy, seed, change) for policy in MEANS for seed in range(4)]
    part = Comparison("made", "made", rows, summary, [], [], {})
    return implicit_table.tables([("somewhere", part)], figure.header).splitlines()


def test_a_table_has_the_lead_over_the_best_policy_of_each_metric():
    assert _table(change=0.001) == [
        "| somewhere | K=4 |",
        "|---|---|",
        "| `last` | 0.2000 / 0.1100 |",
        "| `frequent` | 0.2500 / 0.0900 |",
        "| `learned` | 0.2600 / 0.1000 |",
        "| `learned` to the best | **+4.0 %** / **-9.1 %** |",
    ]


def test_a_lead_that_changes_its_sign_between_splits_is_not_bold():
    assert _table(change=0.02)[-1] == "| `learned` to the best | +4.0 % / -9.1 % |"
