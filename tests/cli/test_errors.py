import os
import subprocess
import sys

import pytest

import dips

FAST = ("--epochs", 1, "--dim", 6, "--batch-size", 256, "--device", "cpu")


def assert_one_sentence(found, reason):
    assert found.code == 2
    assert reason in found.err
    assert found.err.startswith("dips: ")
    assert len(found.err.splitlines()) == 1
    assert found.out == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--policy", "newest"], "unknown policy 'newest': choose one of all, dips"),
        (["--policy", "last:3"], "policy 'last' takes no argument, but got '3'"),
        (["--policy", "mix:9", "--size", 4], "mix:9 leaves no slot to sample at size 4"),
        (["--policy", "nowhere.at.all:Policy"], "policy 'nowhere.at.all:Policy' cannot be made"),
        (["--policy", "os.path:join"], "cannot be made"),
        (["--size", 0], "size is 0: it must be at least 1"),
        (["--every", 0], "every is 0: it must be at least 1"),
        (["--periods", "3,x"], "--periods '3,x': give whole numbers"),
        (["--periods", "3,0"], "periods"),
        (["--epochs", 0], "epochs is 0: it must be at least 1"),
        (["--loss", "softmax"], "loss 'softmax' does not fit the task: use mse, bce or cce"),
        (["--loss", "hinge"], "loss is 'hinge': choose one of mse, bce, cce, softmax"),
        (["--task", "implicit", "--loss", "bce"], "loss 'bce' does not fit the task: use softmax"),
        (["--split", "items"], "split is 'items': choose one of users, time"),
        (["--recommender", "tree"], "recommender is 'tree': choose one of dot, mlp"),
        (["--recipe", "paella"], "unknown recipe 'paella': choose one of"),
        (["--device", "tpu"], "device 'tpu': choose one of cpu, cuda"),
        (["--learning-rate", "nan"], "learning_rate is nan"),
        (["--max-users", 2], "a split by users needs at least 3"),
        (["--valid-data", "x.csv"], "--valid-data and --test-data go together"),
        (["--fold", 5], "fold is 5: it must be at most 4"),
        (["--repeat", -1], "repeat is -1: it must be at least 0"),
        (["--fold", 1, "--split", "time"], "a split by time has no folds; leave --fold out"),
        (["--fold", 1, "--valid-data", "x", "--test-data", "x"], "--fold is for splits by dips"),
        (["--config", "missing.toml"], "missing.toml: there is no such configuration file"),
        (["--inner-lr", "1e6", "--policy", "last"], "lower inner_lr first, then learning_rate"),
    ],
)
def test_bad_settings_leave_nothing_behind(arguments, reason, command, worlds, tmp_path):
    out = tmp_path / "run"
    found = command("train", worlds["explicit"], "--out", out, *FAST, *arguments)
    if "--inner-lr" in arguments:  # detected in training only
        assert found.code == 2
        assert reason in found.err.splitlines()[-1]
        assert [path.name for path in out.iterdir()] == ["config.json"]
        return
    assert_one_sentence(found, reason)
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "sise = 3",
            "unknown setting 'sise': did you mean 'size'? known are baselines, batch_size",
        ),
        ("size = 0", "size is 0: it must be at least 1"),
        ('size = "four"', "size is 'four': it must be a whole number"),
        ("size = 4.5", "size is 4.5: it must be a whole number"),
        ("size = ", "settings.toml: not a TOML file"),
        ("[train]\nsize = 3", "unknown setting 'train'"),
        ("periods = 3", "periods is 3"),
        ('policy = "newest"', "unknown policy 'newest'"),
        ("selection = true", "selection is True"),
    ],
)
def test_bad_config_files_are_refused(text, reason, command, worlds, tmp_path):
    (tmp_path / "settings.toml").write_text(text)
    out, config = tmp_path / "run", ("--config", tmp_path / "settings.toml")
    assert_one_sentence(command("train", worlds["explicit"], "--out", out, *config), reason)
    assert not out.exists()


