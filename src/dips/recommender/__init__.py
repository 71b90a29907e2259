"""Recommenders: adapt a user vector to a weighted sketch, then predict ratings or items."""
