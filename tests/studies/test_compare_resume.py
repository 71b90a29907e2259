"""An interrupted comparison resumes stacked runs from their last epoch."""

import pytest

from dips.data.synthetic import stream
from dips.studies.compare import Comparison, ComparisonPlan
from dips.training.config import TrainConfig

DATA = stream(users=40, items=64, events=14)
PLAN = ComparisonPlan(
    policies=["last", "reservoir"],
    sizes=[3],
    every=[1],
    folds=1,
    settings=lambda policy: TrainConfig.of(epochs=4, dim=6, batch_size=128, device="cpu"),
)


def test_interrupted_stacked_runs_resume_from_their_checkpoint(tmp_path):
    whole = Comparison(DATA, PLAN, tmp_path / "whole", source="synthetic").run()
    seen = []

    def stop_after_two_epochs(update):
        seen.append(update.done)
        if len(seen) == 2:
            raise KeyboardInterrupt

    def follow(update):
        seen.append(update.done)

    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        Comparison(DATA, PLAN, broken, source="synthetic", on_progress=stop_after_two_epochs).run()
    table = Comparison(DATA, PLAN, broken, source="synthetic", on_progress=follow).run()
    assert seen == [2, 4, 6, 8]  # two stacked runs, each epoch once
    assert table.to_dict() == whole.to_dict()
    assert not (broken / "stacks").exists()
