"""Measure time and memory of the readers, as ratios. Knows nothing about models.

python -m benchmarks.reading [--ratings 20000000]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.measure import kilobytes
from dips.data.readers import movielens, netflix
from dips.data.readers.source import open_source

SPEED_TARGET = 5.0
"""MovieLens 1M from the zip, in multiples of polars on the same rows tab-separated."""
MEMORY_TARGET = 3.0
"""Peak memory of a Netflix read, in multiples of the bytes of the columns it makes."""
LINEAR_TARGET = 1.3
"""Time per rating of the largest file, in multiples of the one a quarter as large."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ratings", type=int, default=20_000_000, help="ratings in the largest file"
    )
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        print(json.dumps(_read_netflix(options.child)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        results = {**speed(Path(folder)), **memory(Path(folder), options.ratings)}
    passed = (
        results["speed_ratio"] <= SPEED_TARGET
        and results["memory_ratio"] <= MEMORY_TARGET
        and results["linear_ratio"] <= LINEAR_TARGET
    )
    print(json.dumps({**results, "passed": passed}))
    return 0 if passed else 1


def speed(folder: Path, rounds: int = 9) -> dict[str, Any]:
    """(a) MovieLens 1M from the zip against polars on the same rows tab-separated."""
    packed = Path(os.environ.get("DIPS_DATA", "")) / "raw" / "ml-1m.zip"
    if not packed.is_file():
        packed = _make_movielens(folder / "ml-1m.zip")
    plain = folder / "ratings.tsv"
    with zipfile.ZipFile(packed) as archive:
        plain.write_bytes(archive.read("ml-1m/ratings.dat").replace(b"::", b"\t"))

    def ours() -> None:
        with open_source(packed) as source:
            movielens.read(source)

    def theirs() -> None:
        pl.read_csv(plain, separator="\t", has_header=False)

    # Alternating, so that other load of the machine affects both.
    times = [(_seconds(ours), _seconds(theirs)) for _ in range(rounds)]
    best_ours, best_theirs = (min(column) for column in zip(*times, strict=True))
    ratio = best_ours / best_theirs
    print(f"MovieLens 1M from {packed}: {best_ours:.3f} s, polars {best_theirs:.3f} s,", end=" ")
    print(f"ratio {ratio:.2f} (target {SPEED_TARGET:g})")
    return {"speed_seconds": best_ours, "polars_seconds": best_theirs, "speed_ratio": ratio}


def memory(folder: Path, largest: int) -> dict[str, Any]:
    """(b) Netflix files of a quarter, half and the whole number of ratings."""
    runs = []
    for ratings in (largest // 4, largest // 2, largest):
        path = make_netflix(folder / "combined_data_1.txt", ratings)
        command = [sys.executable, "-m", "benchmarks.reading", "--child", str(path)]
        run = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        runs.append(run)
        print(
            f"Netflix, {run['ratings']:,} ratings: {run['seconds']:.2f} s, "
            f"peak {run['peak'] / 2**20:,.0f} MiB over {run['columns'] / 2**20:,.0f} MiB of columns"
        )
    memory_ratio = runs[-1]["peak"] / runs[-1]["columns"]
    pace = [run["seconds"] / run["ratings"] for run in runs]
    print(f"peak / columns of the largest {memory_ratio:.2f} (target {MEMORY_TARGET:g}),", end=" ")
    print(
        f"time per rating, largest / smallest {pace[-1] / pace[0]:.2f} (target {LINEAR_TARGET:g})"
    )
    return {"runs": runs, "memory_ratio": memory_ratio, "linear_ratio": pace[-1] / pace[0]}


def make_netflix(path: Path, ratings: int, films: int = 2_000, users: int = 480_000) -> Path:
    """Write a file in the official layout, film by film, popular films first."""
    rng = np.random.default_rng(ratings)
    ids = rng.choice(2_649_429, users, replace=False).astype(np.int32) + 1
    weights = 1.0 / np.arange(1, films + 1)
    counts = np.floor(weights / weights.sum() * ratings).astype(np.int64)
    counts[0] += ratings - counts.sum()
    with path.open("wb") as file:
        for film, count in enumerate(counts.tolist(), start=1):
            file.write(b"%d:\n" % film)
            frame = pl.DataFrame(
                {
                    "user": ids[rng.integers(0, users, count)],
                    "rating": rng.integers(1, 6, count, dtype=np.int8),
                    "day": rng.integers(10_900, 13_100, count, dtype=np.int32),
                }
            )
            frame.with_columns(pl.col("day").cast(pl.Date)).write_csv(file, include_header=False)
    return path


def _make_movielens(path: Path) -> Path:
    """Write a random file of the size of MovieLens 1M, if the original is missing."""
    rng = np.random.default_rng(0)
    users = np.sort(rng.integers(1, 6_041, 1_000_209))
    columns = [users, rng.integers(1, 3_953, len(users)), rng.integers(1, 6, len(users))]
    columns.append(rng.integers(956_703_932, 1_046_454_590, len(users)))
    frame = pl.DataFrame({str(place): column for place, column in enumerate(columns)})
    text = frame.write_csv(include_header=False, separator=":").replace(":", "::")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ml-1m/ratings.dat", text)
        archive.writestr("ml-1m/users.dat", "1::F::1::10::48067\n")
    return path


def _read_netflix(path: Path) -> dict[str, Any]:
    """Read a file in a child process, which has its own peak memory."""
    baseline = kilobytes("VmRSS")
    start = time.perf_counter()
    with open_source(path) as source:
        data = netflix.read(source)
    seconds = time.perf_counter() - start
    peak = kilobytes("VmHWM")
    columns = sum(getattr(data, name).nbytes for name in ("item", "rating", "time"))
    return {
        "ratings": len(data),
        "seconds": seconds,
        "peak": (peak - baseline) * 1024,
        "columns": columns,
    }


def _seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
