import numpy as np
import pytest

from dips.evaluation import comparison
from dips.evaluation.comparison import (
    BEST_RULE,
    Cell,
    UserSums,
    best_rules,
    compare_pairs,
    fold_of,
    summarise,
)

COUNT = np.array([4.0, 1.0, 10.0])


def sums(term="squared_error", users=("x", "y", "z"), count=COUNT):
    """A maker of what users add to one metric."""

    def make(*values):
        return UserSums(list(users), np.asarray(count, float), {term: np.array(values, float)})

    return make


def row(policy, fold, test, size=4, every=1, repeat=0, valid=None):
    cell = {"policy": policy, "size": size, "every": every, "fold": fold, "repeat": repeat}
    return {**cell, "valid": valid or {}, "test": test}


def test_summary_by_hand():
    rows = [row("a", 0, {"rmse": 1.0}), row("a", 1, {"rmse": 2.0}), row("a", 2, {"rmse": 6.0})]
    rows += [row("b", 0, {"rmse": 5.0}), row("a", 0, {"rmse": 0.5}, size=8)]
    found = summarise(rows)
    assert [(r["policy"], r["size"], r["n"]) for r in found] == [
        ("a", 4, 3),
        ("b", 4, 1),
        ("a", 8, 1),
    ]
    assert found[0]["mean"] == pytest.approx(3.0)
    assert found[0]["std"] == pytest.approx(7**0.5)  # (4 + 1 + 9) / 2
    assert found[1]["std"] == 0.0
    assert list(found[0]) == ["policy", "size", "every", "metric", "mean", "std", "n"]


def test_summary_has_a_row_for_each_metric_and_period():
    found = summarise([row("a", 0, {"x": 1.0, "y": 2.0}), row("a", 0, {"x": 3.0}, every=2)])
    assert [(r["metric"], r["every"], r["mean"]) for r in found] == [
        ("x", 1, 1.0),
        ("y", 1, 2.0),
        ("x", 2, 3.0),
    ]


def test_rmse_differences_come_from_pooled_sums():
    make = sums()
    results = {Cell("a", 4, 1): [make(4, 1, 40)], Cell("b", 4, 1): [make(1, 9, 5)]}
    (found,) = compare_pairs(results, resamples=50)
    assert list(found) == [
        "a", "b", "size", "every", "metric", "diff", "low", "high", "p", "folds",
    ]  # fmt: skip
    assert (found["a"], found["b"], found["metric"]) == ("a", "b", "rmse")
    assert found["diff"] == pytest.approx((45 / 15) ** 0.5 - 1.0)
    assert found["low"] <= found["diff"] <= found["high"]


def test_other_terms_are_plain_means():
    make = sums("recall@20")
    results = {Cell("a", 4, 1): [make(1, 1, 4)], Cell("b", 4, 1): [make(0, 0, 3)]}
    (found,) = compare_pairs(results, resamples=50)
    assert found["metric"] == "recall@20"
    assert found["diff"] == pytest.approx(3 / 15)


def test_users_are_pooled_over_runs():
    one = sums(users=("x", "y"), count=[2, 2])
    other = sums(users=("y", "z"), count=[2, 4])
    results = {
        Cell("a", 4, 1): [one(2, 8), other(8, 4)],
        Cell("b", 4, 1): [one(2, 2), other(2, 4)],
    }
    (found,) = compare_pairs(results, resamples=400)
    assert found["diff"] == pytest.approx((22 / 10) ** 0.5 - 1)
    whole = sums(users=("x", "y", "z"), count=[2, 4, 4])
    pooled = {Cell("a", 4, 1): [whole(2, 16, 4)], Cell("b", 4, 1): [whole(2, 4, 4)]}
    assert compare_pairs(pooled, resamples=400) == [found]  # three users to draw from, not four
    # Draws without y have no difference at all: a chance of 8 / 27.
    assert found["low"] == 0.0
    assert 0.4 < found["p"] < 0.8


def test_identical_policies_have_no_difference():
    make = sums()
    results = {Cell("a", 4, 1): [make(4, 1, 40)], Cell("b", 4, 1): [make(4, 1, 40)]}
    (found,) = compare_pairs(results, resamples=99)
    assert (found["diff"], found["low"], found["high"], found["p"]) == (0, 0, 0, 1)


