"""Where a gain comes from and what is left of it: run directories in, crossed scores out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dips.data.interactions import Interactions
from dips.errors import ConfigError, RunError
from dips.evaluation import crossing as crossed
from dips.evaluation.comparison import UserSums
from dips.evaluation.crossing import Places
from dips.evaluation.headroom import AHEAD, covered, lead, room
from dips.evaluation.metrics import headline
from dips.evaluation.progressive import Scores
from dips.evaluation.transfer import SourcePolicy
from dips.model.trained_model import TrainedModel
from dips.stream.users import Columns, Stream, make_stream
from dips.studies import run_directory
from dips.studies.checks import device_of
from dips.studies.sketches import in_vocabulary
from dips.training.config import TrainConfig

Watch = Callable[[int, int], None]


def cross(
    first: str | Path,
    second: str | Path,
    data: Interactions | None = None,
    *,
    device: str = "cpu",
) -> dict[str, Any]:
    """Two runs crossed: either recommender reads the sketches of either policy.

    `rows` has the two by two, `effects` the paired differences (second minus first), `shares` how
    much of the whole difference is the sketches' and how much the recommender's.
    """
    return cross_runs([(Path(first), Path(second))], data=data, device=device)


def cross_runs(
    pairs: Sequence[tuple[Path, Path]],
    names: tuple[str, str] | None = None,
    data: Interactions | None = None,
    *,
    device: str = "cpu",
    watch: Watch = lambda done, total: None,
) -> dict[str, Any]:
    """The two by two of each pair of runs, pooled over pairs (splits), with paired differences.

    Differences are second minus first run. Users are the first run's test users, or those of
    `data`, without any who trained or validated either run.
    """
    old, new = names or labels(pairs[0])
    if old == new:
        raise ConfigError(f"{old} is named twice: give two runs")
    found: list[dict[Places, Scores]] = []
    sums: dict[Places, list[UserSums]] = {}
    kept: dict[str, list[str]] = {old: [], new: []}
    users = 0
    for pair in pairs:
        bundles, part, stream = _opened(pair, data, device)
        runs = dict(zip((old, new), bundles, strict=True))
        scores = crossed.cross(
            runs, {name: SourcePolicy.of(one) for name, one in runs.items()}, stream
        )
        found.append(scores)
        users += part.users
        for name, trained in runs.items():
            kept[name].append(trained.policy_spec.name)
        for place, one in scores.items():
            sums.setdefault(place, []).append(crossed.by_user(one, part))
        watch(len(found), len(pairs))
    metric = headline(found[0][old, old].metrics)
    differences = crossed.effects(sums, old, new)
    return {
        "old": old,
        "new": new,
        "splits": len(pairs),
        "users": users,
        "metric": metric,
        "policies": dict(zip((old, new), map(_policy, pairs[0]), strict=True)),
        "kept_policies": kept,
        "rows": [
            {
                "reader": reader,
                "sketches": source_policy,
                **_means([one[reader, source_policy] for one in found]),
            }
            for reader, source_policy in sums
        ],
        "effects": differences,
        "shares": crossed.shares(differences, metric),
    }


def headroom(
    run: str | Path,
    data: Interactions | None = None,
    *,
    readers: Sequence[str | Path] = (),
    ahead: int = AHEAD,
    device: str = "cpu",
    watch: Watch = lambda done, total: None,
) -> dict[str, Any]:
    """How far a run's sketches go from last-K's to those of an oracle that sees half the future.

    It chooses by the odd-numbered ones of the next `ahead` interactions; all are scored on
    even-numbered ones only. `lead` is the 95 % interval of how much better the oracle is than
    last-K; where it includes 0 there is no `share`. `readers` are further runs whose recommenders
    read them too.
    """
    if ahead < 1:
        raise ConfigError(f"ahead is {ahead}: give how many interactions the oracle sees")
    runs = [Path(place) for place in (run, *readers)]
    bundles, part, stream = _opened(runs, data, device)
    own, rows = bundles[0], []
    for trained, place in zip(bundles, runs, strict=True):
        if (trained.size, trained.periods) != (own.size, own.periods):
            raise RunError(f"{place} has sketches of another size or period than {run}")
    names = labels(runs)
    for name, trained in zip(names, bundles, strict=True):
        rows.append({"reader": name, **_room(trained, SourcePolicy.of(own), stream, ahead)})
        watch(len(rows), len(runs))
    return {
        "run": str(run),
        "policy": _policy(runs[0]),
        "kept_policy": own.policy_spec.name,
        "size": own.size,
        "periods": list(own.periods),
        "users": part.users,
        "ahead": ahead,
        "metric": headline(rows[0]["last"]),
        "rows": rows,
    }


def _room(reader: TrainedModel, own: SourcePolicy, stream: Stream, ahead: int) -> dict[str, Any]:
    scores = room(reader, {"own": own}, stream, ahead)
    found: dict[str, Any] = {name: scores[name].metrics for name in ("last", "own", "oracle")}
    values = {metric: [found[who][metric] for who in found] for metric in found["last"]}
    shares = {metric: covered(metric, *three) for metric, three in values.items()}
    leads = lead(scores["oracle"], scores["last"])
    for metric, (low, high) in leads.items():
        if low <= 0 <= high:  # no share of what may be nothing
            shares[metric] = None
    return {**found, "lead": leads, "share": shares}


def labels(runs: Sequence[Path]) -> list[str]:
    """What to call runs: by their policies, or where these are the same by their directories."""
    policies = [_policy(run) for run in runs]
    folders = [run.resolve().name for run in runs]
    for names in (policies, folders):
        if len(set(names)) == len(names):
            return names
    return [str(run) for run in runs]


def _policy(run: Path) -> str:
    """The policy that a run was asked for; what stayed may be a rival of it."""
    return str(run_directory.read_config(run)["policy"])


def _opened(
    runs: Sequence[Path], data: Interactions | None, device: str
) -> tuple[list[TrainedModel], Interactions, Stream]:
    """The runs, and a stream of users whom none of them has met before."""
    bundles = [run_directory.open_run(run) for run in runs]
    first = bundles[0]
    for run, other in zip(runs, bundles, strict=True):
        same = (list(other.item_ids), other.sides, other.explicit)
        if same != (list(first.item_ids), first.sides, first.explicit):
            raise RunError(
                f"{run} knows other items or has another task than {runs[0]}: train both on one "
                "data set"
            )
    splits = [run_directory.read_split(run) for run in runs]
    if data is None:
        whole = run_directory.own_part(runs[0], "test")
        others = [split for split in splits if split != splits[0]]
        part = run_directory.strangers(whole, others) if others else whole
    else:
        part = run_directory.strangers(data, splits)
    part = in_vocabulary(first, part)
    columns = Columns.of(part, device_of(TrainConfig(device=device)), first.sides)
    return bundles, part, make_stream([part], columns)


def _means(scores: Sequence[Scores]) -> Mapping[str, float]:
    """Metrics, each the mean over splits."""
    return {
        name: float(np.mean([one.metrics[name] for one in scores])) for name in scores[0].metrics
    }
