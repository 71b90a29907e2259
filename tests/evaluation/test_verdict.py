"""Verdicts on comparisons: gains, losses, differences that may be chance, and missing values."""

from __future__ import annotations

from typing import Any

import pytest

from dips.evaluation.verdict import comparison_verdict

Table = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def table(
    metric: str = "rmse",
    doubt: float = 0.001,
    every: int = 1,
    p: float = 0.01,
    **curves: dict[int, float],
) -> Table:
    """Means of policies by size, and pairs whose intervals are as wide as twice the doubt."""
    summary = [
        {"policy": policy, "size": size, "every": every, "metric": metric, "mean": mean}
        for policy, by_size in curves.items()
        for size, mean in by_size.items()
    ]
    names = list(curves)
    paired = []
    for place, a in enumerate(names):
        for b in names[place + 1 :]:
            for size in curves[a].keys() & curves[b].keys():
                diff = curves[a][size] - curves[b][size]
                paired.append(
                    {"a": a, "b": b, "size": size, "every": every, "metric": metric,
                     "diff": diff, "low": diff - doubt, "high": diff + doubt, "p": p}
                )  # fmt: skip
    return summary, paired


LAST_BY_SIZE = {2: 0.96, 4: 0.94, 8: 0.92}


@pytest.mark.parametrize("first", ["last", "learned"])
def test_better_in_all_cells(first: str) -> None:
    curves = {"last": LAST_BY_SIZE, "learned": {2: 0.95, 4: 0.93, 8: 0.91}}
    ordered = dict(sorted(curves.items(), key=lambda pair: pair[0] != first))
    assert comparison_verdict(*table(**ordered), "rmse") == (
        "learned at K = 4 equals last at K = 5.7; learned is better than last in all 3 "
        "cells, by 1.0 to 1.1 %: use "
        "learned; keep last if that gain is too small for you"
    )


def test_sizes_outside_the_table_are_bounds() -> None:
    good = table(last=LAST_BY_SIZE, learned={2: 0.93, 4: 0.91, 8: 0.90})
    assert comparison_verdict(*good, "rmse").startswith(
        "learned at K = 4 is better than last at K = 8, the largest tried; "
    )
    bad = table(last=LAST_BY_SIZE, learned={2: 0.99, 4: 0.97, 8: 0.95})
    assert comparison_verdict(*bad, "rmse") == (
        "learned at K = 4 is worse than last at K = 2, the smallest tried; last is "
        "better than learned in all 3 "
        "cells, and worse in none: keep last"
    )


def test_no_significant_difference() -> None:
    close = table(doubt=0.05, last=LAST_BY_SIZE, learned={2: 0.95, 4: 0.93, 8: 0.91})
    assert (
        comparison_verdict(*close, "rmse")
        == "no significant difference in any of 3 cells: keep last"
    )
    same = table(doubt=0.0, last={4: 0.94}, learned={4: 0.94})
    assert (
        comparison_verdict(*same, "rmse") == "no significant difference in the one cell: keep last"
    )
    corrected = table(p=0.2, last={4: 0.94}, learned={4: 0.93})
    assert (
        comparison_verdict(*corrected, "rmse")
        == "no significant difference in the one cell: keep last"
    )


def test_cells_without_a_gain_are_named() -> None:
    mixed = table(every=4, last=LAST_BY_SIZE, learned={2: 0.95, 4: 0.93, 8: 0.925})
    assert comparison_verdict(*mixed, "rmse") == (
        "learned at K = 4 equals last at K = 5.7 (every 4); learned is better than last "
        "in 2 of 3 cells, by 1.0 to "
        "1.1 %, significantly; keep last at K = 8 every 4"
    )


def test_other_policies_and_metrics() -> None:
    found = table("recall@20", reservoir={4: 0.1}, hardest={4: 0.12}, all={4: 0.5}, mix={4: 0.3})
    assert comparison_verdict(*found, "recall@20") == (
        "mix is better than reservoir in the one cell, by 200.0 %: use mix; keep "
        "reservoir if that gain is "
        "too small for you"
    )
    assert comparison_verdict(*table(last=LAST_BY_SIZE, all={8: 0.5}), "rmse") == ""
    assert comparison_verdict(*table(last={2: 0.9}, learned={4: 0.8}), "rmse") == ""


RULES = [{"size": 4, "every": 1, "fold": fold, "policy": "hardest:8"} for fold in range(5)]


