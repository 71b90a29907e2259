import numpy as np
import pytest

from dips.evaluation.tuning import DAMPINGS, RANGES, trials
from dips.training.config import TrainConfig


@pytest.mark.parametrize("task", list(RANGES))
def test_trials_lie_within_their_ranges_and_are_settings(task):
    points = trials(50, task)
    assert len(points) == 50
    assert points[0] == {}  # the defaults are among them
    for point in points[1:]:
        TrainConfig.of().but(**point)
        assert point.pop("damping") in DAMPINGS
        assert point.keys() == RANGES[task].keys()
        for name, value in point.items():
            low, high = RANGES[task][name]
            assert low * 0.99 <= value <= high * 1.01


def test_trials_are_log_uniform():
    low, high = RANGES["explicit"]["weight_decay"]
    drawn = np.log([point["weight_decay"] for point in trials(2001, "explicit")[1:]])
    share = (drawn - np.log(low)) / (np.log(high) - np.log(low))
    assert np.histogram(share, 4, (-0.01, 1.01))[0] == pytest.approx([500] * 4, abs=90)


def test_more_trials_begin_with_the_same_ones():
    assert trials(9, "implicit")[:4] == trials(4, "implicit")
    assert trials(4, "implicit", seed=1)[1:] != trials(4, "implicit")[1:]
    assert trials(1, "explicit") == [{}]
