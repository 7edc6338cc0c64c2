"""Command-line options generated from the fields of a run, and help that shows the important ones.

A new field of a run becomes an option without further code. A frozen dataclass declares a group of options,
which a command takes as one parameter. `--help` shows the important options, `--help-all` shows all.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
import typer.main
from rich.markup import escape
from typer.core import TyperCommand

from khop.cli.arguments import CommandWords, named_run
from khop.components import ANY_NAMED, FAMILIES, NOTHING_NAMED, Permission
from khop.run.fields import Fanout, RunField, Value, fields_of_kind, kind_fields, run_fields
from khop.run.read import value_in

Command = Callable[..., None]


def takes_groups(command: Command) -> Command:
    """Replace each parameter of a command that is a dataclass by one typer option per field."""
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: each.annotation for name, each in parameters.items() if is_dataclass(each.annotation)
    }

    # typer passes options by name, and the names come from the fields.
    def called(**given: object) -> None:
        made = {
            name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()
        }
        command(**given, **made)

    options = [option for each in parameters.values() for option in _options(each)]
    vars(called)["__signature__"] = inspect.Signature(options)
    called.__annotations__ = {option.name: option.annotation for option in options}
    called.__doc__ = command.__doc__
    return called


def _options(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """Yield the options of a parameter: one per field of a group, else the parameter."""
    kind: Any = parameter.annotation
    if not is_dataclass(kind):
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        return
    hints = get_type_hints(kind, include_extras=True)
    for entry in fields(kind):
        default = inspect.Parameter.empty if entry.default is MISSING else entry.default
        yield inspect.Parameter(
            entry.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[entry.name]
        )


# Important fields of a run. With --resume and --procs, these are the ten options of `khop train --help`.
FIRST = frozenset(
    {"--graph", "--out", "--device", "--fanouts", "--hidden", "--epochs", "--batch-size", "--learning-rate"}
)
_LATER = frozenset({"--oversubscribe", "--bind", "--allow-code", "--json", "--baselines"})
_ALL, _SECTION = "khop.help-all", "khop.help-section"  # key in the context of a call
OF_KINDS = "khop.help-kinds"  # options of built-in components that the arguments do not name


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
        help="Show all options and exit; --help-all SECTION: those of a table of run.toml, such as model.",
    ),
]


class ShortHelp(TyperCommand):
    """A command with many options. Options of components that the arguments name are always shown."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # typer's classes are private
        """Parse the arguments. A name after --help-all is the section to show."""
        at = args.index("--help-all") if "--help-all" in args else len(args)
        section = args[at + 1] if at + 1 < len(args) and not args[at + 1].startswith("-") else None
        if section is not None:
            ctx.meta[_SECTION] = section
            args = [*args[: at + 1], *args[at + 2 :]]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the help: the important options, all options, or those of a section."""
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


Options = Mapping[str, object]  # dotted path -> value, only of the given options
_METAVARS = {str: "TEXT", int: "INT", float: "NUMBER"}
# Names in the context of a call: fields of components with their parameters, and their values.
_OF_COMPONENTS, _VALUES = "khop.components", "khop.values"
_PREFIX = "component_"  # of these parameters, whose options may have names of the command's parameters
_CONTEXT, _HELP_ALL = "context", "help_all"
_WIDTH_OF_NAMES = 45  # columns (of 80) for option and value in a panel of the help


def takes_run_options(fields: Iterable[RunField], default: str | None = None) -> Callable[[Command], Command]:
    """Replace the last parameter of a command, `options`, by one typer option per field.

    `default` replaces the defaults in the help if they differ from those of a new run.
    """
    by_name = _by_name(fields)

    def with_options(command: Command) -> Command:
        # typer passes options by name, and the names come from the fields. Hence the only **kwargs of khop.
        def called(**given: object) -> None:
            context: Any = given.pop(_CONTEXT)
            given.pop(_HELP_ALL)
            values = {entry.path: _parsed(entry, given.pop(name)) for name, entry in by_name.items()}
            values |= context.meta.get(_VALUES, {})
            command(**given, options={path: value for path, value in values.items() if value is not None})

        *own, last = inspect.signature(command, eval_str=True).parameters.values()
        assert last.name == "options", last
        context = inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        help_all = inspect.Parameter(
            _HELP_ALL, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll
        )
        options = (_parameter(n, e, default) for n, e in by_name.items())
        signature = inspect.Signature([*own, context, *options, help_all])
        vars(called)["__signature__"] = signature
        called.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        called.__doc__ = command.__doc__
        return called

    return with_options


class ComponentCommand(ShortHelp):
    """A command with its options and those of the components that its arguments name."""

    def component_fields(self, words: CommandWords, permission: Permission) -> Iterable[RunField]:
        """Return the fields of the components that the arguments name. ValueError if one cannot be loaded.

        `permission` applies to components that the user names.
        """
        raise NotImplementedError

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Load the components that the arguments name, then parse the arguments."""
        # Completion runs before the user runs the command, so it only imports installed code.
        permission = NOTHING_NAMED if ctx.resilient_parsing else ANY_NAMED
        words = CommandWords.of(args, _takes_value(super().get_params(ctx)))
        try:
            found = _by_name(self.component_fields(words, permission))
            fields = {f"{_PREFIX}{name}": entry for name, entry in found.items()}
        except ValueError:
            if not (ctx.resilient_parsing or {"--help", "-h", "--help-all"} & set(args)):
                raise
            fields = {}
        ctx.meta[_OF_COMPONENTS] = fields, _parameters(fields)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        """Return the options of the command and of the components."""
        *own, helps = super().get_params(ctx)
        _, of_components = ctx.meta.get(_OF_COMPONENTS, ({}, []))
        return [*own, *of_components, helps]

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        """Call the command, which reads the values of the components' options from the context."""
        fields, _ = ctx.meta[_OF_COMPONENTS]
        given = {entry.path: _parsed(entry, ctx.params.pop(name)) for name, entry in fields.items()}
        ctx.meta[_VALUES] = given
        return super().invoke(ctx)


