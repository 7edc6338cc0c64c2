"""The class of a run: all tables, with the options of the components that the run names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_args

from pydantic import Field, create_model

from khop.components import NOTHING_NAMED, Component, Permission
from khop.config.kinds import FAMILIES, MADE
from khop.config.options import composed, options_of
from khop.config.section import Section
from khop.config.values import RunConfig

Where = Callable[[str], str]  # the field's path -> the option or file that sets it
Permissions = Callable[[str], Permission]  # the path of a kind -> permission to import what it names


def run_type(
    values: Mapping[str, object],
    permission: Permissions = lambda path: NOTHING_NAMED,
    where: Where | None = None,
) -> type[RunConfig]:
    """Return the class for a run with these values; it imports the components that they name.

    ValueError if a kind names no component, or one that may not be imported.
    """
    found: list[tuple[str, type[Section], Component]] = []
    for path, (family, default) in FAMILIES.items():
        kind = _at(values, f"{path}.kind")
        if kind is None:
            kind = default
        if not isinstance(kind, str):
            continue  # no component, or a value that the check of the run reports
        try:
            component = family.load(kind, permission(f"{path}.kind"))
            found.append((path, composed(_table(path), component.options), component))
        except ValueError as error:
            place = f" ({where(f'{path}.kind')})" if where else ""
            raise ValueError(f"{path}.kind is {kind!r}: {error}{place}") from error
    return _of_tables(tuple(found))


def component_of(config: RunConfig, path: str) -> Component:
    """Return the component of a checked run's table, such as "model": the one that the check has loaded."""
    return config.components[path]


def built(config: RunConfig, path: str, context: object) -> Any:  # noqa: ANN401
    """Build the component of a checked run's table in its context.

    ValueError if it is no object of the kind that the table needs, by its methods.
    """
    component, table = component_of(config, path), _table_in(config, path)
    made = component.build(options_of(table, component.options), context)
    needed, methods = MADE[path]
    for method in methods:
        if not callable(getattr(made, method, None)):
            kind = getattr(table, "kind", None)
            raise ValueError(
                f"{path}.kind is {kind!r}: its build returned {type(made).__name__}, which has no method "
                f"{method}; it must return a {needed}"
            )
    return made


def _table_in(config: RunConfig, path: str) -> Section:
    table: object = config
    for name in path.split("."):
        table = getattr(table, name)
    assert isinstance(table, Section), path
    return table


@cache
def _of_tables(tables: tuple[tuple[str, type[Section], Component], ...]) -> type[RunConfig]:
    of_path = {path: table for path, table, _ in tables}
    if rule := of_path.pop("sampler.rule", None):
        of_path["sampler"] = _with_field(of_path["sampler"], "rule", rule | None, None)
    made: type[RunConfig] = RunConfig
    for name, table in of_path.items():
        made = _with_field(made, name, table, Field(default_factory=table))
    made.components = {path: component for path, _, component in tables}
    return made


def _with_field(base: type[Section], name: str, annotation: object, default: object) -> Any:  # noqa: ANN401

    return create_model(  # type: ignore[call-overload]
        base.__name__,
        __base__=base,
        __doc__=base.__doc__,
        __module__=__name__,
        **{name: (annotation, default)},
    )


def _table(path: str) -> type[Section]:
    section: object = RunConfig
    for name in path.split("."):
        annotation = section.model_fields[name].annotation  # type: ignore[attr-defined]
        section = next(iter(a for a in (annotation, *get_args(annotation)) if isinstance(a, type)))
    assert isinstance(section, type)
    assert issubclass(section, Section)
    return section


def _at(values: object, path: str) -> object:
    for name in path.split("."):
        match values:
            case Mapping():
                values = values.get(name)
            case _:
                return None
    return values
