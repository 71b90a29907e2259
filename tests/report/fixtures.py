"""Small stories and result directories, written by hand."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from dips.evaluation.story import PredictionStep, Refresh, ScoredCandidate, SketchEntry, Story

HOSTILE = "<script>document.title='owned'</script>\"' & $x_1$ \x1b[31m"


def make_story(*, explicit: bool = True, title: str = "Heat & Dust (1983)") -> Story:
    """Return a story of three predictions; only item a has a title."""
    two = (SketchEntry(0, "a", 0.1), SketchEntry(1, "b", 0.001))
    sketches = [(), (SketchEntry(0, "a", -0.5),), two]
    outcomes = [(4.0, 3.5, 21.0), (5.0, 4.9, 20.0), (1.0, 3.0, 1.5)]
    steps = tuple(
        PredictionStep(
            t=t,
            item="abc"[t],
            rating=rating if explicit else None,
            estimate=guess if explicit else None,
            rank=None if explicit else rank,
            error=abs(rating - guess) if explicit else None,
            kept=sketches[t],
        )
        for t, (rating, guess, rank) in enumerate(outcomes)
    )
    candidates = (ScoredCandidate(0, "a", -0.0, True), ScoredCandidate(1, "b", 1.5, True),
                  ScoredCandidate(2, "c", -2.25, False))  # fmt: skip
    return Story(
        user="u1", data="toy", part="test", policy="last", run_policy="last", size=2, periods=(1,),
        explicit=explicit, items=50, length=3, titles={"a": title}, steps=steps,
        refreshes=(Refresh(2, candidates), Refresh(3, candidates)),
    )  # fmt: skip


def without_gradients(story: Story) -> Story:
    """Return the story of a recommender without entry gradients."""
    steps = [
        replace(step, kept=tuple(replace(kept, entry_gradient=None) for kept in step.kept))
        for step in story.steps
    ]
    return replace(story, steps=tuple(steps))


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


MEANS = {
    "learned": {2: 0.95, 4: 0.93, 8: 0.91},
    "last": {2: 0.96, 4: 0.94, 8: 0.92},
    "reservoir": {2: 0.97, 4: 0.95, 8: 0.93},
    "all": {8: 0.90},
}


def write_comparison(place: Path, *, metric: str = "rmse", data: str = "ml-1m") -> Path:
    """Write a result of `dips compare`: K = 2, 4, 8, two folds, two periods."""
    rows, summary, paired = [], [], []
    for policy, by_size in MEANS.items():
        for size, mean in by_size.items():
            for every in (1, 4):
                cell = {"policy": policy, "size": size, "every": every}
                for fold in (0, 1):
                    value = mean + 0.1 * fold  # the folds differ by a common shift
                    rows.append({**cell, "fold": fold, "repeat": 0, f"valid_{metric}": size**fold,
                                 f"test_{metric}": value})  # fmt: skip
                summary.append({**cell, "metric": metric, "mean": mean, "std": 0.01, "n": 2})
    for size, mean in MEANS["last"].items():
        cell = {"policy": "best-rule", "size": size, "every": 1}
        summary.append({**cell, "metric": metric, "mean": mean, "std": 0.01, "n": 2})
    rules = [
        {"size": size, "every": 1, "fold": fold, "policy": policy}
        for size in MEANS["last"]
        for fold, policy in enumerate(("last", "last"))
    ]
    write_table(place / "best_rules.csv", rules)
    for a, b in (("learned", "last"), ("last", "reservoir"), ("learned", "best-rule")):
        for size in (2, 4, 8):
            paired.append({"a": a, "b": b, "size": size, "every": 1, "metric": metric,
                           "diff": -0.01, "low": -0.015, "high": -0.005, "p": 0.0123,
                           "folds": [-0.0079, -0.0121]})  # fmt: skip
    for name, table in (("rows", rows), ("summary", summary), ("paired", paired)):
        write_table(place / f"{name}.csv", table)
    for policy in ("learned", "last"):
        write_run(place / "runs" / f"{policy}-k4-t1-f0-r0", policy=policy, data=data)
    origin = {"command": f"dips compare {data} --out {HOSTILE}", "environment": {"torch": "2.13"}}
    (place / "origin.json").write_text(json.dumps(origin))
    return place


def write_run(place: Path, *, policy: str = "learned", data: str = "ml-1m") -> Path:
    """Write the files of a run directory that a report reads."""
    place.mkdir(parents=True)
    config = {"policy": policy, "size": 4, "every": 1, "seed": 0, "periods": [],
              "baselines": ("last",) if policy == "learned" else "", "dim": 32}  # fmt: skip
    metrics = {"policy": policy, "size": 4, "every": 1, "data": data, "epochs": 2,
               "kept_policy": "last", "valid": {"rmse": 0.9123}, "test": {"rmse": 0.9234},
               "train_seconds": 75.0, "interactions_per_second": 1234.5,
               "peak_memory_bytes": 2**29}  # fmt: skip
    history = [
        {"epoch": e, "train_loss": 1 / e, "valid": 0.9 / e, "metric": "rmse", "baseline": 0.8}
        for e in (1, 2)
    ]
    (place / "config.json").write_text(
        json.dumps({"data": data, "asked": config, "resolved": config})
    )
    (place / "metrics.json").write_text(json.dumps(metrics))
    (place / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in history))
    return place


def write_gradients(place: Path) -> None:
    shares = {"preserved": 0.6, "negated": 0.3, "zeroed": 0.1, "made_nonzero": 0.0}
    both = {"dips": shares, "dips@1": shares}
    found = {"data": "toy", "steps": 5, "users": 7, "ours": both, "paper_ml_1m": both}
    (place / "gradients.json").write_text(json.dumps(found))


def write_experiment(place: Path, kind: str) -> Path:
    """Write the files of `dips transfer` or `dips session` that a report reads."""
    sizes = {"transfer": {1: 0.1, 2: 0.2, 4: 0.3}, "session": {0: 0.05, 2: 0.2, 4: 0.3}}[kind]
    rows, summary = [], []
    for policy, lift in (("learned", 0.05), ("reservoir", 0.0)):
        for size, value in sizes.items():
            score = value + (lift if size else 0.0)
            cell = {"policy": policy, "size": size, "every": 4}
            rows.append({**cell, "fold": 0, "repeat": 0, "kept_policy": policy, "recall@20": score})
            summary.append({**cell, "metric": "recall@20", "mean": score, "std": 0.0, "n": 1})
    write_table(place / "rows.csv", rows)
    write_table(place / "summary.csv", summary)
    about = {"kind": kind, "data": "toy", "command": f"dips {kind} toy", "sizes": list(sizes),
             "saved": [{"metric": "recall@20", "sentence": "learned at 2 equals reservoir at 2.8"}],
             "gains": [{"metric": "recall@20", "policy": "last", "size": 2, "gain": 0.25}],
             "target_model": {"recommender": "gru"}}  # fmt: skip
    (place / f"{kind}.json").write_text(json.dumps(about))
    return place


def overflow(view: Any) -> int:
    """Return how far the page scrolls horizontally, in pixels."""
    script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    found: int = view.evaluate(script)
    return found
