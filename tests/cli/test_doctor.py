import importlib.metadata

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
    assert facts["cache"] == str(tmp_path / "cache")
    assert facts["DIPS_DATA"] == "not set"
    assert facts["data here"] == []


def test_a_table_is_printed(command):
    found = command("doctor")
    assert found.code == 0
    assert "dips doctor" in found.out
    assert "torch" in found.out
    assert "available data" in found.out


def test_local_data_is_listed(command, tmp_path, monkeypatch):
    monkeypatch.setenv("DIPS_DATA", str(tmp_path))
    (tmp_path / "ml-1m.parquet").write_bytes(b"")
    assert command("doctor", "--json").json["data here"] == ["ml-1m"]


def test_missing_packages_come_with_a_command(command, monkeypatch):
    monkeypatch.setattr(module, "NEEDED", (*module.NEEDED, "no-such-thing"))
    found = command("doctor", "--json")
    assert found.code == 2
    assert found.json["missing"] == ["no-such-thing (pip install no-such-thing)"]
