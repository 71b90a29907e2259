"""The policy `learned` reads predicted scores where nothing repeats, and has baselines."""

import numpy as np

from dips.data.interactions import from_arrays
from dips.studies.checks import check, resolved, split
from dips.studies.run import _stacks, train_runs
from dips.training.config import TrainConfig
from dips.training.recipes import build_config


def _without_repeats():
    user, item = np.divmod(np.arange(1200), 30)
    return from_arrays(user, (7 * item + 3 * user) % 60, None, np.arange(1200))


def test_runs_that_read_other_signals_are_not_stacked():
    data = _without_repeats()
    configs = [
        resolved(data, TrainConfig.of(policy="learned", predicted_score=read))
        for read in (False, True, True)
    ]
    assert _stacks(configs, "cpu") == [[0], [1, 2]]


def test_the_weight_of_the_predicted_score_is_learned():
    """It is the default where nothing repeats; without it the weight stays at 0."""
    data = _without_repeats()
    moved = {}
    for predicted_score in (None, False):
        config = TrainConfig.of(
            policy="learned",
            size=5,
            epochs=3,
            policy_warmup_epochs=0,
            policy_freeze_epochs=0,
            predicted_score=predicted_score,
            dim=4,
            batch_size=64,
        )
        found = train_runs([(split(data, config), config)])[0]
        network = found.trained.policy
        reads = predicted_score is None
        assert found.trained.policy_spec.predicted_score == reads
        assert ("predicted_score" in network.required_signals) == reads
        moved[predicted_score] = abs(float(network.direct[1, 0]) - (1.0 if reads else 0.0))
    assert moved[None] > 1e-4
    assert moved[False] == 0


def test_the_initial_policy_is_a_baseline():
    """Where nothing repeats and the sketch is larger than the number of protected entries."""
    data = _without_repeats()
    settings = {"policy": "learned", "epochs": 1, "dim": 4, "batch_size": 64, "inner_steps": 2}
    for size, baselines in ((4, ["last"]), (6, ["last", "last-top:4"])):
        config = build_config(flags={**settings, "size": size})
        check(data, config)
        found = train_runs([(split(data, config), config)])[0]
        assert [baseline.name for baseline in found.baselines] == baselines
        assert found.own.selection_loss <= min(one.selection_loss for one in found.baselines)
