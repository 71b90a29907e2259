"""Forms of credit by name."""

from __future__ import annotations

import pytest
import torch

from dips.credit.queue import DiscountedCredit, QueueCredit
from dips.credit.registry import CREDITS, make_credit
from dips.credit.replay import ReplayCredit
from dips.credit.survival import SurvivalCredit
from dips.errors import ConfigError
from dips.stream.schedule import Schedule


def test_every_name_makes_its_form_of_credit() -> None:
    schedule = Schedule((3,))
    made = [
        make_credit(name, length=7, discount=0.9, dropped_candidates=4, schedule=schedule)
        for name in CREDITS
    ]
    assert made == [
        QueueCredit(7), DiscountedCredit(7, 0.9), SurvivalCredit(7, 4), ReplayCredit(schedule)
    ]  # fmt: skip


def test_unknown_credit() -> None:
    with pytest.raises(ConfigError, match="unknown credit 'magic': choose one of identity"):
        make_credit("magic", length=1)


def test_returns_are_sums_over_later_decisions_of_the_same_user() -> None:
    values, owner = torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([5, 5, 5, 3])
    assert QueueCredit(2).returns(values, owner).tolist() == [3.0, 6.0, 4.0, 8.0]
    assert DiscountedCredit(3, 0.5).returns(values, owner).tolist() == [3.0, 4.0, 4.0, 8.0]
    with pytest.raises(NotImplementedError, match="SurvivalCredit credits entry weights"):
        SurvivalCredit(2).returns(values, owner)
