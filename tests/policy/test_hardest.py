"""Losses, and their decay."""

from __future__ import annotations

import torch

from dips.policy.hardest import Hardest
from dips.testing import fake_signals, random_candidates


def test_hardest_is_the_loss_and_decays_with_age() -> None:
    candidates = random_candidates(seed=2)[1]
    signals = fake_signals(candidates, arrivals=2)
    there = candidates.present
    plain = Hardest().score(candidates, signals)
    assert torch.equal(plain[there], signals.loss[there])
    decayed = Hardest(half_life=4.0).score(candidates, signals)
    half = 0.5 ** (candidates.age.double() / 4)
    torch.testing.assert_close(decayed[there], (plain * half)[there])
