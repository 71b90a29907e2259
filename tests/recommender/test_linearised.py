"""The dot product with a linearised inner loop: closed forms, losses, repeat scores, sums."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import functional_call

from dips.data.side_information import MIDDLE, ColumnEncoding, SideInformation
from dips.numerics.linearised_descent import item_sums
from dips.recommender.base import Evidence, Recommender
from dips.recommender.linearised import MIN_REMAINING, LinearisedDotProduct
from dips.recommender.losses import FullSoftmax, SampledSoftmax
from dips.recommender.repeat_scores import repeat_scores, weighted_repeats
from dips.recommender.signals import rounding
from dips.recommender.stacked import StackedRecommenders
from dips.stream.side_information import token

Make = Callable[..., LinearisedDotProduct]
ITEMS, DIM = 8, 6
NAMES = ("repeat_feature", "recency_decay", "tie_embeddings")
KINDS = [dict(zip(NAMES, flags, strict=True)) for flags in product([False, True], repeat=3)]
REPEAT = pytest.mark.parametrize("repeat_feature", [False, True])
TIGHT = {"atol": 1e-11, "rtol": 1e-11}


def _case() -> tuple[Evidence, Tensor]:
    """Return sketches with duplicates, empty slots and ages, and an item to predict for each."""
    item = torch.tensor([[1, 4, 4], [2, 0, 7], [3, 3, 3], [5, 6, 1]])
    weight = torch.tensor([[1.0, 0.5, 1], [1, 0, 0], [1, 1, 1], [0.3, 1, 0]]).double()
    age = torch.tensor([[9, 3, 0], [1, 0, 0], [200, 9, 2], [2, 1, 0]]).double()
    repeats = torch.tensor([[1, 2, 4], [3, 1, 1], [1, 2, 3], [9, 1, 1]]).double()
    past = Evidence(item, torch.ones_like(weight), weight, (weight > 0).sum(1), age, repeats)
    return past, torch.tensor([[4], [2], [0], [5]])


def _ones(items: Tensor) -> Tensor:
    return torch.ones(items.shape).double()


def _plain_losses(model: LinearisedDotProduct, user: Tensor, items: Tensor) -> Tensor:
    """Return the losses of a softmax over the scores of all items, [rows, n]."""
    return FullSoftmax().value(Recommender.predict_all(model, user), items)


@pytest.mark.parametrize("penalty", [0.0, 0.4])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_closed_forms_are_the_generic_ones(
    linearised: Make, kind: dict[str, bool], penalty: float
) -> None:
    """The inner loop by autograd, scores item by item, influences by Hessian-vector products."""
    model = linearised(prior_penalty=penalty, **kind).double().requires_grad_(False)
    (past, _), base = _case(), Recommender
    user = model.read(past)
    assert user.shape[1] == DIM + 2 * 3 * kind["repeat_feature"]
    shared = user[:, :DIM]
    assert float((shared - model.user_prior).abs().amax(1).min()) > 0.05  # all users adapt
    torch.testing.assert_close(shared, base.read(model, past), **TIGHT)
    found = model.inner_gradient(shared, past)
    torch.testing.assert_close(found, base.inner_gradient(model, shared, past), **TIGHT)
    fields = (user, past.item, past.rating)
    found = model.influences(*fields, past.weight, 0.5)
    other = base.influences(model, *fields, past.weight, 0.5)
    torch.testing.assert_close(found, other, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_all_forms_of_prediction_agree(linearised: Make, kind: dict[str, bool]) -> None:
    model = linearised(**kind).double().requires_grad_(False)
    past, _ = _case()
    user, some = model.read(past), torch.tensor([6, 0, 4, 6])
    every = model.predict_all(user)
    torch.testing.assert_close(every, Recommender.predict_all(model, user), **TIGHT)
    torch.testing.assert_close(model.predict_some(user, some), every[:, some], **TIGHT)
    torch.testing.assert_close(model.predict(user, past.item), every.gather(1, past.item), **TIGHT)


def test_scores_are_bias_plus_product_plus_repeat_score(linearised: Make) -> None:
    model = linearised(repeat_feature=True).double().requires_grad_(False)
    past, _ = _case()
    user, counts = model.read(past), weighted_repeats(past)
    repeats = repeat_scores(model.repeat_params, past.item, counts, past.age)
    expected = model.bias[:, 0] + user[:, :DIM] @ model.vectors.T
    expected = expected + repeats.of(torch.arange(ITEMS).expand(4, -1))
    torch.testing.assert_close(model.predict_all(user), expected, **TIGHT)
    plain = linearised().double().predict_all(user[:, :DIM])
    assert torch.equal((expected > plain).sum(1), torch.tensor([2, 1, 1, 2]))  # weight above 0


@pytest.mark.parametrize("gain", [2.0, -3.0])
@REPEAT
def test_losses_are_those_of_the_softmax_over_all_scores(
    linearised: Make, repeat_feature: bool, gain: float
) -> None:
    """Also if sketch items have lower scores than without the sketch."""
    model = linearised(repeat_feature=repeat_feature).double().requires_grad_(False)
    past, target = _case()
    if repeat_feature:
        model.repeat_params[0] = gain
    items = torch.cat([target, past.item], 1)
    user = model.read(past)
    found = model.losses(user, items, _ones(items))
    torch.testing.assert_close(found, _plain_losses(model, user, items), **TIGHT)


def test_losses_are_finite_if_repeat_scores_remove_all_probability(linearised: Make) -> None:
    model = linearised(repeat_feature=True, items=2).requires_grad_(False)
    model.repeat_params[0] = -1e3
    item = torch.tensor([[0, 1]])
    past = Evidence.new(item, torch.ones(1, 2), torch.ones(1, 2), torch.tensor([2]))
    user = model.read(past)
    found = model.losses(user, item, item.float()) + model.predict(user, item)  # the denominator
    plain = (model.bias[:, 0] + user[:, :DIM] @ model.vectors.T).logsumexp(1)
    expected = (plain + torch.tensor(MIN_REMAINING).log())[:, None].expand(-1, 2)
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0)


@REPEAT
def test_meta_gradients_equal_finite_differences(linearised: Make, repeat_feature: bool) -> None:
    """Of the prediction loss in every parameter, through the inner loop and the moments."""
    model = linearised(
        repeat_feature=repeat_feature, recency_decay=True, tie_embeddings=False, items=5, dim=3,
    ).double()  # fmt: skip
    past, target = _case()
    past, target = past._replace(item=past.item % 5), target % 5
    state = {name: value.detach().clone() for name, value in model.named_parameters()}
    assert {"log_entry_scale", "user_prior", "recency_decay"} <= set(state)
    assert ("repeat_params" in state) == repeat_feature

    def losses(*values: Tensor) -> Tensor:
        def task(model: LinearisedDotProduct) -> Tensor:
            return model.losses(model.read(past), target, _ones(target))

        changed = dict(zip(state, values, strict=True))
        found: Tensor = functional_call(model, changed, (task,))
        return found

    inputs = tuple(value.requires_grad_() for value in state.values())
    assert gradcheck(losses, inputs)
    slopes = torch.autograd.grad(losses(*inputs).sum(), inputs)
    assert all(slope.any() for slope in slopes)


@REPEAT
def test_all_items_sampled_once_give_the_full_softmax(
    linearised: Make, repeat_feature: bool
) -> None:
    rest = {"repeat_feature": repeat_feature}
    full = linearised(**rest).double()
    sampled = linearised(SampledSoftmax(ITEMS), **rest).double()
    sampled.log_q.zero_()
    past, target = _case()
    values, slopes = [], []
    for model in (full, sampled):
        losses = model.losses(model.read(past), target, _ones(target))
        values.append(losses.detach())
        slopes.append(torch.autograd.grad(losses.sum(), [model.vectors, model.bias]))
    assert sorted(sampled.negatives.tolist()) == list(range(ITEMS))
    torch.testing.assert_close(*values, **TIGHT)
    torch.testing.assert_close(*slopes, **TIGHT)


@REPEAT
def test_sampled_losses_have_the_gradient_of_the_full_softmax_on_average(
    linearised: Make, repeat_feature: bool
) -> None:
    """Items are drawn with unequal probabilities; without the log-q correction it is far off."""
    items, count, draws = 40, 300, 40
    rest = {"repeat_feature": repeat_feature, "items": items}
    full = linearised(**rest).double()
    sampled = linearised(SampledSoftmax(count), **rest).double()
    past, target = _case()
    probability = torch.linspace(-1, 1, items).double().softmax(0)
    generator = torch.Generator().manual_seed(2)

    def slope(model: LinearisedDotProduct) -> Tensor:
        losses = model.losses(model.read(past), target, _ones(target))
        return torch.autograd.grad(losses.sum(), model.vectors)[0]

    truth, totals = slope(full), {True: torch.tensor(0.0), False: torch.tensor(0.0)}
    for _ in range(draws):
        drawn = probability.multinomial(count, replacement=True, generator=generator)
        sampled.negatives = drawn
        for corrected in totals:
            log_q = (count * probability[drawn]).log()
            sampled.log_q = log_q if corrected else torch.zeros_like(log_q)
            totals[corrected] = totals[corrected] + slope(sampled) / draws
    gaps = {key: float((total - truth).norm() / truth.norm()) for key, total in totals.items()}
    assert gaps[True] < 0.03 < 0.07 < gaps[False]


def test_repeat_scores_enter_a_sampled_softmax_exactly(linearised: Make) -> None:
    """Although no item of the sketch is among the sampled ones."""
    model = linearised(SampledSoftmax(4), repeat_feature=True).double().requires_grad_(False)
    item, target = torch.tensor([[1, 6, 6]]), torch.tensor([[3, 6]])
    past = Evidence.new(item, _ones(item), _ones(item), torch.tensor([3]))
    model.negatives.copy_(torch.tensor([0, 3, 5, 7]))
    model.log_q.copy_(torch.tensor([0.3, -0.2, 0.1, -0.5]))
    user = model.read(past)
    plain = (model.bias[:, 0] + user[:, :DIM] @ model.vectors.T)[0]
    scores = model.predict_all(user)[0]
    assert bool((scores[[1, 6]] > plain[[1, 6]] + 1).all())
    found = model.losses(user, target, _ones(target))[0]
    for place, own in enumerate(target[0].tolist()):
        terms = [scores[own].exp()]
        drawn = zip(model.negatives.tolist(), model.log_q, strict=True)
        terms += [(plain[other] - log_q).exp() for other, log_q in drawn if other != own]
        terms += [scores[one].exp() - plain[one].exp() for one in (1, 6) if one != own]
        torch.testing.assert_close(found[place], sum(terms).log() - scores[own], **TIGHT)


def test_influences_are_derivatives_at_the_optimum(linearised: Make) -> None:
    """Finite differences: weights change the minimum of the inner loss, and so the losses."""
    model = linearised(tie_embeddings=False).double().requires_grad_(False)
    item = torch.tensor([[1, 4, 6, 2]])
    weight = torch.tensor([[1.0, 0.5, 1.5, 1.0]]).double()
    rating, damping = torch.ones_like(weight), 1.0
    mean, covariance = model.moments

    def optimum(weight: Tensor) -> Tensor:
        features = (model.input_vectors(item) * weight[:, :, None]).sum(1)[0]
        system = weight.sum() * covariance + damping * torch.eye(DIM).double()
        target = model.entry_scale * (features - weight.sum() * mean) + damping * model.user_prior
        return torch.linalg.solve(system, target)[None]

    def total(user: Tensor) -> float:
        return float((model.losses(user, item, rating) * weight).sum())

    found = model.influences(optimum(weight), item, rating, weight, damping)
    for place, step in enumerate(torch.eye(4).double()[:, None] * 1e-5):
        moved = (total(optimum(weight + step)) - total(optimum(weight - step))) / 2e-5
        assert moved == pytest.approx(float(found[0, place]), rel=1e-5)


def test_the_inner_loop_does_not_diverge_with_many_entries(linearised: Make) -> None:
    """Not even with a large learning rate; small sketches keep it."""
    for recency_decay in (False, True):
        model = linearised(inner_lr=20.0, recency_decay=recency_decay).requires_grad_(False)
        item = torch.arange(500)[None] % 4
        many = Evidence.new(item, item.float(), torch.ones(1, 500), torch.tensor([500]))
        user = model.read(many)
        before = model.inner_loss(model.initial_user(1), item, item.float()).sum()
        assert float(model.inner_loss(user, item, item.float()).sum()) < float(before)
        assert float(user.abs().max()) < 1e3
    small = linearised(inner_lr=0.2)
    one = Evidence.new(item[:, :1], torch.ones(1, 1), torch.ones(1, 1), torch.tensor([1]))
    assert float(small.step_size(one)) == pytest.approx(0.2)


def test_the_step_size_is_a_constant(linearised: Make) -> None:
    """No gradient flows through it, although it depends on the weights of many entries."""
    model, (past, _) = linearised(inner_lr=20.0).double(), _case()
    weight = past.weight.clone().requires_grad_()
    rate = model.step_size(past._replace(weight=weight))
    assert float(rate.min()) < 20
    assert not rate.requires_grad


@REPEAT
def test_stored_sums_give_the_same_users(
    linearised: Make, repeat_feature: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy shares all parameters, and reads without summing over the items again."""
    model, (past, _) = linearised(repeat_feature=repeat_feature), _case()
    past = Evidence(*(field.float() if field.is_floating_point() else field for field in past))
    shared = model.with_stored_sums()
    for name, value in model.named_parameters():
        assert dict(shared.named_parameters())[name] is value
    assert not model.stored_sums.numel()
    with torch.no_grad():
        expected = model.read(past)
        monkeypatch.setattr(type(model), "item_sums", None)
        torch.testing.assert_close(shared.read(past), expected)
    assert "stored_sums" not in shared.state_dict()  # they are not saved


