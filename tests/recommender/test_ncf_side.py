"""Categories and times in NCF: a dense reference, the contract, and what starts as nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dips.data.side_information import MIDDLE, Coded, SideInformation
from dips.recommender.base import Evidence
from dips.recommender.dot import DotProduct
from dips.recommender.losses import Loss
from dips.recommender.mlp import MLP
from dips.recommender.ncf import NCF
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.recommender.signals import recommender_signals
from dips.recommender.stacked import StackedRecommenders
from dips.sketch.records import Candidates, Sketch
from dips.stream.side_information import token
from dips.testing import check_recommender, random_candidates

TABLE = np.array([[0, 2], [1, -1], [-1, -1], [2, 1], [0, -1], [1, 0], [2, -1], [-1, -1]])
KINDS = SideInformation(kinds=3, width=2, table=TABLE)
BOTH = SideInformation(kinds=3, width=2, table=TABLE, clock=Coded("time", 0))
FORMS = {"dot": DotProduct, "mlp": MLP}


def made(form: str, loss: Loss, sides: SideInformation, seed: int = 0, moved: bool = True) -> NCF:
    """A recommender of 8 items whose every parameter matters."""
    generator = torch.Generator().manual_seed(seed)
    model = FORMS[form](items=8, loss=loss, dim=4, sides=sides, generator=generator)
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
def test_categories_are_a_product_with_the_matrix_of_them(form: str, loss: Loss) -> None:
    model = made(form, loss, KINDS).double().requires_grad_(False)
    vectors = model.vectors + _counts() @ model.kinds
    biases = model.bias + _counts() @ model.kind_bias
    plain = made(form, loss, SideInformation()).double().requires_grad_(False)
    state = {name: value for name, value in model.state_dict().items() if "kind" not in name}
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
def test_conforms_with_categories(form: str, loss: Loss) -> None:
    check_recommender(made(form, loss, KINDS))


@pytest.mark.parametrize("form", list(FORMS))
def test_time_adds_a_direction_and_a_number(form: str, losses: dict[str, Loss]) -> None:
    model = made(form, losses["mse"], BOTH).double().requires_grad_(False)
    item, when = torch.arange(8).expand(3, -1), _times((3, 8))
    tokens = token(item, when)
    moment = torch.where(when > 0, (when - 2048) / 256, 0.0).double()[..., None]
    torch.testing.assert_close(model.rows(tokens), model.table[item] + moment * model.pace)
    bias = model.biases[item] + model.offset + moment * model.trend
    torch.testing.assert_close(model.intercept(tokens), bias[..., 0])
    user = torch.randn(3, len(model.user_prior), generator=torch.Generator().manual_seed(0))
    early, late = model.predict(user.double(), item), model.predict(user.double(), tokens)
    assert not torch.equal(early, late)
    check_recommender(made(form, losses["mse"], BOTH))


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("sides", [KINDS, BOTH])
def test_starts_as_if_nothing_were_told(
    form: str, sides: SideInformation, losses: dict[str, Loss]
) -> None:
    model, plain = (made(form, losses["mse"], s, moved=False) for s in (sides, SideInformation()))
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    item = torch.arange(8)[None]
    user = model.user_prior[None]
    given = token(item, _times((1, 8))) if sides is BOTH else item
    assert torch.equal(model.predict(user, given), plain.predict(user, item))
    assert not {"kinds", "kind_bias", "pace", "trend", "categories"} & set(plain.state_dict())
    assert {"kind_bias", "trend", "bias", "loading"} <= set(model.undecayed)


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
        asked = Candidates(*(field[one] for field in candidates))
        assert torch.equal(recommender_signals(alone, own, asked).loss, together[one])


def test_a_spec_makes_the_shape_and_a_state_fills_it(losses: dict[str, Loss]) -> None:
    spec = RecommenderSpec(form="dot", loss="mse", items=8, dim=4, side=BOTH)
    model = make_recommender(spec)
    again = make_recommender(RecommenderSpec.from_dict(spec.to_dict()), seed=1)
    assert not torch.equal(again.state_dict()["categories"], model.state_dict()["categories"])
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.categories, torch.tensor(TABLE))  # type: ignore[arg-type]
