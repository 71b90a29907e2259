import importlib.metadata
import os

import pytest

import dips
from dips.cli import doctor as module


def test_doctor_as_json(command, tmp_path):
    found = command("doctor", "--json")
    assert found.code == 0
    facts = found.json
    assert facts["dips"] == dips.__version__
    assert facts["missing"] == []
    for name in ("torch", "numpy", "numba", "safetensors", "polars", "typer", "rich", "matplotlib"):
        assert facts[name] == importlib.metadata.version(name)
    assert facts["data directories"] == [str(tmp_path / "cache")]
    assert facts["available data"] == []
    assert facts["cores of this process"] >= 1
    assert facts["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "not set")


def test_a_table_is_printed(command):
    found = command("doctor")
    assert found.code == 0
    assert "dips doctor" in found.out
    assert "torch" in found.out
    assert "available data" in found.out


def test_local_data_is_listed(command, tmp_path, monkeypatch):
    monkeypatch.setenv("DIPS_DATA", str(tmp_path))
    (tmp_path / "ml-1m.parquet").write_bytes(b"")
    facts = command("doctor", "--json").json
    assert facts["available data"] == ["ml-1m"]
    assert facts["data directories"] == [str(tmp_path / "cache"), str(tmp_path)]


def test_missing_packages_come_with_a_command(command, monkeypatch):
    monkeypatch.setattr(module, "NEEDED", (*module.NEEDED, "no-such-thing"))
    found = command("doctor", "--json")
    assert found.code == 2
    assert found.json["missing"] == ["no-such-thing (pip install no-such-thing)"]


@pytest.fixture
def kernel_directory(tmp_path, monkeypatch):
    """A new directory of compiled kernels; the one of this process is forgotten for a test."""
    from dips.kernels import cache

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    cache.cache_directory.cache_clear()
    yield tmp_path / "kernels"
    cache.cache_directory.cache_clear()


def test_compiled_kernels_are_listed(command, kernel_directory):
    facts = command("doctor", "--json").json
    assert facts["kernel directory"].startswith(str(kernel_directory))
    assert facts["compiled kernels"] == []
    (kernel_directory / next(kernel_directory.iterdir()).name / "sources").mkdir()
    folder = next(kernel_directory.iterdir()) / "sources"
    (folder / "numba_decisions.roll_out-150.py311.nbi").write_bytes(b"")
    (folder / "numba_decisions.refresh-220.py311.nbi").write_bytes(b"")
    assert command("doctor", "--json").json["compiled kernels"] == ["roll_out"]


def test_a_directory_that_is_not_writable_comes_with_a_fix(command, kernel_directory):
    kernel_directory.write_text("a file cannot hold a directory")
    facts = command("doctor", "--json").json
    assert facts["kernel directory"] == "none is writable: set DIPS_CACHE"
    assert facts["compiled kernels"] == []


def test_gpus_are_listed_with_their_memory(command, monkeypatch):
    import torch

    class Properties:
        name, total_memory = "Fast GPU", 16 * 2**30

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    assert command("doctor", "--json").json["GPU"] == ["Fast GPU (16 GiB)"]
