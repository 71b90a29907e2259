"""What a policy that learns is told, from settings to what it makes of it."""

import numpy as np

from dips.data.interactions import from_arrays
from dips.studies.checks import check, split
from dips.studies.run import _stacks, train_runs
from dips.training.config import TrainConfig
from dips.training.recipes import build_config


def test_runs_that_are_told_other_things_go_apart():
    configs = [TrainConfig.of(policy="learned", predicted_score=told) for told in (0, 1, 1)]
    assert _stacks(configs, "cpu") == [[0], [1, 2]]


def test_a_hunch_is_learned_from_where_nothing_comes_back():
    """Told on every walk, and noted: the weight of what is told moves as training goes."""
    user, item = np.divmod(np.arange(1200), 30)
    once = from_arrays(user, (7 * item + 3 * user) % 60, None, np.arange(1200))
    moved = {}
    for predicted_score in (-1, 0):
        chosen = {
            "policy": "learned",
            "size": 5,
            "epochs": 3,
            "policy_warmup_epochs": 0,
            "policy_freeze_epochs": 0,
        }
        config = TrainConfig(
            **chosen, predicted_score=predicted_score, dim=4, inner_lr=-1.0, batch_size=64
        )
        found = train_runs([(split(once, config), config)])[0]
        network = found.trained.policy
        assert (
            found.trained.policy_spec.predicted_score
            == ("predicted_score" in network.required_signals)
            == (predicted_score < 0)
        )
        start = 1.0 if predicted_score else 0.0
        moved[predicted_score] = abs(float(network.direct[1, 0]) - start)
    assert moved[-1] > 1e-3
    assert moved[0] == 0  # nothing is told


def test_the_rule_that_it_starts_like_is_a_rival():
    """In sketches with room for it, and where nothing comes back."""
    user, item = np.divmod(np.arange(1200), 30)
    once = from_arrays(user, (7 * item + 3 * user) % 60, None, np.arange(1200))
    settings = {"policy": "learned", "epochs": 1, "dim": 4, "batch_size": 64, "inner_steps": 2}
    for size, met in ((4, ["last"]), (6, ["last", "last-top:4"])):
        config = build_config(flags={**settings, "size": size})
        check(once, config)
        found = train_runs([(split(once, config), config)])[0]
        assert [baseline.name for baseline in found.baselines] == met
        assert found.valid["recall@20"] >= max(one.valid["recall@20"] for one in found.baselines)
