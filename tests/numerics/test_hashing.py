"""Random numbers are hashes of keys: uniform, independent, and the same for ever."""

from __future__ import annotations

import torch
from scipy import stats

from dips.numerics.hashing import combine, splitmix64, text_keys, uniform


def test_uniform_over_positions_users_and_seeds() -> None:
    key = text_keys(["alice"])
    for values in (
        uniform(key, torch.arange(20_000)),
        uniform(text_keys(map(str, range(20_000))), 3),
        uniform(combine(key, torch.arange(20_000), 0), 3),
    ):
        assert float(values.min()) >= 0
        assert float(values.max()) < 1
        counts = torch.histc(values, bins=64, min=0, max=1)
        assert stats.chisquare(counts.numpy()).pvalue > 0.001


def test_neighbouring_keys_are_unrelated() -> None:
    """Pairs (number of t, number of t + 1) fill the square evenly."""
    values = uniform(text_keys(["bob"]), torch.arange(20_001))
    cell = (values[:-1] * 8).long() * 8 + (values[1:] * 8).long()
    assert stats.chisquare(torch.bincount(cell, minlength=64).numpy()).pvalue > 0.001


def test_every_bit_is_fair() -> None:
    keys = combine(torch.arange(20_000), 7)
    for bit in range(64):
        share = float(((keys >> bit) & 1).double().mean())
        assert abs(share - 0.5) < 0.015


def test_a_number_does_not_depend_on_the_batch_or_its_order() -> None:
    keys, places = text_keys(map(str, range(50))), torch.arange(9)
    together = uniform(keys[:, None], places)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniform(keys[order][:, None], places), together[order])
    for row in (0, 17, 49):
        assert torch.equal(uniform(keys[row], places[3]), together[row, 3])


def test_the_order_of_the_parts_matters() -> None:
    key = text_keys(["carol"])
    assert not torch.equal(combine(key, 1, 2), combine(key, 2, 1))
    assert torch.equal(combine(key, 1, 2), combine(combine(key, 1), 2))


def test_splitmix64_equals_plain_integers() -> None:
    def plain(value: int) -> int:
        mask = 2**64 - 1
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    values = [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    expected = [plain(value % 2**64) for value in values]
    got = [value % 2**64 for value in splitmix64(torch.tensor(values)).tolist()]
    assert got == expected


def test_pinned_values() -> None:
    """Sketches of a running service depend on these numbers: they may never change."""
    assert text_keys(["", "alice", "Zoë"]).tolist() == PINNED_KEYS
    assert uniform(text_keys(["alice"]), 0, 41).tolist() == PINNED_UNIFORM


PINNED_KEYS = [-5426141060434712860, -8513398901633652147, -7311049096717426824]
PINNED_UNIFORM = [0.8053813081069562]


def test_integers_and_tensors_give_the_same_key() -> None:
    key = text_keys(["a", "b"])
    for number in (0, 1, -1, 0x5E1EC7, 2**63 - 1, -(2**63)):
        assert torch.equal(combine(key, number), combine(key, torch.tensor(number)))
