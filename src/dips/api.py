"""The front door: load, train, evaluate, compare, and the other studies. Composition, no logic."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dips import __version__
from dips.data.atomic import written
from dips.data.catalog import open_data
from dips.data.columns import Columns as TableColumns
from dips.data.interactions import Interactions
from dips.errors import ConfigError
from dips.evaluation.gradient_quality import TOLERANCE
from dips.evaluation.scoring import score
from dips.evaluation.story import Story
from dips.model.trained_model import TrainedModel
from dips.numerics.process_group import SINGLE_PROCESS, ProcessGroup
from dips.report.figures import gradient_shares, quality_by_size
from dips.report.report_page import report_page
from dips.report.results import read_results
from dips.serve.sizing import record_bytes
from dips.stream.users import Columns
from dips.studies import checks, run_directory
from dips.studies import run as experiment
from dips.studies import sketches as nightly
from dips.studies.compare import Plan, Study, Table
from dips.studies.compare import Watch as StudyWatch
from dips.studies.cross import cross as cross
from dips.studies.cross import headroom as headroom
from dips.studies.gradients import GradientStudy, study_gradients
from dips.studies.paper import STAGES, PaperStudy, Tools
from dips.studies.paper_plan import FULL, QUICK
from dips.studies.policy_transfer import Result, reading
from dips.studies.result import RunResult, Watch
from dips.studies.session import study_sessions
from dips.studies.stages import Progress
from dips.studies.story import story_of
from dips.studies.transfer import study_transfer
from dips.training import checkpoint
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

Model = RunResult | TrainedModel | str | Path
TRANSFERRED = FULL.grids["transfer"].policies
"""Policies of the paper's transfer experiment, and ours."""


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
) -> RunResult:
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
    source: run_directory.Source,
    test: bool,
    resume: bool = False,
    watch: Watch | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> RunResult:
    """The same with all settings in hand, by one process or by a process_group of them."""
    checks.check(parts[0], config)
    checks.check_process_group(parts if test else parts[:2], config, process_group.size)
    out = out if process_group.leads else None  # one of them writes
    if out is not None:
        run_directory.claim(out, config, source, resume=resume)
    job = (parts, config)
    (outcome,) = experiment.run(
        [job], test=test, watch=watch, directory=out, resume=resume, process_group=process_group
    )
    if outcome.error and out is not None:
        checkpoint.remove(out)  # there is nothing to go on with
    outcome.raise_if_diverged()
    if out is not None:
        run_directory.write_run(outcome, out, source=source)
        checkpoint.remove(out)
    return outcome


def evaluate(model: Model, data: Interactions) -> dict[str, float]:
    """Walk the users of `data` and score every prediction; items are matched by original id."""
    trained = _bundle(model)
    known = nightly.in_vocabulary(trained, data)
    return score(trained, known, Columns.of(known, sides=trained.sides)).metrics


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

    configs = _configs(data, recipe, config, settings)
    plan = Plan(
        policies=list(policies), sizes=list(sizes), every=list(every), seeds=list(seeds),
        settings=config or (lambda policy: configs(policy=policy)), tune=tune, tune_once=tune_once,
    )  # fmt: skip
    if out is None:
        with tempfile.TemporaryDirectory(prefix="dips-") as folder:
            return Study(data, plan, Path(folder), source=data.name, watch=watch).result()
    table = Study(data, plan, Path(out), source=source or data.name, watch=watch).result()
    metric = table.summary[0]["metric"]
    with written(Path(out) / "figure.png") as part:
        quality_by_size(table.summary, metric, part)
    return table


def transfer(
    data: Interactions,
    policies: Sequence[str] = TRANSFERRED,
    sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    seeds: Iterable[int] = range(3),
    *,
    recommender: str = "gru",
    reader_epochs: int = 0,
    out: str | Path | None = None,
    recipe: str | None = None,
    watch: StudyWatch | None = None,
    source: str | None = None,
    command: str = "",
    config: Callable[..., TrainConfig] | None = None,
    **settings: Any,
) -> Result:
    """Let policies that were trained with NCF choose what a sequential model reads.

    `recommender` (gru or sasrec) learns from whole histories, and is shown sketches at test time.
    Settings hold for both, `reader_epochs` for the reader; or `config`, a function of both names.
    """
    configs = _configs(data, recipe, config, settings)
    plan = Plan(
        policies=list(policies), sizes=list(sizes), every=[1], seeds=list(seeds),
        settings=lambda policy: configs(policy=policy, recommender="dot"),
    )  # fmt: skip
    reader = reading(configs(policy="all", recommender=recommender), reader_epochs)
    name = source or data.name
    study = partial(study_transfer, data, plan, reader, source=name, command=command, watch=watch)
    return _drawn(study, out, "all")


