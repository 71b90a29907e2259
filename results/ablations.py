"""Ablations of `learned`: the defaults with one change at a time.

    PYTHONPATH=src python3 results/ablations.py DATA OUT [--size 4] [--every 1] [--seeds 2] \
        [--epochs 20] [--only queue,credit] [--max-seconds S]

DATA is as for results/protocol.py, or `world:DURABILITY,DRIFT,USERS,SEED` for synthetic data.
Themes run in the given order. Writes one file per variant to OUT/variants, and ablations.csv: test
and validation, mean over splits, and the difference to the default (or to `AGAINST`) with its 95 %
interval over users. Variants that the data does not support or that diverge are left out. Exits
with 130 if the time is over; the same command resumes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ablation_training import AlternatingUpdates, HeldOutUsers, TrainingVariant, train_as
from protocol import clock, write_origin

from dips.api import load
from dips.data.interactions import Interactions
from dips.data.synthetic import stream
from dips.errors import DipsError, TrainingDiverged
from dips.evaluation.comparison import Cell, UserSums, compare_pairs, user_sums
from dips.evaluation.metrics import primary_metric
from dips.studies.checks import resolved, split
from dips.studies.compare import write_table as write_csv_table
from dips.studies.run import train_runs
from dips.studies.run_directory import read_json, write_json
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

Variant = tuple[str, str]
"""A theme, and a name in it."""
SAMPLED = {"selection": "sampled", "credit": "discount"}
SIZES = (2, 8, 16, 32, 64)
SIDES = {"categories": ("categories",), "time": ("time",), "both": ("categories", "time")}
LONGER = {"policy_freeze_epochs": 8}
DEFAULT = ("default", "learned")
LAST = "last with "


def own(name: str) -> dict[str, Any]:
    """Return a policy of this folder; `trained` gives it the settings of `learned`."""
    return {"policy": f"ablation_policies:{name}"}


def as_learned(data: Interactions, config: TrainConfig) -> TrainConfig:
    """Return settings in which a policy of this folder has what `learned` would have."""
    if not config.sketch.policy.startswith("ablation_policies:"):
        return config
    names = ("policy_freeze_epochs", "inner_lr", "revert_tolerance", "user_batches_per_epoch")
    learned = resolved(data, config.but(policy="learned"))
    return config.but(**{name: learned[name] for name in names if config[name] is None})


def with_last(theme: str, changes: dict[str, dict[str, Any]]) -> dict[Variant, dict[str, Any]]:
    """Return variants of `learned`, each with a variant of `last` with the same settings."""
    found: dict[Variant, dict[str, Any]] = {}
    for name, flags in changes.items():
        found |= {(theme, name): flags, (theme, LAST + name): {**flags, "policy": "last"}}
    return found


VARIANTS: dict[Variant, dict[str, Any]] = {
    DEFAULT: {},
    ("policy", "last"): {"policy": "last"},
    ("policy", "the paper's network"): {"policy": "dips", "credit": "survival", "queue": 50},
    ("policy", "dips"): {"policy": "dips"},
    ("credit", "identity"): {"credit": "identity"},
    ("credit", "discount"): {"credit": "discount"},
    **{("queue", f"Q = {length}"): {"queue": length} for length in (1, 5, 20, 100)},
    ("dropped_candidates", "none"): {"dropped_candidates": 0},
    ("estimator", "straight-through, sampled"): SAMPLED,
    ("estimator", "gumbel, sampled"): {**SAMPLED, "estimator": "gumbel"},
    ("estimator", "reinforce, sampled"): {**SAMPLED, "estimator": "reinforce"},
    ("network", "residuals"): {"residual": True},
    ("network", "no residuals"): {"residual": False},
    ("age", "unchanged, as a plug-in"): own("Unchanged"),
    ("age", "ages only in the recency slope"): own("RecencySlopeOnly"),
    ("age", "random initialisation"): own("RandomInit"),
    ("age", "no ages"): own("NoAges"),
    ("users", "policy on held-out users"): {},
    ("users", "held-out users unused"): {},
    ("users", "policy on held-out users, new each epoch"): {},
    ("users", "held-out users unused, new each epoch"): {},
    ("users", "policy on fewer users, new each epoch"): {},
    ("users", "twice the epochs"): LONGER,
    ("users", "alternating updates"): LONGER,
    ("training", "one user batch per epoch"): {"user_batches_per_epoch": 1},
    ("training", "no revert"): {"revert_tolerance": 0.0},
    ("training", "policy rate 1e-3"): {"policy_lr": 1e-3},
    ("training", "policy rate 1e-2"): {"policy_lr": 1e-2},
    ("recommender", "no recency decay"): {"recency_decay": False},
    ("recommender", "no repeat feature"): {"repeat_feature": False},
    ("recommender", "tied embeddings"): {"tie_embeddings": True},
    **with_last("side", {name: {"side": side} for name, side in SIDES.items()}),
    **with_last("size", {f"K = {size}": {"size": size} for size in SIZES}),
}
"""By theme and name: the settings that differ. Sampled selection is for online sketches only."""
TRAINING_VARIANTS = {
    ("users", "policy on held-out users"): TrainingVariant(
        partial(HeldOutUsers, train_policy=True)
    ),
    ("users", "held-out users unused"): TrainingVariant(partial(HeldOutUsers, train_policy=False)),
    ("users", "policy on held-out users, new each epoch"): TrainingVariant(
        partial(HeldOutUsers, train_policy=True, each_epoch=True)
    ),
    ("users", "held-out users unused, new each epoch"): TrainingVariant(
        partial(HeldOutUsers, train_policy=False, each_epoch=True)
    ),
    ("users", "policy on fewer users, new each epoch"): TrainingVariant(
        partial(HeldOutUsers, train_policy=True, each_epoch=True, train_recommender=True)
    ),
    ("users", "twice the epochs"): TrainingVariant(lambda block: block, epoch_factor=2),
    ("users", "alternating updates"): TrainingVariant(AlternatingUpdates, epoch_factor=2),
}
"""Variants that change which users train recommender and policy."""
UNCHANGED = ("age", "unchanged, as a plug-in")
AGAINST: dict[Variant, Variant] = {
    **{variant: UNCHANGED for variant in VARIANTS if variant[0] == "age" and variant != UNCHANGED},
    **{(t, name): (t, name.removeprefix(LAST)) for t, name in VARIANTS if name.startswith(LAST)},
}
"""Variants that are compared with another variant than the default."""


def data_of(name: str) -> Interactions:
    """Return prepared data, a source, or synthetic data."""
    kind, _, parameters = name.partition(":")
    if kind != "world":
        return load(name)
    try:
        durability, drift, users, seed = map(float, parameters.split(","))
    except ValueError:
        raise SystemExit(
            f"{name}: give world:DURABILITY,DRIFT,USERS,SEED, as 0.5,0.5,500,7"
        ) from None
    return stream(users=int(users), durability=durability, drift=drift, seed=int(seed))


def trained(
    data: Interactions,
    variant: Variant,
    epochs: int,
    same: dict[str, Any],
    seeds: Sequence[int],
    tick: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Train a variant; return for every split validation, test and sums by user."""
    change = TRAINING_VARIANTS.get(variant)
    epochs *= change.epoch_factor if change else 1
    defaults = {"policy": "learned", "baselines": (), "epochs": epochs, "patience": epochs}
    flags = {**defaults, **same, **VARIANTS[variant]}
    configs = [
        as_learned(data, build_config("default", flags={**flags, "seed": seed})) for seed in seeds
    ]
    jobs = [(split(data, config), config) for config in configs]
    with train_as(change):
        results = train_runs(
            jobs, on_epoch=lambda report: tick(f"epoch {report.epoch} of {report.epochs}")
        )
    rows = []
    for (parts, config), result in zip(jobs, results, strict=True):
        if result.test is None:
            raise TrainingDiverged(f"seed {config.training.seed}: {result.error}")
        sums = user_sums(result.test, [parts[2].user_id(user) for user in range(parts[2].users)])
        rows.append({
            "seed": config.training.seed, "valid": result.valid, "test": result.test.metrics,
            "users": list(sums.users), "count": sums.count.tolist(),
            "sums": {name: total.tolist() for name, total in sums.sums.items()},
        })  # fmt: skip
    return rows


