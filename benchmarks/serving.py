"""The keeper's load figures, as ratios measured in one run: `python -m benchmarks.serving`.

Users meet items by a Zipf law. For each number of users a store is filled with full sketches, then
the same events go through keepers of several policies, and raw into SQLite before and after each.
What a policy does alone, without store and names, is measured in memory. Exits with 1 when a target
is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.measure import kilobytes, table
from dips.bundle import Bundle
from dips.data.interactions import Strings
from dips.policy.registry import PolicySpec, build_policy
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.serve.engine import Engine
from dips.serve.events import Event
from dips.serve.keeper import Keeper
from dips.serve.records import Rows, decode, encode
from dips.serve.sqlite import SqliteStore
from dips.serve.states import States
from dips.serve.store import Table
from dips.sketch.records import Sketch

SIZE, ITEMS, DIM, BATCH = 8, 10_000, 32, 1000
ROWS = (1_000, 10_000)
"""Users in a call of a policy alone; the better of both counts."""
POLICIES = ("last", "reservoir", "learned")
TARGETS = {
    "learned, durable / raw puts": 0.70,
    "learned alone, updates/s": 100_000,
    "last alone, updates/s": 1_000_000,
    "reservoir alone, updates/s": 1_000_000,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", default="10000,100000,1000000")
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--zipf", type=float, default=0.8)
    given = parser.parse_args()
    counts = [int(float(text)) for text in given.users.split(",")]
    alone = {policy: max(policy_alone(policy, rows) for rows in ROWS) for policy in POLICIES}
    sizes = [measure(users, given.events, given.zipf) for users in counts]
    head = ["", *(f"{count:,} users" for count in counts)]
    names = [name for name in sizes[0] if name != "users"]
    rows = [[name, *(f"{size[name]:,.3g}" for size in sizes)] for name in names]
    print(table(head, rows))
    print(table(["updates/s, policy alone", "cpu"], [[p, f"{r:,.0f}"] for p, r in alone.items()]))
    found = {
        "learned, durable / raw puts": sizes[-1]["learned, durable / raw puts"],
        **{f"{policy} alone, updates/s": rate for policy, rate in alone.items()},
    }
    missed = [name for name, target in TARGETS.items() if found[name] < target]
    for name, target in TARGETS.items():
        verdict = "missed" if name in missed else "met"
        print(f"{name}: {found[name]:,.3g} (target {target:,.3g}: {verdict})")
    print(json.dumps({"sizes": sizes, "alone": alone, "missed": missed}))
    sys.exit(1 if missed else 0)


def measure(users: int, count: int, zipf: float) -> dict[str, Any]:
    """Everything for one number of users."""
    rng = np.random.default_rng(0)
    chance = np.arange(1, users + 1) ** -zipf
    who = rng.choice(users, size=count, p=chance / chance.sum()).tolist()
    item = rng.integers(0, ITEMS, count).tolist()
    events = [
        Event(f"user {u}", str(i), 4.0, 1_700_000_000 + t, seq=t)
        for t, (u, i) in enumerate(zip(who, item, strict=True))
    ]
    found: dict[str, Any] = {"users": users}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "raw.db"
        filled(path, users)
        found["bytes of a record"] = bytes_per_record(path)
        found["bytes of the file per user"] = path.stat().st_size / users
        before, busy = raw_puts(path, who)
        found["raw puts/s"], found["raw puts per second of cpu"] = before, busy
        for policy in POLICIES:
            keeper = Keeper(bundle(policy), SqliteStore(path), batch=BATCH)
            keeper.observe_many(events[: count // 4])  # pages and code are warm
            began, cpu = time.perf_counter(), time.process_time()
            keeper.observe_many(events[count // 4 :])
            rate = (count - count // 4) / (time.perf_counter() - began)
            busy = (count - count // 4) / (time.process_time() - cpu)
            keeper.close()
            after, _ = raw_puts(path, who)  # the machine is not the same from minute to minute
            found[f"{policy}, durable updates/s"] = rate
            found[f"{policy}, durable / raw puts"] = rate / 2 * (1 / before + 1 / after)
            before = after
            found[f"{policy}, durable updates per second of cpu"] = busy
            events = [
                Event(e.user, e.item, e.rating, e.time, seq=(e.seq or 0) + count) for e in events
            ]
        found["MB resident, torch included"] = kilobytes("VmRSS") / 1024
        found["seconds to recover after a kill"] = recovery(path, events)
    return found


def filled(path: Path, users: int) -> None:
    """A store in which every user has a full sketch."""
    store = SqliteStore(path)
    rng = np.random.default_rng(1)
    for start in range(0, users, 20_000):
        names = [f"user {n}".encode() for n in range(start, min(users, start + 20_000))]
        shape = (len(names), SIZE)
        ones = np.ones(len(names), np.int64)
        rows = Rows(
            kept=SIZE * ones, waiting=0 * ones, policy=ones, seen=100 * ones, last=0 * ones,
            item=rng.integers(0, ITEMS, shape), rating=np.full(shape, 4, np.float32),
            time=1_600_000_000 + np.sort(rng.integers(0, 10**8, shape), 1),
            position=np.sort(rng.integers(0, 100, shape), 1), repeats=np.ones(shape, np.int64),
            side=np.zeros(shape, np.int64),
        )  # fmt: skip
        store.commit({Table.USERS: dict(zip(names, encode(names, rows), strict=True))})
    store.close()


def bytes_per_record(path: Path) -> int:
    store = SqliteStore(path, readonly=True)
    (record,) = store.get(Table.USERS, [b"user 0"])
    store.close()
    return len(record or b"")


def raw_puts(path: Path, who: list[int]) -> tuple[float, float]:
    """The same users, as many records of the same length, straight into SQLite.

    Per second by the clock on the wall, and by that of the process. No two records are the same:
    SQLite does not write a page in which nothing changes.
    """
    store = SqliteStore(path)
    (record,) = store.get(Table.USERS, [b"user 0"])
    names = [f"user {n}".encode() for n in who]
    rest = (record or b"")[8:]
    rows = [(name, place.to_bytes(8, "little") + rest) for place, name in enumerate(names)]
    old = dict(zip(names, store.get(Table.USERS, names), strict=True))
    run = store.connection
    put = "INSERT INTO users VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
    began, cpu = time.perf_counter(), time.process_time()
    for start in range(0, len(names), BATCH):
        run.execute("BEGIN IMMEDIATE")
        run.executemany(put, rows[start : start + BATCH])
        run.execute("COMMIT")
    rate = len(names) / (time.perf_counter() - began)
    busy = len(names) / (time.process_time() - cpu)
    store.commit({Table.USERS: old})  # as it was
    store.close()
    return rate, busy


def recovery(path: Path, events: list[Event]) -> float:
    """Kill a keeper at work; how long until the next one has answered."""
    child = os.fork()
    if child == 0:
        Keeper(bundle("last"), SqliteStore(path), batch=BATCH).observe_many(events)
        os._exit(0)
    time.sleep(1.0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    last = bundle("last")
    began = time.perf_counter()
    keeper = Keeper(last, SqliteStore(path), batch=BATCH)
    keeper.sketch("user 0")
    took = time.perf_counter() - began
    keeper.close()
    return took


def policy_alone(policy: str, rows: int, seconds: float = 3.0) -> float:
    """Updates a second of one core, by its own clock: full sketches, one arrival each."""
    engine = Engine(bundle(policy))
    users = [f"user {n}".encode() for n in range(rows)]
    states = States.of(decode(users, [None] * rows), SIZE, 1)
    number, everyone = torch.arange(ITEMS), torch.arange(rows)
    generator = torch.Generator().manual_seed(0)

    def arrive(time_: int) -> None:
        item = torch.randint(ITEMS, (rows,), generator=generator)
        ones = torch.ones_like(item)
        arrivals = Sketch(-ones, item, 4.0 * ones.float(), time_ * ones, ones, 0 * ones)
        engine.arrive_all(states, everyone, arrivals, lambda: everyone, number)

    return _rate(arrive, rows, seconds)


def _rate(act: Callable[[int], None], rows: int, seconds: float) -> float:
    for turn in range(SIZE + 3):
        act(turn)
    done, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        act(SIZE + 3 + done)
        done += 1
    return done * rows / (time.process_time() - began)


def bundle(policy: str) -> Bundle:
    """A run of the usual shape, untrained."""
    spec = RecommenderSpec(form="dot", loss="mse", items=ITEMS, dim=DIM, offset=3.5, low=1, high=5)
    policy_spec = PolicySpec(name=policy, size=SIZE, items=ITEMS, dim=DIM, center=3.5)
    made = build_policy(policy_spec)
    if isinstance(made, nn.Module):
        made.eval().requires_grad_(False)
    recommender = make_recommender(spec)
    recommender.requires_grad_(False)
    return Bundle(
        spec=spec, recommender=recommender, item_ids=Strings.of(map(str, range(ITEMS))),
        policy_spec=policy_spec, policy=made, periods=(1,),
    )  # fmt: skip


if __name__ == "__main__":
    main()