def session(
    data: Interactions,
    policies: Sequence[str] = ("reservoir", "last", "learned"),
    sizes: Sequence[int] = (0, 2, 4, 8),
    seeds: Iterable[int] = range(3),
    *,
    reader_epochs: int = 0,
    out: str | Path | None = None,
    recipe: str | None = None,
    watch: StudyWatch | None = None,
    source: str | None = None,
    command: str = "",
    config: Callable[..., TrainConfig] | None = None,
    **settings: Any,
) -> Result:
    """Train session-based recommenders that see the session so far and a sketch; 0 is without one.

    Settings hold for these and for NCF, with which policies are trained; `reader_epochs` for these.
    """
    configs = _configs(data, recipe, config, settings)
    plan = Plan(
        policies=list(policies), sizes=list(sizes), every=[4], seeds=list(seeds),
        settings=lambda policy: configs(policy=policy, recommender="dot", every=4),
    )  # fmt: skip
    reader = reading(configs(policy="last", recommender="gru", every=4), reader_epochs)
    name = source or data.name
    study = partial(study_sessions, data, plan, reader, source=name, command=command, watch=watch)
    return _drawn(study, out, "none")


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
    trained, config = run_directory.open_run(directory), run_directory.read_settings(directory)
    study = study_gradients(
        trained,
        config,
        nightly.in_vocabulary(trained, data or run_directory.own_part(directory, "train")),
        users=users, steps=steps, longest=longest, queue=queue, seed=seed, tolerance=tolerance,
        watch=watch,
    )  # fmt: skip
    found = study.to_dict()
    run_directory.write_json(found, directory / "gradients.json")
    with written(directory / "gradients.png") as part:
        gradient_shares(found["ours"], found["paper_ml_1m"], part)
    return study


def story(run: str | Path, user: str, data: Interactions | None = None) -> Story:
    """What a run kept of one user when, what helped which prediction, and why something went.

    `user` is an original id, of the run's own data or of `data`.
    """
    return story_of(Path(run), user, data)


def report(results: Sequence[str | Path], out: str | Path) -> None:
    """One self-contained page of what compare, transfer, session, gradients and train wrote."""
    made = report_page(
        read_results([Path(place) for place in results]),
        bytes_of=lambda size, every, rated: record_bytes(size, every, rated=rated),
        version=__version__,
    )
    with written(Path(out)) as part:
        part.write_text(made, encoding="utf-8")


def paper(
    data: Interactions,
    out: str | Path,
    *,
    quick: bool = False,
    stages: Sequence[str] = STAGES,
    seeds: Sequence[int] | None = None,
    source: str | None = None,
    command: str = "",
    note: Callable[[Path], None] = lambda place: None,
    watch: Callable[[Progress], None] = lambda progress: None,
    **settings: Any,
) -> dict[str, Any]:
    """Run everything that the paper shows for one data set; it ends in report.html.

    The same call goes on where it stopped. `note` is told of each directory of results.
    """
    plan = (QUICK if quick else FULL).but(seeds, settings)
    tools = Tools(compare, transfer, session, gradients, story, report)
    name = source or data.name
    study = PaperStudy(data, plan, Path(out), tools, source=name, command=command, note=note)
    return study.result(stages, watch)


def _configs(
    data: Interactions,
    recipe: str | None,
    config: Callable[..., TrainConfig] | None,
    settings: dict[str, Any],
) -> Callable[..., TrainConfig]:
    """From what a study sets itself to all settings."""
    if config is not None and settings:
        raise ConfigError(f"{', '.join(settings)}: give settings by name or a config, not both")

    def named(**own: Any) -> TrainConfig:
        return build_config(recipe, flags={**settings, **own}, implicit_data=not data.explicit)

    return config or named


def _drawn(study: Callable[[Path], Result], out: str | Path | None, level: str) -> Result:
    """What a study finds, with a figure beside it; `level` has one quality at all sizes."""
    with _kept(out) as place:
        result = study(place)
        with written(place / "figure.png") as part:
            quality_by_size(result.summary, result.summary[0]["metric"], part, [level])
    return result


@contextmanager
def _kept(out: str | Path | None) -> Iterator[Path]:
    """Where results are kept; nowhere for long unless it is said."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="dips-") as folder:
        yield Path(folder)


def _bundle(model: Model) -> TrainedModel:
    if isinstance(model, RunResult):
        return model.trained
    return model if isinstance(model, TrainedModel) else run_directory.open_run(Path(model))
