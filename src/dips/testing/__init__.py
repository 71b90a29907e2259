"""Checks that a policy or a recommender of one's own fits, and fakes for everything around it.

Needs torch and numpy only; a failed check raises AssertionError with a sentence on what to mend.

>>> from dips.policy.recency import Last
>>> from dips.testing import check_policy
>>> check_policy(Last)
"""

from dips.testing.fakes import FakeRecommender, fake_signals
from dips.testing.policies import POLICY_CHECKS, check_policy
from dips.testing.recommenders import RECOMMENDER_CHECKS, check_recommender
from dips.testing.worlds import random_candidates, random_world

__all__ = [
    "POLICY_CHECKS",
    "RECOMMENDER_CHECKS",
    "FakeRecommender",
    "check_policy",
    "check_recommender",
    "fake_signals",
    "random_candidates",
    "random_world",
]
