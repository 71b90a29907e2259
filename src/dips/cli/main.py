"""The command `dips`: collects the commands and maps errors to messages and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dips import __version__
from dips.cli import (
    compare,
    cross,
    data,
    demo,
    doctor,
    evaluate,
    gradients,
    headroom,
    paper,
    report,
    session,
    sketch,
    store,
    story,
    stream,
    train,
    transfer,
)
from dips.cli.notes import print_notes
from dips.cli.origin import record_command
from dips.errors import DipsError


class Guarded(TyperGroup):
    """A group of commands that print one sentence instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; exit with 2 on a `DipsError`, with 130 on an interrupt."""
        try:
            with print_notes():
                return super().invoke(ctx)
        except DipsError as error:
            print(f"dips: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            again = " and --resume" if ctx.invoked_subcommand == "train" else ""
            print(f"dips: interrupted; continue with the same command{again}", file=sys.stderr)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Guarded,
    help="Learn which K interactions of each user's history to keep.",
    epilog="Start with: dips demo. Exit codes: 0 success, 2 bad usage or input, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.command()(train.train)
app.command()(evaluate.evaluate)
app.command()(compare.compare)
app.command()(sketch.sketch)
app.command()(stream.stream)
app.command("import")(store.import_lists)
app.add_typer(store.app, name="store")
app.command()(gradients.gradients)
app.command()(cross.cross)
app.command()(headroom.headroom)
app.command()(transfer.transfer)
app.command()(session.session)
app.command()(story.story)
app.command()(report.report)
app.command()(paper.paper)
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
    """Run a command and exit with its exit code."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    record_command(typed)
    app(typed, prog_name="dips")
