"""A policy of one's own is found on PYTHONPATH only, and is checked before it is used."""

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


COMMANDS = {
    "script": [str(Path(sys.executable).with_name("dips"))],
    "module": [sys.executable, "-m", "dips"],
}


def run(
    folder: Path, *words: str, start: str = "module", path: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command in a directory, with a further directory on PYTHONPATH."""
    known = [name for name in (path, os.environ.get("PYTHONPATH", "")) if name]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(known)}
    return subprocess.run(
        [*COMMANDS[start], *words], cwd=folder, env=env, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip


def train(folder: Path, policy: str, **where: str) -> subprocess.CompletedProcess[str]:
    (folder / "loud.py").write_text(SOURCE)
    words = ("train", "planted", "--policy", policy, "--epochs", "1", "--out", "run", "--json")
    return run(folder, *words, **where)


def test_a_plugin_is_found_on_the_import_path(tmp_path: Path) -> None:
    done = train(tmp_path, "loud:Loudest", path=".")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["policy"] == "loud:Loudest"


@pytest.mark.parametrize("start", COMMANDS)
def test_the_current_directory_is_not_on_the_import_path(start: str, tmp_path: Path) -> None:
    done = train(tmp_path, "loud:Loudest", start=start)
    assert done.returncode == 2
    reason = "there is no module 'loud' on the import path; install it, or name its directory"
    assert done.stderr.splitlines()[-1] == (
        f"dips: policy 'loud:Loudest' cannot be made: {reason}: PYTHONPATH=. dips ..."
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("start", COMMANDS)
def test_a_file_named_like_a_package_is_not_imported(start: str, tmp_path: Path) -> None:
    for name in ("torch", "numba", "typer"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user was imported')")
    done = run(tmp_path, "doctor", "--json", start=start)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["Blank", "Narrow", "Mistaken"])
def test_a_plugin_that_fails_its_checks_is_refused(tmp_path: Path, name: str) -> None:
    done = train(tmp_path, f"loud:{name}", path=".")
    assert done.returncode == 2
    assert f"policy 'loud:{name}' does not fit" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
