"""Checks for a user's own policy or recommender, and fakes for tests.

Needs torch and numpy only. A failed check raises AssertionError; the message says what to change.

Example:
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
