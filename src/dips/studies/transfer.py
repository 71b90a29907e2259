"""The paper's policy transfer: policies learned with NCF choose what a sequential model reads.

The sequential model learns from whole histories, once for each seed. Test users then show it only
what a policy kept, in order of time. Policies that neither learn nor ask are not trained.
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
from dips.evaluation.transfer import SourcePolicy, read_with
from dips.recommender.registry import make_recommender
from dips.recommender.sequential import Sequential
from dips.stream.users import Columns
from dips.studies.checks import describe, device_of, split
from dips.studies.compare import Plan, Update, Watch
from dips.studies.policy_transfer import Key, PolicyTransfer, Result, Scored, saved
from dips.studies.run_directory import open_run
from dips.training.config import TrainConfig

PAPER: dict[str, Any] = {
    "claim": "DiPS needs up to 50 % fewer items than reservoir sampling for the same Recall@20",
    "fewer": 0.5,
}


def study_transfer(
    data: Interactions,
    plan: Plan,
    reader: TrainConfig,
    out: Path,
    *,
    source: str,
    command: str = "",
    watch: Watch | None = None,
) -> Result:
    """Every policy of a plan at every size, read by a model with the settings of `reader`.

    What reads everything stands in the tables as `all`, at the largest size.
    """
    work = PolicyTransfer(data, plan, out, source=source, watch=watch)
    # of whole histories: a rival that sketches must not replace it; choosers alone fade and tell
    reader = reader.but(baseline="", recency_decay=-1, separate_input=-1)
    if not isinstance(make_recommender(describe(data, reader)), Sequential):
        raise ConfigError(
            f"recommender '{reader.recommender}' is not one that reads in order: choose gru, "
            "gru-separate or sasrec"
        )
    work.check("transfer", [reader])
    whole = Plan(
        policies=["all"], sizes=[1], every=[1], seeds=plan.seeds, settings=lambda policy: reader
    )
    readers = {seed: place for (_, seed), place in work.train(whole, reader.recommender).items()}
    choose, columns = work.choosers(), _columns(data, device_of(reader))

    def compute(key: Key, place: Path) -> Scored:
        del place  # there is nothing to leave on the way
        source_policy, seed = choose(key), key[1]
        model = open_run(readers[seed]).recommender
        part = split(data, reader.but(seed=seed))[2]
        return Scored(
            source_policy.name, read_with(model, source_policy, part, columns(source_policy)), part
        )

    keys = [(cell, seed) for cell in plan.cells() for seed in plan.seeds]
    for done, key in enumerate(keys):
        work.watch(Update("reading sketches", done, len(keys), things="cells"))
        work.cell(key, reader.to_dict(), partial(compute, key))
    for place in readers.values():
        work.take(Cell("all", max(plan.sizes), 1), place)
    tables = work.tables()
    about = work.about("transfer", reader, command)
    result = replace(tables, about={**about, "paper": PAPER, "saved": saved(tables)})
    result.write(out)
    return result


def _columns(data: Interactions, device: str) -> Callable[[SourcePolicy], Columns]:
    """The events as a policy wants them, copied once for each kind of side information."""
    made: dict[SideInformation, Columns] = {}

    def of(source_policy: SourcePolicy) -> Columns:
        if source_policy.sides not in made:
            made[source_policy.sides] = Columns.of(data, device, source_policy.sides)
        return made[source_policy.sides]

    return of
