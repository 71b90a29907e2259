"""A study that is stopped in the middle of a stack goes on from its last epoch."""

import pytest

from dips.data.synthetic import stream
from dips.studies.compare import Plan, Study
from dips.training.config import TrainConfig

DATA = stream(users=40, items=64, events=14)
PLAN = Plan(
    policies=["last", "reservoir"],
    sizes=[3],
    every=[1],
    seeds=[0],
    settings=lambda policy: TrainConfig(epochs=4, dim=6, batch=128, device="cpu"),
)


def test_an_interrupted_stack_goes_on_from_its_checkpoint(tmp_path):
    whole = Study(DATA, PLAN, tmp_path / "whole", source="synthetic").result()
    seen = []

    def stop_after_two_epochs(update):
        seen.append(update.done)
        if len(seen) == 2:
            raise KeyboardInterrupt

    def follow(update):
        seen.append(update.done)

    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        Study(DATA, PLAN, broken, source="synthetic", watch=stop_after_two_epochs).result()
    table = Study(DATA, PLAN, broken, source="synthetic", watch=follow).result()
    assert seen == [2, 4, 6, 8]  # two runs side by side, each epoch once
    assert table.to_dict() == whole.to_dict()
    assert not (broken / "stacks").exists()
