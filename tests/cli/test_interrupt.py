import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

FILES = {
    "origin.json",
    "config.json", "metrics.json", "model.safetensors", "log.jsonl", "split.csv", "curve.png",
    "test_users.csv",
}  # fmt: skip
EPOCHS = 20
SETTINGS = (
    "--epochs",
    EPOCHS,
    "--patience",
    EPOCHS,
    "--dim",
    6,
    "--batch-size",
    64,
    "--device",
    "cpu",
)
TRAIN = ("--policy", "reservoir", "--size", 3, *SETTINGS)
LEARNING = {
    "learned": ("--policy", "learned", "--size", 3, *SETTINGS, "--epochs", 6),
    "dips": ("--policy", "dips", "--user-batch", 8, "--size", 3, *SETTINGS, "--epochs", 4),
}
"""Full histories; and the paper's recipe: one update per step, in user batches."""
MAIN = "from dips.cli.main import main; main()"
EAGER = "from dips.training import trainer; trainer.SAVE_SECONDS = 0.0"
KILLED = """
import os, signal
from dips.training import checkpoint
save, left = checkpoint.save, [{saves}]
def save_and_die(*arguments):
    save(*arguments)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint.save = save_and_die
"""
"""A process that kills itself after so many checkpoints: no race with the end of a short run."""


@pytest.fixture
def started():
    """Start a command in a child process, which is killed at the end of the test."""
    processes = []

    def start(*arguments, before=""):
        process = subprocess.Popen(
            [sys.executable, "-c", f"{EAGER}\n{before}\n{MAIN}", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def wait_for(path, process):
    """Wait until a file exists; fail if the process ends or hangs."""
    for _ in range(6000):
        if path.exists():
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    pytest.fail(f"{path} was not written")


@pytest.fixture(scope="module")
def uninterrupted(trained):
    """Return a run with these settings that was not interrupted."""
    return trained("explicit", *map(str, TRAIN))


def assert_resumes_exactly(command, worlds, out, uninterrupted, settings=TRAIN):
    arguments = ("train", worlds["explicit"], "--out", out, *settings)
    refused = command(*arguments)
    assert refused.code == 2
    assert refused.err == (
        f"dips: {out} holds an interrupted run: continue it with --resume, or remove it\n"
    )
    assert command(*arguments, "--resume").code == 0
    for name in ("model.safetensors", "split.csv", "test_users.csv", "log.jsonl"):
        assert (out / name).read_bytes() == (uninterrupted / name).read_bytes(), name
    assert {path.name for path in out.iterdir()} == FILES
    ends = [json.loads((place / "metrics.json").read_text()) for place in (out, uninterrupted)]
    for name in ("valid", "test", "epochs"):
        assert ends[0][name] == ends[1][name]


def test_control_c_exits_with_130_and_resumes(started, command, worlds, tmp_path, uninterrupted):
    out = tmp_path / "run"
    process = started("train", worlds["explicit"], "--out", out, *TRAIN)
    wait_for(out / "checkpoint.safetensors", process)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout == ""
    last = stderr.splitlines()[-1]
    assert last == "dips: interrupted; continue with the same command and --resume"
    assert "Traceback" not in stderr
    assert not (out / "metrics.json").exists()
    assert_resumes_exactly(command, worlds, out, uninterrupted)


@pytest.mark.parametrize("chance", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_run_killed_at_any_time_resumes(
    chance, started, command, worlds, tmp_path, uninterrupted
):
    out = tmp_path / "run"
    process = started("train", worlds["explicit"], "--out", out, *TRAIN)
    wait_for(out / "checkpoint.safetensors", process)
    time.sleep(random.Random(chance).uniform(0, 0.2))
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert_resumes_exactly(command, worlds, out, uninterrupted)


@pytest.mark.parametrize("name", LEARNING)
def test_a_learned_policy_killed_several_times_resumes(
    name, started, command, worlds, trained, tmp_path
):
    """Also within epochs of several user batches: recommender and policy are equal bit by bit."""
    out = tmp_path / "run"
    for saves, resume in ((1, ()), (2, ("--resume",))):
        arguments = ("train", worlds["explicit"], "--out", out, *LEARNING[name], *resume)
        process = started(*arguments, before=KILLED.format(saves=saves))
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL, stderr
    uninterrupted = trained("explicit", *map(str, LEARNING[name]))
    assert_resumes_exactly(command, worlds, out, uninterrupted, LEARNING[name])


def test_a_run_killed_before_the_first_epoch_starts_again(command, worlds, tmp_path, uninterrupted):
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.json").write_text("{}")
    arguments = ("train", worlds["explicit"], "--out", out, *TRAIN)
    assert command(*arguments).code == 0
    wanted = (uninterrupted / "model.safetensors").read_bytes()
    assert (out / "model.safetensors").read_bytes() == wanted


def test_an_interrupted_comparison_resumes(started, command, worlds, tmp_path):
    out = tmp_path / "results"
    what = ("--policies", "last,reservoir", "--sizes", "2,3", "--folds", "1", *SETTINGS)
    arguments = ("compare", worlds["explicit"], "--out", out, *what)
    process = started(*arguments)
    wait_for(out / "runs" / "last-k2-t1-f0-r0" / "metrics.json", process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "dips: interrupted; continue with the same command"
    assert "Traceback" not in stderr
    early = out / "runs" / "last-k2-t1-f0-r0" / "model.safetensors"
    before = early.stat().st_ino
    assert command(*arguments).code == 0
    assert early.stat().st_ino == before
    rows = (out / "rows.csv").read_text().splitlines()
    assert len(rows) == 1 + 4


def test_an_interrupt_during_the_imports_exits_with_130():
    code = (
        "import builtins, sys\n"
        "real = builtins.__import__\n"
        "def stop(name, *rest, **more):\n"
        "    if name == 'dips.cli.main':\n"
        "        raise KeyboardInterrupt\n"
        "    return real(name, *rest, **more)\n"
        "builtins.__import__ = stop\n"
        "from dips.cli import entry\n"
        "entry()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
