"""Names that the settings of `learned` can have; imports no torch, as `--help` needs them.

Knows nothing about how the parameters of a start are set: see `policy/registry.py`.
"""

from __future__ import annotations

LEARNED = "learned"
"""The policy of a trained set network."""
PRETRAINED = "pretrained"
"""The policy with the shipped parameters, and the name of that start of `learned`."""
INITIAL_POLICIES = ("last", "rule", PRETRAINED)
"""Where the parameters of `learned` start."""
BEST_START = "best"
"""Train `learned` from `last` and from `rule`; the better one on validation is kept."""


def starts(initial: str) -> tuple[str, ...]:
    """Return the initial policies from which `learned` is trained.

    Args:
        initial: One of INITIAL_POLICIES, or BEST_START.

    Example:
        >>> starts("best"), starts("pretrained")
        (('last', 'rule'), ('pretrained',))
    """
    return ("last", "rule") if initial == BEST_START else (initial,)
