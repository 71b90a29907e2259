"""What a policy can know about its candidates from a recommender: computed when first used.

A policy sees only this class. It never imports a recommender.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import final

from torch import Tensor

from dips.errors import ConfigError

SIGNALS = ("loss", "residual", "predicted_score", "embedding", "read")
"""Names that `required_signals` of a policy may contain."""


@final
@dataclass(frozen=True)
class Reading:
    """What follows after users were adapted to chosen candidates. All tensors are detached.

    Attributes:
        losses: Returns the loss of each candidate, [users, candidates].
        influences: Takes the damping that is added to the Hessian. Returns the influence of each
            candidate's weight on the summed loss of all candidates, [users, candidates].
    """

    losses: Callable[[], Tensor]
    influences: Callable[[float], Tensor]


@final
class Signals:
    """Signals of a recommender about the candidates of one refresh.

    Each tensor is computed when it is first used, then cached. No gradient flows through it.

    Args:
        compute: A function for each available signal, by the signal's name.
        read: Adapts users to weighted candidates; None if that is not available.

    Raises:
        ConfigError: When a signal is used that is not available.

    Example:
        >>> import torch
        >>> signals = Signals({"loss": lambda: torch.tensor([[0.5, 2.0]])})
        >>> signals.loss.argmax().item()
        1
        >>> list(signals.computed)
        ['loss']
    """

    def __init__(
        self,
        compute: Mapping[str, Callable[[], Tensor]] | None = None,
        read: Callable[[Tensor], Reading] | None = None,
    ) -> None:
        self._compute = dict(compute or {})
        self._read = read
        self.computed: dict[str, Tensor] = {}
        """The tensors that were used so far, by name."""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Signals:
        """Return signals whose tensors are known already.

        Args:
            tensors: The tensor of each available signal, by the signal's name.

        Example:
            >>> import torch
            >>> Signals.of({"residual": torch.zeros(1, 2)}).residual.shape
            torch.Size([1, 2])
        """
        return cls({name: partial(_identity, tensor) for name, tensor in tensors.items()})

    @property
    def loss(self) -> Tensor:
        """[users, candidates] loss of each candidate; the user is adapted to the old sketch."""
        return self._tensor("loss")

    @property
    def residual(self) -> Tensor:
        """[users, candidates] minus the derivative of each candidate's loss in its output."""
        return self._tensor("residual")

    @property
    def predicted_score(self) -> Tensor:
        """[users, candidates] rating or ranking score predicted from the old sketch.

        Where the exact score is costly, this is an approximation.
        """
        return self._tensor("predicted_score")

    @property
    def embedding(self) -> Tensor:
        """[users, candidates, dim] the recommender's embedding of each candidate's item."""
        return self._tensor("embedding")

    def read(self, weights: Tensor) -> Reading:
        """Adapt the users to the candidates with these weights.

        Args:
            weights: [users, candidates], 0 for a candidate that is left out.

        Returns:
            Losses and influences of all candidates for the adapted users.

        Raises:
            ConfigError: If there is no recommender, or the policy does not require "read".
        """
        if self._read is None:
            raise _unavailable("read")
        return self._read(weights)

    def select(self, names: Collection[str]) -> dict[str, Tensor]:
        """Return the tensors with these names, computed if necessary."""
        return {name: self._tensor(name) for name in names}

    def only(self, names: Collection[str]) -> Signals:
        """Return signals of which only these names are available."""
        compute = {name: partial(self._tensor, name) for name in names if name != "read"}
        return Signals(compute, self.read if "read" in names else None)

    def _tensor(self, name: str) -> Tensor:
        if name not in self.computed:
            if name not in self._compute:
                raise _unavailable(name)
            self.computed[name] = self._compute[name]().detach()
        return self.computed[name]


def _identity(tensor: Tensor) -> Tensor:
    return tensor


def _unavailable(name: str) -> ConfigError:
    return ConfigError(
        f"signals.{name} is not available: name it in the policy's `required_signals`, and roll "
        "the policy out with a recommender (policies with parameters cannot use `read`)"
    )
