"""Scores of repeated items: by hand, and for every recommender that has them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from dips.recommender.base import Evidence
from dips.recommender.gru import GRU
from dips.recommender.linear_scores import LinearScores
from dips.recommender.losses import FullSoftmax
from dips.recommender.repeat_scores import (
    FILTER_START,
    REPEAT_START,
    RepeatScores,
    own_repeats,
    repeat_scores,
    repeat_slope,
    straightened_repeats,
    weighted_repeats,
)
from dips.recommender.sasrec import SASRec
from dips.recommender.sequential import Sequential
from dips.recommender.session import SessionGRU

FORMS = [GRU, SASRec, SessionGRU]
ITEMS = torch.tensor([[3, 1, 4, 1, 5], [2, 2, 0, 4, 3]])


def _model(
    form: type[LinearScores], *, repeat_feature: bool = True, filter_sketch: bool = False
) -> LinearScores:
    more = {"repeat_feature": repeat_feature, "filter_sketch": filter_sketch}
    generator = torch.Generator().manual_seed(1)
    model = form(items=6, loss=FullSoftmax(), dim=4, generator=generator, **more)
    return model.double().requires_grad_(False)


def _evidence(items: Tensor) -> Evidence:
    """A whole history: the newest has age 0."""
    once = torch.ones(items.shape).double()
    age = torch.arange(items.shape[1]).flip(0).expand_as(items).double()
    return Evidence(items, once, once, once.sum(1).long(), age, once)


def test_repeat_scores_by_hand() -> None:
    gain, odds, scale, power = 0.5, 1.2, 0.7, 0.3
    loading = torch.tensor([gain, odds, scale, power]).double()
    weight = torch.tensor([[1.0, 0.5, 0.0, 1.0]]).double()
    age = torch.tensor([[9.0, 4.0, 2.0, 0.0]]).double()
    own = repeat_scores(loading, torch.tensor([[2, 0, 1, 2]]), weight, age)
    scores = own.of(torch.arange(4)[None])[0].tolist()

    def lasting(age: float) -> float:
        return (1 + age / math.exp(scale)) ** -math.log1p(math.exp(power))

    def score(*counts: float) -> float:
        return gain * math.log1p(math.exp(odds) * sum(counts))

    assert scores == pytest.approx([score(0.5 * lasting(4)), 0, score(lasting(9), lasting(0)), 0])


def test_repeat_scores_have_gradients() -> None:
    loading = torch.tensor(REPEAT_START).double().requires_grad_()
    weight = torch.tensor([[1.0, 0.5, 0.2]]).double().requires_grad_()
    item, age = torch.tensor([[1, 0, 1]]), torch.tensor([[5.0, 1.0, 0.0]]).double()
    assert gradcheck(lambda *at: repeat_scores(at[0], item, at[1], age).score, (loading, weight))


def test_repeat_scores_of_any_items() -> None:
    own = RepeatScores(
        torch.tensor([[4, 1, 0], [2, 0, 0]]), torch.tensor([[0.5, 2.0, 0.0], [3.0, 0, 0]])
    )
    dense = torch.tensor([[0, 2.0, 0, 0, 0.5], [0, 0, 3.0, 0, 0]])
    some = torch.tensor([4, 0, 2, 4, 1])  # one of them twice
    assert torch.equal(own.of(some.expand(2, -1)), dense[:, some])
    assert torch.equal(own.of_some(some), dense[:, some])
    twice = [torch.stack([field, field]) for field in own]
    stacked = torch.func.vmap(lambda *given: RepeatScores(*given[:2]).of_some(given[2]))
    assert torch.equal(stacked(*twice, some.expand(2, -1))[1], dense[:, some])
    nothing = RepeatScores(own.item[:, :0], own.score[:, :0])
    assert torch.equal(nothing.of_some(some), torch.zeros(2, 5))
    assert torch.equal(nothing.of(some.expand(2, -1)), torch.zeros(2, 5))


def test_an_entry_counts_repeats_that_no_older_duplicate_counts() -> None:
    item = torch.tensor([[7, 0, 7, 0, 0, 7]])
    repeats = torch.tensor([[2, 1, 5, 4, 1, 6]]).double()
    weight = torch.tensor([[1, 0, 1, 1, 0, 0.5]]).double()  # the first 0 is an empty slot
    evidence = Evidence(item, weight, weight, torch.tensor([4]), weight, repeats)
    assert weighted_repeats(evidence).tolist() == [[2, 0, 3, 4, 0, 0.5]]
    whole = _evidence(ITEMS)
    assert torch.equal(weighted_repeats(whole), whole.weight)
    nothing = _evidence(ITEMS[:, :0])
    assert torch.equal(weighted_repeats(nothing), nothing.weight)


def test_repeats_of_older_duplicates_equal_a_slow_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    item = torch.randint(4, (20, 9), generator=generator)
    repeats = torch.randint(1, 30, item.shape, generator=generator).double()
    weight = torch.randint(2, item.shape, generator=generator).double()
    evidence = Evidence(item, weight, weight, weight.sum(1).long(), weight, repeats)
    found = own_repeats(evidence)
    for row in range(len(item)):
        for place in range(item.shape[1]):
            older = [
                float(repeats[row, before])
                for before in range(place)
                if item[row, before] == item[row, place] and weight[row, before] > 0
            ]
            wanted = max(1.0, float(repeats[row, place]) - max(older, default=0.0))
            assert float(found[row, place]) == wanted


def test_the_slope_of_a_repeat_score_equals_autograd() -> None:
    """In the weight of each entry; entries outside the sketch have weight 0."""
    parameters = torch.tensor([0.5, 1.2, 0.7, 0.3]).double()
    item, repeats = torch.tensor([[7, 3, 7, 0, 3]]), torch.tensor([[2, 1, 5, 4, 6]]).double()
    weight = torch.tensor([[1.0, 0, 0.4, 1, 0]]).double()
    age = torch.tensor([[9.0, 6, 4, 1, 0]]).double()
    entries = Evidence(item, weight, weight, torch.tensor([3]), age, repeats)

    def scores(weight: Tensor) -> Tensor:
        """Return the score of each entry's item, [1, 5]."""
        counts = weighted_repeats(entries._replace(weight=weight))
        return repeat_scores(parameters, item, counts, age).of(item)

    own = torch.eye(5, dtype=torch.bool)
    wanted = torch.autograd.functional.jacobian(scores, weight)[0, :, 0][own]
    own_scores = repeat_scores(parameters, item, weighted_repeats(entries), age)
    found = repeat_slope(parameters, own_scores, entries)
    torch.testing.assert_close(found[0], wanted)
    assert bool((found > 0).all())


