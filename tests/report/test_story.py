"""The story of a user as text and as figures."""

import dataclasses

import pytest
from matplotlib.image import imread

from dips.report.story import (
    draw_story,
    format_score,
    gradient_level,
    heading,
    most_helpful,
    outcome,
    printable,
    refresh_reason,
    story_text,
)
from tests.report.fixtures import HOSTILE, make_story, without_gradients

BAR = "<!-- helped  ←  effect on the loss of this prediction  →  hurt -->"
"""Label of the colour bar: a negative gradient helped."""


def test_the_text_shows_the_matrix_the_predictions_and_the_drops():
    lines = story_text(make_story()).splitlines()
    assert lines[0].startswith("User u1 of toy (test user): last keeps 2, refreshed every 1; all 3")
    assert lines[2].split() == ["interaction", "1", "2", "3"]
    assert lines[3].split() == ["error", "0.5", "0.1", "2.0"]
    assert lines[4].split() == ["Heat", "&", "Dust", "(1983)", "++", "-"]
    assert lines[5].split() == ["b", "."]
    assert (
        "  2: b; rated 5, predicted 4.90, error 0.10; Heat & Dust (1983) -0.500 helped most"
        in lines
    )
    assert "  after 2: dropped c (-2.250); kept b (1.500), Heat & Dust (1983) (0.000)" in lines


def test_hits_and_misses():
    story = make_story(explicit=False)
    assert story_text(story).splitlines()[3].split()[4:] == ["n", "y", "y"]
    assert outcome(story.steps[0], story) == "miss, rank 21 of 50"
    assert outcome(story.steps[1], story) == "hit, rank 20 of 50"


@pytest.mark.parametrize("width", [10, 80, 133, 200, 500])
def test_lines_fit_the_terminal_and_the_newest_steps_are_shown(width):
    story = make_story(title="A very long title " * 9)
    long = dataclasses.replace(
        story,
        length=300,
        steps=tuple(dataclasses.replace(story.steps[2], t=t) for t in range(300)),
    )
    text = story_text(long, width)
    assert max(map(len, text.splitlines())) <= min(max(width, 80), 200)
    assert text.splitlines()[[*map(len, text.splitlines())].index(0) + 1].split()[-1] == "300"


def test_the_entries_that_helped_and_hurt_most_are_named():
    story = make_story()
    assert most_helpful(story.steps[0], story) == ""
    assert most_helpful(story.steps[2], story) == "Heat & Dust (1983) +0.100 hurt most"


def test_gradient_levels():
    assert [gradient_level(e, 1.0) for e in (-1, -0.5, -0.2, -0.04, 0, 0.04, 0.2, 0.5)] == [
        2, 2, 1, 0, 0, 0, -1, -2,
    ]  # fmt: skip
    assert gradient_level(-1.0, 0.0) == 0


def test_scores_have_no_negative_zero():
    assert [format_score(x) for x in (-0.0, -0.0004, -1.0)] == ["0.000", "0.000", "-1.000"]


def test_a_recommender_without_gradients_says_so(tmp_path):
    text = story_text(without_gradients(make_story()))
    assert "entry gradients are not known" in text
    assert "helped most" not in text
    draw_story(without_gradients(make_story()), tmp_path / "a.svg", "svg")
    assert BAR not in (tmp_path / "a.svg").read_text()


def test_a_baseline_and_a_user_outside_the_run_are_named():
    story = dataclasses.replace(make_story(), run_policy="learned", part="")
    assert "of toy (not in the run): last (baseline of a learned run, better on" in heading(story)


def test_long_names_with_equal_beginnings_stay_different():
    lines = [
        story_text(make_story(title=f"{'A very long title ' * 3}{part}"), 80).splitlines()[4]
        for part in ("one", "two")
    ]
    assert lines[0] != lines[1]
    assert "…" in lines[0]


def test_control_characters_are_removed():
    assert printable("a\x1b[31m\nb\u202e") == "a?[31m?b?"
    assert "\x1b" not in story_text(make_story(title=HOSTILE))


def test_a_refresh_names_all_candidates():
    story = make_story()
    assert refresh_reason(story.refreshes[0], story).count("(") == 4  # three scores and a year


@pytest.mark.parametrize("explicit", [True, False])
def test_figures(explicit, tmp_path):
    story = make_story(explicit=explicit, title=HOSTILE)
    draw_story(story, tmp_path / "story.png", "png")
    pixels = imread(tmp_path / "story.png")[..., :3]
    assert min(pixels.shape[:2]) > 250
    assert len({tuple(pixel) for pixel in pixels.reshape(-1, 3).round(1).tolist()}) > 10
    draw_story(story, tmp_path / "story.svg", "svg")
    drawn = (tmp_path / "story.svg").read_text()
    assert drawn.startswith("<?xml")
    assert BAR in drawn
    assert "#00441b" in drawn  # what helped most is green


def test_the_shade_is_the_error(tmp_path):
    story = make_story()
    calm = dataclasses.replace(
        story, steps=tuple(dataclasses.replace(step, error=0.5) for step in story.steps)
    )
    draw_story(story, tmp_path / "a.png", "png")
    draw_story(calm, tmp_path / "b.png", "png")
    assert (imread(tmp_path / "a.png") != imread(tmp_path / "b.png")).any()


def test_a_story_with_an_empty_sketch_is_drawn(tmp_path):
    story = make_story()
    short = dataclasses.replace(story, steps=story.steps[:1], refreshes=(), length=1)
    draw_story(short, tmp_path / "a.png", "png")
    assert "Refreshes" not in story_text(short)
