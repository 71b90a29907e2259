"""Charts: positions of points, descriptions, and escaped text."""

import re
from xml.etree import ElementTree

import pytest

from dips.report.charts import (
    HEIGHT,
    WIDTH,
    BarSegment,
    Point,
    Series,
    bar_chart,
    interval_chart,
    legend,
    line_chart,
    nice_ticks,
)
from tests.report.fixtures import HOSTILE

LINE = Series("last", 1, (Point(2, 0.1, 0.05, 0.15, "K = 2"), Point(8, 0.3)))


def drawn(svg):
    return ElementTree.fromstring(svg)


def places(svg):
    """Return the points of each line."""
    return [
        [tuple(map(float, pair.split(","))) for pair in found.split()]
        for found in re.findall(r'points="([^"]*)"', svg)
    ]


def chart(*series, **more):
    return line_chart(series, title="t", x_label="size", y_label="recall", **more)


def test_points_are_at_their_coordinates():
    ((low, high),) = places(chart(LINE))
    assert low[0] < high[0]
    assert low[1] > high[1]  # a larger value is higher up
    middle = Series("x", 0, (Point(2, 0.1), Point(4, 0.2), Point(8, 0.3)))
    ((a, b, c),) = places(chart(middle, log_x=True))
    assert b[0] == pytest.approx((a[0] + c[0]) / 2, abs=0.11)
    assert b[1] == pytest.approx((a[1] + c[1]) / 2, abs=0.11)


def test_everything_stays_inside():
    constant = Series("all", 7, (Point(8, 0.5),), horizontal=True)
    svg = chart(LINE, constant, log_x=True, x_ticks=[2, 8])
    for line in drawn(svg).iter("line"):
        assert all(0 <= float(line.get(name)) <= WIDTH for name in ("x1", "x2"))
        assert all(0 <= float(line.get(name)) <= HEIGHT for name in ("y1", "y2"))


def test_the_label_does_not_overlap_the_longest_ticks():
    series = Series("one", 0, (Point(1, 0.9325), Point(2, 0.9425)))
    svg = chart(series)
    ticks = re.findall(r'<text x="(\d+)"[^>]*text-anchor="end">([\d.]+)<', svg)
    place, text = max(ticks, key=lambda tick: len(tick[1]))
    assert len(text) >= 6
    assert int(place) - 7 * len(text) > 11 + 6  # a digit is 7 wide, the label stands at 11


def test_whiskers_horizontal_lines_and_single_points():
    root = drawn(chart(LINE))
    assert len([line for line in root.iter("line") if line.get("class") == "whisker"]) == 1
    level = chart(Series("all", 7, (Point(8, 0.5),), horizontal=True))
    assert "stroke-dasharray" in level
    assert "<polyline" not in level
    assert len(places(chart(Series("one", 0, (Point(4, 0.5),))))) == 1


def test_it_has_a_name_and_a_description():
    root = drawn(chart(LINE))
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.find("title").text == "t"
    assert root.find("desc").text == "recall by size: last from 0.1 at 2 to 0.3 at 8"


def test_text_is_escaped():
    hostile = Series(HOSTILE.replace("\x1b", ""), 0, (Point(1, 1, note="<b>"), Point(2, 2)))
    svg = line_chart([hostile], title="<t>", x_label="<x>", y_label="<y>")
    assert "<script" not in svg
    drawn(svg)
    assert "<script" not in legend([hostile])


def test_the_legend_shows_lines_as_they_are_drawn():
    across = Series("all", 7, (Point(8, 0.5),), horizontal=True)
    assert legend([LINE]).count("<path") == 1
    assert legend([across]).count("<path") == 0
    assert "stroke-dasharray" in legend([across])
    assert "stroke-dasharray" not in legend([LINE])


def test_without_points_there_is_no_chart():
    assert line_chart([], title="t", x_label="x", y_label="y") == ""
    assert interval_chart([], title="t", x_label="x") == ""


def test_a_series_without_points_is_left_out():
    empty, line = Series("none", 0, ()), Series("all", 7, (), horizontal=True)
    assert chart(LINE, empty, line) == chart(LINE)
    assert chart(empty) == ""


def test_intervals_are_drawn_around_zero():
    rows = [("a", 0, Point(-0.1, 0, -0.2, -0.05, "a: -0.1")), ("b", 1, Point(0.3, 0))]
    root = drawn(interval_chart(rows, title="t", x_label="d"))
    (zero,) = [line for line in root.iter("line") if line.get("class") == "zero"]
    own = [line for line in root.iter("line") if line.get("stroke", "").startswith("var(--c")]
    assert float(own[0].get("x2")) < float(zero.get("x1")) < float(own[1].get("x1"))
    assert "a: -0.1" in root.find("desc").text


def test_bars_are_as_wide_as_their_shares():
    bars = [("dips", [BarSegment("kept", "red", 0.75), BarSegment("lost", "blue", 0.25)])]
    svg = bar_chart(bars, title="t")
    first, second = (float(rect.get("width")) for rect in drawn(svg).iter("rect"))
    assert first == pytest.approx(3 * second)
    assert "75 %" in svg
    assert "dips: kept 75.0%, lost 25.0%" in svg


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.13, 0.29, [0.1, 0.15, 0.2, 0.25, 0.3]),
        (0, 100, [0, 25, 50, 75, 100]),
        (-0.02, 0.02, [-0.02, -0.01, 0, 0.01, 0.02]),
    ],
)
def test_ticks_are_round_and_enclose(low, high, expected):
    assert nice_ticks(low, high) == pytest.approx(expected)


def test_ticks_about_a_single_value():
    ticks = nice_ticks(0.9, 0.9)
    assert ticks[0] < 0.9 < ticks[-1]
    assert nice_ticks(0.0, 0.0)[0] < 0 < nice_ticks(0.0, 0.0)[-1]
