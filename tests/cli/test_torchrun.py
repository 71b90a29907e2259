"""`torchrun -m dips train`: several processes train one run, and one of them writes and talks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

ARGUMENTS = (
    "--policy", "learned", "--baselines", "", "--size", "2", "--epochs", "2", "--dim", "4",
    "--policy-warmup-epochs", "0", "--policy-freeze-epochs", "0", "--batch-size", "64",
    "--device", "cpu", "--json",
)  # fmt: skip
LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def launch(data, out):
    return subprocess.run(
        [*LAUNCH, "-m", "dips", "train", str(data), "--out", str(out), *ARGUMENTS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_two_processes_train_one_run(command, worlds: dict[str, Path], tmp_path: Path) -> None:
    """The same run up to the rounding of float32: sums are taken in another order."""
    one, two = tmp_path / "one", tmp_path / "two"
    alone = command("train", worlds["explicit"], "--out", one, *ARGUMENTS).json
    done = launch(worlds["explicit"], two)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1  # only one of them talks
    assert done.stderr.count("epoch 4 of 4: start at rule, validation") == 1
    together = json.loads(done.stdout)
    assert together["kept_policy"] == "learned"
    for part in ("valid", "test"):
        assert together[part] == pytest.approx(alone[part], abs=1e-5)
    assert sorted(path.name for path in two.iterdir()) == sorted(p.name for p in one.iterdir())
    expected = load_file(one / "model.safetensors")
    for name, value in load_file(two / "model.safetensors").items():
        assert (value.double() - expected[name].double()).abs().max() < 1e-4, name

    again = launch(worlds["explicit"], two)  # one of them finds that it cannot, and all end
    assert again.returncode != 0
    assert again.stderr.count("is a finished run: choose another --out") == 1
