"""Fit a recommender, and later a policy, to the users who train."""
