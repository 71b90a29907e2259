"""When sketches are refreshed."""

from __future__ import annotations

import pytest
import torch

from dips.errors import ConfigError
from dips.stream.schedule import Schedule


def test_online_refreshes_after_each_interaction_beyond_the_first_k() -> None:
    assert list(Schedule().refreshes(size=2, until=5)) == [(3, 1), (4, 1), (5, 1)]


def test_batch_refreshes_at_k_plus_multiples_of_tau() -> None:
    assert list(Schedule((4,)).refreshes(size=3, until=15)) == [(7, 4), (11, 4), (15, 4)]


def test_periods_take_turns() -> None:
    expected = [(5, 3), (10, 5), (12, 2), (15, 3)]
    assert list(Schedule((3, 5, 2)).refreshes(size=2, until=19)) == expected
    assert Schedule((3, 5, 2)).longest == 5


def test_short_histories_are_never_refreshed() -> None:
    assert list(Schedule((4,)).refreshes(size=3, until=6)) == []


@pytest.mark.parametrize("periods", [(1,), (4,), (3, 5, 2), (1, 1, 7)])
@pytest.mark.parametrize("size", [1, 3])
def test_due_is_when_refreshes_come(periods: tuple[int, ...], size: int) -> None:
    schedule, seen = Schedule(periods), torch.arange(60)
    times = {time for time, _ in schedule.refreshes(size, 59)}
    assert schedule.due(size, seen).tolist() == [time in times for time in range(60)]


@pytest.mark.parametrize("periods", [(), (0,), (3, -1)])
def test_a_period_is_at_least_one(periods: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="each must be at least 1"):
        Schedule(periods)
