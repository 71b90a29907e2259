"""Classes of the user's own, by import name: `package.module:Class`.

Knows nothing of what they are for; says in one sentence why one cannot be used.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from dips.errors import DipsError, PluginError

Made = TypeVar("Made")


def make_own(
    kind: str, name: str, base: type[Made], seed: int, settings: Mapping[str, Any]
) -> Made:
    """An object of the class of this name, with those of the settings that it takes.

    Only subclasses of `base` are called: a name in a file must not run anything else.
    """
    module, _, attribute = name.partition(":")
    try:
        own = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise PluginError(f"{kind} '{name}' cannot be made: {in_words(error)}") from error
    if not (isinstance(own, type) and issubclass(own, base)):
        raise PluginError(f"{kind} '{name}' cannot be made: it is not a dips.{base.__name__}")
    try:
        return construct(own, base, seed, settings)
    except Exception as error:
        raise PluginError(f"{kind} '{name}' cannot be made: {in_words(error)}") from error


def construct(own: Callable[..., Made], base: type, seed: int, settings: Mapping[str, Any]) -> Made:
    """Call a class or function with what it takes of the settings.

    torch's own random numbers are seeded meanwhile, so that a network starts where the seed says.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return own(**taken(own, base, settings))


def taken(own: Callable[..., Any], base: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a constructor names; with `**`, also those that the base class names.

    >>> taken(lambda items: items, object, {"items": 3, "dim": 2})
    {'items': 3}
    """
    parameters = inspect.signature(own).parameters
    named = set(parameters)
    if any(entry.kind is entry.VAR_KEYWORD for entry in parameters.values()):
        named |= set(inspect.signature(base).parameters)
    return {name: value for name, value in settings.items() if name in named}


def in_words(error: Exception) -> str:
    """One line of what an error says, and what kind it is unless it is a sentence of ours."""
    said = next(iter(str(error).splitlines()), "")
    ours = said and isinstance(error, AssertionError | DipsError)
    return said if ours else f"{type(error).__name__}: {said}".rstrip(": ")
