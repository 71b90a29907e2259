"""The public functions: load, train, evaluate, compare, and the other studies.

Composes the other packages; has no logic of its own.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dips import __version__
from dips.data.atomic_write import atomic_write
from dips.data.catalog import open_data
from dips.data.interactions import Interactions
from dips.data.readers.columns import ColumnNames
from dips.data.splitting import FOLDS
from dips.errors import ConfigError
from dips.evaluation.scoring import score_users
from dips.evaluation.settings import TOLERANCE
from dips.evaluation.story import Story
from dips.model.trained_model import TrainedModel
from dips.numerics.process_group import SINGLE_PROCESS, ProcessGroup
from dips.report.figures import gradient_shares, quality_by_size
from dips.report.report_page import report_page
from dips.report.results import read_results
from dips.serve.sizing import record_bytes
from dips.stream.users import EventColumns
from dips.studies import checks, run_directory
from dips.studies.compare import Comparison, ComparisonPlan, ComparisonTable, ConfigsCallback
from dips.studies.cross import cross as cross
from dips.studies.estimate import describe_estimate, estimate_seconds
from dips.studies.gradients import GradientStudy, study_gradients
from dips.studies.headroom import headroom as headroom
from dips.studies.paper import PaperStudy, StudyFunctions
from dips.studies.paper_plan import FULL, QUICK, STAGES, TRANSFER_POLICIES
from dips.studies.policy_transfer import TransferResult, target_config
from dips.studies.progress import (
    EpochCallback,
    EpochReport,
    StudyCallback,
    TrainingCallback,
    TrainingReport,
)
from dips.studies.progress_lines import StudyLines, TrainingLines
from dips.studies.result import RunResult
from dips.studies.run import train_runs
from dips.studies.session import study_sessions
from dips.studies.sketches import reindex_items, sketch_columns
from dips.studies.stages import StageProgress
from dips.studies.story import user_story
from dips.studies.transfer import study_transfer
from dips.training import checkpoint
from dips.training.config import TrainConfig
from dips.training.recipes import build_config

Model = RunResult | TrainedModel | str | Path
"""A trained model: the result of `train`, an opened model, or a run directory."""


def load(data: str, *, side: Iterable[str] = ()) -> Interactions:
    """Open a data set.

    Args:
        data: A catalogue name (`ml-1m`, `synthetic`, `planted`, ...), a prepared file, a table
            (Parquet, CSV, `.inter`), or a directory or zip in a known layout.
        side: Further columns of a table to keep as side information.

    Returns:
        Users, items, ratings and times, ordered by user and time.

    Raises:
        DataError: If there is no such data or if it cannot be read.

    Example:
        >>> import dips
        >>> data = dips.load("planted")
        >>> data.explicit, data.users > 0
        (True, True)
    """
    return open_data(data, columns=ColumnNames(side=tuple(side)))


def train(
    train: Interactions,
    valid: Interactions,
    test: Interactions | None = None,
    *,
    out: str | Path | None = None,
    recipe: str | None = None,
    resume: bool = False,
    progress: bool = True,
    on_epoch: EpochCallback | None = None,
    **settings: Any,
) -> RunResult:
    """Train a policy and a recommender; the best epoch on validation is kept.

    Args:
        train: Training users.
        valid: Validation users, for the choice of the epoch and of the baseline.
        test: Test users, scored once at the end.
        out: Run directory to write.
        recipe: Name of a set of settings, for example `quick` or `paper`.
        resume: Whether to continue the interrupted run in `out`.
        progress: Whether to print progress on standard error, every few seconds.
        on_epoch: Called after each epoch.
        **settings: Settings of `TrainConfig` by name: policy, size, every, epochs, ...

    Returns:
        The trained model with its metrics. `policy` is what it really is: the policy that was asked
        for, or a better baseline. `verdict` compares it with its baselines; None without any.

    Raises:
        ConfigError: If settings are unknown or do not go together.
        RunError: If `out` holds another run.
        TrainingDiverged: If training diverged.

    Example:
        >>> import dips
        >>> data = dips.load("planted").select(range(40))
        >>> train, valid, test = data.split_users(0.6, 0.2, 0.2, seed=0)
        >>> result = dips.train(train, valid, test, policy="last", size=2, epochs=1)
        >>> sorted(result.metrics()["test"])
        ['rmse']
    """
    parts = train, valid, test or train.select([])
    asked = build_config(recipe, flags=settings)
    lines = TrainingLines(every_epoch=False)

    def report(found: TrainingReport) -> None:
        if progress:
            lines(found)
        if on_epoch is not None and isinstance(found, EpochReport):
            on_epoch(found)

    return train_with(
        parts,
        asked,
        out=Path(out) if out else None,
        source=train.name,
        test=test is not None,
        resume=resume,
        on_start=lambda: print_estimate(parts, [asked]) if progress and not resume else None,
        on_progress=report,
    )


def train_with(
    parts: tuple[Interactions, Interactions, Interactions],
    config: TrainConfig,
    *,
    out: Path | None,
    source: run_directory.Source,
    test: bool,
    resume: bool = False,
    on_start: Callable[[], None] = lambda: None,
    on_progress: TrainingCallback = lambda report: None,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> RunResult:
    """Train and write a run with given parts and settings; the function behind `dips train`.

    Args:
        parts: Users for training, validation and test.
        config: All settings.
        out: Run directory to write; only the leading process writes.
        source: Name of the data as the user gave it.
        test: Whether to score the test users.
        resume: Whether to continue the interrupted run in `out`.
        on_start: Called after all checks, before training.
        on_progress: Called within epochs and after each.
        process_group: Processes that share the users.

    Raises:
        ConfigError: If settings do not go together.
        RunError: If `out` holds another run.
        TrainingDiverged: If training diverged.
    """
    checks.check(parts[0], config)
    checks.check_process_group(parts if test else parts[:2], config, process_group.world_size)
    out = out if process_group.is_main else None  # only the leader writes
    if out is not None:
        run_directory.prepare_directory(out, config, source, resume=resume)
    on_start()
    job = (parts, config)
    (result,) = train_runs(
        [job],
        test=test,
        on_progress=on_progress,
        directory=out,
        resume=resume,
        process_group=process_group,
    )
    if result.error and out is not None:
        checkpoint.remove(out)  # a diverged run cannot be continued
    result.raise_if_diverged()
    if out is not None:
        run_directory.write_run(result, out, source=source)
        checkpoint.remove(out)
    return result


def print_estimate(
    parts: tuple[Interactions, Interactions, Interactions],
    configs: Sequence[TrainConfig],
    setting: str = "max_users=",
) -> None:
    """Print about how long training takes, on standard error; nothing if it takes seconds.

    Args:
        parts: Users for training, validation and test.
        configs: Settings of each run.
        setting: How the number of users is limited, as it is typed.
    """
    seconds = estimate_seconds(parts, configs)
    if seconds is not None:
        users = sum(part.users for part in parts)
        print(describe_estimate(seconds, users, setting), file=sys.stderr, flush=True)


def print_time(
    data: Interactions, configs: Sequence[TrainConfig], setting: str = "max_users="
) -> None:
    """Print about how long a comparison takes: `print_estimate` of its first split."""
    if configs:
        print_estimate(checks.split(data, configs[0]), configs, setting)


def evaluate(model: Model, data: Interactions, *, allow_plugins: bool = False) -> dict[str, float]:
    """Score every prediction of a trained model on the users of some data.

    Args:
        model: Result of `train`, an opened model, or a run directory.
        data: Users to score; items are matched by original id.
        allow_plugins: Whether a user's own class that a run directory names is imported.

    Returns:
        Metrics by name: `rmse`, or `recall@20`, `mrr@20` and `ndcg@20`.

    Raises:
        DataError: If the model knows none of the items.

    Example:
        >>> import dips
        >>> data = dips.load("planted").select(range(40))
        >>> train, valid, test = data.split_users(0.6, 0.2, 0.2, seed=0)
        >>> result = dips.train(train, valid, policy="last", size=2, epochs=1)
        >>> sorted(dips.evaluate(result, test))
        ['rmse']
    """
    trained = _trained_model(model, allow_plugins)
    known = reindex_items(trained, data)
    return score_users(
        trained, known, EventColumns.of(known, side_information=trained.side)
    ).metrics


def compare(
    data: Interactions,
    policies: Sequence[str],
    sizes: Sequence[int] = (4,),
    every: Sequence[int] = (1,),
    *,
    folds: int | None = None,
    seed: int = 0,
    repeats: int = 1,
    out: str | Path | None = None,
    tune: int = 0,
    tune_once: bool = False,
    recipe: str | None = None,
    progress: bool = True,
    on_start: ConfigsCallback | None = None,
    on_progress: StudyCallback | None = None,
    source: str | None = None,
    config: Callable[[str], TrainConfig] | None = None,
    **settings: Any,
) -> ComparisonTable:
    """Train every policy at every size and period on every fold, and test the differences.

    Args:
        data: All users.
        policies: Names of policies.
        sizes: Sketch sizes (K).
        every: Refresh periods (tau).
        folds: Number of folds. Default: 5, which test every user once; 1 with `split="time"` or
            `split="date"`.
        seed: Seed of the permutation of users, and of training.
        repeats: Number of training runs on each fold.
        out: Results directory; the same call continues an interrupted comparison.
        tune: Number of tuning trials on validation for each policy and cell.
        tune_once: Whether to tune each policy at its middle size only.
        recipe: Name of a set of settings.
        progress: Whether to print progress on standard error, every few seconds.
        on_start: Called with the settings of the runs that are missing, before training.
        on_progress: Called within epochs and after each, in place of printing.
        source: Name of the data as the user gave it.
        config: From a policy's name to all its settings, instead of `settings`.
        **settings: Settings of `TrainConfig` by name.

    Returns:
        Tables of runs, means and paired differences. `verdict()` is one sentence.

    Raises:
        ConfigError: If settings do not go together.
        RunError: If `out` holds other results.

    Example:
        >>> import dips
        >>> data = dips.load("planted").select(range(40))
        >>> table = dips.compare(data, ["last", "reservoir"], sizes=[2], folds=1, epochs=1)
        >>> [(row["policy"], row["metric"]) for row in table.summary]
        [('last', 'rmse'), ('reservoir', 'rmse'), ('best-rule', 'rmse')]
    """
    configs = _configs(data, recipe, config, settings)
    named = config or (lambda policy: configs(policy=policy))
    if on_progress is None and progress:
        on_progress = StudyLines(every_phase=False)
        on_start = on_start or partial(print_time, data)
    if folds is None:
        by_time = bool(policies) and named(policies[0]).training.split != "users"
        folds = 1 if by_time else FOLDS
    plan = ComparisonPlan(
        policies=list(policies), sizes=list(sizes), every=list(every), folds=folds, seed=seed,
        repeats=repeats, settings=named, tune=tune, tune_once=tune_once,
    )  # fmt: skip
    if out is None:
        with tempfile.TemporaryDirectory(prefix="dips-") as folder:
            return Comparison(
                data, plan, Path(folder), source=data.name, on_start=on_start,
                on_progress=on_progress,
            ).run()  # fmt: skip
    table = Comparison(
        data, plan, Path(out), source=source or data.name, on_start=on_start,
        on_progress=on_progress,
    ).run()  # fmt: skip
    metric = table.summary[0]["metric"]
    with atomic_write(Path(out) / "figure.png") as part:
        quality_by_size(table.summary, metric, part)
    return table


def transfer(
    data: Interactions,
    policies: Sequence[str] = TRANSFER_POLICIES,
    sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    *,
    folds: int = 3,
    seed: int = 0,
    repeats: int = 1,
    recommender: str = "gru",
    target_epochs: int = 0,
    out: str | Path | None = None,
    recipe: str | None = None,
    on_progress: StudyCallback | None = None,
    source: str | None = None,
    command: str = "",
    config: Callable[..., TrainConfig] | None = None,
    **settings: Any,
) -> TransferResult:
    """Score a sequential model on the sketches of policies that were trained with NCF.

    Args:
        data: All users.
        policies: Names of policies.
        sizes: Sketch sizes (K).
        folds: Number of folds, at most 5.
        seed: Seed of the permutation of users, and of training.
        repeats: Number of training runs on each fold.
        recommender: The target model, `gru` or `sasrec`, trained on full histories.
        target_epochs: Epochs of the target model; 0: the setting `epochs`.
        out: Results directory; the same call continues an interrupted study.
        recipe: Name of a set of settings.
        on_progress: Called with the progress of each phase.
        source: Name of the data as the user gave it.
        command: The command that was typed, for the report.
        config: From `policy` and `recommender` to all settings, instead of `settings`.
        **settings: Settings of `TrainConfig` by name, for policies and target model.

    Returns:
        Tables of cells, means, paired differences and size ratios.

    Raises:
        ConfigError: If settings do not go together.
        RunError: If `out` holds other results.

    Example:
        >>> import dips
        >>> data = dips.load("synthetic-implicit").select(range(40))
        >>> result = dips.transfer(data, ["last"], sizes=[2], folds=1, epochs=1)
        >>> sorted({row["policy"] for row in result.rows})
        ['all', 'last']
    """
    configs = _configs(data, recipe, config, settings)
    plan = ComparisonPlan(
        policies=list(policies), sizes=list(sizes), every=[1],
        folds=folds, seed=seed, repeats=repeats,
        settings=lambda policy: configs(policy=policy, recommender="dot"),
    )  # fmt: skip
    target = target_config(configs(policy="all", recommender=recommender), target_epochs)
    name = source or data.name
    study = partial(
        study_transfer, data, plan, target, source=name, command=command, on_progress=on_progress
    )
    return _with_figure(study, out, "all")


def session(
    data: Interactions,
    policies: Sequence[str] = ("reservoir", "last", "learned"),
    sizes: Sequence[int] = (0, 2, 4, 8),
    *,
    folds: int = 3,
    seed: int = 0,
    repeats: int = 1,
    target_epochs: int = 0,
    out: str | Path | None = None,
    recipe: str | None = None,
    on_progress: StudyCallback | None = None,
    source: str | None = None,
    command: str = "",
    config: Callable[..., TrainConfig] | None = None,
    **settings: Any,
) -> TransferResult:
    """Train session-based recommenders that read the current session and a sketch.

    Args:
        data: All users.
        policies: Names of policies; they are trained with NCF.
        sizes: Sketch sizes (K); 0 is a model without a sketch.
        folds: Number of folds, at most 5.
        seed: Seed of the permutation of users, and of training.
        repeats: Number of training runs on each fold.
        target_epochs: Epochs of the session models; 0: the setting `epochs`.
        out: Results directory; the same call continues an interrupted study.
        recipe: Name of a set of settings.
        on_progress: Called with the progress of each phase.
        source: Name of the data as the user gave it.
        command: The command that was typed, for the report.
        config: From `policy`, `recommender` and `every` to all settings, instead of `settings`.
        **settings: Settings of `TrainConfig` by name, for policies and session models.

    Returns:
        Tables of cells, means, paired differences, size ratios and gains over no sketch.

    Raises:
        ConfigError: If settings do not go together.
        RunError: If `out` holds other results.

    Example:
        >>> import dips
        >>> data = dips.load("synthetic-implicit").select(range(40))
        >>> result = dips.session(data, ["last"], sizes=[0, 2], folds=1, epochs=1)
        >>> sorted({row["policy"] for row in result.rows})
        ['last', 'none']
    """
    configs = _configs(data, recipe, config, settings)
    plan = ComparisonPlan(
        policies=list(policies), sizes=list(sizes), every=[4],
        folds=folds, seed=seed, repeats=repeats,
        settings=lambda policy: configs(policy=policy, recommender="dot", every=4),
    )  # fmt: skip
    target = target_config(configs(policy="last", recommender="gru", every=4), target_epochs)
    name = source or data.name
    study = partial(
        study_sessions, data, plan, target, source=name, command=command, on_progress=on_progress
    )
    return _with_figure(study, out, "none")


def sketches(
    model: Model, data: Interactions, *, at: str = "end", allow_plugins: bool = False
) -> dict[str, Any]:
    """Return the sketches of all users as columns.

    Args:
        model: Result of `train`, an opened model, or a run directory.
        data: Users to sketch; items are matched by original id.
        at: "end": the sketch after each user's last interaction. "each": the sketch before every
            prediction.
        allow_plugins: Whether a user's own class that a run directory names is imported.

    Returns:
        Arrays `user`, `t`, `position`, `item`, `rating` and `score`, one row per entry.

    Raises:
        ConfigError: If `at` is unknown, or if the policy keeps everything.

    Example:
        >>> import dips
        >>> data = dips.load("planted").select(range(40))
        >>> train, valid, test = data.split_users(0.6, 0.2, 0.2, seed=0)
        >>> result = dips.train(train, valid, policy="last", size=2, epochs=1)
        >>> columns = dips.sketches(result, test)
        >>> len(columns["item"]) == 2 * test.users
        True
    """
    return sketch_columns(_trained_model(model, allow_plugins), data, at=at)


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
    allow_plugins: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> GradientStudy:
    """Continue training from a run of `dips` and compare its policy gradients with true ones.

    gradients.json and gradients.png are written into the run directory.

    Args:
        run: Run directory of the policy `dips` or `dips@1`.
        data: Users to sample from; by default the run's training users.
        users: Number of users to sample.
        steps: Number of steps to sample.
        longest: Histories are cut after this many interactions.
        queue: Length of the queue of DiPS (Q).
        seed: Fixes users and steps.
        tolerance: Share of the largest entry up to which an entry counts as zero.
        allow_plugins: Whether a user's own class that a run directory names is imported.
        on_progress: Called with the number of finished and of all steps.

    Returns:
        Shares of preserved, negated and zeroed entries, cosine and norm, by method.

    Raises:
        ConfigError: If the run's policy has no network, or if a number is below 1.

    Example:
        >>> import tempfile, dips
        >>> data = dips.load("planted").select(range(40))
        >>> train, valid, test = data.split_users(0.6, 0.2, 0.2, seed=0)
        >>> with tempfile.TemporaryDirectory() as run:
        ...     _ = dips.train(
        ...         train, valid, policy="dips", recipe="default", size=2, epochs=1, out=run
        ...     )
        ...     study = dips.gradients(run, train, users=2, steps=1, longest=8, queue=4)
        >>> sorted(study.summary())
        ['dips', 'dips@1']
    """
    directory = Path(run)
    trained = run_directory.open_run(directory, allow_plugins=allow_plugins)
    config = run_directory.read_settings(directory)
    run_directory.check_own_classes(config, allow_plugins=allow_plugins)
    study = study_gradients(
        trained,
        config,
        reindex_items(trained, data or run_directory.read_part(directory, "train")),
        users=users, steps=steps, longest=longest, queue=queue, seed=seed, tolerance=tolerance,
        on_progress=on_progress,
    )  # fmt: skip
    found = study.to_dict()
    run_directory.write_json(found, directory / "gradients.json")
    with atomic_write(directory / "gradients.png") as part:
        gradient_shares(found["ours"], found["paper_ml_1m"], part)
    return study


def story(
    run: str | Path,
    user: str,
    data: Interactions | None = None,
    *,
    allow_plugins: bool = False,
) -> Story:
    """Return the predictions, sketches and refreshes of one user.

    Args:
        run: Run directory.
        user: Original id of the user.
        data: Data with the user; by default the run's data.
        allow_plugins: Whether a user's own class that a run directory names is imported.

    Returns:
        The story: entry gradients of each prediction, and candidate scores of each refresh.

    Raises:
        DataError: If the user is unknown.

    Example:
        >>> import tempfile
        >>> from dips import api
        >>> data = api.load("planted").select(range(40))
        >>> train, valid, test = data.split_users(0.6, 0.2, 0.2, seed=0)
        >>> with tempfile.TemporaryDirectory() as run:
        ...     _ = api.train(train, valid, policy="last", size=2, epochs=1, out=run)
        ...     story = api.story(run, test.user_id(0), test)
        >>> len(story.steps) == story.length
        True
    """
    return user_story(Path(run), user, data, allow_plugins=allow_plugins)


def report(results: Sequence[str | Path], out: str | Path) -> None:
    """Write the results of compare, transfer, session, gradients and train as one HTML page.

    Args:
        results: Results directories or run directories, or directories of such.
        out: The HTML file to write; it needs no other file.

    Raises:
        RunError: If there are no results.

    Example:
        >>> import tempfile
        >>> from dips import api
        >>> data = api.load("planted").select(range(40))
        >>> with tempfile.TemporaryDirectory() as out:
        ...     _ = api.compare(data, ["last"], sizes=[2], folds=1, epochs=1, out=out)
        ...     api.report([out], f"{out}/report.html")
    """
    made = report_page(
        read_results([Path(directory) for directory in results]),
        bytes_of=lambda size, every, rated: record_bytes(size, every, rated=rated),
        version=__version__,
    )
    with atomic_write(Path(out)) as part:
        part.write_text(made, encoding="utf-8")


def paper(
    data: Interactions,
    out: str | Path,
    *,
    quick: bool = False,
    stages: Sequence[str] = STAGES,
    folds: int | None = None,
    seed: int = 0,
    source: str | None = None,
    command: str = "",
    on_results: Callable[[Path], None] = lambda directory: None,
    on_progress: Callable[[StageProgress], None] = lambda progress: None,
    **settings: Any,
) -> dict[str, Any]:
    """Run all experiments of the paper on one data set, and write report.html.

    Args:
        data: All users.
        out: Results directory; the same call continues an interrupted study.
        quick: Whether to run the reduced version.
        stages: Stages to run: compare, transfer, session, gradients, story.
        folds: Number of folds. Default: 5, or 1 if `quick`.
        seed: Seed of the permutation of users, and of training.
        source: Name of the data as the user gave it.
        command: The command that was typed, for the report.
        on_results: Called with each finished results directory.
        on_progress: Called with the progress of all stages.
        **settings: Settings of `TrainConfig` by name.

    Returns:
        State and time of each stage, the verdict, and the paths of report and story.

    Raises:
        ConfigError: If a stage or a setting is unknown.
        RunError: If `out` holds other results, or if no stage could be run.

    Example:
        >>> import tempfile, dips
        >>> data = dips.load("synthetic-implicit").select(range(40))
        >>> with tempfile.TemporaryDirectory() as out:
        ...     found = dips.paper(data, out, quick=True, stages=["session"], epochs=1, dim=4)
        >>> found["stages"]["session"]["state"]
        'done'
    """
    plan = (QUICK if quick else FULL).but(folds, seed, settings)
    functions = StudyFunctions(compare, transfer, session, gradients, story, report)
    name = source or data.name
    study = PaperStudy(
        data, plan, Path(out), functions, source=name, command=command, on_results=on_results
    )
    return study.run(stages, on_progress)


def _configs(
    data: Interactions,
    recipe: str | None,
    config: Callable[..., TrainConfig] | None,
    settings: dict[str, Any],
) -> Callable[..., TrainConfig]:
    """Return a function from the settings that a study sets itself to all settings."""
    if config is not None and settings:
        raise ConfigError(f"{', '.join(settings)}: give settings by name or a config, not both")

    def named(**own: Any) -> TrainConfig:
        return build_config(recipe, flags={**settings, **own})

    return config or named


def _with_figure(
    study: Callable[[Path], TransferResult], out: str | Path | None, level: str
) -> TransferResult:
    """Run a study and draw its figure; the policy `level` is drawn as a horizontal line."""
    with _results_directory(out) as place:
        result = study(place)
        with atomic_write(place / "figure.png") as part:
            quality_by_size(result.summary, result.summary[0]["metric"], part, [level])
    return result


@contextmanager
def _results_directory(out: str | Path | None) -> Iterator[Path]:
    """Yield the results directory; a temporary one if none is given."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="dips-") as folder:
        yield Path(folder)


def _trained_model(model: Model, allow_plugins: bool) -> TrainedModel:
    """Return the trained model of a result, of itself, or of a run directory."""
    if isinstance(model, RunResult):
        return model.trained
    if isinstance(model, TrainedModel):
        return model
    return run_directory.open_run(Path(model), allow_plugins=allow_plugins)
