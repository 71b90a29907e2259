import numpy as np
import pytest

from dips.evaluation.comparison import Cell, UserSums, compare_pairs, summarise

COUNT = np.array([4.0, 1.0, 10.0])


def sums(term="squared_error", users=("x", "y", "z"), count=COUNT):
    """A maker of what users add to one metric."""

    def make(*values):
        return UserSums(list(users), np.asarray(count, float), {term: np.array(values, float)})

    return make


def row(policy, seed, test, size=4, every=1):
    return {"policy": policy, "size": size, "every": every, "seed": seed, "test": test}


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
    assert list(found) == ["a", "b", "size", "every", "metric", "diff", "low", "high", "p"]
    assert (found["a"], found["b"], found["metric"]) == ("a", "b", "rmse")
    assert found["diff"] == pytest.approx((45 / 15) ** 0.5 - 1.0)
    assert found["low"] <= found["diff"] <= found["high"]


def test_other_terms_are_plain_means():
    make = sums("recall@20")
    results = {Cell("a", 4, 1): [make(1, 1, 4)], Cell("b", 4, 1): [make(0, 0, 3)]}
    (found,) = compare_pairs(results, resamples=50)
    assert found["metric"] == "recall@20"
    assert found["diff"] == pytest.approx(3 / 15)


def test_users_are_pooled_over_seeds():
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
    """Three cells of a pair with p = 0.01, 0.04, 0.03: 0.03, then 0.06, then no less than that."""
    raw = iter([0.01, 0.04, 0.03])
    monkeypatch.setattr("dips.evaluation.comparison._two_sided", lambda spread: next(raw))
    make = sums()
    results = {
        Cell(policy, size, 1): [make(4, 1, size)] for size in (2, 4, 8) for policy in ("a", "b")
    }
    found = {r["size"]: r["p"] for r in compare_pairs(results, resamples=5)}
    assert found == pytest.approx({2: 0.03, 4: 0.06, 8: 0.06})


def test_holm_corrects_each_pair_and_metric_separately_up_to_one(monkeypatch):
    monkeypatch.setattr("dips.evaluation.comparison._two_sided", lambda spread: 0.6)
    terms = {"mrr@20": np.array([1.0, 2.0]), "recall@20": np.array([2.0, 2.0])}
    part = UserSums(["x", "y"], np.array([3.0, 4.0]), terms)
    one = {Cell(policy, 2, 1): [part] for policy in ("a", "b", "c")}
    assert [r["p"] for r in compare_pairs(one, resamples=5)] == [0.6] * 6
    two = {Cell(policy, size, 1): [part] for size in (2, 4) for policy in ("a", "b")}
    assert [r["p"] for r in compare_pairs(two, resamples=5)] == [1.0] * 4


def test_an_interval_does_not_depend_on_other_policies():
    rng = np.random.default_rng(3)
    results = simulated(rng, 0.1)
    (alone,) = compare_pairs(results, resamples=100)
    more = {**results, Cell("c", 4, 1): results[Cell("a", 4, 1)]}
    assert compare_pairs(more, resamples=100)[0] == alone
    assert compare_pairs(results, resamples=100, seed=1)[0]["low"] != alone["low"]
