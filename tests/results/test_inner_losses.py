"""The comparison of inner losses: credit of the squared losses, a small run, the table."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from inner_loss_table import inner_loss_table
from inner_losses import main
from squared_inner_loss import (
    QUANTIZED,
    Problem,
    SolvedDotProduct,
    SquaredDotProduct,
    inverse,
    minimum,
    use_squared_loss,
)

from dips.credit import adjoint
from dips.data import prepared
from dips.data.interactions import Interactions
from dips.recommender import kernel_inputs, registry, signals
from dips.recommender.base import Evidence
from dips.recommender.filtered_loss import prediction_losses
from dips.recommender.losses import FullSoftmax
from dips.recommender.stacked import StackedRecommenders

World = Callable[..., Interactions]


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo `use_squared_loss` after each test."""
    for owner, name in (
        (registry, "LinearisedDotProduct"),
        (adjoint, "_linearised_adjoint"),
        (kernel_inputs, "is_linearisable"),
        (signals, "is_linearisable"),
        (StackedRecommenders, "quantized"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.mark.parametrize("kind", [SquaredDotProduct, SolvedDotProduct])
@pytest.mark.parametrize("repeats", [False, True])
def test_entry_gradients_are_finite_differences(
    kind: type[SquaredDotProduct], repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps have a constant size: the weights of entries change it in training, too."""
    use_squared_loss(kind is SolvedDotProduct)
    generator = torch.Generator().manual_seed(1)
    model = kind(
        items=20, loss=FullSoftmax(), dim=4, generator=generator, repeat_feature=repeats,
        recency_decay=True, tie_embeddings=repeats,
    ).double()  # fmt: skip
    model.masks_sketch = not repeats
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator).double()
    item = torch.stack([torch.randperm(20, generator=generator)[:5] for _ in range(3)])
    weight = torch.ones(3, 5).double()
    weight[:, 4] = 0  # a dropped candidate
    age = torch.arange(5).flip(0).expand(3, 5).double()
    evidence = Evidence(item, weight, weight, torch.full((3,), 4), age, torch.ones_like(weight))
    target, rating = torch.tensor([1, 7, 9]), torch.ones(3).double()
    _, found = adjoint.loss_and_adjoint(model, evidence, target, rating)
    entries = evidence._replace(weight=torch.ones_like(weight))
    gradient = adjoint.entry_gradient(model, found, entries)
    rates = model.rates(model.quadratic(evidence))
    monkeypatch.setattr(model, "rates", lambda problem: rates)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        sketch = evidence._replace(weight=weight)
        user = model.read(sketch)
        return prediction_losses(model, user, sketch, target[:, None], rating[:, None])[:, 0]

    for place in range(5):
        change = torch.zeros_like(weight)
        change[:, place] = 1e-6
        slope = (loss(weight + change) - loss(weight - change)) / 2e-6
        torch.testing.assert_close(gradient[:, place], slope.detach(), atol=1e-7, rtol=1e-6)
    assert float(gradient.abs().max()) > 0.1


def test_minimum_is_that_of_the_dense_system() -> None:
    """Values and all gradients equal those of LAPACK; one entry of each sketch is dropped."""
    generator = torch.Generator().manual_seed(2)
    vectors = torch.randn(6, 16, 12, generator=generator).double()
    weight = 3 * torch.rand(6, 16, generator=generator).double()
    weight[:, 3] = 0
    root = torch.randn(12, 5, generator=generator).double()
    right = torch.randn(6, 12, generator=generator).double()
    inputs = [value.requires_grad_() for value in (vectors, weight, root, right)]

    def common() -> torch.Tensor:
        return root @ root.T + 0.01 * torch.eye(12).double()

    def found() -> torch.Tensor:
        problem = Problem(vectors, weight, torch.tensor(0.01), right)
        return minimum(problem, inverse(common()), right, 1.0)

    def expected() -> torch.Tensor:
        weighted = vectors * weight[:, :, None]
        matrix = weighted.transpose(1, 2) @ vectors + common()
        return torch.linalg.solve(matrix, weighted.sum(1) + right)

    torch.testing.assert_close(found(), expected(), rtol=1e-9, atol=1e-9)
    slope = torch.randn(6, 12, generator=generator).double()
    ours = torch.autograd.grad((slope * found()).sum(), inputs)
    for own, dense in zip(
        ours, torch.autograd.grad((slope * expected()).sum(), inputs), strict=True
    ):
        torch.testing.assert_close(own, dense, rtol=1e-7, atol=1e-7)


def test_inverse_in_single_precision() -> None:
    """The condition number is 10,000: float32 leaves three digits, as LAPACK does."""
    values = torch.logspace(-2, 2, 32)
    basis = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(3)))[0]
    found = inverse((basis * values) @ basis.T)
    exact = (basis.double() / values.double()) @ basis.double().T
    assert float((found - exact).norm() / exact.norm()) < 2e-3


def test_stored_inverse_leaves_reading_unchanged() -> None:
    use_squared_loss(solved=True)
    generator = torch.Generator().manual_seed(4)
    models = [
        SolvedDotProduct(items=9, loss=FullSoftmax(), dim=4, generator=generator) for _ in range(2)
    ]
    stack = StackedRecommenders.of(models)
    stored, fresh = stack.quantized(), QUANTIZED(stack)
    assert stored.state["stored_inverse"].shape == (2, 4, 4)
    item = torch.randint(9, (2, 3, 5), generator=generator)
    ones = torch.ones(2, 3, 5).double()
    evidence = Evidence.new(item, ones, ones, torch.full((2, 3), 5))
    reads = [each.call(lambda model, past: model.read(past), evidence) for each in (stored, fresh)]
    torch.testing.assert_close(*reads, rtol=0, atol=0)
    assert float(reads[0].abs().max()) > 0.01


@pytest.mark.parametrize("name", ["linearised", "squared", "squared-solved"])
def test_rows_and_trials_of_a_small_run(world: World, tmp_path: Path, name: str) -> None:
    prepared.write(world([12] * 20, items=15, explicit=False), tmp_path / "clicks.safetensors")
    command = [str(tmp_path / "clicks.safetensors"), str(tmp_path / "out"), "--inner-loss", name]
    assert main([*command, "--epochs", "1", "--sizes", "2", "--seeds", "2"]) == 0
    with (tmp_path / "out" / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["seed"]) for row in rows] == [
        ("last", "0"), ("last", "1"), ("learned", "0"), ("learned", "1"),
    ]  # fmt: skip
    assert {row["inner_loss"] for row in rows} == {name}
    with (tmp_path / "out" / "trials.csv").open(newline="") as file:
        trials = list(csv.DictReader(file))
    best = max(trials, key=lambda row: (float(row["valid_recall@20"]), float(row["weight_decay"])))
    assert len(trials) == 4
    assert {row["weight_decay"] for row in rows} == {best["weight_decay"]}


def test_differences_are_paired_by_split(tmp_path: Path) -> None:
    lines = ["inner_loss,policy,size,seed,test_recall@20,test_mrr@20"]
    for seed, base in enumerate((0.2, 0.4)):
        lines.append(f"softmax,last,4,{seed},{base},0.1")
        lines.append(f"linearised,last,4,{seed},{1.1 * base},{0.1 + 0.01 * seed}")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    *_, row = inner_loss_table({"clicks": tmp_path}).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:4] == ["clicks", "`last`", "4", "0.3000 / 0.1000"]
    assert cells[4].startswith("0.3300 / 0.1050 (**+10.0 ± 0.0 %** / +5.0 ± 63.5 %")
    assert cells[5:] == ["", ""]
