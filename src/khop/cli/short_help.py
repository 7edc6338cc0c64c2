"""Help that shows the options that matter first; --help-all shows all."""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

# Of the fields of a run. With --resume and --procs, these are the ten options of `khop train --help`.
FIRST = frozenset(
    {"--graph", "--out", "--device", "--fanouts", "--hidden", "--epochs", "--batch-size", "--learning-rate"}
)
_LATER = frozenset({"--oversubscribe", "--allow-code", "--json", "--baselines"})  # of the other options
_ALL = "khop.help-all"  # name in the context of a call


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        context.meta[_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show all options and exit."),
]


class ShortHelp(TyperCommand):
    """A command on a run, with many options. Components that the arguments name always show theirs."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # typer's classes are private
        """Write the help: the options that matter first, or all of them."""
        if ctx.meta.get(_ALL):
            super().format_help(ctx, formatter)
            return
        short = copy(self)
        short.params = [_in_one_panel(each) for each in self.params if not _is_later(each)]
        short.epilog = f"All options: {ctx.command_path} --help-all"
        super(ShortHelp, short).format_help(ctx, formatter)


def _is_later(parameter: Any) -> bool:  # noqa: ANN401
    if parameter.param_type_name != "option":
        return False
    is_of_run = parameter.rich_help_panel is not None
    return bool(_LATER & set(parameter.opts)) or (is_of_run and not FIRST & set(parameter.opts))


def _in_one_panel(parameter: Any) -> Any:  # noqa: ANN401
    one = copy(parameter)
    if one.param_type_name == "option":
        one.rich_help_panel = None
    return one
