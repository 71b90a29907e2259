"""A policy of one's own lies where the command is called, and is looked over before it is used."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
import dips, torch

class Loudest(dips.Policy):
    def score(self, candidates, signals):
        return candidates.rating.double()

class Blank(dips.Policy):
    def score(self, candidates, signals):
        return candidates.rating.double() * float("nan")

class Narrow(dips.Policy):
    def score(self, candidates, signals):
        return candidates.rating.double()[:, :1]

class Mistaken(dips.Policy):
    def score(self, candidates, signals):
        return candidates.stars
"""


def train(folder: Path, policy: str) -> subprocess.CompletedProcess[str]:
    (folder / "loud.py").write_text(SOURCE)
    code = "from dips.cli.main import main; main()"
    words = ["train", "planted", "--policy", policy, "--epochs", "1", "--out", "run", "--json"]
    command = [sys.executable, "-P", "-c", code, *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_plugin_is_found_in_the_working_directory(tmp_path: Path) -> None:
    done = train(tmp_path, "loud:Loudest")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["policy"] == "loud:Loudest"


@pytest.mark.parametrize("name", ["Blank", "Narrow", "Mistaken"])
def test_a_plugin_that_fails_its_checks_is_refused(tmp_path: Path, name: str) -> None:
    done = train(tmp_path, f"loud:{name}")
    assert done.returncode == 2
    assert f"policy 'loud:{name}' does not fit" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
