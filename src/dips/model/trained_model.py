"""A trained recommender, its policy and its item ids as one file: save, open, version.

The file is safetensors and JSON: opening it runs no code. Knows nothing about training.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dips.data.atomic_write import atomic_write
from dips.data.interactions import Strings
from dips.data.side_information import SideInformation
from dips.errors import ConfigError, PluginError, RunError
from dips.numerics.stacking import strip_prefix
from dips.policy.base import Policy
from dips.policy.registry import PolicySpec, build_policy
from dips.recommender.base import Recommender
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.sketch.selection import Selector, make_selector
from dips.stream.schedule import Schedule

FILE = "model.safetensors"
VERSION = 4
OLD_VERSIONS = {1: "0.1", 2: "0.1", 3: "0.1"}
"""Versions of dips that wrote older versions of the file."""


@dataclass(eq=False, kw_only=True)
class TrainedModel:
    """Everything that is needed to keep sketches and to predict from them.

    Attributes:
        spec: Specification of the recommender.
        recommender: The recommender.
        item_ids: Original item ids, in the order of item numbers.
        policy_spec: Specification of the policy.
        policy: The policy.
        periods: Periods of the refresh schedule.
        selection: How scores become a selection: greedy or sampled.
        seed: Seed of the run.
        rating_range: Lowest and highest rating of the data source: the ratings that events may
            have. Training uses `spec.low` and `spec.high`. None: items are predicted.

    Example:
        >>> import dips
        >>> data = dips.load("planted")
        >>> train, valid, test = data.split_users(0.6, 0.2, 0.2, seed=0)
        >>> model = dips.train(train, valid, policy="last", size=2, epochs=1).trained
        >>> model.size, model.selection, len(model.item_ids) == data.items
        (2, 'greedy', True)
    """

    spec: RecommenderSpec
    recommender: Recommender
    item_ids: Strings
    policy_spec: PolicySpec
    policy: Policy
    periods: tuple[int, ...]
    selection: str = "greedy"
    seed: int = 0
    rating_range: tuple[float, float] | None = None

    @property
    def size(self) -> int:
        """Number of interactions in a sketch (K)."""
        return self.policy_spec.size

    @property
    def schedule(self) -> Schedule:
        """When sketches are refreshed."""
        return Schedule(self.periods)

    @property
    def selector(self) -> Selector:
        """Selects the candidates that stay."""
        return make_selector(self.selection)

    @property
    def side(self) -> SideInformation:
        """Side information of interactions that the model reads."""
        return self.policy_spec.side

    @property
    def explicit(self) -> bool:
        """Whether it predicts ratings rather than items."""
        return not self.recommender.loss.listwise

    def save(self, directory: Path) -> None:
        """Write `model.safetensors` into a directory, completely or not at all."""
        tensors = {
            f"recommender.{name}": value.contiguous()
            for name, value in self.recommender.state_dict().items()
        }
        if isinstance(self.policy, nn.Module):
            state = self.policy.state_dict()
            tensors |= {f"policy.{name}": value.contiguous() for name, value in state.items()}
        tensors["items.blob"] = torch.tensor(self.item_ids.blob)
        tensors["items.offsets"] = torch.tensor(self.item_ids.offsets)
        about = {
            "version": VERSION,
            "recommender": self.spec.to_dict(),
            "policy": self.policy_spec.to_dict(),
            "periods": list(self.periods),
            "selection": self.selection,
            "seed": self.seed,
            "rating_range": self.rating_range,
        }
        with atomic_write(directory / FILE) as part:
            save_file(tensors, part, metadata={"dips": json.dumps(about)})


def open_model(directory: Path) -> TrainedModel:
    """Open a model that `TrainedModel.save` wrote.

    Args:
        directory: The directory of a run.

    Returns:
        The trained model, without gradients.

    Raises:
        RunError: If there is no model, it is damaged, another version of dips wrote it, or a
            user's own class that it needs cannot be imported.
    """
    path = directory / FILE
    if not path.exists():
        raise RunError(f"{directory} is not a finished run: there is no {FILE} in it")
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})["dips"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        version = about["version"]
        if version == VERSION:
            return _restore(about, tensors)
    except PluginError as error:
        raise RunError(f"{path} needs what it was trained with: {error}") from error
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, ConfigError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(
            f"{path} is damaged or was not written by dips ({reason}): train the run again"
        ) from None
    if version in OLD_VERSIONS:
        raise RunError(f"{path} was written by dips {OLD_VERSIONS[version]}; train the run again")
    raise RunError(
        f"{path} has version {version}, this dips reads {VERSION}: install the dips that wrote it, "
        "or train the run again"
    )


def _restore(about: dict[str, Any], tensors: dict[str, Tensor]) -> TrainedModel:
    """Build the objects from their specifications and load their parameters."""
    spec = RecommenderSpec.from_dict(about["recommender"])
    recommender = make_recommender(spec)
    recommender.load_state_dict(strip_prefix("recommender.", tensors))
    policy_spec = PolicySpec.from_dict(about["policy"])
    policy = build_policy(policy_spec)
    if isinstance(policy, nn.Module):
        policy.load_state_dict(strip_prefix("policy.", tensors))
        policy.eval().requires_grad_(False)
    return TrainedModel(
        spec=spec,
        recommender=recommender,
        item_ids=Strings(tensors["items.blob"].numpy(), tensors["items.offsets"].numpy()),
        policy_spec=policy_spec,
        policy=policy,
        periods=tuple(about["periods"]),
        selection=about["selection"],
        seed=about["seed"],
        rating_range=None if about["rating_range"] is None else tuple(about["rating_range"]),
    )