def pooled(rows: Sequence[dict[str, Any]]) -> list[UserSums]:
    """Return the sums by user of `trained`, for paired tests."""
    return [
        UserSums(
            row["users"],
            np.array(row["count"]),
            {name: np.array(total) for name, total in row["sums"].items()},
        )
        for row in rows
    ]


def table(found: dict[Variant, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return one line per variant: means, and the paired difference to its reference."""
    metric = primary_metric(found[DEFAULT][0]["valid"])
    lines = []
    for variant, rows in found.items():
        other = AGAINST.get(variant, DEFAULT)
        line: dict[str, Any] = dict(zip(("theme", "variant"), variant, strict=True))
        line |= {"against": other[1] if variant != DEFAULT else "", "metric": metric}
        for part in ("valid", "test"):
            line[part] = float(np.mean([row[part][metric] for row in rows]))
        line |= dict.fromkeys(("diff", "low", "high"), 0.0 if variant == DEFAULT else "")
        if variant != DEFAULT and other in found:
            cells = {Cell("a", 0, 0): pooled(rows), Cell("b", 0, 0): pooled(found[other])}
            pair = next(row for row in compare_pairs(cells) if row["metric"] == metric)
            line |= {key: pair[key] for key in ("diff", "low", "high")}
        lines.append(line)
    return lines


def write_table(paths: Mapping[Variant, Path], out: Path) -> None:
    """Write ablations.csv, if the default is finished."""
    found: dict[Variant, Any] = {
        variant: read_json(path) for variant, path in paths.items() if path.exists()
    }
    if DEFAULT not in found:
        return
    lines = table(found)
    write_csv_table(lines, out / "ablations.csv")
    for line in lines:
        print(line, flush=True)


def select_variants(text: str) -> list[Variant]:
    """Return the default and the given themes, or `theme: name`, in order; empty: all."""
    if not text:
        return list(VARIANTS)
    found = [DEFAULT]
    for part in text.split(","):
        chosen = [variant for variant in VARIANTS if part in (variant[0], ": ".join(variant))]
        if not chosen:
            known = ", ".join(dict.fromkeys(theme for theme, _ in VARIANTS))
            raise SystemExit(f"no theme '{part}': there are {known}")
        found += chosen
    return list(dict.fromkeys(found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Train missing variants, and write the table."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default=4, type=int)
    parser.add_argument("--every", default=1, type=int)
    parser.add_argument("--seeds", default=2, type=int)
    parser.add_argument("--epochs", default=20, type=int)
    parser.add_argument("--only", default="", help="themes, or 'theme: name', as a,b")
    parser.add_argument("--max-seconds", default=1e9, type=float)
    given = parser.parse_args(typed)
    wanted = select_variants(given.only)
    data, tick = data_of(given.data), clock(given.out.name, given.max_seconds)
    paths = {
        (theme, name): given.out / "variants" / f"{theme}-{name.replace(' ', '-')}.json"
        for theme, name in VARIANTS
    }
    paths[DEFAULT].parent.mkdir(parents=True, exist_ok=True)
    write_origin(given.out, given.data, ["results/ablations.py", *typed], {})
    same = {"size": given.size, "every": given.every}
    try:
        for variant in wanted:
            if paths[variant].exists():
                continue
            tick(": ".join(variant))
            try:
                rows = trained(data, variant, given.epochs, same, range(given.seeds), tick)
                write_json(rows, paths[variant])
            except DipsError as error:
                print(f"{': '.join(variant)} is left out: {error}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        return 130
    finally:
        write_table(paths, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
