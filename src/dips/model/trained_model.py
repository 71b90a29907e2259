"""A trained recommender, its policy and its item ids as one file: save, open, version.

The file is safetensors and JSON: opening it runs no code, unless plug-ins are allowed. Knows
nothing about training.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from dips.data.atomic_write import atomic_write
from dips.data.interactions import Strings
from dips.data.side_information import SideInformation
from dips.errors import ConfigError, PluginError, RunError
from dips.model.model_file import (
    KEY,
    check_fields,
    make_with_parameters,
    read_item_ids,
    read_model_file,
)
from dips.numerics.stacking import strip_prefix
from dips.plugins.consent import (
    check_consent,
    check_source,
    source_digest,
    without_current_directory,
)
from dips.policy.base import Policy
from dips.policy.registry import PolicySpec, build_policy, is_own_policy
from dips.recommender.base import Recommender
from dips.recommender.registry import RecommenderSpec, is_own_recommender, make_recommender
from dips.sketch.selection import Selector, make_selector
from dips.stream.schedule import Schedule

FILE = "model.safetensors"
VERSION = 4
OLD_VERSIONS = {1: "0.1", 2: "0.1", 3: "0.1"}
"""Versions of dips that wrote older versions of the file."""
MAX_SIZE = 65_535
"""Largest size of a sketch; a record of the keeper counts entries with two bytes."""
SELECTIONS = ("greedy", "sampled")
DAMAGE = (
    SafetensorError, OSError, LookupError, TypeError, ValueError, RuntimeError, AttributeError,
    ArithmeticError,
)  # fmt: skip
"""What is raised while a damaged or hostile file is read."""
Made = TypeVar("Made")


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
            "plugins": self._source_digests(),
        }
        with atomic_write(directory / FILE) as part:
            save_file(tensors, part, metadata={KEY: json.dumps(about)})

    def _source_digests(self) -> dict[str, str | None]:
        """Return digests of the sources of a user's own classes, by what they are for."""
        found: dict[str, str | None] = {}
        if is_own_policy(self.policy_spec.name):
            found["policy"] = source_digest(type(self.policy))
        if is_own_recommender(self.spec.kind):
            found["recommender"] = source_digest(type(self.recommender))
        return found


def as_trained_model(
    run: str | Path | TrainedModel, *, allow_plugins: bool = False
) -> TrainedModel:
    """Return the trained model of a run directory, or the given one; see `open_model`."""
    if isinstance(run, TrainedModel):
        return run
    return open_model(Path(run), allow_plugins=allow_plugins)


def open_model(directory: Path, *, allow_plugins: bool = False) -> TrainedModel:
    """Open a model that `TrainedModel.save` wrote.

    The file may come from anyone: opening it runs no code, except that of plug-ins if they are
    allowed.

    Args:
        directory: The directory of a run.
        allow_plugins: Whether a user's own class that the file names is imported. Without it, only
            a class that this process has imported by name, or any if DIPS_ALLOW_PLUGINS is 1.

    Returns:
        The trained model, without gradients.

    Raises:
        RunError: If there is no model, it is damaged, another version of dips wrote it, or a
            user's own class that it needs is not allowed, is missing, or has changed.
    """
    path = directory / FILE
    if not path.exists():
        raise RunError(f"{directory} is not a finished run: there is no {FILE} in it")
    try:
        about, tensors = read_model_file(path)
        version = int(about["version"])
        if version == VERSION:
            with without_current_directory():
                return _restore(about, tensors, allow_plugins)
    except PluginError as error:
        raise RunError(f"{path} needs what it was trained with: {error}") from error
    except (*DAMAGE, ConfigError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise RunError(
            f"{path} is damaged or was not written by dips ({reason}): train the run again"
        ) from None
    if version in OLD_VERSIONS:
        raise RunError(f"{path} was written by dips {OLD_VERSIONS[version]}; train the run again")
    raise RunError(
        f"{path} has version {version}, this dips reads {VERSION}: install the dips that wrote it, "
        "or train the run again"
    )


def _restore(
    about: dict[str, Any], tensors: dict[str, Tensor], allow_plugins: bool
) -> TrainedModel:
    """Build the objects from their specifications and load their parameters."""
    spec = RecommenderSpec.from_dict(about["recommender"])
    policy_spec = PolicySpec.from_dict(about["policy"])
    item_ids = read_item_ids(tensors)
    if spec.items != len(item_ids):
        raise ValueError(f"it has {len(item_ids)} item ids, not {spec.items}")
    digests: dict[str, str | None] = about.get("plugins", {})

    def make(kind: str, name: str, build: Callable[[], Made], *, own: bool) -> Made:
        if own:
            check_consent(kind, name, allowed=allow_plugins)
        made = make_with_parameters(build, strip_prefix(f"{kind}.", tensors), own=own)
        if own:
            check_source(kind, name, type(made), digests.get(kind))
        return made

    kind, name = spec.kind, policy_spec.name
    trained = TrainedModel(
        spec=spec,
        recommender=make(
            "recommender", kind, lambda: make_recommender(spec), own=is_own_recommender(kind)
        ),
        item_ids=item_ids,
        policy_spec=policy_spec,
        policy=make("policy", name, lambda: build_policy(policy_spec), own=is_own_policy(name)),
        periods=tuple(about["periods"]),
        selection=about["selection"],
        seed=about["seed"],
        rating_range=None if about["rating_range"] is None else tuple(about["rating_range"]),
    )
    check_fields(trained)
    if not 1 <= trained.size <= MAX_SIZE or trained.selection not in SELECTIONS:
        raise ValueError(f"it has size {trained.size} and selection '{trained.selection}'")
    Schedule(trained.periods)  # raises for periods below 1
    if isinstance(trained.policy, nn.Module):
        trained.policy.eval().requires_grad_(False)
    return trained
