"""Measure reads of sketches while a keeper writes: `python -m benchmarks.serving_reads --users N`.

A keeper applies events at a fixed rate. Meanwhile users are read: by a thread of its process, then
in another process by `dips.open_reader` and by a raw query of SQLite. Wall times include waits for
a core; the time on the core is printed beside them. Exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.serving import BATCH, Traffic, filled, trained
from dips.serve.batches import EventBatch
from dips.serve.keeper import Keeper
from dips.serve.reader import open_reader
from dips.serve.stores.sqlite import SqliteStore

POLICY = "learned"
SECONDS, PAUSE = 15.0, 0.005
"""Seconds of a measurement; seconds between two reads of a process."""
TARGETS = {
    "sketch in another process, p99, ms": 5.0,
    "recommend in another process, p99, ms": 20.0,
}
RAW = "SELECT value FROM users WHERE key = ?"
Read = Callable[[str], object]


def read_latencies(path: Path, traffic: Traffic, users: int, rate: int) -> dict[str, float]:
    """Return the reached update rate, and latencies of reads beside it in milliseconds."""
    keeper = Keeper(trained(POLICY), SqliteStore(path), batch=BATCH)
    keeper.observe_many(traffic.more(20 * BATCH))  # compiles the kernel
    other = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "--reader", str(path), "--users", str(users)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdout.readline()  # it is ready
    found, ended = dict[str, float](), threading.Event()

    def read() -> None:
        found.update(timed({"sketch": keeper.sketch, "recommend": keeper.recommend}, users))
        other.stdin.write("start\n")
        other.stdin.flush()
        found.update(json.loads(other.stdout.readline()))
        ended.set()

    def batches() -> Iterator[EventBatch]:
        began = time.monotonic()
        while not ended.is_set():
            yield EventBatch(traffic.more(BATCH))
            count[0] += BATCH
            time.sleep(max(0.0, began + count[0] / rate - time.monotonic()))
        count[1] = int(count[0] / (time.monotonic() - began))

    count = [0, 0]
    thread = threading.Thread(target=read)
    thread.start()
    for _ in keeper.process(batches()):
        pass
    thread.join()
    other.wait()
    log = path.with_name(path.name + "-wal").stat().st_size / 2**20
    keeper.close()
    return {"reads beside updates/s": count[1], **found, "MB of SQLite's log after": log}


def timed(reads: dict[str, Read], users: int, place: str = "in the process") -> dict[str, float]:
    """Call functions in turn, with random users; return percentiles in milliseconds."""
    rng = np.random.default_rng(5)
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in reads}
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for name, read in reads.items():
            user = f"user {rng.integers(users)}"
            began, cpu = time.perf_counter(), time.thread_time()
            read(user)
            took[name].append((time.perf_counter() - began, time.thread_time() - cpu))
            time.sleep(PAUSE)
    found = dict[str, float]()
    for name, times in took.items():
        wall, cpu = 1000 * np.array(times).T
        for label, values, share in (
            ("p50", wall, 0.5), ("p99", wall, 0.99), ("max", wall, 1.0), ("p99 of cpu", cpu, 0.99)
        ):  # fmt: skip
            found[f"{name} {place}, {label}, ms"] = float(np.quantile(values, share))
    return found


def read_beside(path: Path, users: int) -> None:
    """Measure in this process, when a line was read from standard input; print JSON."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    with open_reader(trained(POLICY), f"sqlite:{path}") as reader:
        reads: dict[str, Read] = {
            "sketch": reader.sketch,
            "recommend": reader.recommend,
            "raw query": lambda user: connection.execute(RAW, (user.encode(),)).fetchone(),
        }
        for read in reads.values():
            read("user 0")
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(timed(reads, users, "in another process")), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=25_000, help="updates per second")
    parser.add_argument("--reader", type=Path, help="read this store: the other process")
    given = parser.parse_args()
    if given.reader:
        read_beside(given.reader, given.users)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kept.db"
        filled(path, given.users)
        found = read_latencies(path, Traffic(given.users, 0.8), given.users, given.rate)
    for name, value in found.items():
        print(f"{name}: {value:,.3g}")
    missed = [name for name, most in TARGETS.items() if found[name] > most]
    for name, most in TARGETS.items():
        verdict = "missed" if name in missed else "met"
        print(f"{name}: {found[name]:.3g} (target {most:g}: {verdict})")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
