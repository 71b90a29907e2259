"""A trained recommender, its policy and its vocabulary as one file: save, open, version.

safetensors and JSON only; nothing that can run code on opening. Knows nothing of training.
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

from dips.data.atomic import written
from dips.data.interactions import Strings
from dips.data.side_information import SideInformation
from dips.errors import ConfigError, PluginError, RunError
from dips.numerics.stacking import under
from dips.policy.base import Policy
from dips.policy.registry import PolicySpec, build_policy
from dips.recommender.base import Recommender
from dips.recommender.losses import SampledSoftmax
from dips.recommender.registry import RecommenderSpec, make_recommender
from dips.sketch.selection import Selector, selector_named
from dips.stream.schedule import Schedule

FILE = "model.safetensors"
VERSION = 2


@dataclass(eq=False, kw_only=True)
class TrainedModel:
    """What it takes to keep sketches and to predict from them."""

    spec: RecommenderSpec
    recommender: Recommender
    item_ids: Strings
    policy_spec: PolicySpec
    policy: Policy
    periods: tuple[int, ...]
    choice: str = "greedy"
    seed: int = 0

    @property
    def size(self) -> int:
        """How many interactions a sketch keeps."""
        return self.policy_spec.size

    @property
    def schedule(self) -> Schedule:
        """When sketches are refreshed."""
        return Schedule(self.periods)

    @property
    def selector(self) -> Selector:
        """How scores become a choice."""
        return selector_named(self.choice)

    @property
    def sides(self) -> SideInformation:
        """What else is told of interactions: data is read with it."""
        return self.policy_spec.side

    @property
    def explicit(self) -> bool:
        """Whether it predicts ratings rather than items."""
        return not self.recommender.loss.listwise

    def save(self, directory: Path) -> None:
        """Write `model.safetensors` into a directory, whole or not at all."""
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
            "choice": self.choice,
            "seed": self.seed,
        }
        with written(directory / FILE) as part:
            save_file(tensors, part, metadata={"dips": json.dumps(about)})


def open_model(directory: Path) -> TrainedModel:
    """Open what `TrainedModel.save` wrote."""
    path = directory / FILE
    if not path.exists():
        raise RunError(f"{directory} is not a finished run: there is no {FILE} in it")
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})["dips"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        version = about["version"]
        if version == VERSION:
            return _restored(about, tensors)
    except PluginError as error:
        raise RunError(f"{path} needs what it was trained with: {error}") from error
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, ConfigError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(
            f"{path} is damaged or was not written by dips ({reason}): train the run again"
        ) from None
    raise RunError(
        f"{path} has version {version}, this dips reads {VERSION}: install the dips that wrote it, "
        "or train the run again"
    )


def _restored(about: dict[str, Any], tensors: dict[str, Tensor]) -> TrainedModel:
    spec = RecommenderSpec.from_dict(about["recommender"])
    recommender = make_recommender(spec)
    state = under("recommender.", tensors)
    if "own" in state:  # a run from before what was met often counted more
        state.setdefault("tally", torch.zeros(()))
    if isinstance(recommender.loss, SampledSoftmax):  # one from before negatives had chances
        state.setdefault("chances", torch.zeros_like(recommender.chances))
    recommender.load_state_dict(state)
    policy_spec = PolicySpec.from_dict(about["policy"])
    policy = build_policy(policy_spec)
    if isinstance(policy, nn.Module):
        policy.load_state_dict(under("policy.", tensors))
        policy.eval().requires_grad_(False)
    return TrainedModel(
        spec=spec,
        recommender=recommender,
        item_ids=Strings(tensors["items.blob"].numpy(), tensors["items.offsets"].numpy()),
        policy_spec=policy_spec,
        policy=policy,
        periods=tuple(about["periods"]),
        choice=about["choice"],
        seed=about["seed"],
    )
