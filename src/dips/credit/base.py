"""The interface of credit assignment: how a decision changed the losses of later predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from dips.credit.decisions import CreditedDecisions


class CreditAssignment(ABC):
    """Assigns the losses of later predictions to the candidates of each decision.

    The policy's gradient is the sum over decisions j of credit_j . d z_j / d Phi, where z_j are the
    entry weights after decision j. The implementations differ in d z_{l+1} / d z_l, the Jacobian
    of a later refresh in Eq. 9:

    | class              | Jacobian of a later refresh     | credit of a decision              |
    |--------------------|---------------------------------|-----------------------------------|
    | `QueueCredit`      | identity (Eq. 10)               | sum over the next Q decisions     |
    | `DiscountedCredit` | identity times a constant       | discounted sum over the next Q    |
    | `SurvivalCredit`   | straight-through, scores held   | recursion over the next Q         |
    | `ReplayCredit`     | straight-through, all paths     | autograd over the whole history   |

    `dips.credit.registry.make_credit` makes one by name.

    Example:
        >>> from dips.credit.registry import make_credit
        >>> make_credit("identity", length=100)
        QueueCredit(length=100)
    """

    @abstractmethod
    def credit(self, batch: CreditedDecisions) -> Tensor:
        """Return the gradient of the summed later losses with respect to candidate weights.

        Args:
            batch: Decisions, and the predictions that give them credit.

        Returns:
            [runs * decisions, candidates]; it carries no gradient itself.
        """

    def returns(self, values: Tensor, owner: Tensor) -> Tensor:
        """Return sums of a value per decision over the decisions that get credit from it.

        REINFORCE needs them. Only `QueueCredit` and `DiscountedCredit` define them.

        Args:
            values: One number per decision, [decisions].
            owner: User of each decision, [decisions]; -1 where there is none.

        Returns:
            [decisions]

        Raises:
            NotImplementedError: If this credit is defined for entry weights only.
        """
        raise NotImplementedError(f"{type(self).__name__} credits entry weights, not losses")
