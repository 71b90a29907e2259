"""The comparison of inner losses: credit of the squared losses, a small run, the table."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from inner_loss_table import inner_loss_table
from inner_losses import main
from squared_inner_loss import SolvedDotProduct, SquaredDotProduct, use_squared_loss

from dips.credit import adjoint
from dips.data import prepared
from dips.data.interactions import Interactions
from dips.recommender import kernel_inputs, registry, signals
from dips.recommender.base import Evidence
from dips.recommender.filtered_loss import prediction_losses
from dips.recommender.losses import FullSoftmax

World = Callable[..., Interactions]


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo `use_squared_loss` after each test."""
    for module, name in (
        (registry, "LinearisedDotProduct"),
        (adjoint, "_linearised_adjoint"),
        (kernel_inputs, "is_linearisable"),
        (signals, "is_linearisable"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))


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
