"""The benchmark of clicks on small data: one evaluation for all models, and its own models."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import clicks, sasrec_plain
from dips.data import prepared, synthetic
from dips.data.interactions import Interactions
from dips.recommender.base import Evidence
from dips.recommender.memory_based import popularity

World = Callable[..., Interactions]


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    """A job on a few users with repeats."""
    file = tmp_path / "clicks.safetensors"
    prepared.write(synthetic.stream(users=30, items=64, events=12, implicit=True), file)
    sasrec = {"epochs": 1, "dim": 8}
    flags = {"size": 3, "device": "cpu"}
    return {"file": str(file), "flags": flags, "epochs": 1, "sasrec": sasrec}


def _entries(item: list[list[int]], slots: list[int]) -> Evidence:
    there = (torch.arange(len(item[0])) < torch.tensor(slots)[:, None]).float()
    return Evidence.new(torch.tensor(item), there, there, torch.tensor(slots))


def test_the_report_of_all_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def here(module: str, job: dict[str, Any]) -> dict[str, Any]:
        return clicks._child(json.loads(json.dumps(job)))

    monkeypatch.setattr(clicks, "in_child", here)
    command = ["--users", "30", "--items", "64", "--events", "12", "--size", "3", "--epochs", "1"]
    command += ["--sasrec-epochs", "1", "--catalogue", "64,128", "--clicks", "300"]
    assert clicks.main([*command, "--json", str(tmp_path / "r.json")]) == 0
    out = capsys.readouterr().out
    results = json.loads(out.splitlines()[-1])
    assert results == json.loads((tmp_path / "r.json").read_text())
    assert list(results["models"]) == list(clicks.MODELS)
    for name, row in results["models"].items():
        assert row.get("recall@20", 0) > 0 or (name == "als" and "missing" in row)
    assert results["models"]["learned"]["verdict"] in out
    assert [row["items"] for row in results["catalogue"]] == [64, 128]
    assert "| 128 " in out


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(SystemExit, match="models bpr: choose from last, learned"):
        clicks.main(["--models", "last,bpr"])


@pytest.mark.parametrize("filters", [False, True])
def test_metrics_equal_a_slow_loop(job: dict[str, Any], filters: bool) -> None:
    job["flags"] |= {"filter_sketch": True} if filters else {}
    protocol = clicks.Protocol.of(job)
    assert protocol.filters == filters
    weights = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    found = protocol.test(lambda given: (weights[given.item] * given.weight[:, :, None]).sum(1))
    test, popular = protocol.parts[2], popularity(protocol.parts[0]).float()
    hits = []
    for user in range(test.users):
        history = test.item[test.events(user)].tolist()
        for step, target in enumerate(history):
            kept = history[max(0, step - 3) : step]
            scores = weights[kept].sum(0) if kept else popular.clone()
            if filters:
                scores[kept] = -torch.inf
            above, same = (scores > scores[target]).sum(), (scores == scores[target]).sum() - 1
            hits.append(float(1 + above + same / 2 <= 20))
    assert found["recall@20"] == pytest.approx(sum(hits) / len(hits), abs=1e-6)


def test_als_folds_sketches_in_by_the_closed_form() -> None:
    """(Y'Y + Y'(C - I)Y + regularization I)^-1 Y'C p of Hu, Koren and Volinsky, 2008."""
    als = pytest.importorskip("implicit.cpu.als")
    model = als.AlternatingLeastSquares(factors=4, alpha=5.0, regularization=0.1, num_threads=1)
    items = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    model.item_factors = items.numpy()
    found = clicks.fold_in(model, _entries([[2, 5, 7], [4, 4, 0], [0, 0, 0]], [3, 2, 0]))
    for row, kept in enumerate([[2, 5, 7], [4, 4], []]):
        confidence = 5.0 * torch.bincount(torch.tensor(kept).long(), minlength=10)
        extra = torch.where(confidence > 0, confidence - 1, 0.0)
        left = items.T @ items + (items.T * extra) @ items + 0.1 * torch.eye(4)
        torch.testing.assert_close(found[row], torch.linalg.solve(left, items.T @ confidence))


def test_a_missing_package_is_a_row_that_says_so(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "implicit.cpu.als", None)
    row = clicks._child({"do": "als", **job})
    assert row == {"missing": "not installed: pip install -c constraints.txt '.[benchmarks]'"}
    text = clicks.report({"size": 3, "clock": "wall", "models": {"als": row}})
    assert "fold-in: not installed" in text


def test_pieces_have_every_next_item_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasrec_plain, "LENGTH", 4)
    data = world([9, 5, 1, 4], items=7, explicit=False)
    rows = sasrec_plain.pieces(data).tolist()
    assert [sum(item >= 0 for item in row) for row in rows] == [5, 5, 5, 1, 4]
    assert rows[0] + rows[1][1:] == data.item[data.events(0)].tolist()


def test_sasrec_reads_no_later_item() -> None:
    model = sasrec_plain.PlainSASRec(items=9, dim=8).eval()
    one, two = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 7, 8]])
    torch.testing.assert_close(model(one)[:, :2], model(two)[:, :2])
    assert not torch.allclose(model(one)[:, 2], model(two)[:, 2])
    short = model.scores(torch.tensor([[1, 2, 0]]), torch.tensor([2]))
    torch.testing.assert_close(short, model.scores(one, torch.tensor([2])))


SMALL: dict[str, Any] = {"learning_rate": 0.01, "batch": 4, "dim": 16, "dropout": 0.0}


@pytest.fixture
def cycle(world: World) -> Interactions:
    """Users who meet items 0, 1, 2, ..., 6 in turn, again and again, from any first item."""
    data = world([40] * 21, items=7, explicit=False)
    data.item[:] = [(user + place) % 7 for user in range(21) for place in range(40)]
    return data


def test_sasrec_learns_a_cycle(cycle: Interactions) -> None:
    epoch = iter(range(20))
    model = sasrec_plain.fit(cycle, lambda model: next(epoch), epochs=20, **SMALL).model
    sketches = torch.tensor([[2, 3], [6, 0], [5, 6]])
    assert model.scores(sketches, torch.tensor([2, 1, 2])).argmax(1).tolist() == [4, 0, 0]


def test_sasrec_stops_and_returns_its_best_epoch(cycle: Interactions) -> None:
    values, states = iter([0.1, 0.3, 0.2, 0.3, 0.2, 0.5]), []

    def validate(model: sasrec_plain.PlainSASRec) -> float:
        states.append(model.item.weight.detach().clone())
        return next(values)

    fitted = sasrec_plain.fit(cycle, validate, epochs=30, patience=3, **SMALL)
    assert fitted.epochs == len(states) == 5
    assert torch.equal(fitted.model.item.weight, states[1])