def test_a_strong_difference_has_a_small_p_but_never_zero():
    rng = np.random.default_rng(0)
    users, count = [str(user) for user in range(100)], np.full(100, 10.0)
    noise, other = rng.normal(size=100), 0.1 * rng.normal(size=100)
    results = {
        Cell("a", 4, 1): [UserSums(users, count, {"mrr@20": 5 + noise})],
        Cell("b", 4, 1): [UserSums(users, count, {"mrr@20": 4 + noise + other})],
    }  # fmt: skip
    (found,) = compare_pairs(results, resamples=1999)
    assert found["p"] == pytest.approx(2 / 2000)
    assert found["low"] > 0.05


def simulated(rng, difference, users=60):
    """Two policies on the same users; the first is worse by `difference` on average."""
    count = rng.integers(1, 30, users).astype(float)
    taste = rng.normal(size=users)
    a = count * (1 + taste + difference + 0.5 * rng.normal(size=users))
    b = count * (1 + taste + 0.5 * rng.normal(size=users))
    names = [str(user) for user in range(users)]
    return {
        Cell("a", 4, 1): [UserSums(names, count, {"logloss": a})],
        Cell("b", 4, 1): [UserSums(names, count, {"logloss": b})],
    }


def test_the_interval_covers_a_known_difference_and_p_is_fair():
    rng = np.random.default_rng(1)
    covered = rejected = 0
    for _ in range(200):
        (found,) = compare_pairs(simulated(rng, 0.3), resamples=300)
        covered += found["low"] <= 0.3 <= found["high"]
        (null,) = compare_pairs(simulated(rng, 0.0), resamples=300)
        rejected += null["p"] <= 0.05
    assert 178 <= covered <= 199  # about 95 % of 200; the bootstrap is a little short
    assert 1 <= rejected <= 22


def test_all_pairs_of_a_cell_and_none_across_cells():
    make = sums()
    results = {
        Cell(policy, size, every): [make(4, 1, size)]
        for policy in ("a", "b", "c")
        for size, every in ((2, 1), (4, 1), (2, 3))
    }
    found = compare_pairs(results, resamples=20)
    places = [(r["a"], r["b"], r["size"], r["every"]) for r in found]
    assert len(set(places)) == len(places) == 9
    assert {place[:2] for place in places} == {("a", "b"), ("a", "c"), ("b", "c")}


def test_holm_by_hand(monkeypatch):
    """p = 0.01, 0.04, 0.03 in three cells: 0.03, then 0.06, then no less than that."""
    raw = iter([0.01, 0.04, 0.03])
    monkeypatch.setattr("dips.evaluation.comparison._two_sided", lambda spread: next(raw))
    make = sums()
    results = {
        Cell(policy, size, 1): [make(4, 1, size)] for size in (2, 4, 8) for policy in ("a", "b")
    }
    found = {r["size"]: r["p"] for r in compare_pairs(results, resamples=5)}
    assert found == pytest.approx({2: 0.03, 4: 0.06, 8: 0.06})


def test_holm_corrects_all_pairs_and_cells_of_a_metric_together(monkeypatch):
    """Three pairs at each of two sizes are one family of six, for each of two metrics."""
    raw = iter([0.001, 0.5, 0.002, 0.5, 0.01, 0.5, 0.02, 0.5, 0.04, 0.5, 0.3, 0.5])
    monkeypatch.setattr("dips.evaluation.comparison._two_sided", lambda spread: next(raw))
    terms = {"mrr@20": np.array([1.0, 2.0]), "recall@20": np.array([2.0, 2.0])}
    part = UserSums(["x", "y"], np.array([3.0, 4.0]), terms)
    table = {Cell(policy, size, 1): [part] for size in (2, 4) for policy in ("a", "b", "c")}
    found = compare_pairs(table, resamples=5)
    by_metric = {m: sorted(r["p"] for r in found if r["metric"] == m) for m in terms}
    by_hand = [6 * 0.001, 5 * 0.002, 4 * 0.01, 3 * 0.02, 2 * 0.04, 0.3]
    assert by_metric["mrr@20"] == pytest.approx(by_hand)
    assert by_metric["recall@20"] == [1.0] * 6


def test_a_large_table_has_enough_resamples_for_a_corrected_p_below_5_percent(monkeypatch):
    drawn = []
    monkeypatch.setattr(comparison, "RESAMPLES", 100)
    resample = comparison.resample_sums

    def counted(table, seed, resamples):
        drawn.append(resamples)
        return resample(table, seed, resamples)

    monkeypatch.setattr(comparison, "resample_sums", counted)
    make = sums("recall@20")
    policies = {f"p{n}": n for n in range(8)}
    results = {Cell(name, 2, 1): [make(n, 2 * n, 3 * n)] for name, n in policies.items()}
    found = compare_pairs(results)
    assert drawn == [2800]  # 28 pairs
    assert max(row["p"] for row in found) == pytest.approx(28 * 2 / 2801)


