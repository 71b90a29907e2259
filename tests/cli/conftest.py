"""Call the command in this process, on data small enough to train in a second."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dips.cli.main import main
from dips.data.prepared import write
from dips.data.synthetic import stream

FAST = ("--epochs", "1", "--dim", "6", "--batch-size", "256", "--device", "cpu")


@dataclass
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of standard output."""
        return json.loads(self.out.splitlines()[-1], parse_constant=pytest.fail)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DIPS_DATA", raising=False)


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return prepared files: explicit and implicit."""
    folder = tmp_path_factory.mktemp("worlds")
    for name in ("explicit", "implicit"):
        made = stream(users=40, items=64, events=14, implicit=name == "implicit")
        write(made, folder / f"{name}.safetensors")
    return {name: folder / f"{name}.safetensors" for name in ("explicit", "implicit")}


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run a command in this process."""

    def call(*arguments: object) -> Result:
        capfd.readouterr()  # drop earlier output
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        seen = capfd.readouterr()
        return Result(int(left.value.code or 0), seen.out, seen.err)

    return call


@pytest.fixture(scope="session")
def trained(
    worlds: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return a function that trains a run, once for each set of arguments."""
    runs: dict[tuple[str, ...], Path] = {}

    def make(world: str = "explicit", *arguments: str) -> Path:
        if (world, *arguments) not in runs:
            out = tmp_path_factory.mktemp("runs") / "run"
            with pytest.raises(SystemExit) as left:
                main(["train", str(worlds[world]), "--out", str(out), *FAST, *arguments])
            assert left.value.code == 0
            runs[world, *arguments] = out
        return runs[world, *arguments]

    return make
