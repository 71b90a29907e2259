"""The table over folds: best of a column, and differences to the best rule."""

from dataclasses import replace

from fold_table import fold_table

from dips.report.results import Comparison


def part(metric, means, folds, p=0.001):
    summary = [
        {"policy": policy, "size": 4, "every": every, "metric": metric, "mean": value}
        for (policy, every), value in means.items()
    ]
    diff = sum(folds) / len(folds)
    pair = {"a": "best-rule", "b": "learned", "size": 4, "every": 1, "metric": metric}
    row = {**pair, "diff": diff, "low": diff - 0.01, "high": diff + 0.01, "p": p, "folds": folds}
    return Comparison("name", "data", [], summary, [row], [], {})


MEANS = {
    ("last", 1): 0.93, ("hardest:8", 1): 0.91, ("best-rule", 1): 0.911, ("learned", 1): 0.89,
    ("all", 1): 0.8, ("last", 4): 0.94,
}  # fmt: skip


def test_the_best_policy_with_a_limited_size_is_bold():
    lines = fold_table(part("rmse", MEANS, [0.02] * 5), "rmse", ["learned"]).splitlines()
    assert lines[0] == "| policy | K=4 | K=4, every 4 |"
    assert "| `learned` | **0.8900** |  |" in lines
    assert "| `all` | 0.8000 |  |" in lines
    assert "| `last` | 0.9300 | **0.9400** |" in lines
    assert lines[-2] == "| best rule on validation | 0.9110 |  |"
    ranked = fold_table(part("recall@20", MEANS, [0.02] * 5), "recall@20", []).splitlines()
    assert "| `last` | **0.9300** | **0.9400** |" in ranked


def test_differences_are_policy_less_rule_and_bold_if_significant():
    folds = [0.020, 0.021, 0.022, 0.019, 0.018]
    last = fold_table(part("rmse", MEANS, folds), "rmse", ["learned"]).splitlines()[-1]
    assert last == "| `learned` less best rule | **-0.0200 ± 0.0020, 5 of 5 folds** |  |"
    mixed = fold_table(part("rmse", MEANS, [0.1, 0.1, 0.1, 0.1, -0.01]), "rmse", ["learned"])
    assert mixed.splitlines()[-1] == (
        "| `learned` less best rule | -0.0780 ± 0.0611, 4 of 5 folds |  |"
    )


def test_the_order_of_a_pair_does_not_matter():
    folds = [0.020, 0.021, 0.022, 0.019, 0.018]
    given = part("rmse", MEANS, folds)
    (row,) = given.paired
    turned = {**row, "a": row["b"], "b": row["a"], "folds": [-one for one in folds]}
    turned |= {"diff": -row["diff"], "low": -row["high"], "high": -row["low"]}
    other = replace(given, paired=[turned])
    assert fold_table(other, "rmse", ["learned"]) == fold_table(given, "rmse", ["learned"])


def test_one_split_has_an_interval_over_users():
    given = part("rmse", MEANS, [0.02])
    (row,) = given.paired
    for swapped in (False, True):
        turned = {**row, "diff": 0.02, "low": 0.01, "high": 0.04, "folds": [0.02]}
        if swapped:
            turned |= {"a": row["b"], "b": row["a"], "diff": -0.02, "low": -0.04, "high": -0.01}
        last = fold_table(replace(given, paired=[turned]), "rmse", ["learned"]).splitlines()[-1]
        sign = 1 if row["a"] == "learned" else -1
        wanted = "+0.0200 [+0.0100, +0.0400]" if sign == 1 else "-0.0200 [-0.0400, -0.0100]"
        assert last == f"| `learned` less best rule | {wanted} |  |"
