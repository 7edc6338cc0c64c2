"""The command `khop` and its options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

import khop
from khop.cli.commands import (
    append,
    doctor,
    evaluate,
    graphs,
    importing,
    infer,
    init,
    lookup,
    partition,
    plan,
    predict,
    profile,
    recommend,
    report,
    runs,
    schema,
    serve,
    train,
)
from khop.cli.interrupts import INTERRUPTED, interrupts
from khop.cli.lines import tell
from khop.cli.options import takes_groups
from khop.cli.start import exit_code, sentence
from khop.cli.stores import with_mirrors

DEBUG = "--debug"
# Commands by purpose, as in the help of khop.
PANELS = {
    "Train and use a model": ("train", "evaluate", "infer", "predict", "recommend", "profile"),
    "Look at runs": ("runs", "compare", "report"),
    "Make a graph": ("import", "append", "compact", "graph", "info", "verify", "lookup", "init"),
    "Use several machines": ("plan", "partition", "part-files", "serve", "servers"),
    "Installation": ("doctor", "schema", "help", "version"),
}


class _Group(TyperGroup):
    """The group of commands. Ctrl-C ends a command with a line and the exit code of SIGINT."""

    def make_context(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401
        try:
            return super().make_context(*args, **extra)
        except KeyboardInterrupt:  # typer would call it "Aborted" and end with 1
            print("khop: stopped", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  # typer's own class is private
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:  # typer 0.29 puts a word of pydantic before its sentence
            error.message = error.message.removeprefix("Value error, ")
            raise
        except KeyboardInterrupt:
            print("khop: stopped", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="khop",
    cls=_Group,
    no_args_is_help=True,
    epilog="Next: khop doctor checks this machine; khop train debian trains on the built-in graph.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"khop {khop.__version__}")
        raise typer.Exit


@dataclass(frozen=True)
class MainOptions:
    """Options of every command; they apply before it starts."""

    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False
    debug: Annotated[bool, typer.Option(DEBUG, help="Print the traceback of an error.")] = False


@app.callback()
@takes_groups
def main(options: MainOptions) -> None:
    """Train graph neural networks on sampled neighborhoods."""


for commands in (
    train, evaluate, infer, predict, recommend, profile, importing, append, graphs, init, lookup, partition,
    plan, serve, runs, report, doctor, schema,
):  # fmt: skip
    commands.register(app)


@app.command("help")
def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="Command, e.g. train or graph sort (default: all commands).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the help of khop or of a command."""
    assert context.parent is not None
    context.parent.command.main([*(words or ()), "--help"], prog_name="khop")


@app.command("version")
def show_version() -> None:
    """Print the version."""
    from khop.cli.terminal import tell_next

    typer.echo(f"khop {khop.__version__}")
    tell_next(("khop", "doctor"))


_panel_of = {name: panel for panel, names in PANELS.items() for name in names}
for command in app.registered_commands:
    command.rich_help_panel = _panel_of.get(command.name or "", "Commands")
for group in app.registered_groups:
    group.rich_help_panel = _panel_of.get(str(group.name), "Commands")


@cache
def built() -> Any:  # noqa: ANN401  # typer's own class is private
    """Build the commands; a process that runs several of them, as a notebook does, builds them once."""
    return typer.main.get_command(app)


def _out_of_import(words: Sequence[str]) -> Path | None:
    out: Path | None = built().commands["import"].out(words)
    return out


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command. An error is printed as one sentence, or as a traceback with --debug."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = DEBUG in words
    words = [word for word in words if word != DEBUG]
    interrupts.clear()
    try:
        built()(args=with_mirrors(words, _out_of_import), prog_name="khop")
    except Exception as error:  # the outermost level of the command
        if interrupts:
            raise KeyboardInterrupt from None
        if debug:
            raise
        again = shlex.join(["khop", DEBUG, *words])
        tell(sentence(error, again, words[0] if words else ""))
        sys.exit(exit_code(error))
