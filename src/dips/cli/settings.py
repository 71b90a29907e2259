"""Make command-line flags from TrainConfig: one per leaf, with the leaf's own sentence as help."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from dips.errors import ConfigError
from dips.training.config import TrainConfig, leaf_fields, leaf_types
from dips.training.recipes import RECIPES, build_config

Settings = Callable[..., TrainConfig]
"""From further leaves, where a command has some, to the settings as asked."""

Seed = Annotated[int, typer.Option(help="Draws the permutation of users, and fixes training.")]
"""Option --seed of commands that train on several folds."""
Repeats = Annotated[int, typer.Option(help="Training runs on each fold; their sums are pooled.")]
"""Option --repeats of commands that train on several folds."""
BASIC, ADVANCED = "Settings", "Advanced settings"
"""Headings of the help."""
TYPES = leaf_types()
"""Type of each setting."""


def with_settings(leave_out: Collection[str] = ()) -> Callable[[Callable[..., None]], Any]:
    """Give a command a flag for each setting, and pass it `settings`.

    Recipe < file < flag. What none of them gives stays open, and is decided from the data.

    Args:
        leave_out: Leaves that the command sets itself.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        leaves = [leaf for leaf in leaf_fields() if leaf.name not in leave_out]
        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name != "settings"
        ]

        def call(**given: Any) -> None:
            names = {parameter.name for parameter in own}
            flags = {
                leaf.name: _parse(leaf.name, TYPES[leaf.name], given[leaf.name])
                for leaf in leaves
                if given[leaf.name] is not None
            }

            def settings(**more: Any) -> TrainConfig:
                return build_config(given["recipe"], given["config_file"], {**flags, **more})

            command(settings=settings, **{name: given[name] for name in names})

        flags = [_flag(leaf, TYPES[leaf.name]) for leaf in leaves]
        call.__signature__ = inspect.Signature([*own, *_FILES, *flags])  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in [*own, *_FILES, *flags]}
        call.__doc__, call.__name__ = command.__doc__, command.__name__
        return call

    return decorate


def _flag(leaf: dataclasses.Field[Any], hint: Any) -> inspect.Parameter:
    """Return the flag of one leaf."""
    dashed = leaf.name.replace("_", "-")
    names = f"--{dashed}/--no-{dashed}" if hint is bool else f"--{dashed}"
    default = "" if leaf.default in (None, ()) else f" [default: {leaf.default}]"
    option = typer.Option(
        names,
        help=f"{leaf.metadata['help']}{default}".replace("[", "\\["),
        show_default=False,
        rich_help_panel=BASIC if leaf.metadata["basic"] else ADVANCED,
    )
    kind = str if "tuple" in str(hint) else hint
    return inspect.Parameter(
        leaf.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


_FILES = [
    inspect.Parameter(
        "recipe",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            str | None,
            typer.Option(
                help=f"A named set of settings: {', '.join(RECIPES)}. paper is slow. "
                "\\[default: default]",
                rich_help_panel=BASIC,
            ),
        ],
    ),
    inspect.Parameter(
        "config_file",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            Path | None,
            typer.Option("--config", help="A TOML file with settings.", rich_help_panel=BASIC),
        ],
    ),
]


def _parse(name: str, hint: Any, value: Any) -> Any:
    """Return the value of a flag as its leaf holds it: lists are given as a,b,c."""
    if "tuple" not in str(hint):
        return value
    return numbers(name, value) if "int" in str(hint) else words(value)


def words(text: str) -> tuple[str, ...]:
    """Return the names in `a,b,c`, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def numbers(name: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers in `2,4,8`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--{name} '{text}': give whole numbers, for example 2,4,8") from None


def policy_names(text: str) -> list[str]:
    """Return the policies in `last,reservoir`; each must be given once."""
    given = [name for name in text.split(",") if name]
    if len(set(given)) < len(given) or not given:
        raise ConfigError(f"--policies '{text}': give each policy once")
    return given
