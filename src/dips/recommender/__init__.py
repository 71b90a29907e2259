"""Recommenders read a weighted sketch, return a user's state, and predict from it."""