def ruled(learned: float, best: float, p: float = 0.01, folds: int = 5) -> str:
    """Return the verdict on learned at K = 4, against last with 0.94 and the best rule."""
    curves = {"last": {4: 0.94}, "learned": {4: learned}, "best-rule": {4: best}}
    summary, paired = table(p=p, **curves)
    pairs = [row for row in paired if {row["a"], row["b"]} != {"last", "best-rule"}]
    pairs = [{**row, "folds": [row["diff"]] * folds} for row in pairs]
    return comparison_verdict(summary, pairs, "rmse", (), RULES)


def test_learned_is_compared_with_the_best_rule_on_validation() -> None:
    assert ruled(0.92, 0.93) == (
        "learned is better than last in the one cell, by 2.1 %; learned is better than the best "
        "rule on validation (hardest:8) in the one cell, by 1.1 %: use learned"
    )
    assert ruled(0.93, 0.92) == (
        "learned is better than last in the one cell, by 1.1 %; learned is worse than the best "
        "rule on validation (hardest:8) in the one cell: use that rule"
    )
    assert ruled(0.93, 0.93) == (
        "learned is better than last in the one cell, by 1.1 %; learned is not better than the "
        "best rule on validation (hardest:8) in the one cell: use that rule"
    )
    assert ruled(0.95, 0.94).startswith(
        "last is better than learned in the one cell, and worse in none; learned is worse than"
    )
    assert ruled(0.93, 0.92, p=0.2).startswith(
        "no significant difference between learned and last in the one cell; learned is not better"
    )


def test_a_best_rule_that_is_better_in_some_cells() -> None:
    curves = {"last": LAST_BY_SIZE, "learned": {2: 0.95, 4: 0.93, 8: 0.91}}
    found = table(**curves, **{"best-rule": {2: 0.96, 4: 0.93, 8: 0.90}})
    assert comparison_verdict(*found, "rmse").endswith(
        "learned is better than the best rule on validation in 1 of 3 cells, by 1.0 %, and worse "
        "in 1 of 3 cells: use learned there, and else that rule"
    )


def test_the_best_rule_is_no_policy_of_its_own() -> None:
    found = table(last={4: 0.94}, **{"best-rule": {4: 0.90}})
    assert comparison_verdict(*found, "rmse") == ""


def test_fewer_than_five_folds_are_preliminary() -> None:
    assert ruled(0.92, 0.93, folds=2).endswith(": use learned; preliminary: 2 of 5 folds")
    assert "preliminary" not in ruled(0.92, 0.93)


def test_folds_that_disagree_are_no_gain() -> None:
    summary, paired = table(last={4: 0.94}, learned={4: 0.93})
    split = [{**row, "folds": [0.03, 0.02, 0.01, 0.02, -0.01]} for row in paired]
    assert comparison_verdict(summary, split, "rmse") == (
        "no significant difference in the one cell: keep last"
    )


def runs(*kept: str) -> list[dict[str, Any]]:
    """Runs of learned by who chose in them, and one of last."""
    own = [{"policy": "learned", "kept_policy": name} for name in kept]
    return [*own, {"policy": "last", "kept_policy": "last"}]


def test_a_kept_baseline_is_named_in_the_verdict() -> None:
    found = table(last={4: 0.94, 8: 0.92}, learned={4: 0.93, 8: 0.91})

    def said(*kept: str) -> str:
        return comparison_verdict(*found, "rmse", runs(*kept))

    assert said("learned", "learned") == comparison_verdict(*found, "rmse")
    assert said("frequent", "frequent") == (
        "frequent was kept in 2 of 2 runs of learned; frequent at K = 8 is better than "
        "last at K = 8, the "
        "largest tried; frequent is better than last in all 2 cells, by 1.1 to 1.1 %: "
        "use frequent; keep "
        "last if that gain is too small for you"
    )
    assert said("frequent", "learned").startswith(
        "frequent was kept in 1 of 2 runs of learned; learn"
    )
    assert said("last") == "last was kept in 1 of 1 runs of learned; keep last"


def test_a_better_third_policy_is_named() -> None:
    found = table(last={4: 0.94}, learned={4: 0.95}, reservoir={4: 0.92})
    assert comparison_verdict(*found, "rmse") == (
        "last is better than learned in the one cell, and worse in none: keep last; or use "
        "reservoir, which is better than last in the one cell, by 2.1 %"
    )
    worse = table(last={4: 0.94}, learned={4: 0.95}, reservoir={4: 0.96})
    assert "reservoir" not in comparison_verdict(*worse, "rmse")
