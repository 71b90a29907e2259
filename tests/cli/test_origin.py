import json

from dips.cli.origin import command, environment, installed, record_command, write_origin


def test_the_command_is_as_it_was_typed(tmp_path):
    record_command(["compare", "my data.csv", "--out", "o"])
    assert command() == "dips compare 'my data.csv' --out o"
    write_origin(tmp_path)
    origin = json.loads((tmp_path / "origin.json").read_text())
    assert origin == {"command": command(), "environment": environment()}


def test_versions():
    assert environment()["numpy"] == installed("numpy")
    assert installed("no-such-package") is None