def test_gradients_flow_to_the_rows_in_the_tables_only(linearised: Make) -> None:
    """With stored sums and the tables of some items: their gradients are those of all tables."""
    model = linearised(tie_embeddings=False).double()
    past, target = _case()
    rows = torch.tensor([1, 2, 4, 5, 6])
    seen = torch.tensor([0, 1, 3])  # only items of these rows
    past = Evidence(*(field[seen] for field in past))
    past = past._replace(item=torch.where(past.weight > 0, past.item, 1))
    target, tables = target[seen], ("vectors", "bias", "input_offset")

    def loss(model: LinearisedDotProduct, past: Evidence, target: Tensor) -> Tensor:
        return (model.predict(model.read(past), target) ** 2).sum()

    whole = torch.autograd.grad(
        loss(model, past, target), [getattr(model, name) for name in tables]
    )
    few = {name: getattr(model, name).detach()[rows].requires_grad_() for name in tables}
    sums = item_sums(model.vectors, model.bias[:, 0]).detach()
    numbered = past._replace(item=torch.searchsorted(rows, past.item))
    result = functional_call(
        model,
        {**few, "stored_sums": sums},
        (lambda there: loss(there, numbered, torch.searchsorted(rows, target)),),
    )
    found = torch.autograd.grad(result, list(few.values()))
    for name, one, other in zip(tables, found, whole, strict=True):
        assert one.any()
        torch.testing.assert_close(one, other[rows], **TIGHT, msg=name)
    left = torch.tensor([0, 3, 7])
    assert whole[0][left].any()  # the moments also depend on rows that the tables lack


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2], KINDS[7]], ids=str)
def test_decisions_do_not_depend_on_stored_sums_or_the_stack(
    linearised: Make, kind: dict[str, bool]
) -> None:
    """Quantized users are the same bits alone, in a stack, and with sums stored in float32."""
    models = [linearised(seed=seed, **kind) for seed in range(2)]
    past, _ = _case()

    def call(stack: StackedRecommenders, function: Callable[..., Tensor]) -> Tensor:
        fields = [field.expand(stack.runs, *field.shape) for field in past]
        found: Tensor = stack.quantized().call(function, *fields)
        return found

    def read(model: LinearisedDotProduct, *fields: Tensor) -> Tensor:
        return model.read(Evidence(*fields), rounding)

    def influences(model: LinearisedDotProduct, *fields: Tensor) -> Tensor:
        return model.influences(read(model, *fields), *fields[:3], 0.5)

    together = call(StackedRecommenders.of(models), read)
    for run, model in enumerate(models):
        alone = StackedRecommenders.of([model])
        stored = StackedRecommenders.of([model.with_stored_sums()])
        assert stored.state["stored_sums"].numel()
        for stack in (alone, stored):
            assert torch.equal(call(stack, read)[0], together[run])
        assert torch.equal(call(stored, influences), call(alone, influences))
        quantized = alone.quantized().one(0).requires_grad_(False)
        (mean, covariance), scale, *_ = quantized.inner_problem(past, rounding)
        for value in (mean, covariance, scale, together[run, :, :DIM]):
            assert torch.equal(value, rounding(value))
        one = Evidence(*(field[:1] for field in past))
        assert torch.equal(quantized.read(one, rounding), together[run, :1])
        with torch.no_grad():
            exact = model.double().read(past)
        torch.testing.assert_close(together[run], exact, atol=5e-3, rtol=0)


