"""Policy transfer as in the paper: a sequential model reads the sketches of policies of NCF.

The sequential model is trained on full histories, once per fold and repeat. On test users it reads
the sketch of a policy, in order of time. Policies that neither learn nor read signals are not
trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dips.data.interactions import Interactions
from dips.data.side_information import SideInformation
from dips.errors import ConfigError
from dips.evaluation.comparison import Cell
from dips.evaluation.transfer import SourcePolicy, score_transfer
from dips.recommender.registry import make_recommender
from dips.recommender.sequential import Sequential
from dips.stream.users import EventColumns
from dips.studies.checks import device_of, recommender_spec, resolved, split
from dips.studies.compare import ComparisonPlan, RunKey
from dips.studies.policy_transfer import (
    CellScores,
    PolicyTransfer,
    TransferResult,
    largest_savings,
)
from dips.studies.progress import StudyCallback, StudyProgress
from dips.studies.run_directory import open_run
from dips.training.config import TrainConfig

PAPER: dict[str, Any] = {
    "claim": "DiPS needs up to 50 % fewer items than reservoir sampling for the same Recall@20",
    "fewer": 0.5,
}


def study_transfer(
    data: Interactions,
    plan: ComparisonPlan,
    target: TrainConfig,
    out: Path,
    *,
    source: str,
    command: str = "",
    on_progress: StudyCallback | None = None,
) -> TransferResult:
    """Score a sequential target model on the sketches of every policy at every size.

    The target model on full histories is in the tables as `all`, at the largest size.

    Args:
        data: All users.
        plan: Policies, sizes, folds and settings of the source policies.
        target: Settings of the target model.
        out: Results directory; an interrupted study resumes there.
        source: Name of the data as the user gave it.
        command: The command that was typed, for the report.
        on_progress: Called with the progress of each phase.

    Raises:
        ConfigError: If the target model is not sequential.
        RunError: If `out` holds other results.
    """
    work = PolicyTransfer(data, plan, out, source=source, on_progress=on_progress)
    # Trained on full histories: no baseline with sketches may replace it. Recency decay and
    # separate input embeddings are for source policies only.
    target = target.but(baselines=(), inner_loss=None, recency_decay=None, tie_embeddings=None)
    if not isinstance(make_recommender(recommender_spec(data, resolved(data, target))), Sequential):
        raise ConfigError(
            f"recommender '{target.model.recommender}' is not sequential: choose gru or sasrec"
        )
    work.check_settings("transfer", [target])
    whole = replace(plan, policies=["all"], sizes=[1], every=[1], settings=lambda policy: target)
    targets = {
        (key.fold, key.repeat): place
        for key, place in work.train(whole, target.model.recommender).items()
    }
    policies, columns = work.source_policies(), _columns(data, device_of(target))

    def compute(key: RunKey, place: Path) -> CellScores:
        del place  # a cell without training has no checkpoint
        source_policy = policies(key)
        model = open_run(targets[key.fold, key.repeat]).recommender
        part = split(data, target.but(seed=plan.seed, fold=key.fold))[2]
        return CellScores(
            source_policy.name,
            score_transfer(model, source_policy, part, columns(source_policy)),
            part,
        )

    keys = plan.runs(plan.cells())
    for done, key in enumerate(keys):
        work.on_progress(StudyProgress("reading sketches", done, len(keys), unit="cells"))
        work.score_cell(key, target.to_dict(), partial(compute, key))
    for (fold, repeat), place in targets.items():
        work.add_run(RunKey(Cell("all", max(plan.sizes), 1), fold, repeat), place)
    tables = work.tables()
    about = work.about("transfer", target, command)
    result = replace(tables, about={**about, "paper": PAPER, "saved": largest_savings(tables)})
    result.write(out)
    return result


def _columns(data: Interactions, device: str) -> Callable[[SourcePolicy], EventColumns]:
    """Return a function from a policy to the events with its side information, cached."""
    made: dict[SideInformation, EventColumns] = {}

    def of(source_policy: SourcePolicy) -> EventColumns:
        if source_policy.sides not in made:
            made[source_policy.sides] = EventColumns.of(data, device, source_policy.sides)
        return made[source_policy.sides]

    return of
