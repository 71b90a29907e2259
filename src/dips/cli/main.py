"""The command `dips`: gathers the commands and turns errors into sentences and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from dips import __version__
from dips.cli import compare, data, demo, doctor, evaluate, sketch, train
from dips.errors import DipsError

app = typer.Typer(
    help="Learn which K interactions of each user's history to keep.",
    epilog="Start with: dips demo. Exit codes: 0 success, 2 bad usage or input, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.command()(train.train)
app.command()(evaluate.evaluate)
app.command()(compare.compare)
app.command()(sketch.sketch)
app.command()(demo.demo)
app.command()(doctor.doctor)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"dips {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave with its exit code."""
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
    try:
        code = app(arguments, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        error.show()
        return 2
    except typer.Exit as leave:
        return leave.exit_code
    except DipsError as error:
        print(f"dips: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        hint = "" if "demo" in arguments else "; the same command goes on where it stopped"
        if "train" in arguments[:1] and "--resume" not in arguments:
            hint = "; go on with the same command and --resume"
        print(f"dips: interrupted{hint}", file=sys.stderr)
        return 130
