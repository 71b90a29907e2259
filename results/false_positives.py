"""Measure how often "better" is said where there is no difference.

    PYTHONPATH=src python3 results/false_positives.py simulate              (make false-positives)
    PYTHONPATH=src python3 results/false_positives.py train DATA OUT [--policy last] [--repeats 40]

`simulate` draws differences of users around zero, and adds noise of training that all users of a
fold share. `train` compares a policy with itself: both sides have the same splits and other
initialisations (A/A comparisons). Both print the share of comparisons in which the rule of
`dips.evaluation.significance` finds a difference, and its weaker forms: the interval over users
alone, and that with all folds of one sign. `train` resumes where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dips.api import load
from dips.evaluation.comparison import Cell, UserSums, apply_holm, compare_pairs
from dips.evaluation.significance import LEVEL, agreeing_folds, is_significant
from dips.studies.compare import Comparison, ComparisonPlan
from dips.studies.progress import StudyProgress
from dips.studies.run_directory import read_user_sums
from dips.training.recipes import build_config

FOLDS = 5
Row = dict[str, Any]


def over_users(pair: Row) -> bool:
    """Return whether the interval over users excludes zero and the corrected p is below 0.05."""
    return bool((pair["low"] > 0 or pair["high"] < 0) and pair["p"] < LEVEL)


def same_sign(pair: Row) -> bool:
    """Return whether in addition all folds agree in sign."""
    return over_users(pair) and agreeing_folds(pair) == len(pair["folds"])


RULES: dict[str, Callable[[Row], bool]] = {
    "interval over users": over_users,
    "and all folds agree": same_sign,
    "and t-interval over folds (the rule)": is_significant,
}
"""Rules from the weakest to the one in use."""
STRICTER = "t-tests with Holm as well (not in use)"


def with_corrected_t_tests(rows: Sequence[Row]) -> list[Row]:
    """Return rows whose p is the larger one of users and of a t-test over folds, after Holm."""
    from scipy.stats import ttest_1samp  # a machine that trains only may lack it

    found = ttest_1samp(np.array([row["folds"] for row in rows]), 0.0, axis=1).pvalue
    tests = [{**row, "p": float(p)} for row, p in zip(rows, found, strict=True)]
    apply_holm(tests)
    return [{**row, "p": max(row["p"], test["p"])} for row, test in zip(rows, tests, strict=True)]


def simulated_table(
    rng: np.random.Generator, pairs: int, ratio: float, common: float, folds: int = FOLDS
) -> list[Row]:
    """Return paired rows of a table in which no policy differs from another.

    The means over the users of a fold are normal with standard error 1. Intervals and p-values over
    users are those of the normal distribution, to which the bootstrap converges.

    Args:
        rng: Random numbers.
        pairs: Number of pairs in the table.
        ratio: Standard deviation of the training noise of a fold, in standard errors over users.
        common: Share of the variance of training noise that all folds of a pair have in common.
        folds: Number of folds.
    """
    users = rng.normal(size=(pairs, folds))
    own = rng.normal(size=(pairs, folds)) * math.sqrt(1 - common)
    shared = rng.normal(size=(pairs, 1)) * math.sqrt(common)
    values = users + ratio * (own + shared)
    error = 1 / math.sqrt(folds)
    rows = []
    for each in values:
        diff = float(each.mean())
        rows.append(
            {
                "metric": "rmse", "diff": diff, "folds": each.tolist(),
                "low": diff - 1.96 * error, "high": diff + 1.96 * error,
                "p": math.erfc(abs(diff) / error / math.sqrt(2)),
            }
        )  # fmt: skip
    apply_holm(rows)
    return rows


def rates(tables: Iterable[Sequence[Row]], rule: Callable[[Row], bool]) -> tuple[float, float]:
    """Return the share of pairs in which a rule finds a difference, and the share of tables."""
    found = np.array([[rule(row) for row in rows] for rows in tables])  # [tables, pairs]
    return float(found.mean()), float(found.any(axis=1).mean())


def simulate(tables: int, seed: int) -> None:
    """Print the false-positive rates of simulated tables."""
    print("| pairs | training noise | in common | " + " | ".join([*RULES, STRICTER]) + " |")
    print("|---|---|---|" + "---|" * (len(RULES) + 1))
    cases = [(1, r, c) for c in (0.0, 0.3) for r in (0.0, 0.5, 1.0, 2.0, 4.0) if r or not c]
    cases += [(24, ratio, 0.0) for ratio in (0.0, 0.5, 1.0, 2.0, 4.0)]
    for pairs, ratio, common in cases:
        rng = np.random.default_rng([seed, pairs, int(10 * ratio), int(10 * common)])
        made = [
            simulated_table(rng, pairs, ratio, common)
            for _ in range(tables if pairs == 1 else tables // 5)
        ]
        cells = []
        strict = [with_corrected_t_tests(rows) for rows in made]
        judged = [*((made, rule) for rule in RULES.values()), (strict, is_significant)]
        for found, rule in judged:
            each, any_pair = rates(found, rule)
            cells.append(f"{each:.1%}" if pairs == 1 else f"{each:.1%} (a table: {any_pair:.0%})")
        print(f"| {pairs} | {ratio:g} | {common:g} | " + " | ".join(cells) + " |", flush=True)


def train(source: str, out: Path, policy: str, repeats: int, epochs: int, size: int) -> None:
    """Train a policy with several repeats on each fold, and compare the repeats with each other."""
    data = load(source)
    plan = ComparisonPlan(
        policies=[policy], sizes=[size], every=[1], folds=FOLDS, repeats=repeats,
        settings=lambda policy: build_config(flags={"policy": policy, "epochs": epochs}),
    )  # fmt: skip

    def tick(progress: StudyProgress) -> None:
        print(f"{progress.done} of {progress.total} {progress.unit}", file=sys.stderr, flush=True)

    places = Comparison(data, plan, out, source=source, on_progress=tick).train()
    by_repeat: dict[int, list[UserSums]] = {}
    for key, place in places.items():
        by_repeat.setdefault(key.repeat, []).append(replace(read_user_sums(place), fold=key.fold))
    sides = list(by_repeat.values())
    doubled = [[*a, *b] for a, b in zip(sides[::2], sides[1::2], strict=False)]
    print("| repeats on each side | comparisons | metric | " + " | ".join(RULES), end=" | ")
    print("training noise | correlation of folds |")
    print("|---|---|---|" + "---|" * (len(RULES) + 2))
    for count, all_sides in ((1, sides), (2, doubled)):
        disjoint = list(zip(all_sides[::2], all_sides[1::2], strict=False))
        _show(f"{count}, disjoint", [_compare(a, b) for a, b in disjoint])
        _show(f"{count}, all pairs", _compare_all(all_sides))


def _compare(a: Sequence[UserSums], b: Sequence[UserSums]) -> list[Row]:
    """Compare two sides of an A/A comparison."""
    return compare_pairs({Cell("a", 0, 0): a, Cell("b", 0, 0): b})


def _compare_all(sides: Sequence[Sequence[UserSums]]) -> list[list[Row]]:
    """Compare all pairs of sides, each as if it were the only one: without Holm's correction."""
    cells = {Cell(str(index), 0, 0): side for index, side in enumerate(sides)}
    rows = compare_pairs(cells, resamples=4000)
    rows = [{**row, "p": 0.0} for row in rows]  # the interval alone decides over users
    metrics = len({row["metric"] for row in rows})
    return [rows[low : low + metrics] for low in range(0, len(rows), metrics)]


