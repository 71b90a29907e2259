"""Pieces of pages: text stays text, numbers get their colours."""

import pytest

from dips.report.markup import (
    Markup,
    charts,
    difference,
    figure,
    paragraph,
    seconds,
    section,
    table,
)

BAD = "<b onclick='x'>\"&"
GOOD = "&lt;b onclick=&#x27;x&#x27;&gt;&quot;&amp;"


def test_every_piece_escapes_its_text():
    pieces = [
        table([BAD], [[BAD, BAD]], BAD),
        figure(BAD, BAD, "<svg></svg>"),
        section(BAD, BAD, "body"),
        paragraph(BAD),
    ]
    for piece in pieces:
        assert BAD not in piece
        assert GOOD in piece
    assert pieces[0].count(GOOD) == 6  # a head, two cells, a caption and two labels


def test_markup_is_left_alone():
    assert "<td><i>x</i></td>" in table(["a", "b"], [["row", Markup("<i>x</i>")]], "c")


def test_a_table_can_be_reached_and_has_a_name():
    html = table(["policy", "K = 2"], [["last", "0.9"]], "means")
    assert 'tabindex="0" role="region" aria-label="means"' in html
    assert '<th scope="row">last</th><td>0.9</td>' in html
    assert '<th scope="col">K = 2</th>' in html


def test_what_is_empty_leaves_nothing():
    assert figure("title", "note", "") == charts("", "") == section("a", "b", "") == ""


def test_differences():
    assert difference(-0.01, good=True) == '<span class="tag better">-0.0100</span>'
    assert difference(0.01, good=False) == '<span class="tag worse">+0.0100</span>'
    assert difference(0.00001, good=True) == '<span class="tag">0.0000</span>'


@pytest.mark.parametrize(
    ("value", "said"), [(2.34, "2.3 s"), (125, "2:05 min"), (3725, "1:02 h"), (99.9, "99.9 s")]
)
def test_times(value, said):
    assert seconds(value) == said
