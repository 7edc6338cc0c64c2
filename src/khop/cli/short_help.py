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
_ALL, _SECTION = "khop.help-all", "khop.help-section"  # names in the context of a call
OF_KINDS = "khop.help-kinds"  # options of khop's components that the arguments do not name


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        context.meta[_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        is_eager=True,
        callback=_show_all,
        help="Show all options and exit; --help-all SECTION those of a table of run.toml, such as model.",
    ),
]


class ShortHelp(TyperCommand):
    """A command on a run, with many options. Components that the arguments name always show theirs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # typer's classes are private
        """Parse the arguments. A word after --help-all is the section to show."""
        at = args.index("--help-all") if "--help-all" in args else len(args)
        section = args[at + 1] if at + 1 < len(args) and not args[at + 1].startswith("-") else None
        if section is not None:
            ctx.meta[_SECTION] = section
            args = [*args[: at + 1], *args[at + 2 :]]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the help: the options that matter first, all of them, or those of a section."""
        if ctx.meta.get(_ALL):
            full = copy(self)
            full.params = [*self.params, *ctx.meta.get(OF_KINDS, ())]
            section = ctx.meta.get(_SECTION)
            if section is not None:
                full.params = [each for each in full.params if _section_of(each) == section]
                if not full.params:
                    there = dict.fromkeys(filter(None, map(_section_of, self.params)))
                    raise ValueError(f"--help-all {section}: the sections are {', '.join(there)}")
            super(ShortHelp, full).format_help(ctx, formatter)
            return
        short = copy(self)
        short.params = [_in_one_panel(each) for each in self.params if not _is_later(each)]
        short.epilog = f"All options: {ctx.command_path} --help-all"
        super(ShortHelp, short).format_help(ctx, formatter)


def _section_of(parameter: Any) -> str | None:  # noqa: ANN401
    panel = getattr(parameter, "rich_help_panel", None)
    return None if panel is None else str(panel).removesuffix(" (flags)")


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
