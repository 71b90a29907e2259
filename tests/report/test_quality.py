"""Tables and sizes at equal quality from rows of means."""

import pytest

from dips.report.quality import (
    best_rules_table,
    difference_chart,
    equal_quality_sentence,
    equal_quality_sizes,
    equal_quality_table,
    means_table,
    policy_colours,
    size_chart,
)

LAST = {2: 0.96, 4: 0.94, 8: 0.92}
LEARNED = {2: 0.95, 4: 0.93, 8: 0.91}


def rows(metric="rmse", every=1, sign=1, **policies):
    return [
        {"policy": policy, "size": size, "every": every, "metric": metric, "mean": sign * mean,
         "std": 0.01, "spread": 0.002, "n": 2}
        for policy, by_size in policies.items()
        for size, mean in by_size.items()
    ]  # fmt: skip


def test_the_paper_s_values_are_shown_with_marked_differences():
    html = means_table(rows(dips={2: 0.95, 4: 0.95}), "rmse", 1, "ml-1m")
    assert "paper&#x27;s" not in html
    assert "paper's DiPS 0.9543" in html
    assert '<span class="tag better">-0.0043</span>' in html  # 0.95 against 0.9543
    assert '<span class="tag worse">+0.0082</span>' in html  # 0.95 against 0.9418
    assert "paper's" not in means_table(rows(dips={2: 0.95}), "rmse", 1, "synthetic")


def test_more_is_better_for_a_recall():
    html = means_table(rows("recall@20", dips={2: 0.2}), "recall@20", 1, "amazon-books")
    assert '<span class="tag better">+0.0837</span>' in html


def test_the_best_of_each_size_is_bold_without_the_full_history():
    html = means_table(rows(learned=LEARNED, last=LAST, all={8: 0.5}), "rmse", 1, "")
    assert html.count('class="best"') == 3
    assert '<span class="best">0.9100</span>' in html
    assert '<span class="best">0.5000</span>' not in html


def test_sizes_at_equal_quality():
    found = equal_quality_sizes(rows(learned=LEARNED, last=LAST), "rmse", 1, "learned")
    assert found["last"][2].size == pytest.approx(8**0.5)  # halfway between 2 and 4
    assert found["last"][4].size == pytest.approx(32**0.5)
    assert found["last"][8].bound == "above"
    assert equal_quality_sentence(
        rows(learned=LEARNED, last=LAST), "rmse", 1, ("learned", 4), "last"
    ) == ("learned at 4 equals last at 5.66")
    assert equal_quality_sentence(rows(learned=LEARNED), "rmse", 1, ("learned", 4), "last") == ""


def test_outside_the_tested_sizes_the_sentence_says_which_is_better():
    def sentence(learned):
        return equal_quality_sentence(
            rows(learned={4: learned}, last=LAST), "rmse", 1, ("learned", 4), "last"
        )

    assert sentence(0.5) == "learned at 4 is better than last at 8"
    assert sentence(0.99) == "last at 2 is better than learned at 4"


def test_a_sentence_never_contradicts_the_comparison_at_equal_size():
    falling = {2: 0.90, 4: 0.94, 8: 0.95}  # fewer items are better, as noise can have it

    def sentence(learned):
        return equal_quality_sentence(
            rows(learned={4: learned}, last=falling), "rmse", 1, ("learned", 4), "last"
        )

    assert sentence(0.93) == ""  # better at 4, but last at 2 is better still
    assert sentence(0.96) == "last at 2 is better than learned at 4"
    assert sentence(0.89) == "learned at 4 is better than last at 8"


def test_known_ratios_are_coloured_and_unknown_ones_are_not():
    html = equal_quality_table(rows(learned=LEARNED, last=LAST), "rmse", 1, "learned")
    assert "1.41 ×" in html  # noqa: RUF001
    assert '<span class="better">more than 8</span>' in html
    turned = equal_quality_table(rows(learned=LEARNED, last=LAST), "rmse", 1, "last")
    assert '<span class="worse">less than 2</span>' in turned
    narrow = equal_quality_table(
        rows(learned={8: 0.1}, last={2: 0.9, 4: 0.8}), "rmse", 1, "learned"
    )
    assert '<span class="soft">more than 4</span>' in narrow
    wide = equal_quality_table(rows(learned={2: 0.9}, last={4: 0.5, 8: 0.4}), "rmse", 1, "learned")
    assert '<span class="soft">less than 4</span>' in wide


