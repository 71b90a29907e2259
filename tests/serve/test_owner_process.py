"""A keeper and a reader in a forked child: an error at once, and no lock that outlives the parent.

The scripts run in new interpreters: a test process must not fork with the threads of torch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dips.serve.keeper import open_keeper
from tests.serve.models import make_model

USE = """
import json, os, sys, threading
import dips
from dips.errors import DipsError
from tests.serve.models import make_model

model, url = make_model(), sys.argv[1]
with dips.open_keeper(model, url) as keeper, dips.open_reader(model, url) as reader:
    keeper.observe("u", "1", 3)
    reader.sketch("u")
    held, forked = threading.Event(), threading.Event()

    def hold_the_lock():  # as a batch that is being applied does
        with keeper._lock:
            held.set()
            forked.wait()

    thread = threading.Thread(target=hold_the_lock)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        for use in (
            lambda: keeper.observe("u", "2", 3),
            lambda: keeper.sketch("u"),
            lambda: keeper.recommend("u"),
            lambda: keeper.forget("u"),
            keeper.stats,
            lambda: reader.sketch("u"),
            lambda: reader.recommend("u"),
            lambda: dips.open_reader(model, url),
            lambda: dips.open_keeper(model, url),
        ):
            try:
                use()
                print("used", flush=True)
            except DipsError as error:
                print(error, flush=True)
        sys.exit(7)  # closes both; the store stays open in the parent
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for item in ("2", "3"):
        keeper.observe("u", item, 3)
    print(json.dumps(reader.sketch("u").items))
"""

IN_A_SOURCE = """
import os, sys, threading
import dips
from tests.serve.models import make_model

def source():
    yield {"user": "u", "item": "1", "rating": 3}
    yield {"user": "u", "item": "2", "rating": 3}  # then a commit is in flight
    global child
    child = os.fork()
    if child == 0:
        raise ValueError("in the child")

with dips.open_keeper(make_model(), sys.argv[1], batch=1) as keeper:
    write = keeper._store.stage

    def stage(change):  # the commit takes longer than the fork
        commit = write(change)
        return lambda: (forked.wait(), commit())

    forked = threading.Event()
    os.register_at_fork(after_in_parent=forked.set)
    keeper._store.stage = stage
    try:
        keeper.observe_many(source())
    except dips.DipsError as error:
        print(error, flush=True)
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    print(keeper.sketch("u").items)
"""

IDLE = """
import os, sys
import dips
from tests.serve.models import make_model

keeper = dips.open_keeper(make_model(), sys.argv[1])
keeper.observe("u", "1", 3)
if os.fork() == 0:
    print("idle", flush=True)
    os.read(0, 1)  # until the test ends
os._exit(0)  # the parent ends without closing its keeper
"""


@contextmanager
def started(script: str, url: str) -> Iterator[subprocess.Popen]:
    """Start a script in a process group of its own, and end all of the group with the block."""
    command, pipe = [sys.executable, "-c", script, url], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_use_in_a_forked_child_is_an_error_at_once(durable):
    with started(USE, durable) as process:
        *errors, items = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 0
    assert json.loads(items) == ["1", "2", "3"]
    keepers, readers, opened = errors[:5], errors[5:7], errors[7:]
    assert len(opened) == 2
    for what, lines in (("keeper", keepers), ("reader", readers)):
        sentence = f"this {what} belongs to process {process.pid}, which opened it before the fork"
        assert all(line.startswith(sentence) for line in lines), errors
    for line in opened:  # SQLite would return old records, or take the file for damaged
        assert line.startswith(f"{durable} was open when this process was forked"), errors
    assert all(line.endswith("start processes with 'spawn'") for line in errors)


def test_a_child_does_not_wait_for_a_commit_in_flight(durable):
    """Forked by the source of events, it ends with the error; the parent goes on."""
    with started(IN_A_SOURCE, durable) as process:
        printed = process.communicate(timeout=60)[0].splitlines()
    assert printed[0].startswith(f"this keeper belongs to process {process.pid}")
    assert printed[1:] == ["['1', '2']"]
    assert process.returncode == 0


def test_an_idle_child_does_not_hold_the_lock_of_the_store(durable):
    with started(IDLE, durable) as process:
        assert process.stdout.readline() == "idle\n"
        process.wait(timeout=60)  # the parent; the child lives on
        with open_keeper(make_model(), durable) as keeper:
            assert keeper.sketch("u").items == ["1"]
        assert os.write(process.stdin.fileno(), b"x") == 1  # the child is still there to read it
