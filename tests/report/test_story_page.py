"""The page of a story: in Chromium, by pointer and by keys."""

import dataclasses

import pytest

from dips.report.story_page import story_page
from tests.report.fixtures import HOSTILE, make_story, overflow, without_gradients


@pytest.fixture
def page_of(tmp_path):
    def write(story):
        path = tmp_path / "story.html"
        path.write_text(story_page(story), encoding="utf-8")
        return path

    return write


def test_text_is_escaped():
    html = story_page(dataclasses.replace(make_story(title=HOSTILE), user=HOSTILE))
    assert "<script>document" not in html
    assert "&lt;script&gt;document" in html


def test_cells_have_labels():
    html = story_page(make_story())
    assert (
        'aria-label="Heat &amp; Dust (1983), kept for prediction 2: helped much (-0.500)"' in html
    )
    assert 'aria-label="b: not kept at 2"' in html
    assert 'aria-label="Prediction 3: c; rated 1, predicted 3.00, error 2.00"' in html
    assert 'class="error" style="--share:0.25"' in html
    assert 'class="d2 error" style="--share:0.05"' in html
    hits = story_page(make_story(explicit=False))
    assert hits.count('class="miss"') == 1 + 2  # a head and two empty cells
    assert 'class="d2 hit"' in hits


def test_without_gradients_no_effect_is_shown():
    html = story_page(without_gradients(make_story()))
    assert "hardly changed it" not in html
    assert "entry gradients are not known" in html


def test_it_works_by_pointer_and_by_keys(look, page_of):
    view = look(page_of(make_story(title=HOSTILE)))
    assert view.title() == "The story of user u1"
    panel = view.locator("#panel")
    assert "1: " in panel.inner_text()  # the first prediction, before anything is touched
    view.locator("td.d2").hover()
    assert "helped much (-0.500)" in panel.inner_text()
    assert "owned" not in view.title()
    view.keyboard.press("Tab")  # skips to the content
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.closest('table') !== null")
    view.keyboard.press("End")
    assert "Prediction 3" in view.evaluate("document.activeElement.getAttribute('aria-label')")
    assert "dropped" in panel.inner_text()
    view.keyboard.press("ArrowDown")
    view.keyboard.press("ArrowLeft")
    assert "kept for prediction 2" in view.evaluate(
        "document.activeElement.getAttribute('aria-label')"
    )
    assert view.locator('table [tabindex="0"]').count() == 1
    view.locator("td").last.click()
    assert "b, kept for prediction 3: hardly changed it" in panel.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_does_not_scroll_horizontally(look, page_of, scheme):
    story = make_story(explicit=False, title="A long title without an end " * 4)
    many = tuple(dataclasses.replace(story.steps[2], t=t) for t in range(60))
    view = look(page_of(dataclasses.replace(story, steps=many)), width=390, scheme=scheme)
    assert overflow(view) == 0
    assert view.locator(".matrix").evaluate("e => e.scrollWidth > e.clientWidth")
    ink = view.evaluate("getComputedStyle(document.body).color")
    assert (ink == "rgb(31, 37, 48)") == (scheme == "light")


def test_the_matrix_has_accessible_names(look, page_of):
    view = look(page_of(make_story()))
    grid = view.get_by_role("grid", name="Sketch items of user u1, by prediction")
    assert grid.get_by_role("rowheader").count() == 2
    assert grid.get_by_role("columnheader").count() == 4
    view.get_by_text("All predictions in words").click()
    assert view.locator(".all > li").count() == 3
