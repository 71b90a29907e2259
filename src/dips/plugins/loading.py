"""Load user-defined classes by import name: `package.module:Class`.

Knows nothing about policies or recommenders. Every failure is one `PluginError` with its reason.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from dips.errors import DipsError, PluginError
from dips.plugins.consent import remember_consent

Plugin = TypeVar("Plugin")


def make_plugin(
    kind: str, name: str, base: type[Plugin], seed: int, settings: Mapping[str, Any]
) -> Plugin:
    """Import a class and construct an object of it.

    Only a subclass of `base` is called. Importing its module runs code: for a name that stands in
    a file, call `check_consent` first.

    Args:
        kind: What the class is for, such as `policy`; only used in error messages.
        name: Import name, `package.module:Class`.
        base: The class that the plug-in must inherit from.
        seed: Seed of torch's random numbers during construction.
        settings: Possible keyword arguments; the constructor gets those that it accepts.

    Returns:
        An object of the class.

    Raises:
        PluginError: If the import fails, the class is no subclass, or its constructor raises.
    """
    module, _, attribute = name.partition(":")
    try:
        plugin = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        reason = _describe_import_error(error, module)
        raise PluginError(f"{kind} '{name}' cannot be made: {reason}") from error
    if not (isinstance(plugin, type) and issubclass(plugin, base)):
        raise PluginError(f"{kind} '{name}' cannot be made: it is not a dips.{base.__name__}")
    remember_consent(name)
    try:
        return construct(plugin, base, seed, settings)
    except Exception as error:
        raise PluginError(f"{kind} '{name}' cannot be made: {describe_error(error)}") from error


def _describe_import_error(error: Exception, module: str) -> str:
    """Return why an import failed; for a module that is not found, with the fix."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if not missing or not f"{module}.".startswith(f"{missing}."):
        return describe_error(error)
    return (
        f"there is no module '{missing}' on the import path; install it, or name its directory: "
        "PYTHONPATH=. dips ..."
    )


def construct(
    plugin: Callable[..., Plugin], base: type, seed: int, settings: Mapping[str, Any]
) -> Plugin:
    """Call a class or factory with the settings that it accepts.

    torch's random numbers are seeded during the call and restored afterwards.

    Args:
        plugin: The class or factory.
        base: The base class whose parameters a `**kwargs` constructor accepts.
        seed: Seed of torch's random numbers.
        settings: Possible keyword arguments.

    Returns:
        What the call returns.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return plugin(**accepted_settings(plugin, base, settings))


def accepted_settings(
    plugin: Callable[..., Any], base: type, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings that a constructor names; with `**kwargs`, also those of `base`.

    >>> accepted_settings(lambda items: items, object, {"items": 3, "dim": 2})
    {'items': 3}
    """
    parameters = inspect.signature(plugin).parameters
    names = set(parameters)
    if any(entry.kind is entry.VAR_KEYWORD for entry in parameters.values()):
        names |= set(inspect.signature(base).parameters)
    return {name: value for name, value in settings.items() if name in names}


def describe_error(error: Exception) -> str:
    """Return the first line of an error message, with the error's class unless it is ours.

    >>> describe_error(ValueError("too small"))
    'ValueError: too small'
    """
    message = next(iter(str(error).splitlines()), "")
    is_sentence = message and isinstance(error, AssertionError | DipsError)
    return message if is_sentence else f"{type(error).__name__}: {message}".rstrip(": ")