def test_an_equal_size_is_neither_better_nor_worse():
    html = equal_quality_table(rows(learned=LAST, last=LAST), "rmse", 1, "learned")
    assert html.count("<small class='soft'>1.00 ×</small>") == 3  # noqa: RUF001
    assert "worse" not in html


def test_a_policy_with_one_size_has_no_equal_quality_size():
    assert equal_quality_table(rows(learned=LEARNED, last={4: 0.9}), "rmse", 1, "learned") == ""


def test_charts_by_size_and_by_cost():
    mine = rows(learned=LEARNED, last=LAST, all={8: 0.9})
    names = policy_colours(["learned", "last", "all"])
    by_size = size_chart(mine, "rmse", 1, colour=names, title="t")
    assert by_size.count("<polyline") == 2
    assert "lower is better; whiskers" in by_size
    once = [{**row, "n": 1, "std": 0.0} for row in mine]
    once_chart = size_chart(once, "rmse", 1, colour=names, title="t")
    assert "lower is better" in once_chart
    assert "whiskers" not in once_chart
    assert "±" not in once_chart
    by_bytes = size_chart(
        mine, "rmse", 1, colour=names, title="t", cost=lambda size, every: 24 + 12 * size
    )
    assert ">120<" in by_bytes
    assert size_chart(mine, "rmse", 4, colour=names, title="t") == ""


def test_differences_change_sign_with_the_side():
    pair = {"a": "last", "b": "learned", "size": 4, "every": 1, "metric": "rmse", "diff": 0.01,
            "low": 0.005, "high": 0.02, "p": 0.01}  # fmt: skip
    html = difference_chart([pair], "rmse", 1, "last", {"learned": 0})
    assert "learned, K = 4: -0.0100, -0.0200 to -0.0050, p = 0.01" in html
    assert '<span class="best"><span class="tag better">-0.0100</span></span>' in html
    assert difference_chart([pair], "rmse", 4, "last", {}) == ""
    assert difference_chart([pair], "rmse", 1, "reservoir", {}) == ""


def test_the_difference_in_each_fold_is_shown():
    pair = {"a": "last", "b": "learned", "size": 4, "every": 1, "metric": "rmse", "diff": 0.01,
            "low": 0.005, "high": 0.02, "p": 0.01, "folds": [0.02, -0.001, 0.01]}  # fmt: skip
    html = difference_chart([pair], "rmse", 1, "last", {"learned": 0})
    assert "2 of 3 folds" in html
    assert "-0.0200, +0.0010, -0.0100" in html
    assert 'class="best"' not in html  # the folds disagree


def test_policies_that_do_not_differ_significantly_from_the_best_are_bold():
    pair = {"a": "last", "b": "learned", "size": 4, "every": 1, "metric": "rmse", "diff": 0.01,
            "low": 0.005, "high": 0.02, "p": 0.01, "folds": [0.02, 0.01]}  # fmt: skip
    means = rows(learned={4: 0.93}, last={4: 0.94})
    assert means_table(means, "rmse", 1, "", [pair]).count('class="best"') == 1
    undecided = {**pair, "folds": [0.02, -0.001]}
    assert means_table(means, "rmse", 1, "", [undecided]).count('class="best"') == 2


def test_the_best_rules_are_a_table():
    found = [{"size": 4, "every": 2, "fold": f, "policy": p} for f, p in ((0, "last"), (2, "mix"))]
    html = best_rules_table(found)
    assert "fold 0" in html
    assert "fold 2" in html
    assert "K = 4, refreshed every 2" in html
    assert best_rules_table([]) == ""


def test_known_policies_keep_their_colours_and_others_get_their_own():
    found = policy_colours(["mine", "last", "learned", "frequent"])
    assert (found["learned"], found["last"]) == (0, 1)
    assert len(set(found.values())) == 4
    assert policy_colours(["last"])["last"] == 1
