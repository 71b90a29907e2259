"""Flags made from TrainConfig: one per field, with the field's own sentence as its help."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from dips.data.interactions import Interactions
from dips.errors import ConfigError
from dips.training.config import TrainConfig
from dips.training.recipes import (
    GRU,
    IMPLICIT,
    NAMED,
    RECIPES,
    SASREC,
    SUITED,
    SUITED_IMPLICIT,
    build_config,
)

Settings = Callable[..., TrainConfig]
"""From the data, and other flags where a command has them, to the settings.

Without data: those that do not depend on it.
"""


PANELS = {
    "policy": "The sketch: which interactions stay, and when that is decided",
    "task": "The task: what is predicted, for whom",
    "recommender": "The recommender",
    "learning_rate": "Training",
    "policy_lr": "Policies that learn",
    "device": "Data and machine",
}
"""Headings of the help, by the first setting below each."""


def with_settings(leave_out: Collection[str] = ()) -> Callable[[Callable[..., None]], Any]:
    """Give a command a flag for each setting, and pass it `settings`: data -> TrainConfig.

    Order: defaults of the task < recipe < file < flag.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(TrainConfig)
        panels, panel = {}, ""
        for field in dataclasses.fields(TrainConfig):
            panels[field.name] = panel = PANELS.get(field.name, panel)
        fields = [f for f in dataclasses.fields(TrainConfig) if f.name not in leave_out]
        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name != "settings"
        ]

        def call(**given: Any) -> None:
            names = {parameter.name for parameter in own}
            flags = {
                name: _parse(name, value)
                for name, value in given.items()
                if name not in names and name not in ("recipe", "config_file") and value is not None
            }

            def settings(data: Interactions | None = None, **more: Any) -> TrainConfig:
                recipe, file = given["recipe"], given["config_file"]
                every = {**flags, **more}
                implicit = data is not None and not data.explicit
                return build_config(recipe, file, every, implicit_data=implicit)

            command(settings=settings, **{name: given[name] for name in names})

        flags = [_flag(field, hints[field.name], panels[field.name]) for field in fields]
        call.__signature__ = inspect.Signature([*own, *_FILES, *flags])  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in [*own, *_FILES, *flags]}
        call.__doc__, call.__name__ = command.__doc__, command.__name__
        return call

    return decorate


def _flag(field: dataclasses.Field[Any], hint: Any, panel: str) -> inspect.Parameter:
    kind = str if field.name == "periods" else hint
    option = typer.Option(
        f"--{field.name.replace('_', '-')}",
        help=f"{field.metadata['help']} {_default(field)}".replace("[", "\\["),
        show_default=False,
        rich_help_panel=panel,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _default(field: dataclasses.Field[Any]) -> str:
    """The default, and that of the implicit task and of policies that have another."""
    others = {"implicit": IMPLICIT, "gru": GRU, "sasrec": SASREC} | {
        policy: {**SUITED.get(policy, {}), **NAMED.get(policy, {})}
        for policy in dict.fromkeys([*SUITED, *NAMED])
    }
    others |= {f"{policy}, implicit": suited for policy, suited in SUITED_IMPLICIT.items()}
    told = [f"{who}: {what[field.name]}" for who, what in others.items() if field.name in what]
    if field.default not in ((), ""):
        told.insert(0, str(field.default))
    return f"[default: {'; '.join(told)}]" if told else ""


_FILES = [
    inspect.Parameter(
        "recipe",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            str | None,
            typer.Option(
                help=f"A named set of settings: {', '.join(RECIPES)}. \\[default: paper for dips "
                "and dips@1, which is slow; else default]"
            ),
        ],
    ),
    inspect.Parameter(
        "config_file",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            Path | None, typer.Option("--config", help="A TOML file with settings.")
        ],
    ),
]


def _parse(name: str, value: Any) -> Any:
    return numbers(name, value) if name == "periods" else value


def numbers(name: str, text: str) -> tuple[int, ...]:
    """`2,4,8` as whole numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--{name} '{text}': give whole numbers, for example 2,4,8") from None


def policy_names(text: str) -> list[str]:
    """`last,reservoir` as names of policies, each given once."""
    given = [name for name in text.split(",") if name]
    if len(set(given)) < len(given) or not given:
        raise ConfigError(f"--policies '{text}': give each policy once")
    return given


def seeds(text: str) -> tuple[int, ...]:
    """`5` means 0 to 4; `7,8` means exactly these."""
    given = numbers("seeds", text)
    if len(given) == 1 and "," not in text:
        if given[0] < 1:
            raise ConfigError("--seeds: give at least one")
        return tuple(range(given[0]))
    return given
