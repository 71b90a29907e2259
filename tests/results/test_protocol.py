"""The protocol script: it stops, resumes, and writes the origin of results."""

import csv
import json
import shutil

import gains
import protocol
import pytest

from dips.data.prepared import write
from dips.data.synthetic import stream

WHAT = [
    "--policies", "last,learned", "--sizes", "2,3", "--every", "1", "--folds", "2", "--trials", "2",
    "--tune-once", "--set", "epochs=2", "--set", "dim=6", "--set", "batch_size=256",
    "--set", "device=cpu", "--set", "learned:policy_lr=0.01",
]  # fmt: skip


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    place = tmp_path_factory.mktemp("protocol")
    data = place / "made.safetensors"
    write(stream(users=40, items=64, events=12), data)
    out = place / "out"
    stopped = protocol.main([str(data), str(out), *WHAT, "--max-seconds", "0"])
    assert stopped == 130
    assert not (out / "rows.csv").exists()
    assert protocol.main([str(data), str(out), *WHAT]) == 0
    return data, out


def test_all_files_are_written(results):
    data, out = results
    origin = json.loads((out / "origin.json").read_text())
    assert origin["data"] == "made"
    assert origin["command"].startswith(f"python3 results/protocol.py {data} {out} --policies")
    assert len(origin["commands"]) == 2
    assert origin["commands"][0]["command"].endswith("--max-seconds 0")
    assert origin["commit"]
    assert origin["environment"]["torch"]
    settings = origin["settings"]
    assert settings["learned"]["policy_lr"] == 0.01
    assert settings["last"]["policy_lr"] != 0.01
    alike = ("epochs", "patience", "dim")
    assert [settings["last"][name] for name in alike] == [2, 20, 6]
    assert [settings["learned"][name] for name in alike] == [2, 20, 6]
    assert len(table(out / "rows.csv")) == 8
    tried = [(row["policy"], row["size"]) for row in table(out / "trials.csv")]
    assert tried == [("last", "3")] * 2 + [("learned", "3")] * 2


def test_a_second_call_trains_nothing(results, capsys):
    data, out = results
    before = (out / "rows.csv").read_text()
    assert protocol.main([str(data), str(out), *WHAT]) == 0
    assert (out / "rows.csv").read_text() == before
    seen = capsys.readouterr()
    assert "training" not in seen.err
    assert "verdict: " in seen.out


def test_the_attribution_of_gains(results, tmp_path):
    _, out = results
    typed = [str(out), str(tmp_path), "--device", "cpu"]
    assert gains.main([*typed, "--max-seconds", "0"]) == 130
    assert gains.main(typed) == 0
    crossed = table(tmp_path / "crossed.csv")
    assert [(row["size"], row["recommender"], row["sketches"]) for row in crossed[:4]] == [
        ("2", "last", "last"), ("2", "last", "learned"),
        ("2", "learned", "last"), ("2", "learned", "learned"),
    ]  # fmt: skip
    own = [float(row["test_rmse"]) for row in table(out / "rows.csv") if row["policy"] == "last"]
    assert float(crossed[0]["rmse"]) == pytest.approx(sum(own[:2]) / 2, abs=1e-6)
    assert len(table(tmp_path / "effects.csv")) == 2 * 5
    rooms = table(tmp_path / "headroom.csv")
    assert len(rooms) == 2 * (2 + 1) * 2  # sizes, splits and their mean, recommenders
    means = [row for row in rooms if row["run"] == "mean"]
    for row in means:
        last, found, oracle = (float(row[name]) for name in ("last", "own", "oracle"))
        if row["share"]:
            assert float(row["share"]) == pytest.approx((last - found) / (last - oracle))


def test_without_runs_there_are_no_gains(tmp_path, capsys):
    assert gains.main([str(tmp_path), str(tmp_path / "out")]) == 2
    assert "no finished runs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_tables_of_finished_cells_train_nothing(results, tmp_path):
    data, out = results
    copied = tmp_path / "out"
    shutil.copytree(out / "runs", copied / "runs")
    untuned = [*WHAT, "--trials", "0", "--finished-only"]
    given = protocol.parser().parse_args([str(data), str(copied), *untuned])
    settings = protocol.chosen_settings(protocol.load(given.data), given.set, None, None)
    for run in (copied / "runs").iterdir():  # tuned rates are other settings
        path = run / "config.json"
        config = json.loads(path.read_text())
        own = settings(config["asked"]["policy"]).to_dict()
        for name in ("weight_decay", "learning_rate", "inner_lr"):
            config["asked"][name] = own[name]
        path.write_text(json.dumps(config))
    shutil.rmtree(copied / "runs" / "learned-k3-t1-f1-r0")
    assert protocol.main([str(data), str(copied), *untuned]) == 0
    cells = {(row["policy"], row["size"]) for row in table(copied / "rows.csv")}
    assert cells == {("last", "2"), ("last", "3"), ("learned", "2")}
    assert not (copied / "runs" / "learned-k3-t1-f1-r0").exists()
    pairs = {(row["a"], row["b"], row["size"]) for row in table(copied / "paired.csv")}
    assert any("learned" in pair for pair in pairs)
    assert all("learned" not in pair or pair[2] == "2" for pair in pairs)


def test_finished_tables_need_finished_runs_and_no_tuning(results, tmp_path, capsys):
    data, _ = results
    typed = [str(data), str(tmp_path / "out"), *WHAT, "--finished-only"]
    with pytest.raises(SystemExit):
        protocol.main(typed)
    assert "--trials 0" in capsys.readouterr().err
    assert protocol.main([*typed, "--trials", "0"]) == 2
    assert "all runs of no cell" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())
