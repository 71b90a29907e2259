"""The story of a user against the parts that it is explained from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dips import api
from dips.credit.adjoint import entry_gradient, loss_and_adjoint
from dips.data.interactions import from_arrays
from dips.data.synthetic import stream
from dips.errors import ConfigError
from dips.evaluation.story import explain_user, item_gradient
from dips.recommender.base import Evidence
from dips.recommender.filtered_loss import prediction_losses
from dips.studies.sketches import prediction_columns, reindex_items, sketch_columns

FAST = {"epochs": 1, "dim": 6, "batch_size": 256, "device": "cpu", "baselines": ()}


def train_model(*, implicit=False, **settings):
    data = stream(users=30, items=64, events=14, implicit=implicit)
    train, valid, test = data.split_users(seed=0)
    return api.train(train, valid, **{**FAST, "size": 3, **settings}).trained, test


@pytest.fixture(scope="module", params=["explicit", "implicit"])
def explained(request):
    trained, test = train_model(implicit=request.param == "implicit", policy="learned")
    return trained, test, explain_user(trained, test, 2)


def test_the_sketches_equal_sketch_columns(explained):
    trained, test, story = explained
    columns = sketch_columns(trained, test, at="each")
    rows = [row for row in range(len(columns["t"])) if columns["user"][row] == story.user]
    expected = {}
    for row in rows:
        expected.setdefault(int(columns["t"][row]), set()).add(int(columns["position"][row]))
    found = {step.t: {kept.position for kept in step.kept} for step in story.steps if step.kept}
    assert found == expected
    assert len(story.steps) == story.length == test.lengths[2]


def test_the_predictions_equal_prediction_columns(explained):
    trained, test, story = explained
    columns = prediction_columns(trained, test)
    rows = np.flatnonzero(columns["user"] == story.user)
    assert [step.item for step in story.steps] == columns["item"][rows].tolist()
    if story.explicit:
        assert [s.estimate for s in story.steps] == pytest.approx(columns["prediction"][rows])
        expected = abs(columns["prediction"][rows] - columns["rating"][rows])
        assert [step.error for step in story.steps] == pytest.approx(expected.tolist(), abs=1e-6)
        assert all(step.rank is None and not step.hit for step in story.steps)
    else:
        assert [step.rank for step in story.steps] == columns["rank"][rows].tolist()
        assert [step.hit for step in story.steps] == (columns["rank"][rows] <= 20).tolist()


def test_entry_gradients_equal_finite_differences(explained):
    """Central differences of the loss in each entry weight, against the adjoint."""
    trained, test, story = explained
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
        unit = float(model.rating_spread) ** 2
        return unit * float(model.losses(model.read(evidence), item, given))

    for place, kept in enumerate(step.kept):
        up, down = [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]
        up[place] += 1e-4
        down[place] -= 1e-4
        assert kept.entry_gradient == pytest.approx(
            (loss(up) - loss(down)) / 2e-4, rel=2e-2, abs=2e-4
        )
    model.float()


def test_refreshes_keep_the_highest_scores_and_give_the_next_sketch(explained):
    _, _, story = explained
    assert [refresh.seen for refresh in story.refreshes] == list(range(4, story.length + 1))
    for refresh in story.refreshes:
        assert len(refresh.candidates) == 4
        (gone,) = refresh.dropped
        assert gone.score == min(candidate.score for candidate in refresh.candidates)
        if refresh.seen < story.length:
            after = {kept.position for kept in story.steps[refresh.seen].kept}
            assert {c.position for c in refresh.candidates if c.stays} == after


def test_kept_items_are_ordered_and_last_selects_the_newest_steps(explained):
    _, _, story = explained
    assert story.kept_items()[:2] == list(dict.fromkeys(step.item for step in story.steps))[:2]
    late = story.last(4)
    assert [step.t for step in late.steps] == list(range(story.length - 4, story.length))
    assert set(late.kept_items()) == {kept.item for step in late.steps for kept in step.kept}
    assert min(refresh.seen for refresh in late.refreshes) == story.length - 4
    assert story.last(0) == story == story.last(10_000)
    assert late.refresh_before(story.length - 1).seen == story.length - 1
    assert story.refresh_before(1) is None


def test_the_gradients_of_a_repeated_item_are_summed():
    item = [0, 1, 0, 2, 0, 1] * 6
    user = np.repeat(np.arange(6), 6)
    data = from_arrays(user, item, item_ids=["x", "y", "z"])
    model = api.train(data, data, policy="last", **FAST, size=4).trained
    story = explain_user(model, data, 0)
    last = story.steps[-1]
    assert [kept.item for kept in last.kept] == ["y", "x", "z", "x"]
    assert len(story.kept_items()) == 3
    is_kept, gradient = item_gradient(last, "x")
    assert is_kept
    assert gradient == pytest.approx(last.kept[1].entry_gradient + last.kept[3].entry_gradient)
    assert item_gradient(story.steps[1], "z") == (False, 0.0)


def test_items_without_title_are_named_by_id():
    trained, test = train_model(policy="last")
    story = explain_user(trained, test, 0, title={test.item_ids[int(test.item[0])]: "A Film"}.get)
    assert set(story.titles.values()) <= {"A Film"}
    assert story.item_name("unknown") == "unknown"
    story = explain_user(trained, test, 0, title=lambda item: f"<{item}>")
    assert story.item_name(story.steps[0].item) == f"<{story.steps[0].item}>"


def test_entry_gradients_of_sequential_recommenders_are_slopes_of_the_loss():
    trained, test = train_model(
        implicit=True, policy="last", recommender="gru", repeat_feature=False
    )
    story, model = explain_user(trained, test, 0), trained.recommender.double()
    step = story.steps[5]
    known = reindex_items(trained, test)
    events = known.events(0).start + np.array([kept.position for kept in step.kept])
    item = torch.tensor(known.item[events], dtype=torch.int64)[None]
    age = torch.tensor([[step.t - 1.0 - kept.position for kept in step.kept]]).double()
    target = torch.tensor([[int(known.item[known.events(0).start + step.t])]])

    def loss(weight):
        ones = torch.ones_like(weight)
        slots = torch.tensor([len(step.kept)])
        entries = Evidence(item, ones, weight, slots, age, ones)
        return float(prediction_losses(model, model.read(entries), entries, target, ones[:, :1]))

    for slot, kept in enumerate(step.kept):
        change = 1e-6 * torch.eye(len(step.kept)).double()[slot][None]
        slope = (loss(1 + change) - loss(1 - change)) / 2e-6
        assert kept.entry_gradient == pytest.approx(slope, abs=1e-4)
    assert any(abs(kept.entry_gradient) > 1e-3 for kept in step.kept)


def test_a_policy_without_limit_has_no_story():
    trained, test = train_model(policy="all")
    with pytest.raises(ConfigError, match="keeps everything"):
        explain_user(trained, test, 0)


def test_entry_gradients_equal_the_adjoint(explained):
    trained, test, story = explained
    known = reindex_items(trained, test)
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
    _, adjoint = loss_and_adjoint(
        trained.recommender, evidence, item, torch.tensor([rating[target]])
    )
    expected = entry_gradient(trained.recommender, adjoint, evidence)
    expected = (expected[0] * trained.spec.rating_spread**2).tolist()
    assert [kept.entry_gradient for kept in step.kept] == pytest.approx(
        expected, rel=1e-4, abs=1e-6
    )
