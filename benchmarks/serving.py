"""Measure the load of the keeper, as ratios in one run: `python -m benchmarks.serving`.

Users of events follow a Zipf law. For each number of users a store is filled with full sketches and
copied. Then, for several policies, the same events go through a keeper and directly into SQLite, in
chunks and by turns, so that both run under the same conditions. All chunks together take several
checkpoint rounds of the journal, so its cost is included. Policies are also measured alone, in
memory. Exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.measure import kilobytes, table
from dips.data.interactions import Strings
from dips.model.trained_model import TrainedModel
from dips.policy.registry import PolicySpec, build_policy
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.serve.engine import Engine
from dips.serve.events import Event
from dips.serve.keeper import Keeper
from dips.serve.records import UserRecords, decode, encode
from dips.serve.stores.base import Table
from dips.serve.stores.journal import CHECKPOINT_ROWS
from dips.serve.stores.sqlite import CACHE_KIB, SqliteStore
from dips.serve.user_states import UserStates
from dips.sketch.records import Sketch

SIZE, ITEMS, DIM, BATCH = 8, 10_000, 32, 1000
ROWS = (1_000, 10_000)
"""Users in one call of a policy alone; the better rate counts."""
RAW_CACHE_KIB = CACHE_KIB + 40 * 1024
"""Page cache of the raw side: larger by what the journal of the keeper takes, and more."""
PUT = "INSERT INTO users VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
POLICIES = ("learned", "last", "reservoir")
TARGETS = {
    "learned, durable / raw puts": 0.70,
    "learned alone, updates/s": 100_000,
    "last alone, updates/s": 1_000_000,
    "reservoir alone, updates/s": 1_000_000,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", default="10000,100000,1000000")
    parser.add_argument("--events", type=int, default=30_000, help="events in a chunk")
    parser.add_argument(
        "--turns",
        type=int,
        default=8,
        help="chunks per policy; even, so that each side is first as often",
    )
    parser.add_argument("--zipf", type=float, default=0.8)
    parser.add_argument(
        "--checkpoint", type=int, default=1000, help="pages between checkpoints of SQLite's log"
    )
    given = parser.parse_args()
    counts = [int(float(text)) for text in given.users.split(",")]
    runs = {
        **{policy: trained(policy) for policy in POLICIES},
        "learned with predicted score": with_predicted_score(),
    }
    alone = {name: max(policy_alone(run, rows) for rows in ROWS) for name, run in runs.items()}
    sizes = [measure(users, given) for users in counts]
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


def measure(users: int, given: argparse.Namespace) -> dict[str, Any]:
    """Measure everything for one number of users."""
    found: dict[str, Any] = {"users": users}
    traffic = Traffic(users, given.zipf)
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "filled.db"
        filled(start, users)
        found["bytes of a record"] = bytes_per_record(start)
        found["bytes of the file per user"] = start.stat().st_size / users
        raw, kept = (Path(folder) / name for name in ("raw.db", "kept.db"))
        for policy in POLICIES:
            shutil.copy(start, raw)
            shutil.copy(start, kept)
            for name, value in in_turns(trained(policy), raw, kept, traffic, given).items():
                found[f"{policy}, {name}"] = value
        found["seconds to recover after a kill"] = recovery(kept, traffic.more(100_000))
    return found


class Traffic:
    """Events of users by a Zipf law, with growing sequence numbers."""

    def __init__(self, users: int, zipf: float) -> None:
        chance = np.arange(1, users + 1) ** -zipf
        self._total = np.cumsum(chance / chance.sum())
        self._rng, self._start = np.random.default_rng(0), 0

    def more(self, count: int) -> list[Event]:
        who = np.searchsorted(self._total, self._rng.random(count)).tolist()
        item = self._rng.integers(0, ITEMS, count).tolist()
        seq = range(self._start, self._start + count)
        self._start += count
        return [
            Event(f"user {u}", str(i), 4.0, 1_700_000_000 + n, seq=n)
            for u, i, n in zip(who, item, seq, strict=True)
        ]


class Pace(NamedTuple):
    """Seconds that some events took: wall time and CPU time."""

    wall: float
    cpu: float


def in_turns(
    run: TrainedModel, raw_path: Path, path: Path, traffic: Traffic, given: argparse.Namespace
) -> dict[str, float]:
    """Measure the same events raw and through a keeper, in chunks; the first side alternates."""
    store = SqliteStore(path)
    keeper = Keeper(run, store, batch=BATCH)
    keeper.observe_many(traffic.more(2 * CHECKPOINT_ROWS))  # until checkpoints keep pace
    resident = kilobytes("VmRSS") / 1024  # before the raw side is opened
    raw = SqliteStore(raw_path)
    raw.connection.execute(f"PRAGMA cache_size = -{RAW_CACHE_KIB}")
    for side in (raw, store):
        side.connection.execute(f"PRAGMA wal_autocheckpoint = {given.checkpoint}")
    raw_puts(raw, traffic.more(2 * CHECKPOINT_ROWS))
    pairs: list[tuple[Pace, Pace]] = []
    for turn in range(given.turns):
        events = traffic.more(given.events)
        if turn % 2:
            durable, puts = updates(keeper, events), raw_puts(raw, events)
        else:
            puts, durable = raw_puts(raw, events), updates(keeper, events)
        pairs.append((puts, durable))
    keeper.close()
    raw.close()
    ratios = [puts.wall / durable.wall for puts, durable in pairs]
    puts, durable = (whole(paces) for paces in zip(*pairs, strict=True))
    count = given.events * given.turns
    return {
        "raw puts/s": count / puts.wall,
        "raw puts per second of cpu": count / puts.cpu,
        "durable updates/s": count / durable.wall,
        "durable updates per second of cpu": count / durable.cpu,
        "durable / raw puts": puts.wall / durable.wall,
        "durable / raw puts, lowest of a chunk": min(ratios),
        "durable / raw puts, highest of a chunk": max(ratios),
        "MB resident, torch included": resident,
    }


def whole(paces: Iterable[Pace]) -> Pace:
    return Pace(*(sum(clock) for clock in zip(*paces, strict=True)))


def updates(keeper: Keeper, events: list[Event]) -> Pace:
    """Durable updates."""
    began, cpu = time.perf_counter(), time.process_time()
    keeper.observe_many(events)
    return Pace(time.perf_counter() - began, time.process_time() - cpu)


def raw_puts(store: SqliteStore, events: list[Event]) -> Pace:
    """Put records of the same length for the same users directly into the table.

    All records differ: SQLite does not write a page in which nothing changes.
    """
    (record,) = store.get(Table.USERS, [b"user 0"])
    rest = (record or b"")[8:]
    rows = [(e.user.encode(), (e.seq or 0).to_bytes(8, "little") + rest) for e in events]
    run = store.connection
    began, cpu = time.perf_counter(), time.process_time()
    for start in range(0, len(rows), BATCH):
        run.execute("BEGIN IMMEDIATE")
        run.executemany(PUT, rows[start : start + BATCH])
        run.execute("COMMIT")
    return Pace(time.perf_counter() - began, time.process_time() - cpu)


def filled(path: Path, users: int) -> None:
    """Create a store in which every user has a full sketch."""
    store = SqliteStore(path)
    rng = np.random.default_rng(1)
    for start in range(0, users, 20_000):
        names = [f"user {n}".encode() for n in range(start, min(users, start + 20_000))]
        shape = (len(names), SIZE)
        ones = np.ones(len(names), np.int64)
        rows = UserRecords(
            kept=SIZE * ones, waiting=0 * ones, policy=ones, seen=100 * ones, next_seq=0 * ones,
            item=rng.integers(0, ITEMS, shape), rating=np.full(shape, 4, np.float32),
            time=1_600_000_000 + np.sort(rng.integers(0, 10**8, shape), 1),
            position=np.sort(rng.integers(0, 100, shape), 1), repeats=np.ones(shape, np.int64),
            side=np.zeros(shape, np.int64),
        )  # fmt: skip
        store.commit({Table.USERS: dict(zip(names, encode(names, rows), strict=True))})
    store.compact()  # checkpoint the journal
    store.close()


def bytes_per_record(path: Path) -> int:
    store = SqliteStore(path, readonly=True)
    (record,) = store.get(Table.USERS, [b"user 0"])
    store.close()
    return len(record or b"")


def recovery(path: Path, events: list[Event]) -> float:
    """Kill a keeper, and return the seconds until the next one has answered."""
    child = os.fork()
    if child == 0:
        Keeper(trained("last"), SqliteStore(path), batch=BATCH).observe_many(events)
        os._exit(0)
    time.sleep(1.0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    last = trained("last")
    began = time.perf_counter()
    keeper = Keeper(last, SqliteStore(path), batch=BATCH)
    keeper.sketch("user 0")
    took = time.perf_counter() - began
    keeper.close()
    return took


def policy_alone(run: TrainedModel, rows: int, seconds: float = 3.0) -> float:
    """Return updates per CPU second: full sketches, one arrival each."""
    engine = Engine(run)
    users = [f"user {n}".encode() for n in range(rows)]
    states = UserStates.from_records(decode(users, [None] * rows), SIZE, 1)
    item_index, everyone = torch.arange(ITEMS), torch.arange(rows)
    generator = torch.Generator().manual_seed(0)

    def apply(time_: int) -> None:
        item = torch.randint(ITEMS, (rows,), generator=generator)
        ones = torch.ones_like(item)
        arrivals = Sketch(-ones, item, 4.0 * ones.float(), time_ * ones, ones, 0 * ones)
        engine.apply_arrivals(states, everyone, arrivals, lambda: everyone, item_index)

    return _rate(apply, rows, seconds)


def _rate(act: Callable[[int], None], rows: int, seconds: float) -> float:
    for turn in range(SIZE + 3):
        act(turn)
    done, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        act(SIZE + 3 + done)
        done += 1
    return done * rows / (time.process_time() - began)


def trained(policy: str) -> TrainedModel:
    """Return an untrained model of the usual shape."""
    spec = RecommenderSpec(kind="dot", loss="mse", items=ITEMS, dim=DIM, offset=3.5, low=1, high=5)
    return _made(spec, PolicySpec(name=policy, size=SIZE, items=ITEMS, dim=DIM, center=3.5))


def with_predicted_score() -> TrainedModel:
    """Return a model with `learned` and predicted scores, for the softmax with a sketch filter."""
    options = {"recency_decay": True, "tie_embeddings": False, "filter_sketch": True}
    spec = RecommenderSpec(kind="dot", loss="softmax", items=ITEMS, dim=DIM, **options)
    return _made(
        spec, PolicySpec(name="learned", size=SIZE, items=ITEMS, dim=DIM, predicted_score=True)
    )


def _made(spec: RecommenderSpec, policy_spec: PolicySpec) -> TrainedModel:
    made = build_policy(policy_spec)
    if isinstance(made, nn.Module):
        made.eval().requires_grad_(False)
    recommender = make_recommender(spec)
    recommender.requires_grad_(False)
    return TrainedModel(
        spec=spec, recommender=recommender, item_ids=Strings.of(map(str, range(ITEMS))),
        policy_spec=policy_spec, policy=made, periods=(1,),
    )  # fmt: skip


if __name__ == "__main__":
    main()
