"""The directory of compiled programs: named by the sources, shared, optional."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from dips.kernels import cache

COMPILE = """
from dips.kernels.numba_fixed_point import quantize
assert quantize(0.3, 4.0) == 0.25
print(quantize.stats.cache_hits.total(), quantize.stats.cache_misses.total())
"""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget the directory of this process before and after a test."""
    cache.cache_directory.cache_clear()
    yield
    cache.cache_directory.cache_clear()


def _start(root: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(root)}
    return subprocess.Popen(
        [sys.executable, "-c", COMPILE], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_hash_changes_with_any_source(monkeypatch: pytest.MonkeyPatch) -> None:
    before, read = cache.sources_hash(), Path.read_bytes
    assert cache.sources_hash() == before
    for changed in ("numba_decisions.py", "layout.py", "hashing.py"):

        def edited(path: Path, changed: str = changed) -> bytes:
            return read(path) + (b"#" if path.name == changed else b"")

        monkeypatch.setattr(Path, "read_bytes", edited)
        assert cache.sources_hash() != before, changed
        monkeypatch.setattr(Path, "read_bytes", read)


def test_the_directory_is_named_by_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("DIPS_CACHE", str(tmp_path))
    first = cache.cache_directory()
    assert Path(first) == tmp_path / f"kernels-{cache.sources_hash()}"
    cache.cache_directory.cache_clear()
    monkeypatch.setattr(cache, "sources_hash", lambda: "other")
    assert cache.cache_directory() == str(tmp_path / "kernels-other")


def test_the_users_cache_directory_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIPS_CACHE", raising=False)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Path(cache.cache_directory()).parent == tmp_path / "dips"


def test_without_a_writable_directory_programs_are_compiled_in_memory(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    (tmp_path / "file").write_text("a file cannot hold a directory")
    process = _start(tmp_path / "file")
    output, notice = process.communicate()
    assert process.returncode == 0
    assert output.split() == ["0", "1"]  # compiled, not loaded
    assert re.fullmatch(
        r"Compiling kernels for this machine: in every process, .*; set DIPS_CACHE .*\n", notice
    )


def test_processes_share_the_directory(tmp_path: Path) -> None:
    """Several processes compile at once; a later one loads the program."""
    pytest.importorskip("numba")
    for process in [_start(tmp_path) for _ in range(2)]:
        process.communicate()
        assert process.returncode == 0
    later = _start(tmp_path)
    hits, misses = later.communicate()[0].split()
    assert (int(hits), int(misses)) == (1, 0)


def test_compiling_is_said_once_on_standard_error(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    output, notice = _start(tmp_path).communicate()
    assert output.split() == ["0", "1"]
    assert re.fullmatch(r"Compiling kernels for this machine: once, about \d+ s; .*\n", notice)
    assert str(tmp_path) in notice
    output, notice = _start(tmp_path).communicate()
    assert (output.split(), notice) == (["1", "0"], "")  # loaded, not compiled


def test_nothing_is_written_beside_the_sources(tmp_path: Path) -> None:
    """The package may be read-only."""
    pytest.importorskip("numba")
    _start(tmp_path).communicate()
    assert list(tmp_path.rglob("numba_fixed_point.quantize-*.nbi"))
    package = Path(cache.__file__).parent
    assert not list(package.rglob("*.nbi"))


def test_compiled_kernels_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = Path(cache.cache_directory())
    assert cache.compiled_kernels() == []
    (folder / "numba_decisions.roll_out-153.py311.nbi").write_bytes(b"")
    (folder / "numba_decisions.choose-347.py311.nbi").write_bytes(b"")  # a part
    assert cache.compiled_kernels() == ["roll_out"]


def test_names_of_kernels_exist() -> None:
    pytest.importorskip("numba")
    for name in cache.KERNELS:
        module, _, function = name.partition(".")
        assert hasattr(import_module(f"dips.kernels.{module}"), function)
