"""Every policy and every recommender against every check."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dips.policy.base import Policy
from dips.policy.registry import POLICIES, WITH_ARGUMENT, make_policy
from dips.recommender.base import Recommender
from dips.recommender.dot import DotProduct
from dips.recommender.gru import GRU
from dips.recommender.linearised import LinearisedDotProduct
from dips.recommender.losses import (
    BPR,
    TOP1,
    BPRMax,
    FullSoftmax,
    Loss,
    SampledSoftmax,
    TOP1Max,
)
from dips.recommender.mlp import MLP
from dips.recommender.sasrec import SASRec
from dips.testing import POLICY_CHECKS, RECOMMENDER_CHECKS, FakeRecommender

ARGUMENTS = {"mix": ("mix:1", "mix:2"), "last-top": ("last-top:1", "last-top:2"),
             "hardest": ("hardest", "hardest:2"),
             "influence": ("influence", "influence:2")}  # fmt: skip
NAMES = [name for head in POLICIES for name in ARGUMENTS.get(head, (head,))]


@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_policy(name: str, check: Callable[[Policy], None]) -> None:
    check(make_policy(name, size=3, items=8, dim=4))


def test_every_policy_with_an_argument_is_here_with_one():
    assert set(WITH_ARGUMENT) == set(ARGUMENTS)


@pytest.mark.parametrize("check", RECOMMENDER_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", [DotProduct, MLP, FakeRecommender])
def test_recommender(
    kind: type[Recommender], loss: Loss, check: Callable[[Recommender], None]
) -> None:
    if kind is FakeRecommender:
        check(FakeRecommender(items=8, loss=loss, dim=5))
    else:
        generator = torch.Generator().manual_seed(0)
        check(kind(items=8, loss=loss, dim=5, generator=generator))  # type: ignore[call-arg]


RANKING: list[tuple[type[Recommender], Loss]] = [
    (DotProduct, BPR(5)), (DotProduct, TOP1Max(5)), (MLP, BPRMax(5)),
    (LinearisedDotProduct, FullSoftmax()), (LinearisedDotProduct, SampledSoftmax(5)),
    (LinearisedDotProduct, BPRMax(5)),
    (GRU, FullSoftmax()), (GRU, TOP1(5)), (GRU, BPRMax(5)),
    (SASRec, FullSoftmax()), (SASRec, TOP1(5)), (SASRec, BPRMax(5)),
]  # fmt: skip


@pytest.mark.parametrize("check", RECOMMENDER_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("kind", "ranks"), RANKING)
def test_recommender_that_ranks(
    kind: type[Recommender], ranks: Loss, check: Callable[[Recommender], None]
) -> None:
    generator = torch.Generator().manual_seed(0)
    check(kind(items=8, loss=ranks, dim=5, generator=generator))  # type: ignore[call-arg]