@pytest.mark.parametrize("start", [REPEAT_START, (0.3, 1.0, 0.5, 0.2), FILTER_START])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_in_straightened_weights_are_changes(
    start: tuple[float, ...], dtype: torch.dtype
) -> None:
    """At 0 and 1: of the score for a bonus, of the exponentiated score for a penalty."""
    parameters = torch.tensor(start, dtype=dtype)
    item = torch.tensor([[7, 3, 7, 0, 3, 5]])
    repeats = torch.tensor([[2, 1, 5, 4, 6, 1]], dtype=dtype)
    weight = torch.tensor([[1.0, 0, 0, 1, 1, 0]], dtype=dtype)
    age = torch.tensor([[9.0, 6, 4, 1, 0, 70]], dtype=dtype)
    entries = Evidence(item, weight, weight, torch.tensor([3]), age, repeats)
    plain, straight = weighted_repeats(entries), straightened_repeats(parameters, entries)
    assert torch.equal(straight, plain)
    own = own_repeats(entries)  # constants: a change of weights may change the repeats of others

    def scores(weight: Tensor, counts: Tensor) -> Tensor:
        found = repeat_scores(parameters, item, counts, age).of(item)
        return found.exp() if start[0] < 0 else found

    def straightened(weight: Tensor) -> Tensor:
        return scores(weight, straightened_repeats(parameters, entries._replace(weight=weight)))

    slope = torch.autograd.functional.jacobian(straightened, weight)[0, :, 0].diagonal()
    for entry in range(6):
        with_it, without = weight.clone(), weight.clone()
        with_it[0, entry], without[0, entry] = 1, 0
        change = scores(with_it, own * with_it) - scores(without, own * without)
        torch.testing.assert_close(slope[entry], change[0, entry], rtol=1e-3, atol=1e-6)
    assert bool((slope.abs() > 0).all())


