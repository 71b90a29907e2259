"""Tables and sizes at equal quality from rows of means."""

import pytest

from dips.report.quality import (
    colours,
    difference_chart,
    equal_sizes,
    equal_table,
    means_table,
    sentence,
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


def test_the_paper_stands_beside_and_differences_are_coloured():
    html = means_table(rows(dips={2: 0.95, 4: 0.95}), "rmse", 1, "ml-1m")
    assert "paper&#x27;s" not in html
    assert "paper's DiPS 0.9543" in html
    assert '<span class="tag better">-0.0043</span>' in html  # 0.95 against 0.9543
    assert '<span class="tag worse">+0.0082</span>' in html  # 0.95 against 0.9418
    assert "paper's" not in means_table(rows(dips={2: 0.95}), "rmse", 1, "synthetic")


def test_more_is_better_for_a_recall():
    html = means_table(rows("recall@20", dips={2: 0.2}), "recall@20", 1, "amazon-books")
    assert '<span class="tag better">+0.0837</span>' in html


def test_the_best_of_each_size_is_bold_and_everything_does_not_count():
    html = means_table(rows(learned=LEARNED, last=LAST, all={8: 0.5}), "rmse", 1, "")
    assert html.count('class="best"') == 3
    assert '<span class="best">0.9100</span>' in html
    assert '<span class="best">0.5000</span>' not in html


def test_sizes_at_equal_quality():
    found = equal_sizes(rows(learned=LEARNED, last=LAST), "rmse", 1, "learned")
    assert found["last"][2].size == pytest.approx(8**0.5)  # halfway between 2 and 4
    assert found["last"][4].size == pytest.approx(32**0.5)
    assert found["last"][8].bound == "above"
    assert sentence(rows(learned=LEARNED, last=LAST), "rmse", 1, "learned", "last") == (
        "learned at 4 equals last at 5.66"
    )
    assert sentence(rows(learned=LEARNED), "rmse", 1, "learned", "last") == ""


def test_beyond_the_sizes_it_says_only_who_is_better():
    def said(learned):
        return sentence(rows(learned={4: learned}, last=LAST), "rmse", 1, "learned", "last")

    assert said(0.5) == "learned at 4 is better than last at 8"
    assert said(0.99) == "last at 2 is better than learned at 4"


def test_what_is_known_is_coloured_and_what_is_not_is_not():
    html = equal_table(rows(learned=LEARNED, last=LAST), "rmse", 1, "learned")
    assert "1.41 ×" in html  # noqa: RUF001
    assert '<span class="better">more than 8</span>' in html
    turned = equal_table(rows(learned=LEARNED, last=LAST), "rmse", 1, "last")
    assert '<span class="worse">less than 2</span>' in turned
    narrow = equal_table(rows(learned={8: 0.1}, last={2: 0.9, 4: 0.8}), "rmse", 1, "learned")
    assert '<span class="soft">more than 4</span>' in narrow
    wide = equal_table(rows(learned={2: 0.9}, last={4: 0.5, 8: 0.4}), "rmse", 1, "learned")
    assert '<span class="soft">less than 4</span>' in wide


def test_as_many_is_neither_better_nor_worse():
    html = equal_table(rows(learned=LAST, last=LAST), "rmse", 1, "learned")
    assert html.count("<small class='soft'>1.00 ×</small>") == 3  # noqa: RUF001
    assert "worse" not in html


def test_a_size_that_was_not_tried_twice_has_no_equal():
    assert equal_table(rows(learned=LEARNED, last={4: 0.9}), "rmse", 1, "learned") == ""


def test_lines_by_size_or_by_cost():
    mine = rows(learned=LEARNED, last=LAST, all={8: 0.9})
    names = colours(["learned", "last", "all"])
    by_size = size_chart(mine, "rmse", 1, colour=names, title="t")
    assert by_size.count("<polyline") == 2
    assert "lower is better; whiskers" in by_size
    once = [{**row, "n": 1, "std": 0.0} for row in mine]
    alone = size_chart(once, "rmse", 1, colour=names, title="t")
    assert "lower is better" in alone
    assert "whiskers" not in alone
    assert "±" not in alone
    by_bytes = size_chart(
        mine, "rmse", 1, colour=names, title="t", cost=lambda size, every: 24 + 12 * size
    )
    assert ">120<" in by_bytes
    assert size_chart(mine, "rmse", 4, colour=names, title="t") == ""


def test_differences_turn_with_the_side():
    pair = {"a": "last", "b": "learned", "size": 4, "every": 1, "metric": "rmse", "diff": 0.01,
            "low": 0.005, "high": 0.02, "p": 0.01}  # fmt: skip
    html = difference_chart([pair], "rmse", 1, "last", {"learned": 0})
    assert "learned, K = 4: -0.0100, -0.0200 to -0.0050, p = 0.01" in html
    assert '<span class="tag better">-0.0100</span>' in html
    assert difference_chart([pair], "rmse", 4, "last", {}) == ""
    assert difference_chart([pair], "rmse", 1, "reservoir", {}) == ""


def test_known_policies_keep_their_colours_and_others_get_their_own():
    found = colours(["mine", "last", "learned", "frequent"])
    assert (found["learned"], found["last"]) == (0, 1)
    assert len(set(found.values())) == 4
    assert colours(["last"])["last"] == 1
