"""Files appear whole, and the temporary files of killed processes are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from dips.data.atomic_write import atomic_write
from dips.errors import DataError

KILLED = """
import os, signal, sys
from pathlib import Path
from dips.data.atomic_write import atomic_write

with atomic_write(Path(sys.argv[1])) as part:
    part.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_failed_write_changes_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")

    def fail():
        with atomic_write(path) as part:
            part.write_text("half")
            raise OSError("the disk is full")

    with pytest.raises(DataError, match="cannot be written"):
        fail()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path):
    """Files of living processes and of other targets stay."""
    path = tmp_path / "file [1]"
    killed = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".part")
    others = [f"{path.name}.{os.getppid()}.part", f"{path.name}.x.part", f"x{left.name}"]
    for name in others:
        (tmp_path / name).write_text("")
    with atomic_write(path) as part:
        part.write_text("whole")
    assert path.read_text() == "whole"
    assert {found.name for found in tmp_path.iterdir()} == {path.name, *others}
