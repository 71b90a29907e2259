"""The story of a user against the parts that it is told from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dips import api
from dips.credit.adjoint import effect_of, worth
from dips.data.interactions import from_arrays
from dips.data.synthetic import stream
from dips.errors import ConfigError
from dips.evaluation.story import cell, tell
from dips.recommender.base import Evidence
from dips.studies.sketches import in_vocabulary, predictions, sketches

FAST = {"epochs": 1, "dim": 6, "batch": 256, "device": "cpu", "baseline": ""}


def trained(*, implicit=False, **settings):
    data = stream(users=30, items=64, events=14, implicit=implicit)
    train, valid, test = data.split_users(seed=0)
    return api.train(train, valid, **{**FAST, "size": 3, **settings}).trained, test


@pytest.fixture(scope="module", params=["explicit", "implicit"])
def told(request):
    trained, test = trained(implicit=request.param == "implicit", policy="learned")
    return trained, test, tell(trained, test, 2)


def test_the_sketches_are_those_of_the_nightly_job(told):
    trained, test, story = told
    columns = sketches(trained, test, at="each")
    mine = [row for row in range(len(columns["t"])) if columns["user"][row] == story.user]
    expected = {}
    for row in mine:
        expected.setdefault(int(columns["t"][row]), set()).add(int(columns["position"][row]))
    found = {step.t: {kept.position for kept in step.kept} for step in story.steps if step.kept}
    assert found == expected
    assert len(story.steps) == story.length == test.lengths[2]


def test_the_outcomes_are_those_of_the_predictions(told):
    trained, test, story = told
    columns = predictions(trained, test)
    mine = np.flatnonzero(columns["user"] == story.user)
    assert [step.item for step in story.steps] == columns["item"][mine].tolist()
    if story.explicit:
        assert [s.estimate for s in story.steps] == pytest.approx(columns["prediction"][mine])
        expected = abs(columns["prediction"][mine] - columns["rating"][mine])
        assert [step.error for step in story.steps] == pytest.approx(expected.tolist(), abs=1e-6)
        assert all(step.rank is None and not step.hit for step in story.steps)
    else:
        assert [step.rank for step in story.steps] == columns["rank"][mine].tolist()
        assert [step.hit for step in story.steps] == (columns["rank"][mine] <= 20).tolist()


def test_effects_are_slopes_of_the_loss(told):
    """A little less weight, and the loss rises by the effect: differences against the adjoint."""
    trained, test, story = told
    step = next(step for step in story.steps if len(step.kept) == 3)
    model = trained.recommender.double()
    events = test.events(2).start + np.array([kept.position for kept in step.kept])
    target = test.events(2).start + step.t
    rating = np.ones(len(test.item)) if test.rating is None else test.rating

    def loss(weight):
        evidence = Evidence(
            torch.tensor(test.item[events], dtype=torch.int64)[None],
            torch.tensor(rating[events], dtype=torch.float64)[None],
            torch.tensor(weight, dtype=torch.float64)[None],
            torch.tensor([3]),
            torch.tensor(target - 1 - events, dtype=torch.float64)[None],
            torch.ones(1, 3).double(),
        )
        item = torch.tensor([[int(test.item[target])]])
        given = torch.tensor([[float(rating[target])]], dtype=torch.float64)
        return float(model.losses(model.read(evidence), item, given))

    for place, kept in enumerate(step.kept):
        up, down = [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]
        up[place] += 1e-4
        down[place] -= 1e-4
        assert kept.effect == pytest.approx((loss(up) - loss(down)) / 2e-4, rel=2e-2, abs=2e-4)
    model.float()


def test_refreshes_keep_the_highest_scores_and_lead_to_the_next_sketch(told):
    _, _, story = told
    assert [refresh.seen for refresh in story.refreshes] == list(range(4, story.length + 1))
    for refresh in story.refreshes:
        assert len(refresh.candidates) == 4
        (gone,) = refresh.dropped
        assert gone.score == min(candidate.score for candidate in refresh.candidates)
        if refresh.seen < story.length:
            after = {kept.position for kept in story.steps[refresh.seen].kept}
            assert {c.position for c in refresh.candidates if c.stays} == after


def test_rows_come_in_order_of_first_being_kept_and_the_window_is_the_end(told):
    _, _, story = told
    assert story.rows()[:2] == list(dict.fromkeys(step.item for step in story.steps))[:2]
    late = story.last(4)
    assert [step.t for step in late.steps] == list(range(story.length - 4, story.length))
    assert set(late.rows()) == {kept.item for step in late.steps for kept in step.kept}
    assert min(refresh.seen for refresh in late.refreshes) == story.length - 4
    assert story.last(0) == story == story.last(10_000)
    assert late.refresh_before(story.length - 1).seen == story.length - 1
    assert story.refresh_before(1) is None


def test_a_repeated_item_is_one_row_and_its_effects_add_up():
    item = [0, 1, 0, 2, 0, 1] * 6
    user = np.repeat(np.arange(6), 6)
    data = from_arrays(user, item, item_ids=["x", "y", "z"])
    model = api.train(data, data, policy="last", **FAST, size=4).trained
    story = tell(model, data, 0)
    last = story.steps[-1]
    assert [kept.item for kept in last.kept] == ["y", "x", "z", "x"]
    assert len(story.rows()) == 3
    there, effect = cell(last, "x")
    assert there
    assert effect == pytest.approx(last.kept[1].effect + last.kept[3].effect)
    assert cell(story.steps[1], "z") == (False, 0.0)


def test_titles_are_looked_up_by_id_and_else_ids_are_shown():
    trained, test = trained(policy="last")
    story = tell(trained, test, 0, title={test.item_ids[int(test.item[0])]: "A Film"}.get)
    assert set(story.titles.values()) <= {"A Film"}
    assert story.name("unknown") == "unknown"
    story = tell(trained, test, 0, title=lambda item: f"<{item}>")
    assert story.name(story.steps[0].item) == f"<{story.steps[0].item}>"


def test_a_recommender_that_reads_in_order_has_no_effects():
    trained, test = trained(implicit=True, policy="last", recommender="gru")
    story = tell(trained, test, 0)
    assert all(kept.effect is None for step in story.steps for kept in step.kept)
    assert story.steps[-1].rank is not None


def test_with_no_limit_there_is_no_story():
    trained, test = trained(policy="all")
    with pytest.raises(ConfigError, match="keeps everything"):
        tell(trained, test, 0)


def test_the_adjoint_is_asked_for_the_kept_ones(told):
    trained, test, story = told
    known = in_vocabulary(trained, test)
    step = story.steps[5]
    events = known.events(2).start + np.array([kept.position for kept in step.kept])
    rating = np.ones(len(known.item), np.float32) if known.rating is None else known.rating
    target = known.events(2).start + step.t
    evidence = Evidence(
        torch.tensor(known.item[events], dtype=torch.int64)[None],
        torch.tensor(rating[events])[None],
        torch.ones(1, 3),
        torch.tensor([3]),
        torch.tensor(target - 1 - events, dtype=torch.float32)[None],
        torch.ones(1, 3),
    )
    item = torch.tensor([int(known.item[target])])
    _, effect = effect_of(trained.recommender, evidence, item, torch.tensor([rating[target]]))
    expected = worth(trained.recommender, effect, evidence.item, evidence.rating, evidence.age)
    expected = expected[0].tolist()
    assert [kept.effect for kept in step.kept] == pytest.approx(expected, rel=1e-4, abs=1e-6)
