"""Kill a keeper many times, and compare its store with the fold after each kill.

Run it: `python -m tests.serve.crashing --help`. The killed process applies a log of events and
acknowledges them. The expected state is computed outside of it, from the log and the
acknowledgements alone. A third process reads the store beside all writers, from the first kill to
the last: what it reads holds every event that was acknowledged before.

Writers and the reader are new interpreters, not forks: they share nothing with the test but pipes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from subprocess import PIPE, Popen
from tempfile import NamedTemporaryFile
from threading import Timer
from typing import Any

from dips.serve.keeper import Keeper, open_keeper
from dips.serve.maintenance import check
from dips.serve.reader import open_reader
from dips.serve.stores.base import Store
from dips.serve.stores.commit_mark import CommitMark
from dips.serve.stores.registry import open_store
from tests.serve.fold import Fold, History, state_of
from tests.serve.models import make_model

SIZE, PERIODS, BATCH, USERS = 3, (2, 1), 8, 12
COMMIT = 3
"""Events in a commit: the commits of a batch overlap with the next ones, except the last."""
POLICIES = ("frequent", "last")
POINTS = (
    "random", "statement", "before", "statement", "inside", "statement", "after", "statement",
    "mark", "closing",
)  # fmt: skip
"""At a random time; before, inside or after a commit; at the n-th SQL statement from opening the
store on, for n = 1, 2, 3 and so on; before or after the high-water mark is written; at any
statement that closes the store."""
MOST_TURNS = {"mark": 24, "closing": 8}
"""How many statements or writes there are to choose from; at the other points 12 commits."""
NAMES = [f"user {n}" for n in range(USERS)]
STARTED_AHEAD = 3
"""Processes that are started before they are needed: most of their time goes into imports."""
MOST_READS = 30
"""Most reads beside one writer."""


@dataclass
class Report:
    """Counts of a crash test."""

    kills: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    unacknowledged: int = 0
    """Kills after which the store held a commit that was not acknowledged."""
    lost: int = 0
    reads: int = 0
    """Reads of all users in the reader's process."""
    faults: list[str] = field(default_factory=list)


class KillingStore:
    """Store that kills its process before, inside or after its n-th commit."""

    def __init__(self, store: Store, point: str, turn: int) -> None:
        self._store, self._point, self._turn = store, point, turn

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def commit(self, change: object) -> None:
        self.stage(change)()

    def stage(self, change: object) -> Callable[[], None]:
        self._turn -= 1
        now = self._point if self._turn == 0 else ""
        if now == "before":
            die()
        if self._point == "unwritten" and self._turn > 0:  # a keeper that is wrong: see the tests
            return lambda: None
        write = self._store.stage(change)

        def write_and_die() -> None:
            if now == "inside":  # all rows are written, but not committed
                self._store.connection.set_trace_callback(lambda sql: sql == "COMMIT" and die())
            write()
            if now in ("after", "unwritten"):
                die()

        return write_and_die


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(turn: int) -> Callable[..., None]:
    """Return a function that kills this process when it is called for the n-th time."""
    left = itertools.count(turn - 1, -1)
    return lambda *_: None if next(left) else die()


def die_at_statement(turn: int) -> None:
    """Kill this process at its n-th SQL statement from now on, that of opening a store included."""
    connect, kill = sqlite3.connect, die_at(turn)

    def connect_and_trace(*given: Any, **more: Any) -> sqlite3.Connection:
        connection = connect(*given, **more)
        connection.set_trace_callback(kill)
        return connection

    sqlite3.connect = connect_and_trace  # of this process, which is about to be killed


def die_around(owner: type, name: str, kill: Callable[..., None]) -> None:
    """Call `kill` before and after every call of a method."""
    method = getattr(owner, name)

    def called(*given: Any) -> None:
        kill()
        method(*given)
        kill()

    setattr(owner, name, called)


