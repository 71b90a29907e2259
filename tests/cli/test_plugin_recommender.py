"""A recommender and a policy of one's own from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = """
import dips, torch

class Near(dips.Recommender):
    def __init__(self, *, items, dim, generator, **settings):
        super().__init__(items=items, dim=dim, **settings)
        self.place = torch.nn.Parameter(torch.randn(items, dim, generator=generator) / 10)

    def predict(self, user, items):
        there = torch.nn.functional.embedding(items, self.place)
        return self.offset - (there - user[:, None]).square().sum(-1)

class Short(Near):
    def predict(self, user, items):
        return super().predict(user, items)[:, :1]

class Taste(torch.nn.Module, dips.Policy):
    required_signals = ("residual",)

    def __init__(self):
        super().__init__()
        self.surprise = torch.nn.Parameter(torch.tensor(0.5))

    def score(self, candidates, signals):
        return self.surprise * signals.residual.abs() - candidates.age.double()
"""
MODULE = "command_line_own"
SMALL = (
    "--epochs", "1", "--dim", "6", "--batch-size", "256", "--device", "cpu",
    "--inner-lr", "0.02", "--inner-steps", "3",
)  # fmt: skip


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write the module to a directory on the import path."""
    (tmp_path / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize("world", ["explicit", "implicit"])
def test_train_evaluate_and_sketch(command: Any, worlds: Any, world: str) -> None:
    own = ("--recommender", f"{MODULE}:Near", "--policy", f"{MODULE}:Taste")
    train = (
        "train",
        worlds[world],
        "--out",
        "run",
        *own,
        "--policy-warmup-epochs",
        0,
        *SMALL,
        "--json",
    )
    found = command(*train)
    assert found.code == 0, found.err
    assert found.json["policy"] == f"{MODULE}:Taste"
    again = command("evaluate", "run", "--json")
    assert again.code == 0, again.err
    assert again.json["test"] == found.json["test"]
    assert command("sketch", "run", worlds[world], "--out", "sketches.csv").code == 0


def test_a_plugin_that_fails_its_checks_is_refused(command: Any, worlds: Any) -> None:
    found = command(
        "train", worlds["explicit"], "--out", "run", "--recommender", f"{MODULE}:Short", *SMALL
    )
    assert found.code == 2
    reason = f"recommender '{MODULE}:Short' does not fit: Short.predict returned the shape (4, 1)"
    assert reason in found.err.splitlines()[-1]
    assert not Path("run").exists()


def test_a_run_whose_plugin_is_missing_is_refused(command: Any, worlds: Any) -> None:
    own = ("--recommender", f"{MODULE}:Near")
    assert command("train", worlds["explicit"], "--out", "run", *own, *SMALL).code == 0
    Path(f"{MODULE}.py").unlink()
    sys.modules.pop(MODULE)
    found = command("evaluate", "run")
    assert found.code == 2
    assert f"needs what it was trained with: recommender '{MODULE}:Near'" in found.err
    assert "Traceback" not in found.err
