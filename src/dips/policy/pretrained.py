"""Parameters of the set network that were trained on synthetic datasets and ship with the package.

There is one set of parameters for each signal that the network reads. `make pretrain` makes the
file again. No real data was used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dips.errors import ConfigError

SHIPPED = Path(__file__).with_name("pretrained.safetensors")
"""The file that ships with the package."""
SIGNALS = ("residual", "predicted_score", "none")
"""What a network reads from the recommender; each has parameters of its own."""


def signal_of(*, residual: bool, predicted_score: bool) -> str:
    """Return the signal of a set network, one of SIGNALS."""
    if predicted_score:
        return "predicted_score"
    return "residual" if residual else "none"


@cache
def pretrained_parameters(signal: str, path: Path = SHIPPED) -> dict[str, Tensor]:
    """Return pre-trained parameters by name.

    Args:
        signal: What the network reads, one of SIGNALS.
        path: File of `save_pretrained`.
    """
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(f"{signal}.")]  # noqa: SIM118
        return {name.removeprefix(f"{signal}."): file.get_tensor(name) for name in names}


def pretrained_origin(path: Path = SHIPPED) -> dict[str, Any]:
    """Return how the parameters were made, by signal: command, seed, worlds, epochs, cycles."""
    with safe_open(path, framework="pt") as file:
        origin: dict[str, Any] = json.loads((file.metadata() or {})["dips"])
        return origin


def load_pretrained(network: nn.Module, signal: str) -> None:
    """Copy the pre-trained parameters into a set network.

    Inputs that the pre-trained network does not have (side information) get weight 0.

    Args:
        network: A set network that reads no item vectors.
        signal: What it reads, one of SIGNALS.

    Raises:
        ConfigError: If the file has no such parameters.
    """
    found, named = pretrained_parameters(signal), dict(network.named_parameters())
    if not found or not found.keys() <= named.keys():
        raise ConfigError(
            f"{SHIPPED.name} has no parameters for this network, which reads {signal}: make them "
            "with 'make pretrain'"
        )
    for name, value in found.items():
        target = named[name].data
        target.zero_()
        target[tuple(slice(length) for length in value.shape)] = value


def save_pretrained(
    parameters: Mapping[str, Mapping[str, Tensor]], origin: Mapping[str, Any], path: Path
) -> None:
    """Write a file of pre-trained parameters.

    Args:
        parameters: By signal, then by name.
        origin: How they were made, by signal.
        path: Where to write.
    """
    flat = {
        f"{signal}.{name}": value.contiguous()
        for signal, named in parameters.items()
        for name, value in named.items()
    }
    save_file(flat, path, metadata={"dips": json.dumps(dict(origin))})