def test_a_config_that_is_a_directory_is_refused(command, worlds, tmp_path):
    found = command("train", worlds["explicit"], "--out", tmp_path / "run", "--config", tmp_path)
    assert_one_sentence(found, "there is no such configuration file")


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "nowhere.csv", "--out", "run"],
        ["evaluate", "RUN", "nowhere.csv"],
        ["compare", "nowhere.csv", "--policies", "last", "--out", "results"],
        ["sketch", "RUN", "nowhere.csv", "--out", "x.csv"],
        ["data", "describe", "nowhere.csv"],
    ],
)
def test_missing_data(arguments, command, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    filled = [trained() if argument == "RUN" else argument for argument in arguments]
    assert_one_sentence(command(*filled), "nowhere.csv: neither a file or directory nor a known")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rest", [["evaluate"], ["sketch", "DATA", "--out", "x.csv"]])
def test_a_directory_without_a_run_is_refused(rest, command, worlds, tmp_path):
    name, *others = rest
    others = [worlds["explicit"] if argument == "DATA" else argument for argument in others]
    missing = command(name, tmp_path / "nowhere", *others)
    assert_one_sentence(missing, "there is no such run directory; make one with 'dips train'")
    (tmp_path / "empty").mkdir()
    empty = command(name, tmp_path / "empty", *others)
    assert_one_sentence(empty, "is not a finished run: there is no model.safetensors in it")
    (tmp_path / "empty" / "model.safetensors").write_bytes(b"nonsense")
    damaged = command(name, tmp_path / "empty", *others)
    assert_one_sentence(damaged, "is damaged or was not written by dips")


def test_a_finished_run_is_not_overwritten(command, worlds, trained):
    run = trained()
    before = (run / "metrics.json").read_bytes()
    for more in ([], ["--resume"]):
        found = command("train", worlds["explicit"], "--out", run, *FAST, *more)
        assert_one_sentence(found, f"{run} is a finished run: choose another --out, or remove it")
    assert (run / "metrics.json").read_bytes() == before


def test_an_interrupted_run_is_not_overwritten(command, worlds, tmp_path):
    (tmp_path / "checkpoint.safetensors").write_bytes(b"precious")
    found = command("train", worlds["explicit"], "--out", tmp_path, *FAST)
    assert_one_sentence(found, "holds an interrupted run: continue it with --resume, or remove it")
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == b"precious"


def test_an_out_that_is_a_file_is_refused(command, worlds, tmp_path):
    (tmp_path / "file").write_text("mine")
    found = command("train", worlds["explicit"], "--out", tmp_path / "file", *FAST)
    assert_one_sentence(found, "cannot be written")
    found = command("compare", worlds["explicit"], "--policies", "last", "--out", tmp_path / "file")
    assert_one_sentence(found, "cannot be written")
    assert (tmp_path / "file").read_text() == "mine"


def test_implicit_data_has_no_explicit_task(command, worlds, tmp_path):
    out = tmp_path / "run"
    found = command("train", worlds["implicit"], "--out", out, "--task", "explicit", *FAST)
    assert_one_sentence(found, "the explicit task needs ratings")
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train"], "data"),
        (["train", "planted"], "--out"),
        (["train", "planted", "--out", "run", "--sise", "3"], "--sise"),
        (["train", "planted", "--out", "run", "--size", "many"], "--size"),
        (["compare", "planted", "--out", "results"], "--policies"),
        (["fly"], "fly"),
    ],
)
def test_bad_usage(arguments, named, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = command(*arguments)
    assert found.code == 2
    assert named in found.err
    assert "Traceback" not in found.err
    assert found.out == ""
    assert not list(tmp_path.iterdir())


def test_help_and_version(command):
    version = command("--version")
    assert (version.code, version.out) == (0, f"dips {dips.__version__}\n")
    text = command("--help").out
    for name in ("data", "train", "evaluate", "compare", "sketch", "demo", "doctor"):
        assert name in text


def test_the_installed_command_exits_with_the_code():
    dips_command = os.path.join(os.path.dirname(sys.executable), "dips")
    done = subprocess.run(
        [dips_command, "evaluate", "/nowhere"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("dips: /nowhere: there is no such run directory")
    assert done.stdout == ""
