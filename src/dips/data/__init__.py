"""Interactions: readers, filters, splits, side information, synthetic worlds.

Only the readers need polars, and they are imported when they are used.
"""
