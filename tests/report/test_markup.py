"""HTML elements: text is escaped, differences are marked."""

import pytest

from dips.report.markup import (
    Markup,
    difference_tag,
    figure,
    figure_grid,
    format_seconds,
    paragraph,
    section,
    table,
)

BAD = "<b onclick='x'>\"&"
GOOD = "&lt;b onclick=&#x27;x&#x27;&gt;&quot;&amp;"


def test_every_element_escapes_its_text():
    elements = [
        table([BAD], [[BAD, BAD]], BAD),
        figure(BAD, BAD, Markup("<svg></svg>")),
        section(BAD, BAD, Markup("body")),
        paragraph(BAD),
    ]
    for element in elements:
        assert BAD not in element
        assert GOOD in element
    assert elements[0].count(GOOD) == 6  # a head, two cells, a caption and two labels


def test_markup_is_not_escaped():
    assert "<td><i>x</i></td>" in table(["a", "b"], [["row", Markup("<i>x</i>")]], "c")


def test_a_table_has_keyboard_focus_and_a_name():
    html = table(["policy", "K = 2"], [["last", "0.9"]], "means")
    assert 'tabindex="0" role="region" aria-label="means"' in html
    assert '<th scope="row">last</th><td>0.9</td>' in html
    assert '<th scope="col">K = 2</th>' in html


def test_empty_content_gives_no_element():
    empty = Markup()
    assert figure("title", "note", empty) == figure_grid(empty, empty) == ""
    assert section("a", "b", empty) == ""


def test_differences():
    assert difference_tag(-0.01, good=True) == '<span class="tag better">-0.0100</span>'
    assert difference_tag(0.01, good=False) == '<span class="tag worse">+0.0100</span>'
    assert difference_tag(0.00001, good=True) == '<span class="tag">0.0000</span>'


@pytest.mark.parametrize(
    ("value", "text"), [(2.34, "2.3 s"), (125, "2:05 min"), (3725, "1:02 h"), (99.9, "99.9 s")]
)
def test_durations(value, text):
    assert format_seconds(value) == text
