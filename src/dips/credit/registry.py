"""Forms of credit assignment by name."""

from __future__ import annotations

from dips.credit.base import CreditAssignment
from dips.credit.queue import DiscountedCredit, QueueCredit
from dips.credit.replay import ReplayCredit
from dips.credit.survival import SurvivalCredit
from dips.errors import ConfigError, choose_from
from dips.stream.schedule import Schedule

CREDITS = ("identity", "discount", "survival", "replay")
"""Names that `make_credit` knows. `replay` is for tests and studies only: it is slow."""


def make_credit(
    name: str,
    *,
    length: int,
    discount: float = 1.0,
    dropped_candidates: int = 0,
    schedule: Schedule | None = None,
) -> CreditAssignment:
    """Return a form of credit assignment.

    Args:
        name: identity (Eq. 10), discount, survival; replay (Eq. 9) for tests and studies only.
        length: Decisions over which a choice gets credit (Q); replay takes the whole history.
        discount: Factor per decision, for discount.
        dropped_candidates: Earlier decisions whose dropped candidates survival follows.
        schedule: When sketches are refreshed, for replay; every step if None.

    Raises:
        ConfigError: If the name is unknown.

    Example:
        >>> make_credit("discount", length=50, discount=0.9)
        DiscountedCredit(length=50, discount=0.9)
    """
    if name == "identity":
        return QueueCredit(length)
    if name == "discount":
        return DiscountedCredit(length, discount)
    if name == "survival":
        return SurvivalCredit(length, dropped_candidates)
    if name == "replay":
        return ReplayCredit(schedule or Schedule())
    raise ConfigError(f"unknown credit '{name}': {choose_from(name, CREDITS)}")