def write_log(length: int, seed: int) -> list[dict]:
    """Return events with ids or sequence numbers, duplicates, late events, erasures and swaps."""
    rng, log, seq = random.Random(seed), [], Counter()
    for place in range(length):
        user, chance = f"user {rng.randrange(USERS)}", rng.random()
        event = {"user": user, "item": str(rng.randrange(12)), "rating": 3.0, "time": place}
        if chance < 0.01:
            log.append({"forget": user})
        elif chance < 0.02:
            log.append({"swap": rng.choice(POLICIES)})
        elif chance < 0.2 and log:
            log.append(rng.choice(log[-20:]))  # a duplicate or a late event
        elif user in ("user 0", "user 1"):
            log.append({**event, "id": f"event {place}"})
        else:
            seq[user] += rng.randint(1, 3)
            log.append({**event, "seq": seq[user]})
    return log


def steps(log: list[dict], start: int) -> list[tuple[int, list[dict]]]:
    """Return (end, entries) of every step from `start` on: a batch, or one other entry."""
    found, place = [], start
    while place < len(log):
        end = place + 1
        while "user" in log[place] and end < min(place + BATCH, len(log)) and "user" in log[end]:
            end += 1
        found.append((end, log[place:end]))
        place = end
    return found


def apply_log(url: str, log: list[dict], start: int, point: str, turn: int, out: int) -> None:
    """Apply the log from `start` on, and write the end of each durable step to `out`."""
    if point == "statement":
        die_at_statement(turn)
    elif point == "mark":
        die_around(CommitMark, "write", die_at(turn))
    policy = [POLICIES[0], *(entry["swap"] for entry in log[:start] if "swap" in entry)][-1]
    keeper = Keeper(trained(policy), KillingStore(open_store(url), point, turn), batch=COMMIT)
    os.write(out, b"0\n")
    todo = steps(log, start)
    for end, entries in todo[: turn % 3] if point == "closing" else todo:
        if "forget" in entries[0]:
            keeper.forget(entries[0]["forget"])
        elif "swap" in entries[0]:
            keeper.swap(trained(entries[0]["swap"]))
        else:
            keeper.observe_many(entries)
        os.write(out, b"%d\n" % end)
    if point == "closing":  # five statements, and the removal of the mark
        kill = die_at(turn)
        keeper._store.connection.set_trace_callback(kill)
        die_around(CommitMark, "remove", kill)
    keeper.close()


def trained(policy: str):
    return make_model(policy, SIZE, PERIODS)


class Children:
    """Processes that import this module and wait for their task, started some time ahead."""

    def __init__(self) -> None:
        self._waiting: deque[Popen] = deque()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._waiting:
            child.kill()
            child.communicate()

    def take(self, task: dict) -> Popen:
        """Return a process that has begun with a task."""
        while len(self._waiting) < STARTED_AHEAD:
            command = [sys.executable, "-m", "tests.serve.crashing", "--child"]
            self._waiting.append(Popen(command, stdin=PIPE, stdout=PIPE))
        child = self._waiting.popleft()
        send(child, json.dumps(task))
        return child


def send(child: Popen, line: str) -> None:
    child.stdin.write(line.encode() + b"\n")
    child.stdin.flush()


def run_task() -> None:
    """Do the task on standard input, in a process of `Children`."""
    task = json.loads(sys.stdin.readline())
    if "read" in task:
        answer_reads(task["read"])
    else:
        with open(task.pop("log")) as file:
            apply_log(log=json.load(file), out=sys.stdout.fileno(), **task)


def answer_reads(url: str) -> None:
    """Write the state of all users for every line of standard input."""
    with open_reader(trained(POLICIES[0]), url) as reader:
        for _ in sys.stdin:
            print(json.dumps(plain(state_of(reader, NAMES))), flush=True)


def plain(users: dict[str, History]) -> dict:
    """Return the state of users as it comes back from JSON."""
    return {name: asdict(history) for name, history in users.items()}


def ask(reader: Popen) -> dict:
    send(reader, "")
    return json.loads(reader.stdout.readline())


