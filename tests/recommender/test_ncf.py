"""Both forms of NCF: closed forms, meta-gradients, and an inner rate that is safe at any size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad

from dips.data.side_information import MIDDLE, ColumnEncoding, SideInformation
from dips.recommender.base import Evidence, Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.losses import Loss, SquaredError
from dips.recommender.mlp import MLP
from dips.recommender.ncf import NCF
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.recommender.signals import recommender_signals
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.records import Candidates, Sketch
from dips.stream.side_information import token
from dips.testing import check_recommender, random_candidates

Dot = Callable[..., DotProduct]


def _case(rows: int, n: int, items: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    item = torch.randint(items, (rows, n), generator=generator)
    rating = torch.randint(1, 6, (rows, n), generator=generator).double()
    weight = torch.rand(rows, n, generator=generator).double()
    weight[0, -1] = 0.0
    return item, rating, weight


def _evidence(item: Tensor, rating: Tensor, weight: Tensor) -> Evidence:
    return Evidence.new(item, rating, weight, (weight > 0).sum(1))


@pytest.mark.parametrize("penalty", [0.0, 0.4])
@pytest.mark.parametrize("n", [1, 3, 9])
def test_closed_forms_are_the_generic_ones(dot: Dot, loss: Loss, n: int, penalty: float) -> None:
    """On both sides of n < dim, and with a prior penalty."""
    model = dot(loss, prior_penalty=penalty).double()
    item, rating, weight = _case(4, n, model.items)
    past = _evidence(item, rating, weight)
    user = model.read(past)
    assert float((user - model.user_prior).detach().abs().max()) > 0.01
    base, tight = Recommender, {"atol": 1e-11, "rtol": 1e-11}
    torch.testing.assert_close(user, base.read(model, past), **tight)
    mine, generic = model.predict_all(user), base.predict_all(model, user)
    torch.testing.assert_close(mine, generic, **tight)
    torch.testing.assert_close(
        model.inner_gradient(user, past), base.inner_gradient(model, user, past), **tight
    )
    slopes = model.loss_gradients(user, item, rating)
    torch.testing.assert_close(slopes, base.loss_gradients(model, user, item, rating), **tight)
    for damping in (0.3, 5.0):
        effect = model.influences(user, item, rating, weight, damping)
        other = base.influences(model, user, item, rating, weight, damping)
        torch.testing.assert_close(effect, other, atol=1e-8, rtol=1e-8)


def _reference(model: NCF, past: Evidence, item: Tensor, rating: Tensor) -> Tensor:
    """The loss after reading, by plain double backward with leaves as parameters."""
    start = model.user_prior.expand(len(item), -1)
    user, rate = start, model.step_size(past)
    for _ in range(model.inner_steps):
        losses = (model.losses(user, past.item, past.rating) * past.weight).sum()
        losses = losses + float(model.prior_penalty) * ((user - start) ** 2).sum()
        (slope,) = torch.autograd.grad(losses, user, create_graph=True)
        user = user - rate[:, None] * slope
    return model.losses(user, item[:, None], rating[:, None]).sum()


def _mlp(loss: Loss, **settings: float) -> NCF:
    generator = torch.Generator().manual_seed(0)
    return MLP(items=8, loss=loss, dim=5, generator=generator, **settings)


@pytest.mark.parametrize("penalty", [0.0, 0.4])
@pytest.mark.parametrize("kind", ["dot", "mlp"])
def test_meta_gradients_are_those_of_double_backward(
    dot: Dot, loss: Loss, kind: str, penalty: float
) -> None:
    model: NCF = (dot if kind == "dot" else _mlp)(loss, prior_penalty=penalty).double()
    item, rating, weight = _case(5, 4, model.items)
    past = _evidence(item[:, 1:], rating[:, 1:], weight[:, 1:])
    names = [name for name, _ in model.named_parameters()]
    expected = torch.autograd.grad(
        _reference(model, past, item[:, 0], rating[:, 0]),
        list(model.parameters()),
        allow_unused=True,
    )

    def total(parameters: dict[str, Tensor]) -> Tensor:
        def task(there: Recommender) -> Tensor:
            return there.losses(there.read(past), item[:, :1], rating[:, :1]).sum()

        result: Tensor = functional_call(model, parameters, (task,))
        return result

    start = {name: value.detach() for name, value in model.named_parameters()}
    mine = grad(total)(start)
    for name, other in zip(names, expected, strict=True):
        assert float(mine[name].abs().max()) > 1e-4, name
        torch.testing.assert_close(mine[name], other, atol=1e-10, rtol=1e-10, msg=name)
    generator = torch.Generator().manual_seed(2)
    for name in ("user_prior", "vectors"):
        step = torch.randn(start[name].shape, generator=generator, dtype=torch.float64) * 1e-5
        ahead = total({**start, name: start[name] + step})
        behind = total({**start, name: start[name] - step})
        slope = float((mine[name] * step).sum())
        assert float(ahead - behind) / 2 == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 32, 128, 1024])
def test_the_inner_rate_is_safe_at_any_size(loss: Loss, size: int) -> None:
    """Unit vectors, a thousand entries or one: reading lowers the loss and stays small."""
    generator = torch.Generator().manual_seed(0)
    model = DotProduct(items=50, loss=loss, dim=16, generator=generator)
    with torch.no_grad():
        model.vectors.div_(model.vectors.norm(dim=1, keepdim=True))
    model.inner_steps = 200
    item = torch.randint(50, (3, size), generator=generator)
    rating = torch.randint(-2, 3, (3, size), generator=generator).float()
    past = _evidence(item, rating, torch.ones(3, size))
    user = model.read(past)
    before = model.losses(model.user_prior.expand(3, -1), item, rating).mean(1)
    after = model.losses(user, item, rating).mean(1)
    assert bool((after <= before).all())
    assert float(user.detach().abs().max()) < 50


def test_the_rate_is_a_constant_of_the_number_of_entries(dot: Dot) -> None:
    """Never of the weights: credit would change."""
    model = dot(SquaredError(), inner_lr=0.1)
    item = torch.zeros(3, 8, dtype=torch.int64)
    slots = torch.tensor([2, 4, 8])
    for weight in (torch.ones(3, 8), torch.full((3, 8), 0.01)):
        rate = model.step_size(Evidence.new(item, item.float(), weight, slots))
        torch.testing.assert_close(rate, torch.tensor([0.1, 0.1, 0.05]))


@pytest.mark.parametrize("name", ["mse", "bce", "cce", "softmax"])
def test_the_mlp_learns(losses: dict[str, Loss], name: str) -> None:
    """A few steps of Adam on the meta-loss: the next interaction is predicted better."""
    loss = losses[name]
    offset = 3.0 if name == "mse" else 0.0
    generator = torch.Generator().manual_seed(0)
    model = MLP(items=6, loss=loss, dim=8, offset=offset, inner_steps=3, generator=generator)
    taste = torch.randint(0, 2, (64, 1), generator=generator)
    item = torch.randint(0, 3, (64, 4), generator=generator) + 3 * taste  # two kinds of users
    rating = torch.where(item % 2 == taste, 5.0, 1.0)
    past = Evidence.new(item[:, 1:], rating[:, 1:], torch.ones(64, 3), torch.full((64,), 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    values = []
    for _ in range(40):
        optimizer.zero_grad()
        value = model.losses(model.read(past), item[:, :1], rating[:, :1]).mean()
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    assert values[-1] < 0.65 * values[0]
    assert model.embedding(item).shape == (64, 4, 8)
    assert not model.embedding(item).requires_grad


def test_same_generator_same_start(loss: Loss) -> None:
    for kind in (DotProduct, MLP):
        models = [
            kind(items=5, loss=loss, dim=4, generator=torch.Generator().manual_seed(seed))
            for seed in (3, 3, 4)
        ]
        assert torch.equal(models[0].vectors, models[1].vectors)
        assert not torch.equal(models[0].vectors, models[2].vectors)


TABLE = np.array([[0, 2], [1, -1], [-1, -1], [2, 1], [0, -1], [1, 0], [2, -1], [-1, -1]])
KINDS = SideInformation(kinds=3, width=2, table=TABLE)
BOTH = SideInformation(kinds=3, width=2, table=TABLE, clock=ColumnEncoding("time", 0))
FORMS = {"dot": DotProduct, "mlp": MLP}


def made(form: str, loss: Loss, sides: SideInformation, seed: int = 0, moved: bool = True) -> NCF:
    """A recommender of 8 items whose every parameter matters."""
    generator = torch.Generator().manual_seed(seed)
    model = FORMS[form](items=8, loss=loss, dim=4, side=sides, generator=generator)
    if moved:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) / 4)
    return model


def _times(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randint(2 * MIDDLE, shape, generator=torch.Generator().manual_seed(seed))


def _counts() -> Tensor:
    """[items, categories] which item has which."""
    counts = torch.zeros(8, 3).double()
    for item, codes in enumerate(TABLE):
        for code in codes[codes >= 0]:
            counts[item, code] += 1
    return counts


@pytest.mark.parametrize("form", list(FORMS))
def test_categories_add_their_vectors_and_biases(form: str, loss: Loss) -> None:
    model = made(form, loss, KINDS).double().requires_grad_(False)
    vectors = model.vectors + _counts() @ model.category_vectors
    biases = model.bias + _counts() @ model.category_bias
    plain = made(form, loss, SideInformation()).double().requires_grad_(False)
    state = {name: value for name, value in model.state_dict().items() if "category" not in name}
    state.pop("categories")
    plain.load_state_dict({**state, "vectors": vectors, "bias": biases})
    item = torch.randint(8, (6, 3), generator=torch.Generator().manual_seed(1))
    rating = torch.randint(1, 6, (6, 3), generator=torch.Generator().manual_seed(2)).double()
    past = Evidence.new(item, rating, torch.ones_like(rating), torch.full((6,), 3))
    user, expected = model.read(past), plain.read(past)
    torch.testing.assert_close(user, expected)
    torch.testing.assert_close(model.predict_all(user), plain.predict_all(user))
    torch.testing.assert_close(model.losses(user, item, rating), plain.losses(user, item, rating))
    torch.testing.assert_close(model.embedding(item), vectors[item])
    torch.testing.assert_close(model.table, vectors)


@pytest.mark.parametrize("form", list(FORMS))
def test_it_passes_all_checks_with_categories(form: str, loss: Loss) -> None:
    check_recommender(made(form, loss, KINDS))


@pytest.mark.parametrize("form", list(FORMS))
def test_time_adds_a_vector_and_a_bias(form: str, losses: dict[str, Loss]) -> None:
    model = made(form, losses["mse"], BOTH).double().requires_grad_(False)
    item, when = torch.arange(8).expand(3, -1), _times((3, 8))
    tokens = token(item, when)
    moment = torch.where(when > 0, (when - 2048) / 256, 0.0).double()[..., None]
    torch.testing.assert_close(
        model.item_vectors(tokens), model.table[item] + moment * model.time_vector
    )
    bias = model.biases[item] + model.offset + moment * model.time_bias
    torch.testing.assert_close(model.intercept(tokens), bias[..., 0])
    user = torch.randn(3, len(model.user_prior), generator=torch.Generator().manual_seed(0))
    early, late = model.predict(user.double(), item), model.predict(user.double(), tokens)
    assert not torch.equal(early, late)
    check_recommender(made(form, losses["mse"], BOTH))


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("sides", [KINDS, BOTH])
def test_side_information_has_no_effect_initially(
    form: str, sides: SideInformation, losses: dict[str, Loss]
) -> None:
    model, plain = (made(form, losses["mse"], s, moved=False) for s in (sides, SideInformation()))
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    item = torch.arange(8)[None]
    user = model.user_prior[None]
    given = token(item, _times((1, 8))) if sides is BOTH else item
    assert torch.equal(model.predict(user, given), plain.predict(user, item))
    assert not {
        "category_vectors",
        "category_bias",
        "time_vector",
        "time_bias",
        "categories",
    } & set(plain.state_dict())
    assert {"category_bias", "time_bias", "bias", "user_bias_scale"} <= set(model.no_weight_decay)


def test_decisions_do_not_depend_on_the_batch(losses: dict[str, Loss]) -> None:
    models = [made("dot", losses["mse"], BOTH, seed) for seed in range(2)]
    sketch, candidates = random_candidates(users=40)
    sketch = sketch._replace(side=torch.where(sketch.present, _times((40, 3)), 0))
    candidates = candidates._replace(side=torch.cat([sketch.side, _times((40, 2), 1)], 1))
    quantized = StackedRecommenders.of(models).quantized()
    together = recommender_signals(quantized, sketch, candidates).loss
    alone = StackedRecommenders.of(models[:1]).quantized()
    for row in range(20):
        one = slice(row, row + 1)
        own = Sketch(*(field[one] for field in sketch))
        one_candidates = Candidates(*(field[one] for field in candidates))
        assert torch.equal(recommender_signals(alone, own, one_candidates).loss, together[one])


def test_categories_are_part_of_the_state(losses: dict[str, Loss]) -> None:
    spec = RecommenderSpec(kind="dot", loss="mse", items=8, dim=4, side=BOTH)
    model = make_recommender(spec)
    again = make_recommender(RecommenderSpec.from_dict(spec.to_dict()), seed=1)
    assert not torch.equal(again.state_dict()["categories"], model.state_dict()["categories"])
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.categories, torch.tensor(TABLE))  # type: ignore[arg-type]
