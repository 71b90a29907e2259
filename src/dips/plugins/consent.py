"""Decide whether a class that a file names may be imported, and check that it is the right one.

A name in a file is not consent: importing a module runs its code. Consent is one of

- an argument or flag where the file is opened (`allow_plugins=True`, `--allow-plugins`),
- the environment variable `DIPS_ALLOW_PLUGINS=1`,
- the name itself, given to this process by its user, for example to train with the class.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dips.errors import PluginError

VARIABLE = "DIPS_ALLOW_PLUGINS"
_named: set[str] = set()


def remember_consent(name: str) -> None:
    """Remember that this process has imported a class by name, with consent."""
    _named.add(name)


def check_consent(kind: str, name: str, *, allowed: bool) -> None:
    """Raise `PluginError` unless a class may be imported.

    Args:
        kind: What the class is for, such as `policy`.
        name: Import name that stands in a file, `package.module:Class`.
        allowed: Whether the caller allows plug-ins.
    """
    if not (allowed or name in _named or os.environ.get(VARIABLE) == "1"):
        raise PluginError(
            f"{kind} '{name}', whose code would run: if you trust it, give --allow-plugins, set "
            f"{VARIABLE}=1, or in Python allow_plugins=True"
        )


@contextmanager
def without_current_directory() -> Iterator[None]:
    """Take the current directory off the import path during the block."""
    usual = sys.path
    sys.path = [entry for entry in usual if entry not in ("", ".")]
    try:
        yield
    finally:
        sys.path = usual


def source_digest(plugin: type) -> str | None:
    """Return a digest of the source of a class and of its bases outside dips and torch.

    Args:
        plugin: The class.

    Returns:
        The digest; None if the source cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for base in plugin.__mro__:
        if base.__module__.partition(".")[0] not in ("dips", "torch", "builtins", "abc"):
            try:
                digest.update(inspect.getsource(base).encode() + b"\0")
            except (OSError, TypeError):
                return None
    return digest.hexdigest()


def check_source(kind: str, name: str, plugin: type, digest: str | None) -> None:
    """Raise `PluginError` if a class is not the one that a run was trained with.

    Args:
        kind: What the class is for, such as `policy`.
        name: Its import name.
        plugin: The class as it was imported.
        digest: Digest of its source in training; None: not known, nothing is checked.
    """
    if digest is not None and source_digest(plugin) != digest:
        raise PluginError(
            f"{kind} '{name}' with the source it had then: it has changed; restore it, or train "
            "the run again"
        )