class RunCommand(ComponentCommand):
    """A command on a run: a file, a preset, or options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse the arguments; --help-all also shows the options of all built-in components."""
        if "--help-all" in args:
            kinds = {
                entry.option.removeprefix("--").replace("-", "_"): replace(
                    entry, description=f"{entry.description}. Only for {', '.join(names)}"
                )
                for entry, names in kind_fields().values()
            }
            ctx.meta[OF_KINDS] = _parameters(kinds)
        return super().parse_args(ctx, args)

    def file_of(self, word: str) -> Path:
        """Return the run file that an argument names."""
        return Path(word)

    def component_fields(self, words: CommandWords, permission: Permission) -> Iterable[RunField]:
        """Return the fields of custom models, tasks, samplers and rules."""
        raw = named_run(words, self.file_of)
        if permission is NOTHING_NAMED:
            raw = replace(raw, options={}, permission=permission)
        found: list[RunField] = []
        for path, family in FAMILIES.items():
            kind = value_in(raw.values, f"{path}.kind")
            if kind not in (None, *family.builtin):
                from khop.run.check import fields_of_others

                return fields_of_others(raw)
            found += fields_of_kind(path, str(kind)) if kind is not None else ()
        return found


def values_of_components(context: Any) -> dict[str, object]:  # noqa: ANN401
    """Return the values of the options of components in the context of a call, by path."""
    values = context.meta.get(_VALUES, {})
    return {path: value for path, value in values.items() if value is not None}


def _by_name(fields: Iterable[RunField]) -> dict[str, RunField]:
    return {entry.option.removeprefix("--").replace("-", "_"): entry for entry in fields}