@pytest.mark.parametrize("form", [GRU, SASRec, SessionGRU])
def test_scores_grow_with_the_repeat_count(form: type[LinearScores]) -> None:
    model, once = _model(form), _evidence(torch.tensor([[3, 1, 4, 5]]))
    often = once._replace(repeats=torch.tensor([[1.0, 6, 1, 1]]).double())
    change = model.predict_all(model.read(often)) - model.predict_all(model.read(once))
    higher = torch.zeros(1, 6, dtype=torch.bool).index_fill(1, torch.tensor([1]), True)
    assert torch.equal(change > 1e-9, higher)


@pytest.mark.parametrize("form", FORMS)
def test_only_items_that_were_read_get_repeat_scores(
    form: type[LinearScores],
) -> None:
    plain, model = _model(form, repeat_feature=False), _model(form)
    evidence = _evidence(ITEMS)
    user = model.read(evidence)
    everything = torch.arange(6).expand(2, -1)
    own = repeat_scores(model.repeat_params, ITEMS, evidence.weight, evidence.age).of(everything)
    expected = plain.predict_all(plain.read(evidence)) + own
    torch.testing.assert_close(model.predict_all(user), expected)
    assert (own > 0).sum(1).tolist() == [4, 4]  # items that were read
    some = torch.tensor([5, 0])
    torch.testing.assert_close(model.predict_some(user, some), expected[:, some])
    torch.testing.assert_close(model.predict(user, ITEMS), expected.gather(1, ITEMS))


@pytest.mark.parametrize("form", FORMS)
def test_filtered_items_rank_last_at_any_age(form: type[LinearScores]) -> None:
    plain, model = (
        _model(form, repeat_feature=False),
        _model(form, repeat_feature=False, filter_sketch=True),
    )
    evidence = _evidence(ITEMS)._replace(age=_evidence(ITEMS).age * 100)
    found = model.predict_all(model.read(evidence)) - plain.predict_all(plain.read(evidence))
    read = torch.zeros(2, 6, dtype=torch.bool).scatter(1, ITEMS, True)
    assert found[~read].abs().max() < 1e-9
    assert found[read].min() > -25
    assert found[read].max() < -19
    best = model.predict_all(model.read(evidence)).topk(2).indices
    assert best.sort().values.tolist() == [[0, 2], [1, 5]]
    model.requires_grad_(True)
    model.losses(model.read(_evidence(ITEMS)), ITEMS[:, :1] * 0, ITEMS[:, :1]).sum().backward()
    assert model.repeat_params.grad is not None
    assert float(model.repeat_params.grad[0]) != 0  # had it been wrong, it could learn


@pytest.mark.parametrize("form", [GRU, SASRec])
def test_prefixes_equal_sketches_with_the_same_entries(
    form: type[LinearScores],
) -> None:
    model = _model(form)
    assert isinstance(model, Sequential)
    owner, step = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 3, 5, 1])
    found = model.states_after(ITEMS, owner, step)
    for row, (user, many) in enumerate(zip(owner.tolist(), step.tolist(), strict=True)):
        sketch = model.read(_evidence(ITEMS[user : user + 1, :many]))
        same = [model.predict_all(state) for state in (found[row : row + 1], sketch)]
        torch.testing.assert_close(*same)


def test_repeat_parameters_have_no_weight_decay() -> None:
    for form in FORMS:
        assert "repeat_params" in set(dict(_model(form).named_parameters())) & set(
            form.no_weight_decay
        )
