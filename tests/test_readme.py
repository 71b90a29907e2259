"""README is true: its Python and shell run as they are, and it names every policy."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dips.policy.registry import POLICIES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DIPS = f'dips() {{ "{sys.executable}" -m dips "$@"; }}\n'


def block(language: str) -> str:
    """Return the only block of a language."""
    (code,) = re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)
    return str(code)


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(block("python"), "README.md", "exec"), names)
    assert names["table"].summary[0]["n"] == 2  # type: ignore[attr-defined]


def test_the_shell_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail"], input=DIPS + block("sh"), cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for made in ("runs/learned-4/metrics.json", "predictions.parquet", "results/figure.png",
                 "sketches.parquet", "sketches.db"):  # fmt: skip
        assert (tmp_path / made).exists(), made


def test_every_policy_is_explained() -> None:
    table = README.split("## Policies")[1].split("## Read on")[0]
    for name in POLICIES:
        assert f"`{name}" in table
