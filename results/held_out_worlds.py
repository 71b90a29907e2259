"""Try the pre-trained policy on held-out synthetic worlds, beside rules and other starts.

    python results/held_out_worlds.py OUT --kind ratings --worlds 11

Each world has its own sketch size and refresh period, and one fold. Writes OUT/rows.csv: one row
per world and policy, with the primary metric of the test users. The same command resumes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from initial_policies import RULES, compare_starts
from protocol import write_origin

from dips.data.synthetic.family import KINDS, family
from dips.studies.compare import write_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Train in every world, and print the mean ratio to `last`."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(typed)
    rows: list[dict[str, Any]] = []
    for index, world in enumerate(family(given.kind, given.worlds, held_out=True)):
        name = f"{given.kind}-{index}"
        data = world.load()
        data = replace(data, about={**data.about, "name": name})
        asked = Namespace(
            data=name, out=given.out / name, sizes=[world.size], every=[world.every], folds=1,
            starts=given.starts,
        )  # fmt: skip
        rules = [rule for rule in RULES[data.explicit] if _fits(rule, world.size)]
        table = compare_starts(data, asked, {"baselines": ()}, rules)
        metric = table.summary[0]["metric"]
        rows += [
            {"world": name, "size": world.size, "every": world.every, "policy": row["policy"],
             "metric": metric, "valid": row["valid"][metric], "test": row["test"][metric]}
            for row in table.rows
        ]  # fmt: skip
        write_table(rows, given.out / "rows.csv")
    write_origin(given.out, f"held-out:{given.kind}", ["results/held_out_worlds.py", *typed], {})
    for policy, ratio in ratios(rows).items():
        print(f"{policy:>20}: {ratio:.4f} times `last`, mean over {given.worlds} worlds")
    return 0


def ratios(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the mean ratio of the test metric to that of `last`, by policy.

    Only policies that were tried in every world are there.
    """
    last = {row["world"]: row["test"] for row in rows if row["policy"] == "last"}
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["policy"], []).append(row["test"] / last[row["world"]])
    return {
        policy: statistics.mean(values)
        for policy, values in found.items()
        if len(values) == len(last)
    }


def _fits(rule: str, size: int) -> bool:
    """Return whether a rule leaves a slot for others; `last-top:M` keeps the newest M."""
    return not rule.startswith("last-top") or int(rule.partition(":")[2]) < size


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("out", type=Path)
    found.add_argument("--kind", choices=KINDS, default="ratings")
    found.add_argument("--worlds", type=int, default=11)
    found.add_argument("--starts", default="pretrained,rule", help="starts of learned")
    return found


if __name__ == "__main__":
    sys.exit(main())
