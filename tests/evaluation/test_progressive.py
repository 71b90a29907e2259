"""Every prediction comes before its outcome, and pooled scores are those of a slow loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from dips.data.interactions import Interactions
from dips.evaluation import progressive
from dips.evaluation.progressive import evaluate, predict
from dips.numerics import chunks
from dips.policy.registry import make_policy
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import BinaryCrossEntropy, FullSoftmax, Loss
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.rollout import rollout
from dips.rollout.trace import Trace
from dips.stream.schedule import Schedule
from dips.stream.users import EventColumns, make_stream

World = Callable[..., Interactions]
Dot = Callable[..., DotProduct]
LENGTHS = [9, 3, 14, 1, 6]


def _walk(
    parts: Sequence[Interactions], models: Sequence[DotProduct], policy: str = "last", size: int = 2
) -> tuple[StackedRecommenders, Trace]:
    stream = make_stream(parts, EventColumns.of(parts[0]))
    stack = StackedRecommenders.of(models)
    trace = rollout(
        stream,
        make_policy(policy, size=size),
        size=size,
        schedule=Schedule((1,)),
        keys=stream.keys([0] * len(parts)),
        recommenders=stack,
    )
    return stack, trace


def _slowly(
    model: DotProduct, data: Interactions, size: int
) -> dict[int, list[tuple[float, float]]]:
    """user -> [(estimate or rank, outcome)], one prediction at a time, under the policy `last`."""
    result = {}
    for user in range(data.users):
        place = data.events(user)
        items = torch.tensor(data.item[place].astype(np.int64))
        ratings = (
            torch.ones(len(items)) if data.rating is None else torch.tensor(data.rating[place])
        )
        rows = []
        for t in range(int(data.warmup[user]), len(items)):
            past = slice(max(0, t - size), t)
            count = items[past].numel()
            evidence = Evidence.new(
                items[None, past], ratings[None, past], torch.ones(1, count), torch.tensor([count])
            )
            vector = model.read(evidence).detach()
            if model.loss.listwise:
                scores = model.predict_all(vector)[0].tolist()
                for item in items[past] if model.masks_sketch else ():
                    scores[item] = -math.inf
                own = scores[items[t]]
                above = sum(score > own for score in scores)
                rank = 1 + above + (sum(score == own for score in scores) - 1) / 2
                rows.append((rank, float(items[t])))
            else:
                output = model.predict(vector, items[None, t : t + 1])[0, 0]
                rows.append((float(model.loss.estimate(output).detach()), float(ratings[t])))
        result[user] = rows
    return result


@pytest.mark.parametrize("name", ["mse", "bce", "cce", "softmax"])
def test_pooled_scores_equal_a_slow_loop(
    world: World, dot: Dot, losses: dict[str, Loss], name: str
) -> None:
    data = world(LENGTHS, items=30, explicit=name != "softmax", seed=1)
    warm = replace(data, warmup=np.array([2, 3, 0, 0, 5]))
    models = [dot(losses[name], items=30, seed=seed) for seed in range(2)]
    stack, trace = _walk([data, warm.select([4, 0, 2])], models)
    scores = evaluate(stack, trace, low=1.0, high=5.0)
    for run, part in enumerate((data, warm.select([4, 0, 2]))):
        slow = _slowly(models[run], part, 2)
        mine = scores[run].metrics
        counts = [len(slow[user]) for user in range(part.users)]
        assert scores[run].count.tolist() == counts
        made = np.array([row for user in range(part.users) for row in slow[user]])
        output, outcome = made[:, 0], made[:, 1]
        if name == "softmax":
            hit = output <= 20
            assert mine["recall@20"] == pytest.approx(hit.mean())
            assert mine["mrr@20"] == pytest.approx((hit / output).mean())
            assert mine["ndcg@20"] == pytest.approx((hit / np.log2(1 + output)).mean())
            assert scores[run].objective == -mine["recall@20"]
        elif name == "bce":
            liked = outcome > 3
            assert mine["auc"] == pytest.approx(reference.roc_auc_score(liked, output))
            expected = reference.log_loss(liked, output)
            assert mine["logloss"] == pytest.approx(expected, rel=1e-5)
            assert scores[run].objective == mine["logloss"]
        else:
            expected = reference.root_mean_squared_error(outcome, output.clip(1, 5))
            assert mine["rmse"] == pytest.approx(expected, rel=1e-5)
            assert scores[run].objective == mine["rmse"]
        for term, sums in scores[run].sums.items():
            assert len(sums) == part.users
            assert float(sums.sum()) / sum(counts) == pytest.approx(
                mine["rmse"] ** 2 if term == "squared_error" else mine[term]
            )


def test_ranks_of_a_linearised_inner_loop_equal_a_slow_loop(
    world: World, linearised: Callable[..., LinearisedDotProduct]
) -> None:
    """Also if a chunk of predictions is larger than a chunk of scores of all items."""
    data = world(LENGTHS, items=30, explicit=False, seed=1)
    model = linearised(items=30)
    stack, trace = _walk([data], [model])
    slow = _slowly(model, data, 2)
    expected = [rank for user in range(data.users) for rank, _ in slow[user]]
    order = torch.argsort(trace.user * 100 + trace.step)
    for rows in (1, 3, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(chunks.MAX_ELEMENTS, "cpu", rows * 30)
            found = predict(stack, trace, 0).output[order].tolist()
        assert found == pytest.approx(expected)


def test_memory_of_whole_histories_is_bounded(
    world: World, linearised: Callable[..., LinearisedDotProduct], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of the policy `all` holds the vectors of its whole history."""
    data = world([50, 9], items=9, explicit=False)
    model = linearised(items=9, dim=6, inner_steps=1)
    stack, trace = _walk([data], [model], "all")
    whole, rows = predict(stack, trace, 0), []
    read = LinearisedDotProduct.read

    def watched(self: LinearisedDotProduct, evidence: Evidence) -> torch.Tensor:
        rows.append(len(evidence.item))
        return read(self, evidence)

    monkeypatch.setattr(LinearisedDotProduct, "read", watched)
    monkeypatch.setattr(progressive, "CHUNK", 5 * 4 * 6 * 49)
    assert torch.equal(predict(stack, trace, 0).output, whole.output)
    assert max(rows) == 5


