"""Defaults of evaluations; imports no torch, as `--help` shows them."""

TOLERANCE = 1e-12
"""An entry counts as zero up to this share of the largest entry of its gradient.

Rounding errors of float64 gradients are far below it.
"""
LOOKAHEAD = 10
"""How many interactions ahead the oracle of `evaluation/headroom.py` sees."""