def watch_and_kill(
    writer: Popen, reader: Popen | None, seconds: float | None
) -> tuple[list[int], list[tuple[int, dict]]]:
    """Read what a writer acknowledges until it is dead, and let a reader read after each line.

    Args:
        writer: The process that applies the log.
        reader: A process that reads the same store; None where there is no store yet.
        seconds: When to kill the writer, from its first line on; None where it kills itself.

    Returns:
        The acknowledged ends; and (end, state) for each read: the last end that was acknowledged
        before it, and what was read.
    """
    acks, reads = [], []
    for line in writer.stdout:
        if not acks and seconds is not None:
            Timer(seconds, writer.kill).start()
        acks.append(int(line))
        if reader is not None and len(reads) < MOST_READS:
            reads.append((max(acks), ask(reader)))
    writer.communicate()
    return acks, reads


def states_after(state: Fold, log: list[dict], start: int, end: int) -> dict[int, dict]:
    """Return the state of users after each commit between two places of the log, by place."""
    state, found = deepcopy(state), {start: plain(state.users)}
    for step_end, entries in steps(log, start):
        if step_end - len(entries) > end:
            break
        for place, entry in enumerate(entries, start=step_end - len(entries) + 1):
            state.apply(entry)
            if place == step_end or (place - step_end + len(entries)) % COMMIT == 0:
                found[place] = plain(state.users)
    return found


def crash(url: str, kills: int, seed: int, points: Sequence[str] = POINTS) -> Report:
    """Kill processes that apply one log; after each kill compare the store with the fold."""
    rng, report, log = random.Random(seed), Report(), write_log(200 * kills, seed)
    durable, statement, state = 0, 0, Fold(POLICIES[0], SIZE, PERIODS)
    with NamedTemporaryFile("w", suffix=".json") as file, Children() as children:
        json.dump(log, file)
        file.flush()
        reader = None
        for kill in range(kills):
            point = points[kill % len(points)]
            statement += point == "statement"
            most = MOST_TURNS.get(point, 12)
            turn = statement if point == "statement" else rng.randint(1, most)
            task = {"url": url, "log": file.name, "start": durable, "point": point, "turn": turn}
            seconds = rng.random() * 0.05 if point == "random" else None
            acks, reads = watch_and_kill(children.take(task), reader, seconds)
            start, durable = durable, max([durable, *acks])
            report.kills[point] += 1
            if durable >= len(log):
                break
            expected = states_after(state, log, start, durable)
            with open_keeper(trained(POLICIES[0]), url) as keeper:
                held = plain(state_of(keeper, NAMES))
                report.faults += check(keeper._store)
            if reader is None:
                reader = children.take({"read": url})
            where = f"kill {kill} ({point}) at line {durable}"
            if held != expected[durable]:
                if held in [found for end, found in expected.items() if end > durable]:
                    report.unacknowledged += 1
                else:
                    report.lost += 1
                    report.faults.append(f"{where}: an acknowledged event is lost")
            for end, found in [*reads, (durable, ask(reader))]:
                report.reads += 1
                if found not in [seen for place, seen in expected.items() if place >= end]:
                    report.faults.append(f"{where}: a reader missed what was acknowledged at {end}")
            for entry in log[start:durable]:
                state.apply(entry)
        reader.communicate()
    report.acknowledged = durable
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=350)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", default="sqlite:{folder}/store.db")
    parser.add_argument("--child", action="store_true", help="wait for a task, and do it")
    given = parser.parse_args()
    if given.child:
        run_task()
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        url = given.store.format(folder=folder)
        report = crash(url, given.kills, given.seed)
    print(json.dumps({
        "kills": dict(report.kills), "acknowledged": report.acknowledged,
        "committed_unacknowledged": report.unacknowledged, "lost_or_twice": report.lost,
        "reads": report.reads, "faults": report.faults,
        "seconds": round(time.monotonic() - began, 1),
    }))  # fmt: skip
    sys.exit(1 if report.lost or report.faults else 0)


if __name__ == "__main__":
    main()
