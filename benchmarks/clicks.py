"""Compare training on clicks with what users would run instead: time, memory, Recall@20, MRR@20.

python -m benchmarks.clicks [--users 30000 --items 8000 --events 33] [--models last,als] [--json F]
python -m benchmarks.clicks --catalogue 10000,100000,1000000 [--models ""]

All models have the same split and the protocol of `dips`: every prediction of the test users reads
the last K items and ranks all items. Settings of models without early stopping are chosen on
validation users; their time is that of the chosen setting.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import product, sasrec_plain
from benchmarks.measure import Clock, Peak, Took, best, in_child, on_file, print_json, table, timed
from dips import api
from dips.data import prepared, synthetic
from dips.data.interactions import Interactions
from dips.data.splitting import Parts
from dips.errors import ConfigError
from dips.evaluation.progressive import evaluate_scores
from dips.policy.recency import Last
from dips.recommender.base import Evidence, mask_items
from dips.recommender.memory_based import (
    event_items,
    event_users,
    linear_scores,
    linear_weights,
    markov_neighbours,
    neighbour_scores,
    popularity,
)
from dips.rollout.rollout import rollout
from dips.stream.schedule import Schedule
from dips.stream.users import EventColumns, make_stream
from dips.studies.checks import resolved, split
from dips.studies.run import train_runs
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

HERE = "benchmarks.clicks"
MODELS = {
    "last": "`dips`, policy `last`",
    "learned": "`dips train --policy learned`, baselines and verdict",
    "als": "`implicit` ALS, 15 iterations, fold-in",
    "sasrec": "plain SASRec in torch",
    "linear": "linear next-item model",
    "markov": "Markov model",
    "popularity": "popularity",
}
VALID_USERS = 1000
"""Most validation users for the choice of settings and the early stopping of other models."""
RANKED_USERS = 100
"""Validation users whose predictions are ranked with a growing catalogue."""
NEAR = 500
"""Neighbours per item of the Markov model."""
TRIALS: dict[str, list[dict[str, float]]] = {
    "als": [
        {"alpha": 1, "regularization": 0.01},  # implicit's defaults
        *(
            {"alpha": alpha, "regularization": norm}
            for alpha in (10, 40)
            for norm in (10, 100, 300)
        ),
    ],
    "linear": [
        {"decay": decay, "penalty": norm} for decay in (0.8, 0.9) for norm in (300, 1000, 3000)
    ],
    "markov": [{"decay": decay} for decay in (0.0, 0.8, 0.9)],
    "popularity": [{}],
}
"""Settings to choose from. A decay of 0 reads the newest item only."""
Score = Callable[[Evidence], Tensor]


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.child:
        print(json.dumps(_child(json.loads(options.child))))
        return 0
    results: dict[str, Any] = {"size": options.size, "clock": options.clock}
    results |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
    made = partial(_made, options.users, options.items, options.events)
    names = [name for name in options.models.split(",") if name]
    if unknown := set(names) - MODELS.keys():
        raise SystemExit(f"models {', '.join(unknown)}: choose from {', '.join(MODELS)}")
    if names:
        with on_file(options.data, made) as file:
            results["models"] = compare(str(file), names, options)
        print(f"\n{report(results)}\n")
    if options.catalogue:
        results["catalogue"] = grow(options)
        print(f"\n{report_catalogue(results)}\n")
    print_json(results, options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=30_000)
    parser.add_argument("--items", type=int, default=8000)
    parser.add_argument("--events", type=int, default=33, help="mean number of clicks of a user")
    parser.add_argument("--data", help="a prepared file or a name, instead of synthetic clicks")
    parser.add_argument("--models", default=",".join(MODELS), help="rows of the table")
    parser.add_argument("--size", type=int, default=8, help="items that a prediction reads (K)")
    filtered = "filter items of the sketch in all rows; default: as dips decides from the data"
    parser.add_argument("--filter-sketch", action="store_true", help=filtered)
    parser.add_argument("--epochs", type=int, help="most epochs of dips; default: its own")
    parser.add_argument("--sasrec-epochs", type=int, default=100, help="most epochs of SASRec")
    parser.add_argument("--sasrec-device", default="cpu", help="where SASRec is trained")
    parser.add_argument("--catalogue", type=_numbers, help="numbers of items, for example 1e4,1e6")
    parser.add_argument("--clicks", type=float, default=3e5, help="clicks at each number of items")
    parser.add_argument("--clock", default="wall", help="wall, or cpu: time of all threads")
    parser.add_argument("--json", type=Path, help="JSON file to write")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


def _numbers(text: str) -> list[int]:
    return [int(float(number)) for number in text.split(",")]


def _made(users: int, items: int, events: int) -> Interactions:
    return synthetic.stream(users=users, items=items, events=events, implicit=True)


def compare(file: str, names: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Train and score each model in a child process."""
    flags: dict[str, Any] = {"size": options.size, "device": "cpu"}
    flags |= {"filter_sketch": True} if options.filter_sketch else {}
    job = {"file": file, "flags": flags, "epochs": options.epochs}
    job |= {"sasrec": {"epochs": options.sasrec_epochs, "device": options.sasrec_device}}
    return {name: _log(name, in_child(HERE, {"do": name, **job})) for name in names}