def _show(title: str, comparisons: Sequence[Sequence[Row]]) -> None:
    """Print one line per metric: false-positive rates, training noise, correlation of folds."""
    for metric in dict.fromkeys(row["metric"] for rows in comparisons for row in rows):
        rows = [row for rows in comparisons for row in rows if row["metric"] == metric]
        found = [rates([[row] for row in rows], rule)[0] for rule in RULES.values()]
        noise, correlation = training_noise(rows)
        text = " | ".join(f"{share:.1%}" for share in found)
        print(f"| {title} | {len(rows)} | {metric} | {text} | {noise:.2f} | {correlation:+.2f} |")


def training_noise(rows: Sequence[Row]) -> tuple[float, float]:
    """Return the training noise in standard errors over users, and the correlation of folds.

    Args:
        rows: Paired rows of A/A comparisons, with five folds each.

    Returns:
        The standard deviation of a fold's difference beyond that of its users, in standard errors
        over the users of a fold; and the mean correlation between two folds of one comparison.
    """
    folds: NDArray[np.float64] = np.array([row["folds"] for row in rows])  # [comparisons, folds]
    widths = np.array([(row["high"] - row["low"]) / 3.92 for row in rows])
    error = float(np.sqrt((widths**2).mean())) * math.sqrt(folds.shape[1])
    variance = float((folds**2).mean())  # the expected difference is zero
    pairs = list(itertools.combinations(range(folds.shape[1]), 2))
    together = float(np.mean([(folds[:, i] * folds[:, j]).mean() for i, j in pairs]))
    return math.sqrt(max(variance / error**2 - 1, 0.0)), together / variance


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of both studies."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    simulated = commands.add_parser("simulate")
    simulated.add_argument("--tables", default=5_000, type=int)
    simulated.add_argument("--seed", default=0, type=int)
    trained = commands.add_parser("train")
    trained.add_argument("data")
    trained.add_argument("out", type=Path)
    trained.add_argument("--policy", default="last")
    trained.add_argument("--repeats", default=40, type=int)
    trained.add_argument("--epochs", default=3, type=int)
    trained.add_argument("--size", default=4, type=int)
    given = parser.parse_args(arguments)
    if given.command == "simulate":
        simulate(given.tables, given.seed)
    else:
        train(given.data, given.out, given.policy, given.repeats, given.epochs, given.size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
