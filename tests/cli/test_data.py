import json

import pytest
from typer.testing import CliRunner

from dips.cli.data import app
from dips.data.prepared import open_prepared
from dips.errors import ConfigError, DataError

CSV = "who,what,score,when\n" + "".join(
    f"{user},{item},{1 + (user + item) % 5},{item}\n" for user in range(4) for item in range(5)
)


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("DIPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DIPS_DATA", raising=False)


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def run_json(*arguments):
    return json.loads(run(*arguments, "--json").splitlines()[-1])


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text(CSV)
    return path


COLUMNS = ("--user-col", "who", "--item-col", "what", "--rating-col", "score", "--time-col", "when")


def test_list():
    rows = run_json("list")["datasets"]
    assert {"ml-1m", "netflix", "synthetic", "planted"} <= {row["name"] for row in rows}
    assert "MovieLens 1M" in run("list")


def test_prepare_and_describe(table, tmp_path):
    out = tmp_path / "toy.safetensors"
    made = run_json("prepare", table, "--out", out, *COLUMNS)
    assert made == {"out": str(out), "users": 4, "items": 5, "interactions": 20,
                    "explicit": True, "steps": []}  # fmt: skip
    facts = run_json("describe", out)
    assert facts["ratings"] == {"1": 4, "2": 4, "3": 4, "4": 4, "5": 4}
    text = run("describe", out)
    assert "20" in text
    assert "Gini" in text


def test_prepare_filters(table, tmp_path):
    out = tmp_path / "toy.safetensors"
    made = run_json("prepare", table, "--out", out, *COLUMNS, "--min-rating", 2, "--core", 2)
    assert made["steps"] == ["rating > 2", "2-core"]
    assert made["interactions"] == 12
    assert open_prepared(out).rating is None


def test_a_core_that_removes_everything_leaves_no_file(table, tmp_path):
    with pytest.raises(
        DataError, match="toy: '9-core' removes every interaction; use a weaker filter"
    ):
        run("prepare", table, "--out", tmp_path / "x.safetensors", *COLUMNS, "--core", 9)
    assert not (tmp_path / "x.safetensors").exists()


def test_a_missing_column_is_named(table, tmp_path):
    with pytest.raises(DataError, match=r"toy\.csv, line 1: there is no column .* --user-col"):
        run("prepare", table, "--out", tmp_path / "x.safetensors")


def test_out_needs_the_right_suffix(table, tmp_path):
    with pytest.raises(ConfigError, match=r"a prepared dataset is called \*\.safetensors"):
        run("prepare", table, "--out", tmp_path / "x.csv", *COLUMNS)


def test_fetch_from_a_file(tmp_path):
    (tmp_path / "u.data").write_text("1\t1\t5\t1\n2\t1\t4\t1\n")
    assert "2 users, 1 items, 2 ratings" in run("fetch", "ml-100k", "--from", tmp_path / "u.data")
    assert run_json("describe", "ml-100k")["interactions"] == 2
    here = {row["name"]: row["here"] for row in run_json("list")["datasets"]}
    assert here["ml-100k"]
    assert not here["ml-1m"]