def _takes_value(parameters: Iterable[Any]) -> dict[str, bool]:
    """Return the names of the options among a command's parameters, and whether they take a value."""
    options = [each for each in parameters if each.param_type_name == "option"]
    return {
        name: not (each.is_flag or each.count)
        for each in options
        for name in (*each.opts, *each.secondary_opts)
    }


def _parameters(fields: Mapping[str, RunField]) -> list[Any]:
    """Make typer's parameters for options, as for a command that only has these options."""

    def command() -> None:
        pass

    parameters = [_parameter(name, entry, None) for name, entry in fields.items()]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(command)
    made = typer.main.get_command(app)
    return [each for each in made.params if each.name in fields]


def _parameter(name: str, entry: RunField, default: str | None) -> inspect.Parameter:
    # Numbers are passed as strings too, so that only the check of a run reports errors in them.
    kind = bool | None if entry.kind is bool else str | None
    annotation = Annotated[kind, _option(entry, default)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _option(entry: RunField, default: str | None) -> object:
    section = entry.section or "machine and files"
    text = _help(entry, _default_of(entry) if default is None else f" (default: {default})")
    if entry.kind is bool:
        flags = f"{entry.option}/--no-{entry.option.removeprefix('--')}"
        # A separate panel, because a column for --no-... would leave too little room for other names.
        return typer.Option(flags, help=text, show_default=False, rich_help_panel=f"{section} (flags)")
    choices = list(entry.choices)
    return typer.Option(
        entry.option,
        *entry.aliases,
        help=text,
        show_default=False,
        metavar=_metavar(entry),
        autocompletion=(lambda: choices) if choices else None,
        rich_help_panel=section,
    )


def _metavar(entry: RunField) -> str:
    if entry.choices:
        words = "|".join(entry.choices)
        longest = max(len(each.option) for each in (*run_fields(), entry) if each.section == entry.section)
        # In a narrow terminal, a long list of choices would truncate option names; the help lists them too.
        return words if longest + len(words) <= _WIDTH_OF_NAMES else "WORD"
    of_item = _METAVARS[entry.item]
    return f"{of_item},{of_item},..." if entry.kind is tuple else _METAVARS[entry.kind]


def _help(entry: RunField, default: str) -> str:
    return escape(f"{entry.description}{default}.")  # else "[tensorboard]" would be read as a style


def _default_of(entry: RunField) -> str:
    value, words = shown(entry.default), entry.default_words
    if not value:
        return f" (default: {words})" if words else ""
    return f" (default {value}: {words})" if words else f" (default {value})"


def shown(value: Value) -> str:
    """Format a value as in the argument of its option; "" for None."""
    if isinstance(value, tuple):
        return ",".join(map(_shown_item, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _shown_item(item: Fanout | str | float) -> str:
    if isinstance(item, str | int | float):
        return str(item)
    return "{" + ", ".join(f"{json.dumps(name)} = {number}" for name, number in item.items()) + "}"


def _parsed(entry: RunField, value: object) -> object:
    """Convert a value to its TOML type. A string that is not a number is kept; `checked` reports it."""
    if not isinstance(value, str):
        return value
    if entry.kind is tuple and entry.item is int and "{" in value:
        return _tables(value)
    if entry.kind is tuple:
        return [_number(entry.item, part.strip()) for part in value.split(",") if part.strip()]
    return _number(entry.kind, value) if entry.kind in (int, float) else value


def _tables(text: str) -> object:
    """Parse a TOML list without its brackets. Other strings are returned unchanged."""
    try:
        return tomllib.loads(f"list = [{text}]")["list"]
    except tomllib.TOMLDecodeError:
        return text


def _number(kind: type, text: str) -> object:
    try:
        return kind(text)
    except ValueError:
        return text


def named(values: Mapping[str, object]) -> frozenset[str]:
    """Return the fields whose value is neither 0 nor empty."""
    return frozenset(name for name, value in values.items() if value)