@pytest.mark.parametrize("looped", [True, False])
def test_sketch_items_rank_last_with_filter_sketch(
    world: World, losses: dict[str, Loss], dot: Dot, looped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine items for fourteen interactions: some come back, and rank in the middle of the last."""
    if not looped:
        monkeypatch.setattr(progressive, "has_compiled_softmax", lambda model: False)
    data = world(LENGTHS, items=9, explicit=False, seed=1)
    models = [dot(losses["softmax"], items=9, seed=seed) for seed in range(2)]
    plain = predict(*_walk([data] * 2, models, size=4), 1)
    for model in models:
        model.masks_sketch = True
    stack, trace = _walk([data] * 2, models, size=4)
    made, slow = predict(stack, trace, 1), _slowly(models[1], data, 4)
    rows = slice(trace.run_rows[1], trace.run_rows[2])
    places = zip(trace.user[rows].tolist(), trace.step[rows].tolist(), strict=True)
    assert made.output.tolist() == [slow[user][step][0] for user, step in places]
    assert {7.5, 8.5} & set(made.output.tolist())  # two of four that are one and the same
    assert not torch.equal(made.output, plain.output)


def test_log_loss_of_star_ratings(world: World, dot: Dot, losses: dict[str, Loss]) -> None:
    data = world([6, 4])
    model = dot(losses["cce"])
    stack, trace = _walk([data], [model])
    rows = torch.arange(len(trace.event))
    evidence = trace.evidence(rows)
    user = model.read(evidence)
    item = trace.columns.item[trace.event]
    chances = model.predict(user, item[:, None])[:, 0].softmax(-1).detach().numpy()
    expected = reference.log_loss(
        trace.columns.rating[trace.event].numpy(), chances, labels=[1.0, 2.0, 3.0, 4.0, 5.0]
    )
    assert evaluate(stack, trace, low=1, high=5)[0].metrics["logloss"] == pytest.approx(expected)


def test_predictions_do_not_depend_on_the_chunk_size(
    world: World, dot: Dot, losses: dict[str, Loss], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mse", "softmax"):
        data = world([60, 30, 40], explicit=name != "softmax")
        stack, trace = _walk([data], [dot(losses[name])])
        whole = predict(stack, trace, 0)
        with monkeypatch.context() as patch:
            patch.setattr(progressive, "CHUNK", 8 * 16)
            pieces = predict(stack, trace, 0)
        torch.testing.assert_close(pieces.output, whole.output)
        assert torch.equal(pieces.target, whole.target)


@pytest.mark.parametrize("policy", ["last", "reservoir", "frequent", "hardest", "influence", "all"])
def test_an_interaction_changes_only_later_predictions(
    world: World, dot: Dot, losses: dict[str, Loss], policy: str
) -> None:
    """Predict, then reveal: change the rating of event t and look at all predictions."""
    data = world([12, 7], seed=4)
    assert data.rating is not None
    model = dot(losses["mse"])
    stack, trace = _walk([data], [model], policy, size=3)
    before = predict(stack, trace, 0).output
    later_changed = False
    for t in range(12):
        rating = data.rating.copy()
        rating[t] = 6.0 - rating[t] if rating[t] != 3 else 5.0
        _, changed = _walk([replace(data, rating=rating)], [model], policy, size=3)
        after = predict(stack, changed, 0).output
        same = before == after
        assert bool(same[: t + 1].all()), t
        assert bool(same[12:].all())  # the other user
        later_changed |= not bool(same[t + 1 : 12].all())
    assert later_changed  # it is read afterwards


def test_auc_needs_both_classes(world: World, dot: Dot) -> None:
    data = world([5, 4])
    stack, trace = _walk([data], [dot(BinaryCrossEntropy(0.5))])
    assert set(evaluate(stack, trace, low=1, high=5)[0].metrics) == {"rmse", "logloss"}


def _dense_ranks(model: Recommender, trace: Trace) -> list[float]:
    """Return the oracle: ranks from scores of all items, with seen items at minus infinity."""
    found = []
    pairs = zip(trace.event.tolist(), trace.step.tolist(), strict=True)
    for row, (event, step) in enumerate(pairs):
        user = model.read(trace.evidence(torch.tensor([row]))).detach()
        scores, own = model.predict_all(user)[0].tolist(), int(trace.columns.item[event])
        for item in set(trace.columns.item[event - step : event].tolist()) - {own}:
            scores[item] = -math.inf
        above = sum(score > scores[own] for score in scores)
        equal = sum(score == scores[own] for score in scores) - 1
        found.append(1 + above + equal / 2)
    return found


@pytest.mark.parametrize("form", ["dot", "numba", "linearised"])
@pytest.mark.parametrize("policy", ["last", "reservoir", "all"])
def test_seen_items_are_filtered_from_the_ranking(
    world: World, form: str, policy: str, request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Ranks equal a dense loop with a mask, in chunks of any size; some targets were seen."""
    if form == "dot":
        monkeypatch.setattr(progressive, "has_compiled_softmax", lambda model: False)
    data = replace(
        world([60, 3, 24, 1, 6], items=30, explicit=False), warmup=np.array([7, 0, 0, 0, 2])
    )
    make = request.getfixturevalue("linearised" if form == "linearised" else "dot")
    model = make(FullSoftmax(), items=30)
    plain = predict(*_walk([data], [model], policy, size=4), 0)
    model.masks_seen = True
    stack, trace = _walk([data], [model], policy, size=4)
    wanted = _dense_ranks(model, trace)
    assert predict(stack, trace, 0).output.tolist() == wanted
    assert not torch.equal(predict(stack, trace, 0).output, plain.output)
    seen = trace.seen_items(torch.arange(len(trace.event)))
    repeated = (seen == trace.columns.item[trace.event][:, None]).any(1)
    assert bool(repeated.any())
    assert not bool(repeated.all())
    widths: list[int] = []
    mask = progressive.mask_items
    monkeypatch.setattr(
        progressive, "mask_items", lambda *given: widths.append(given[1].numel()) or mask(*given)
    )
    monkeypatch.setattr(progressive, "CHUNK", 8 * 59 * 2)  # two rows as long as the history
    assert predict(stack, trace, 0).output.tolist() == wanted
    assert max(widths) <= 2 * 59


def test_ranks_do_not_depend_on_items_that_are_met_later(
    world: World, linearised: Callable[..., LinearisedDotProduct]
) -> None:
    data = world([12, 7], items=20, explicit=False, seed=4)
    model = linearised(items=20)
    model.masks_seen = True
    stack, trace = _walk([data], [model], size=3)
    before, noticed = predict(stack, trace, 0).output, False
    for t in range(12):
        item = data.item.copy()
        item[t] = (item[t] + 7) % 20
        _, changed = _walk([replace(data, item=item)], [model], size=3)
        same = predict(stack, changed, 0).output == before
        assert bool(same[:t].all())
        assert bool(same[12:].all())
        noticed |= not bool(same[t + 4 : 12].all())  # filtered after it has left the sketch
    assert noticed
