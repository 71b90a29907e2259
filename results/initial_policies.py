"""Compare starts of `learned`: from `last`, from a rule, from the pre-trained policy, and frozen.

    python results/initial_policies.py DATA OUT --sizes 4,8 --users 500 --folds 5

Every run has the settings that `dips` decides from the data; only the policy differs. Writes
rows.csv, summary.csv, paired.csv, best_rules.csv and origin.json into OUT. `learned` stands there
as learned-last, learned-rule and learned-pretrained. The same command resumes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocol import clock, numbers, write_origin

from dips.api import load
from dips.data.interactions import Interactions
from dips.evaluation.comparison import Cell, UserSums
from dips.policy.settings import INITIAL_POLICIES
from dips.studies.compare import (
    Comparison,
    ComparisonPlan,
    ComparisonTable,
    RunKey,
    make_table,
    table_rows,
    write_tables,
)
from dips.training.recipes import build_config

RULES = {
    True: ("last", "hardest:2", "hardest:4", "hardest:8", "hardest:16", "hardest:32", "hardest"),
    False: ("last", "frequent", "last-top:4"),
}
"""Rules of the comparison, by whether ratings are predicted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train all starts and rules, and write the tables."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(typed)
    data = load(given.data)
    settings = {"baselines": (), "max_users": given.users, "task": given.task}
    settings |= {} if given.epochs is None else {"epochs": given.epochs}
    explicit = data.explicit and given.task != "implicit"
    rules = RULES[explicit] if given.rules is None else tuple(given.rules.split(","))
    table = compare_starts(data, given, settings, [rule for rule in rules if rule])
    write_tables(table, given.out)
    write_origin(given.out, given.data, ["results/initial_policies.py", *typed], {})
    for row in table.summary:
        print(f"{row['policy']:>20} K={row['size']:<3} {row['metric']:>10} {row['mean']:.4f}")
    return 0


def compare_starts(
    data: Interactions, given: argparse.Namespace, settings: dict[str, Any], rules: Sequence[str]
) -> ComparisonTable:
    """Return one table of the rules, `pretrained`, and `learned` with every start.

    Args:
        data: All users.
        given: Folds, sizes, periods and the results directory.
        settings: Settings of all runs.
        rules: Static policies.
    """
    rows: dict[RunKey, dict[str, Any]] = {}
    users: dict[RunKey, UserSums] = {}
    tick = clock("starts", float("inf"))
    starts = [name for name in given.starts.split(",") if name]
    for start in [None, *starts]:
        policies = [*rules, "pretrained"] if start is None else ["learned"]
        own = settings if start is None else {**settings, "initial_policy": start}

        def configure(policy: str, own: dict[str, Any] = own) -> Any:
            return build_config(flags={**own, "policy": policy})

        plan = ComparisonPlan(
            policies=policies, sizes=given.sizes, every=given.every, folds=given.folds,
            settings=configure,
        )  # fmt: skip
        comparison = Comparison(
            data, plan, given.out / "runs" / (start or "rules"), source=given.data,
            on_progress=lambda progress: tick(f"{progress.done} of {progress.total}"),
        )  # fmt: skip
        made, sums = table_rows(comparison.train())
        for key in made:
            name = key.cell.policy if start is None else f"learned-{start}"
            renamed = key._replace(cell=Cell(name, key.cell.size, key.cell.every))
            rows[renamed], users[renamed] = {**made[key], "policy": name}, sums[key]
    return make_table(rows, users, rules)


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("data")
    found.add_argument("out", type=Path)
    found.add_argument("--sizes", default="4,8", type=numbers)
    found.add_argument("--every", default="1", type=numbers)
    found.add_argument("--folds", default=5, type=int)
    found.add_argument("--users", type=int, help="users in all; 60 %% of them train")
    found.add_argument("--task", choices=("explicit", "implicit"))
    found.add_argument("--epochs", type=int, help="default: decided from the data")
    found.add_argument("--rules", help="rules to compare with; default: those of the task")
    found.add_argument("--starts", default=",".join(INITIAL_POLICIES), help="starts of learned")
    return found


if __name__ == "__main__":
    sys.exit(main())