def grow(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time an epoch of `last` at each number of items, in a child process each."""
    world = {"users": max(20, int(options.clicks) // options.events), "events": options.events}
    jobs = [
        {"do": "catalogue", "world": {**world, "items": items}, "size": options.size}
        for items in options.catalogue
    ]
    return [_log(f"{job['world']['items']:,} items", in_child(HERE, job)) for job in jobs]


def _log(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Print a result on standard error, and return it."""
    print(f"{name}: {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


def _child(job: Mapping[str, Any]) -> dict[str, Any]:
    if job["do"] == "catalogue":
        return _one_epoch(job["world"], job["size"])
    peak = Peak("cpu")
    try:
        found = _measure(Protocol.of(job), job)
    except (ConfigError, ImportError) as error:
        return {"missing": str(error)}
    return {**found, "peak_bytes": peak.bytes()}


def _measure(protocol: Protocol, job: Mapping[str, Any]) -> dict[str, Any]:
    if job["do"] == "last":
        return _last(protocol, job["epochs"])
    if job["do"] == "learned":
        return _learned(protocol, job["epochs"])
    if job["do"] == "sasrec":
        return _sasrec(protocol, job["sasrec"])
    fit = {"als": _als, "linear": _linear, "markov": _markov, "popularity": _popularity}
    return _tuned(protocol, fit[job["do"]], TRIALS[job["do"]])


@dataclass
class Protocol:
    """The split of the data, and the evaluation that all models share."""

    parts: Parts
    flags: Mapping[str, Any]
    filters: bool
    """Whether items of the sketch are filtered, as `dips` decides from the data."""

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> Protocol:
        """Open the data and split it as `dips train` does."""
        config = build_config(flags=job["flags"])
        parts = split(prepared.open_prepared(Path(job["file"])), config)
        return cls(parts, job["flags"], bool(resolved(parts[0], config).model.filter_sketch))

    @property
    def size(self) -> int:
        """Number of items that a prediction reads (K)."""
        return int(self.flags["size"])

    def config(self, policy: str, epochs: int | None) -> TrainConfig:
        """Return the settings of a run with a policy; epochs are open by default."""
        return build_config(flags={**self.flags, "policy": policy, "epochs": epochs})

    def validate(self, score: Score) -> float:
        """Return Recall@20 of some validation users."""
        users = range(min(VALID_USERS, self.parts[1].users))
        return self.metrics(score, self.parts[1].select(users))["recall@20"]

    def test(self, score: Score) -> dict[str, float]:
        """Return the metrics of the test users."""
        return self.metrics(score, self.parts[2])

    def metrics(self, score: Score, part: Interactions) -> dict[str, float]:
        """Return metrics over all predictions from the last K items; popularity without any."""
        stream = make_stream([part], EventColumns.of(part))
        keys = stream.keys([0])
        trace = rollout(stream, Last(), size=self.size, schedule=Schedule((1,)), keys=keys)
        popular = popularity(self.parts[0]).float()

        def ranked(evidence: Evidence) -> Tensor:
            scores = torch.where(evidence.slots[:, None] > 0, score(evidence), popular)
            return mask_items(scores, evidence.item, evidence.weight) if self.filters else scores

        breadth = 16 * part.items + 2 * self.size * NEAR
        return evaluate_scores(ranked, trace, 0, breadth).metrics


def _row(epoch: Took | None, total: Took, metrics: Mapping[str, float], **more: Any) -> Any:
    """Return a result: times of one epoch and to convergence, and metrics on test."""
    return {"epoch": epoch and epoch._asdict(), "total": total._asdict(), **metrics, **more}


def _last(protocol: Protocol, epochs: int | None) -> dict[str, Any]:
    clock, ends = Clock("cpu"), list[Took]()
    job = (protocol.parts, protocol.config("last", epochs))
    (result,) = train_runs([job], on_epoch=lambda report: ends.append(clock.took()))
    metrics = result.metrics()["test"]
    about = {"filter_sketch": protocol.filters, "clicks": len(protocol.parts[0])}
    return _row(best(_differences(ends)), ends[-1], metrics, epochs=len(ends), **about)


def _learned(protocol: Protocol, epochs: int | None) -> dict[str, Any]:
    clock, config = Clock("cpu"), protocol.config("learned", epochs)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        result = api.train_with(protocol.parts, config, out=out, source="clicks", test=True)
        verdict = str(result.verdict or "")
    metrics = result.metrics()
    about = {"epochs": result.epochs, "kept_policy": metrics["kept_policy"], "verdict": verdict}
    return _row(None, clock.took(), metrics["test"], **about)


def _sasrec(protocol: Protocol, settings: Mapping[str, Any]) -> dict[str, Any]:
    def score(model: sasrec_plain.PlainSASRec, evidence: Evidence) -> Tensor:
        place = settings["device"]
        return model.scores(evidence.item.to(place), evidence.slots.to(place)).cpu()

    fitted = sasrec_plain.fit(
        protocol.parts[0], lambda model: protocol.validate(partial(score, model)), **settings
    )
    metrics = protocol.test(partial(score, fitted.model))
    return _row(fitted.epoch, fitted.total, metrics, epochs=fitted.epochs)


Fit = Callable[..., tuple[Score, Took | None]]


def _tuned(protocol: Protocol, fit: Fit, trials: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the row of the setting that is best on validation users."""
    best_value, chosen = -1.0, None
    for trial in trials:
        clock = Clock("cpu")
        score, epoch = fit(protocol.parts[0], protocol.size, **trial)
        total = clock.took()
        value = protocol.validate(score) if len(trials) > 1 else 0.0
        if value > best_value:  # only the best model stays in memory
            best_value, chosen = value, (trial, score, epoch, total)
    assert chosen is not None
    trial, score, epoch, total = chosen
    return _row(epoch, total, protocol.test(score), settings=trial, trials=len(trials))


def _als(train: Interactions, size: int, **settings: float) -> tuple[Score, Took]:
    """Fit implicit's ALS."""
    try:
        from implicit.cpu.als import AlternatingLeastSquares
        from scipy.sparse import csr_matrix
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        fix = "pip install -c constraints.txt '.[benchmarks]'"
        raise ImportError(f"not installed: {fix}") from error
    clock, ends = Clock("cpu"), list[Took]()
    clicks = (event_users(train).numpy(), event_items(train).numpy())
    matrix = csr_matrix((torch.ones(len(train)).numpy(), clicks), (train.users, train.items))
    with threadpool_limits(1, "blas"):  # implicit's own threads share the rows
        model = AlternatingLeastSquares(
            factors=64, iterations=15, num_threads=torch.get_num_threads(), random_state=0,
            **settings,
        )  # fmt: skip
        model.fit(matrix, show_progress=False, callback=lambda *told: ends.append(clock.took()))
    items = torch.from_numpy(model.item_factors)
    return lambda evidence: fold_in(model, evidence) @ items.T, best(_differences(ends))


def fold_in(model: Any, evidence: Evidence) -> Tensor:
    """Return the user factors of sketches, [rows, factors], solved for in closed form."""
    from scipy.sparse import csr_matrix

    row, place = evidence.weight.nonzero(as_tuple=True)
    kept = (row.numpy(), evidence.item[row, place].numpy())
    shape = (len(evidence.item), len(model.item_factors))
    sketches = csr_matrix((evidence.weight[row, place].numpy(), kept), shape)
    return torch.from_numpy(model.recalculate_user(range(shape[0]), sketches))


def _differences(ends: Sequence[Took]) -> list[Took]:
    """Return the time of each epoch after the first one; of the first one if it is the only one."""
    return [later.less(earlier) for earlier, later in pairwise(ends)] or list(ends)


def _linear(train: Interactions, size: int, decay: float, penalty: float) -> tuple[Score, None]:
    weights = linear_weights(train, size, decay, penalty)
    popular = popularity(train).float()
    return lambda evidence: linear_scores(weights, popular, evidence, decay), None


def _markov(train: Interactions, size: int, decay: float) -> tuple[Score, None]:
    near = markov_neighbours(train, NEAR)
    popular = popularity(train).float()
    return lambda evidence: neighbour_scores(near, popular, evidence, decay), None


def _popularity(train: Interactions, size: int) -> tuple[Score, None]:
    popular = popularity(train).float()
    return lambda evidence: popular.expand(len(evidence.item), -1), None


def _one_epoch(world: Mapping[str, int], size: int) -> dict[str, Any]:
    """Time an epoch of `last`, after a first one, and the ranking of some validation users."""
    data = _made(**world)
    setting = product.Setting.of(data, "default", {"policy": "last", "size": size, "device": "cpu"})
    train, valid, test = setting.parts
    valid = valid.select(range(min(RANKED_USERS, valid.users)))
    peak = Peak("cpu")
    run = product.Run.begin(setting._replace(parts=(train, valid, test)).in_one_user_batch())
    epoch = product.EpochPhases(run)
    epoch.train(run.state)  # warm up
    took = timed("cpu", lambda: epoch.train(run.state))
    training_peak = peak.bytes()
    ranking = timed("cpu", lambda: run.validate(run.state.stack, epoch.validation))
    return {
        "items": world["items"],
        "clicks": len(train),
        "negatives": setting.config.model.negatives or 0,
        "epoch": took._asdict(),
        "peak_bytes": training_peak,
        "ranked": len(epoch.validation.event),
        "ranking": ranking._asdict(),
    }


def report(results: Mapping[str, Any]) -> str:
    """Return the comparison as a Markdown table, with the verdict of `learned` below it."""
    clock, rows = results["clock"], results["models"]
    base = rows.get("last", {}).get("total")
    head = [f"K = {results['size']}", "epoch s", "to convergence s", "x last", "epochs"]
    head += ["peak MiB", "Recall@20", "MRR@20"]
    lines = []
    for name, row in rows.items():
        if "missing" in row:
            lines.append([f"{MODELS[name]}: {row['missing']}", *[""] * (len(head) - 1)])
            continue
        total = row["total"][clock]
        lines.append(
            [
                MODELS[name],
                f"{row['epoch'][clock]:,.2f}" if row["epoch"] else "",
                f"{total:,.2f}",
                f"{total / base[clock]:,.2f}" if base else "",
                str(row.get("epochs", "")),
                f"{row['peak_bytes'] / 2**20:,.0f}",
                f"{row['recall@20']:.4f}",
                f"{row['mrr@20']:.4f}",
            ]
        )
    text = table(head, lines)
    if "verdict" in rows.get("learned", {}):
        text += f"\n\nVerdict: {rows['learned']['verdict']}"
    return text


def report_catalogue(results: Mapping[str, Any]) -> str:
    """Return the cost of training and of ranking by the number of items as a Markdown table."""
    clock, rows = results["clock"], results["catalogue"]
    cost = [row["epoch"][clock] / row["clicks"] * 1e6 for row in rows]
    lines = [
        [
            f"{row['items']:,}",
            f"{row['negatives']:,} sampled" if row["negatives"] else "all",
            f"{each:,.1f}",
            f"{each / cost[0]:.2f}",
            f"{row['peak_bytes'] / 2**20:,.0f}",
            f"{row['ranking'][clock] / row['ranked'] * 1e3:,.2f}",
        ]
        for row, each in zip(rows, cost, strict=True)
    ]
    head = [f"items, `last`, K = {results['size']}", "softmax over", "training us per click"]
    return table([*head, "ratio", "peak MiB", "ranking ms per prediction"], lines)


if __name__ == "__main__":
    sys.exit(main())