TABLE = np.array([[0, 2], [1, -1], [-1, -1], [2, 1], [0, -1], [1, 0], [2, -1], [-1, -1]])
SIDES = {
    "categories": SideInformation(kinds=3, width=2, table=TABLE),
    "times": SideInformation(clock=ColumnEncoding("time", 0)),
    "both": SideInformation(kinds=3, width=2, table=TABLE, clock=ColumnEncoding("time", 0)),
}


@pytest.mark.parametrize("name", SIDES)
def test_side_information_changes_item_vectors(linearised: Make, name: str) -> None:
    """The moments are those of vectors and biases with their categories."""
    side = SIDES[name]
    model = linearised(side=side, tie_embeddings=False).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    for key, value in model.named_parameters():
        if key.startswith(("category", "time")):
            value.copy_(torch.randn(value.shape, generator=generator) / 2)
    past, target = _case()
    if side.clock is not None:
        when = torch.randint(2 * MIDDLE, past.item.shape, generator=generator)
        past = past._replace(item=token(past.item, when))
        target = token(target, when[:, :1])
    user = model.read(past)
    torch.testing.assert_close(user, Recommender.read(model, past), **TIGHT)
    if side.kinds:
        rows = [[kind for kind in kinds if kind >= 0] for kinds in TABLE.tolist()]
        table = torch.stack([model.category_vectors[kinds].sum(0) for kinds in rows])
        bias = torch.stack([model.category_bias[kinds].sum(0) for kinds in rows])
        known = item_sums(model.vectors + table, (model.bias + bias)[:, 0])
        torch.testing.assert_close(model.item_sums(), known, **TIGHT)
        torch.testing.assert_close(
            model.predict_all(user), user @ (model.vectors + table).T + (model.bias + bias)[:, 0]
        )
    plain = linearised(tie_embeddings=False).double().requires_grad_(False)
    item = _case()[0].item
    assert not torch.allclose(model.predict(user, target), plain.predict(user, item[:, :1]))
    assert not torch.allclose(user, plain.read(past._replace(item=item)), atol=1e-3)


def test_the_entry_scale_multiplies_the_pull_of_entries(linearised: Make) -> None:
    """Twice the scale moves a user twice as far from a prior of 0; it has no weight decay."""
    model, (past, _) = linearised().double().requires_grad_(False), _case()
    model.user_prior.zero_()
    once = model.read(past)
    model.log_entry_scale += torch.tensor(2.0).log()
    torch.testing.assert_close(model.read(past), 2 * once)
    assert "log_entry_scale" in model.no_weight_decay


def test_memory_does_not_grow_with_the_number_of_items(linearised: Make) -> None:
    assert linearised(items=8).elements_per_row == linearised(items=8000).elements_per_row
    few, many = (linearised(SampledSoftmax(n), items=100).elements_per_row for n in (5, 50))
    assert few < many
