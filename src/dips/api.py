"""The front door: load, train, evaluate, compare, sketches, gradients. Composition, no logic."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dips import experiment, nightly, preflight, rundir
from dips.bundle import Bundle
from dips.data.atomic import written
from dips.data.catalog import open_data
from dips.data.columns import Columns as TableColumns
from dips.data.interactions import Interactions
from dips.errors import ConfigError
from dips.evaluation.gradient_quality import TOLERANCE
from dips.gradient_study import GradientStudy, study_gradients
from dips.numerics.processes import ALONE, Crew
from dips.outcome import Outcome, Watch
from dips.report.figures import gradient_shares, quality_by_size
from dips.scoring import score
from dips.stream.users import Columns
from dips.study import Plan, Study, Table
from dips.study import Watch as StudyWatch
from dips.training import checkpoint
from dips.training.config import TrainConfig, build_config

Model = Outcome | Bundle | str | Path


def load(data: str, *, side: Iterable[str] = ()) -> Interactions:
    """Open data by catalogue name, file, directory or zip.

    `side` names further columns of a table to keep; a prepared file keeps what it was given.

    >>> load("planted").explicit
    True
    """
    return open_data(data, columns=TableColumns(side=tuple(side)))


def train(
    train: Interactions,
    valid: Interactions,
    test: Interactions | None = None,
    *,
    out: str | Path | None = None,
    recipe: str | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    **settings: Any,
) -> Outcome:
    """Fit a recommender under a policy; the best epoch on `valid` stays. Settings: TrainConfig.

    With `test` its users are scored, once, at the end. With `out` a run directory is written, and
    an interrupted run goes on with `resume=True`.
    """
    return train_with(
        (train, valid, test or train.select([])),
        build_config(recipe, flags=settings, implicit_data=not train.explicit),
        out=Path(out) if out else None,
        source=train.name,
        test=test is not None,
        resume=resume,
        watch=watch,
    )


def train_with(
    parts: tuple[Interactions, Interactions, Interactions],
    config: TrainConfig,
    *,
    out: Path | None,
    source: rundir.Source,
    test: bool,
    resume: bool = False,
    watch: Watch | None = None,
    crew: Crew = ALONE,
) -> Outcome:
    """The same with all settings in hand, by one process or by a crew of them."""
    preflight.check(parts[0], config)
    preflight.check_crew(parts if test else parts[:2], config, crew.size)
    out = out if crew.leads else None  # one of them writes
    if out is not None:
        rundir.claim(out, config, source, resume=resume)
    job = (parts, config)
    (outcome,) = experiment.run(
        [job], test=test, watch=watch, directory=out, resume=resume, crew=crew
    )
    if outcome.error and out is not None:
        checkpoint.remove(out)  # there is nothing to go on with
    outcome.raise_if_diverged()
    if out is not None:
        rundir.write_run(outcome, out, source=source)
        checkpoint.remove(out)
    return outcome


def evaluate(model: Model, data: Interactions) -> dict[str, float]:
    """Walk the users of `data` and score every prediction; items are matched by original id."""
    bundle = _bundle(model)
    known = nightly.in_vocabulary(bundle, data)
    return score(bundle, known, Columns.of(known, sides=bundle.sides)).metrics


def compare(
    data: Interactions,
    policies: Sequence[str],
    sizes: Sequence[int] = (4,),
    every: Sequence[int] = (1,),
    seeds: Iterable[int] = range(5),
    *,
    out: str | Path | None = None,
    tune: int = 0,
    tune_once: bool = False,
    recipe: str | None = None,
    watch: StudyWatch | None = None,
    source: str | None = None,
    config: Callable[[str], TrainConfig] | None = None,
    **settings: Any,
) -> Table:
    """Train every policy at every size and period on every split, and test the differences.

    With `out` everything is kept there, and the same call goes on where it was stopped. `tune`
    gives each policy the same number of trials on validation. Settings: those of TrainConfig by
    name, or `config`, a function from a policy's name to all of them.
    """

    def by_policy(policy: str) -> TrainConfig:
        flags = {**settings, "policy": policy}
        return build_config(recipe, flags=flags, implicit_data=not data.explicit)

    if config is not None and settings:
        raise ConfigError(f"{', '.join(settings)}: give settings by name or a config, not both")
    plan = Plan(
        policies=list(policies),
        sizes=list(sizes),
        every=list(every),
        seeds=list(seeds),
        settings=config or by_policy,
        tune=tune,
        tune_once=tune_once,
    )
    if out is None:
        with tempfile.TemporaryDirectory(prefix="dips-") as folder:
            return Study(data, plan, Path(folder), source=data.name, watch=watch).result()
    table = Study(data, plan, Path(out), source=source or data.name, watch=watch).result()
    metric = table.summary[0]["metric"]
    with written(Path(out) / "figure.png") as part:
        quality_by_size(table.summary, metric, part)
    return table


def sketches(model: Model, data: Interactions, *, at: str = "end") -> dict[str, Any]:
    """Everyone's sketch as columns (user, t, position, item, rating, score).

    `at="end"` gives the sketch after each user's last refresh, `at="each"` the one before every
    prediction.
    """
    return nightly.sketches(_bundle(model), data, at=at)


def gradients(
    run: str | Path,
    data: Interactions | None = None,
    *,
    users: int = 32,
    steps: int = 20,
    longest: int = 200,
    queue: int = 100,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> GradientStudy:
    """Train a run of `dips` on, and compare its policy gradients with true ones on the way.

    The users are drawn from those who trained the run, or from `data`, and their histories cut
    after the `longest`. gradients.json and gradients.png are written into the run directory.
    """
    directory = Path(run)
    bundle, config = rundir.open_run(directory), rundir.read_settings(directory)
    study = study_gradients(
        bundle,
        config,
        nightly.in_vocabulary(bundle, data or rundir.own_part(directory, "train")),
        users=users,
        steps=steps,
        longest=longest,
        queue=queue,
        seed=seed,
        tolerance=tolerance,
        watch=watch,
    )
    found = study.to_dict()
    rundir.write_json(found, directory / "gradients.json")
    with written(directory / "gradients.png") as part:
        gradient_shares(found["ours"], found["paper_ml_1m"], part)
    return study


def _bundle(model: Model) -> Bundle:
    if isinstance(model, Outcome):
        return model.bundle
    return model if isinstance(model, Bundle) else rundir.open_run(Path(model))
