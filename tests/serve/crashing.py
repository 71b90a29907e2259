"""Kill a keeper many times, and compare its store with the fold after each kill.

Run it: `python -m tests.serve.crashing --help`. The killed process applies a log of events and
acknowledges them. The expected state is computed outside of it, from the log and the
acknowledgements alone.
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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dips.serve.keeper import Keeper, open_keeper
from dips.serve.maintenance import check
from dips.serve.stores.base import Store
from dips.serve.stores.commit_mark import CommitMark
from dips.serve.stores.registry import open_store
from tests.serve.fold import fold, state_of
from tests.serve.models import make_model

SIZE, PERIODS, BATCH, USERS = 3, (2, 1), 8, 12
COMMIT = 3
"""Events in a commit: the commits of a batch overlap with the next ones, except the last."""
POLICIES = ("frequent", "last")
POINTS = ("random", "before", "inside", "after", "statement", "mark", "closing")
"""At a random time; before, inside or after a commit; at any SQL statement from opening the store
on; before or after the mark is written; at any statement that closes the store."""
MOST_TURNS = {"statement": 60, "mark": 24, "closing": 8}
"""How many statements or writes there are to choose from; at the other points 12 commits."""


@dataclass
class Report:
    """Counts of a crash test."""

    kills: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    unacknowledged: int = 0
    """Kills after which the store held a commit that was not acknowledged."""
    lost: int = 0
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
        write = self._store.stage(change)

        def write_and_die() -> None:
            if now == "inside":  # all rows are written, but not committed
                self._store.connection.set_trace_callback(lambda sql: sql == "COMMIT" and die())
            write()
            if now == "after":
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


def run_and_kill(
    url: str, log: list[dict], start: int, point: str, rng: random.Random
) -> list[int]:
    """Start a process, kill it, and return the ends that it acknowledged."""
    source, out = os.pipe()
    turn = rng.randint(1, MOST_TURNS.get(point, 12)) if point != "random" else 0
    child = os.fork()
    if child == 0:
        try:
            apply_log(url, log, start, point, turn, out)
        finally:
            os._exit(0)
    os.close(out)
    with os.fdopen(source, "rb") as acks:
        first = acks.readline()
        if point == "random":
            time.sleep(rng.random() * 0.05)
            os.kill(child, signal.SIGKILL)
        rest = acks.read().split(b"\n")
    os.waitpid(child, 0)
    return [int(line) for line in [first.strip(), *rest] if line]


def crash(url: str, kills: int, seed: int) -> Report:
    """Kill processes that apply one log; after each kill compare the store with the fold."""
    rng, report, log = random.Random(seed), Report(), write_log(200 * kills, seed)
    durable = 0
    for turn in range(kills):
        point = POINTS[turn % len(POINTS)]
        acks = run_and_kill(url, log, durable, point, rng)
        durable = max([durable, *acks])
        report.kills[point] += 1
        if durable >= len(log):
            break
        ends = [*range(durable, steps(log, durable)[0][0], COMMIT), steps(log, durable)[0][0]]
        with open_keeper(trained(POLICIES[0]), url) as keeper:
            held = state_of(keeper, [f"user {n}" for n in range(USERS)])
            damaged = check(keeper._store)
        expected = [fold(log[:end], POLICIES[0], SIZE, PERIODS) for end in ends]
        if held in expected[1:] and held != expected[0]:
            report.unacknowledged += 1
        elif held != expected[0]:
            report.lost += 1
            report.faults.append(f"kill {turn} ({point}) at line {durable}")
        report.faults += damaged
    report.acknowledged = durable
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=350)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", default="sqlite:{folder}/store.db")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        url = given.store.format(folder=folder)
        report = crash(url, given.kills, given.seed)
    print(json.dumps({
        "kills": dict(report.kills), "acknowledged": report.acknowledged,
        "committed_unacknowledged": report.unacknowledged, "lost_or_twice": report.lost,
        "faults": report.faults, "seconds": round(time.monotonic() - began, 1),
    }))  # fmt: skip
    sys.exit(1 if report.lost or report.faults else 0)


if __name__ == "__main__":
    main()
