"""Metrics against scikit-learn, and ties worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from dips.evaluation.metrics import (
    area_under_curve,
    pool_metrics,
    primary_metric,
    ranking_terms,
    ranks,
    rating_terms,
)


def test_a_target_ranks_in_the_middle_of_its_ties() -> None:
    scores = torch.tensor(
        [
            [3.0, 1.0, 2.0, 0.0],  # alone
            [1.0, 1.0, 1.0, 1.0],  # ranks 1 to 4 shared
            [5.0, 2.0, 2.0, 0.0],  # ranks 2 and 3 shared
            [5.0, 2.0, 2.0, 2.0],  # ranks 2 to 4 shared
        ]
    )
    assert ranks(scores, torch.tensor([2, 0, 1, 3])).tolist() == [2.0, 2.5, 2.5, 3.0]


def test_a_nan_score_has_rank_nan() -> None:
    """Not the first: comparisons with not-a-number are all false."""
    scores = torch.tensor([[math.nan] * 4, [1.0, 2.0, 3.0, 4.0]])
    rank = ranks(scores, torch.tensor([1, 1]))
    assert math.isnan(rank[0])
    assert float(rank[1]) == 3.0
    for term in ranking_terms(rank).values():
        assert math.isnan(term[0])
        assert math.isfinite(term[1])


@pytest.mark.parametrize("items", [30, 100])
def test_ranking_against_scikit_learn(items: int) -> None:
    generator = torch.Generator().manual_seed(items)
    scores = torch.randn(200, items, generator=generator)
    target = torch.randint(items, (200,), generator=generator)
    terms = ranking_terms(ranks(scores, target))
    relevant = torch.nn.functional.one_hot(target, items).numpy()
    recall = reference.top_k_accuracy_score(
        target.numpy(), scores.numpy(), k=20, labels=np.arange(items)
    )
    assert float(terms["recall@20"].mean()) == pytest.approx(recall)
    ndcg = reference.ndcg_score(relevant, scores.numpy(), k=20)
    assert float(terms["ndcg@20"].mean()) == pytest.approx(ndcg)
    inside = terms["recall@20"] > 0
    reciprocal = reference.label_ranking_average_precision_score(
        relevant[inside.numpy()], scores[inside].numpy()
    )
    assert float(terms["mrr@20"][inside].mean()) == pytest.approx(reciprocal)
    assert bool((terms["mrr@20"][~inside] == 0).all())


def test_the_cutoff_is_twenty_and_counts_ties_by_their_middle() -> None:
    terms = ranking_terms(torch.tensor([1.0, 20.0, 20.5, 21.0]))
    assert terms["recall@20"].tolist() == [1, 1, 0, 0]
    assert terms["mrr@20"].tolist() == pytest.approx([1, 1 / 20, 0, 0])
    assert terms["ndcg@20"].tolist() == pytest.approx([1, 1 / math.log2(21), 0, 0])


def test_rmse_clamps_to_the_range_of_ratings() -> None:
    estimate = torch.tensor([7.0, -2.0, 3.5, 4.0])
    rating = torch.tensor([5.0, 1.0, 3.0, 5.0])
    terms = rating_terms(estimate, rating, 1.0, 5.0)
    assert terms["squared_error"].tolist() == [0.0, 0.0, 0.25, 1.0]
    sums = {name: float(term.sum()) for name, term in terms.items()}
    expected = reference.root_mean_squared_error(rating, estimate.clamp(1, 5))
    assert pool_metrics(sums, 4)["rmse"] == pytest.approx(expected)


def test_pooling_is_over_interactions() -> None:
    assert pool_metrics({"squared_error": 8.0, "logloss": 3.0}, 2) == {"rmse": 2.0, "logloss": 1.5}


@given(
    st.lists(
        st.tuples(st.sampled_from([0.1, 0.2, 0.2001, 0.7, 0.9]), st.booleans()),
        min_size=2,
        max_size=40,
    )
)
def test_area_under_the_curve_with_ties(pairs: list[tuple[float, bool]]) -> None:
    score = torch.tensor([pair[0] for pair in pairs]).double()
    liked = torch.tensor([float(pair[1]) for pair in pairs])
    mine = area_under_curve(score, liked)
    if len(set(liked.tolist())) == 1:
        assert math.isnan(mine)
    else:
        assert mine == pytest.approx(reference.roc_auc_score(liked.numpy(), score.numpy()))


def test_the_primary_metric() -> None:
    assert primary_metric({"rmse": 1.0, "logloss": 2.0}) == "rmse"
    assert primary_metric({"rmse": 1.0, "auc": 0.5, "logloss": 2.0}) == "logloss"
    assert primary_metric({"recall@20": 0.1, "mrr@20": 0.2}) == "recall@20"
    with pytest.raises(KeyError, match="no primary metric"):
        primary_metric({"other": 1.0})
