"""Help and completion start without the packages that take seconds to import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HELP = """
import contextlib, io, sys
import typer
from dips.cli.main import app, main

def commands(group, words=()):
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*words, name))

called = list(commands(typer.main.get_command(app)))
assert ("train",) in called and ("data", "list") in called and ("store", "check") in called
for words in called:
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            main([*words, "--help"])
    except SystemExit as left:
        assert not left.code, words
    assert "Usage: dips" in shown.getvalue(), words
"""
COMPLETE = """
import os, sys
from dips.cli.main import main

try:
    main([])
except SystemExit as left:
    assert not left.code
"""
CHECK = """
loaded = {"torch", "numba", "polars", "matplotlib"} & set(sys.modules)
assert not loaded, loaded
"""


def run(code: str, **variables: str) -> str:
    """Run code in a new interpreter, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code + CHECK],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_of_all_commands_imports_no_heavy_package() -> None:
    run(HELP)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("dips tra", {"train", "transfer"}),
        ("dips data fe", {"fetch"}),
        ("dips train planted --policy-l", {"--policy-lr"}),
    ],
)
def test_completion_imports_no_heavy_package(words: str, found: set[str]) -> None:
    place = str(len(words.split()) - 1)
    output = run(COMPLETE, _DIPS_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
    assert set(output.split()) == found