def test_each_fold_has_its_difference_and_repeats_are_added_up():
    def run(fold, *values):
        users = ("x", "y") if fold == 0 else ("z",)
        return UserSums(users, np.full(len(users), 2.0), {"mrr@20": np.array(values)}, fold)

    results = {
        Cell("a", 4, 1): [run(1, 2.0), run(0, 2, 1), run(0, 1, 0), run(1, 1.0)],
        Cell("b", 4, 1): [run(0, 0, 0), run(1, 2.0), run(1, 2.0), run(0, 2, 0)],
    }
    (found,) = compare_pairs(results, resamples=50)
    # Fold 0: (2 + 1 + 1 + 0) / 8 - (0 + 0 + 2 + 0) / 8; fold 1: (2 + 1) / 4 - (2 + 2) / 4.
    assert found["folds"] == pytest.approx([0.25, -0.25])
    assert found["diff"] == pytest.approx((4 + 3) / 12 - (2 + 4) / 12)


def test_repeats_do_not_make_intervals_narrower():
    rng = np.random.default_rng(0)
    once = simulated(rng, 0.1)
    twice = {cell: [*parts, *parts] for cell, parts in once.items()}
    (one,), (two,) = (compare_pairs(results, resamples=200) for results in (once, twice))
    assert [one[key] for key in ("diff", "low", "high", "p")] == pytest.approx(
        [two[key] for key in ("diff", "low", "high", "p")]
    )


def test_a_summary_averages_repeats_before_it_counts_folds():
    rows = [row("a", 0, {"rmse": 1.0}), row("a", 0, {"rmse": 3.0}, repeat=1)]
    rows += [row("a", 1, {"rmse": 4.0}), row("a", 1, {"rmse": 4.0}, repeat=1)]
    (found,) = summarise(rows)
    assert (found["mean"], found["n"]) == (3.0, 2)
    assert found["std"] == pytest.approx(2**0.5)  # of 2 and 4


def test_rows_of_version_0_1_have_seeds():
    assert fold_of({"seed": 3}) == 3
    assert fold_of({"seed": 0, "fold": 2}) == 2


def test_the_best_rule_is_chosen_on_validation_in_each_fold():
    valid = {("last", 0): 0.8, ("hardest", 0): 0.7, ("last", 1): 0.6, ("hardest", 1): 0.7}
    test = {("last", 0): 0.1, ("hardest", 0): 0.9, ("last", 1): 0.9, ("hardest", 1): 0.1}
    for metric, chosen in (
        ("rmse", {0: "hardest", 1: "last"}),
        ("recall@20", {0: "last", 1: "hardest"}),
    ):
        rows = [
            row(name, fold, {metric: test[name, fold]}, valid={metric: value})
            for (name, fold), value in valid.items()
        ]
        rows.append(row("learned", 0, {metric: 0.5}, valid={metric: 0.0}))
        rows.append(row("all", 0, {metric: 0.5}, valid={metric: 0.0}))
        assert best_rules(rows, ["last", "hardest"]) == {(4, 1): chosen}
    assert best_rules(rows, ["last"]) == {}  # a single rule is no choice


def test_repeats_are_averaged_before_a_rule_is_chosen():
    valid = {"last": (0.5, 0.9), "hardest": (0.6, 0.6)}
    rows = [
        row(name, 0, {}, repeat=repeat, valid={"rmse": value})
        for name, values in valid.items()
        for repeat, value in enumerate(values)
    ]
    assert best_rules(rows, list(valid)) == {(4, 1): {0: "hardest"}}


def test_the_best_rule_is_not_compared_with_rules():
    make = sums()
    results = {Cell(name, 4, 1): [make(4, 1, 2)] for name in ("last", "learned", BEST_RULE)}
    found = compare_pairs(results, rules=["last"], resamples=5)
    assert [(r["a"], r["b"]) for r in found] == [("last", "learned"), ("learned", BEST_RULE)]


def test_an_interval_does_not_depend_on_other_policies():
    rng = np.random.default_rng(3)
    results = simulated(rng, 0.1)
    (alone,) = compare_pairs(results, resamples=100)
    more = {**results, Cell("c", 4, 1): results[Cell("a", 4, 1)]}
    found = compare_pairs(more, resamples=100)[0]
    assert {**found, "p": 0} == {**alone, "p": 0}  # Holm's correction does depend on them
    assert compare_pairs(results, resamples=100, seed=1)[0]["low"] != alone["low"]
