"""The class of a run, composed of the run's tables and the options of the components that it names.

options.json and the JSON Schema of run files are generated from the same classes.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from dataclasses import Field as DataclassField
from enum import StrEnum
from functools import cache
from itertools import pairwise
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, Field, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from khop.components import FAMILIES, LARGEST, NOTHING_NAMED, Allowed, Component, Default, Permission
from khop.run.fields import OPTIONS_OF_COMMANDS, RunField, Value, field_at, kind_options, run_fields
from khop.run.tables import (
    LARGEST_BYTES,
    Alias,
    KindOf,
    OptionName,
    Section,
    metadata_of,
    plain_type,
)
from khop.run.values import RunConfig

AnyTable = TypeVar("AnyTable", bound=Section)
_PLAIN = (str, int, float, bool)
# Pydantic looks for docstrings of fields in the source of every caller; a class made dynamically has none.
_WITHOUT_SOURCE = {"use_attribute_docstrings": False}


@cache
def composed(table: type[Section], declared: type) -> type[Section]:
    """Return the table extended by the fields of the options; the table itself if it declares this kind.

    Raises ValueError if an option has a type that a table of a run cannot have, or the name `kind`.
    """
    if issubclass(declared, table):
        return declared
    new = {name: (_annotation(declared, name, kind), info) for name, kind, info in _declared(declared)}
    if not new:
        return table
    if "kind" in new:
        raise ValueError(f"{declared.__name__}.kind: kind names the component itself; rename this option")

    def accepted(self: Section) -> Section:
        _made(self, declared)  # pydantic adds the path of the table to an error of one of its fields
        return self

    made: type[Section] = create_model(  # type: ignore[call-overload]
        table.__name__,
        __base__=table,
        __doc__=table.__doc__,
        __module__=__name__,
        __validators__={"_accepted": model_validator(mode="after")(accepted)},
        __cls_kwargs__=_WITHOUT_SOURCE,
        **new,
    )
    return made


def options_of(table: Section, declared: type) -> Any:  # noqa: ANN401
    """Return the options of a component: the values of a table, as the class that the component declares."""
    return table if isinstance(table, declared) else _made(table, declared)


def _made(table: Section, declared: type) -> Any:  # noqa: ANN401
    return declared(**{name: getattr(table, name) for name, _, _ in _declared(declared)})


def with_values(table: AnyTable, options: object) -> AnyTable:
    """Return the table with the values of a component's options."""
    if isinstance(options, type(table)):
        return options
    names = [name for name, _, _ in _declared(type(options))]
    return table.model_copy(update={name: getattr(options, name) for name in names})


_OPTIONS: dict[type, tuple[tuple[str, Any, FieldInfo], ...]] = {}  # the source of a class is parsed once


def _declared(declared: type) -> tuple[tuple[str, Any, FieldInfo], ...]:
    """Return name, annotation and field of each option."""
    if declared not in _OPTIONS:
        _OPTIONS[declared] = tuple(_options(declared))
    return _OPTIONS[declared]


def _options(declared: type) -> Iterator[tuple[str, Any, FieldInfo]]:
    helps = _helps(declared)
    if issubclass(declared, BaseModel):
        for name, info in declared.model_fields.items():
            yield name, _described(info.annotation, info.description or helps.get(name)), info
        return
    if not is_dataclass(declared):
        raise ValueError(f"its Options ({declared.__name__}) must be a dataclass or a pydantic model")
    hints = get_type_hints(declared, include_extras=True)
    for entry in fields(declared):
        if not entry.init:
            continue
        info = _field(entry)
        text = entry.metadata.get("help") or info.description or helps.get(entry.name)
        yield entry.name, _described(hints[entry.name], text), info


def _described(annotation: Any, text: str | None) -> Any:  # noqa: ANN401
    return Annotated[annotation, Field(description=text)]


def _field(entry: DataclassField[Any]) -> FieldInfo:
    match entry.default:
        case FieldInfo() as info:  # of a dataclass of pydantic
            return info
    default = PydanticUndefined if entry.default is MISSING else entry.default
    made = None if entry.default_factory is MISSING else entry.default_factory
    return FieldInfo(default=default, default_factory=made)


def _annotation(declared: type, name: str, annotation: Any) -> Any:  # noqa: ANN401
    """Return the annotation for a table; ValueError for a type that TOML and options cannot express."""
    kind = plain_type(annotation)
    is_tuple = get_origin(kind) is tuple and set(get_args(kind)[:1]) <= {str, int, float}
    is_words = isinstance(kind, type) and issubclass(kind, StrEnum)
    if (is_tuple and get_args(kind)[1:] == (...,)) or is_words:
        return Annotated[annotation, Field(strict=False)]  # TOML gives a list, and text
    if kind in _PLAIN or (get_origin(kind) is Literal and all(isinstance(v, str) for v in get_args(kind))):
        return annotation
    raise ValueError(
        f"{declared.__name__}.{name} is of type {kind}: options are str, int, float, bool, Literal of "
        "words, a StrEnum, or a tuple such as tuple[int, ...]"
    )


def _helps(declared: type) -> Mapping[str, str]:
    """Return the strings below the fields of a class and of its base classes."""
    found: dict[str, str] = {}
    for base in reversed(declared.__mro__):
        if base.__module__ in ("builtins", "pydantic.main", "abc"):
            continue
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError, ValueError):  # defined without a source file, as in a shell
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = _text(below)
                found |= {} if text is None else {field.target.id: " ".join(text.split())}
    return found


def _text(statement: ast.stmt) -> str | None:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


Where = Callable[[str], str]  # the field's path -> the option or file that sets it
Permissions = Callable[
    [str], Permission
]  # the path of a kind -> permission to import the class that it names


def run_type(
    values: Mapping[str, object],
    permission: Permissions = lambda path: NOTHING_NAMED,
    where: Where | None = None,
    builtin: Callable[[str, str], Component | None] | None = None,
) -> type[RunConfig]:
    """Return the class for a run with these values, and import the custom components that they name.

    ValueError if a kind names no component, or one that may not be imported.
    """
    found: list[tuple[str, type[Section], Component]] = []
    for path, family in FAMILIES.items():
        kind = _at(values, f"{path}.kind")
        if kind is None:
            kind = family.default
        if (kind == "" and not family.default) or not isinstance(kind, str):
            continue  # not a component, or a value that the check of the run reports
        try:
            component = (builtin or _builtin)(path, kind)
            if component is None:
                component = family.load(kind, permission(f"{path}.kind"))
            found.append((path, composed(_table(path), component.options), component))
        except ValueError as error:
            place = f" ({where(f'{path}.kind')})" if where else ""
            raise ValueError(f"{path}.kind is {kind!r}: {error}{place}") from error
    return _of_tables(tuple(found))


@cache
def _builtin(path: str, kind: str) -> Component | None:
    """Return a built-in component, with its table from options.json; building it imports its class."""
    if kind not in FAMILIES[path].builtin:
        return None
    new = {
        entry.path.rpartition(".")[2]: _typed(entry, limits)
        for entry, limits in kind_options(path, kind).options
    }
    table = _with_fields(_table(path), new) if new else _table(path)
    return Component(table, _Later(path, kind, "build"), _Later(path, kind, "resolve"))


def _typed(entry: RunField, limits: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return annotation and field of an option in options.json."""
    literal: Any = Literal[entry.choices] if entry.choices else entry.kind
    words = [Default(entry.default_words)] if entry.default_words else []
    worded = [Allowed(entry.allowed)] if entry.is_worded else []
    annotation: Any = Annotated[(literal, *words, *worded)] if words or worded else literal
    limits = dict(limits)
    if limits.pop("optional", False):
        annotation = annotation | None
    if not entry.required:
        limits["default"] = entry.default
    return annotation, Field(description=entry.description, **limits)


@dataclass(frozen=True)
class _Later:
    """A function of a built-in component, which imports the class when it is called."""

    path: str
    kind: str
    method: str

    def __call__(self, table: Section, context: object) -> Any:  # noqa: ANN401
        """Import the class, and call its function with its options."""
        component = FAMILIES[self.path].load(self.kind)
        return getattr(component, self.method)(options_of(table, component.options), context)


def component_of(config: RunConfig, path: str) -> Component:
    """Return the component of a checked run's table, such as "model", with its class."""
    component = config.components[path]
    match component.build:
        case _Later(path=_, kind=kind):
            return FAMILIES[path].load(kind)
    return component


def accepted(config: RunConfig) -> None:
    """Raise ValueError, which names the table, if options of built-in components exclude each other."""
    for path in config.components:
        component, table = component_of(config, path), _table_in(config, path)
        names = {name for name, _, _ in _declared(component.options)}
        try:
            options_of(table, component.options)
        except ValueError as error:
            separator = "." if str(error).partition(" ")[0] in names else ": "
            raise ValueError(f"{path}{separator}{error}") from error


def built(config: RunConfig, path: str, context: object) -> Any:  # noqa: ANN401
    """Build the component of a checked run's table in its context.

    Raises ValueError if the object lacks a method of the protocol that the table needs.
    """
    component, table = config.components[path], _table_in(config, path)
    made = component.build(options_of(table, component.options), context)
    family = FAMILIES[path]
    for method in family.methods:
        if not callable(getattr(made, method, None)):
            kind = getattr(table, "kind", None)
            raise ValueError(
                f"{path}.kind is {kind!r}: its build returned {type(made).__name__}, which has no method "
                f"{method}; it must return a {family.makes}"
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
        of_path["sampler"] = _with_fields(of_path["sampler"], {"rule": (rule | None, None)})
    if loss := of_path.pop("links.loss", None):
        of_path["links"] = _with_fields(_table("links"), {"loss": (loss, Field(default_factory=loss))})
    made: type[RunConfig] = RunConfig
    for name, table in of_path.items():
        made = _with_fields(made, {name: (table, Field(default_factory=table))})
    made.components = {path: component for path, _, component in tables}
    return made


def _with_fields(base: type[Section], fields: Mapping[str, tuple[object, object]]) -> Any:  # noqa: ANN401
    return create_model(  # type: ignore[call-overload]
        base.__name__,
        __base__=base,
        __doc__=base.__doc__,
        __module__=__name__,
        __cls_kwargs__=_WITHOUT_SOURCE,
        **fields,
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


@cache
def fields_of(run: type[Section]) -> tuple[RunField, ...]:
    """Return all fields of the class of a run or of another table."""
    if not issubclass(run, RunConfig):
        return _fields_of(run, "")
    paths = {entry.path for entry in run_fields()}
    taken = {name for entry in run_fields() for name in (entry.option, *entry.aliases)} | OPTIONS_OF_COMMANDS
    found: list[RunField] = []
    for entry in _fields_of(run, ""):
        found.append(entry if entry.path in paths else _with_free_option(entry, taken))
        taken.add(found[-1].option)
    return tuple(found)


@cache
def sections(run: type[Section] | None = None) -> dict[str, type[Section]]:
    """Return the tables of run.toml by path; "" is the top level."""
    run = run or run_type({})
    return {"": run, **dict(_tables(run, ""))}


def field_in(path: str, run: type[Section]) -> RunField | None:
    """Return the field of a run, or of another table, at a dotted path, or None."""
    return next((field for field in fields_of(run) if field.path == path), None)


def value_at(config: RunConfig, path: str) -> Value:
    """Return the value of a run at a dotted path; None in a table that is left out."""
    value: object = config
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value  # type: ignore[return-value]


def _fields_of(section: type[Section], prefix: str) -> tuple[RunField, ...]:
    found: list[RunField] = []
    for name, info in section.model_fields.items():
        if table := _section(info.annotation):
            found += _fields_of(table, f"{prefix}{name}.")
        else:
            found.append(_run_field(section, prefix, name, info))
    return tuple(found)


def _tables(section: type[Section], prefix: str) -> Iterator[tuple[str, type[Section]]]:
    for name, info in section.model_fields.items():
        if table := _section(info.annotation):
            yield prefix + name, table
            yield from _tables(table, f"{prefix}{name}.")


def _section(annotation: object) -> type[Section] | None:
    inner = plain_type(annotation)
    return inner if isinstance(inner, type) and issubclass(inner, Section) else None


def _with_free_option(entry: RunField, taken: Set[str]) -> RunField:
    """Prefix an option with the name of its table if another field or the command has the same option."""
    if entry.option not in taken:
        return entry
    return replace(entry, option=f"--{entry.section.rpartition('.')[2]}-{entry.option.removeprefix('--')}")


def _run_field(section: type[Section], prefix: str, name: str, info: FieldInfo) -> RunField:
    annotation = plain_type(info.annotation)
    metadata = [*info.metadata, *metadata_of(info.annotation)]
    family = next((item.family for item in metadata if isinstance(item, KindOf)), None)
    choices = _words(annotation)
    if family is not None:
        choices = family.kinds()
    kind = str if choices else get_origin(annotation) or annotation
    assert isinstance(kind, type)
    items = get_args(annotation) if kind is tuple else ()
    return RunField(
        path=prefix + name,
        option=_option_name(section, prefix, name, info),
        aliases=tuple(item.option for item in metadata if isinstance(item, Alias)),
        kind=kind,
        item=items[0] if items and items[0] in (str, float) else int,
        choices=choices,
        allowed=family.allowed() if family else _allowed(kind, choices, metadata),
        is_worded=any(isinstance(item, Allowed) for item in metadata),
        description=" ".join((info.description or "").split()),
        default=None if info.is_required() else info.get_default(call_default_factory=True),
        default_words=next((item.words for item in metadata if isinstance(item, Default)), ""),
        required=info.is_required(),
    )


def _words(annotation: object) -> tuple[str, ...]:
    """Return the allowed strings of a Literal or StrEnum; empty for other types."""
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return tuple(annotation)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _option_name(section: type[Section], prefix: str, name: str, info: FieldInfo) -> str:
    for item in info.metadata:
        if isinstance(item, OptionName):
            return item.option
    if name == "kind":
        return f"--{prefix.rstrip('.').rpartition('.')[2]}"
    return f"--{section.option_prefix}{name.replace('_', '-')}"


_NOUNS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list, on the command line separated by commas",
}


def _allowed(kind: type, choices: tuple[str, ...], metadata: Sequence[object]) -> str:
    for item in metadata:
        if isinstance(item, Allowed):
            return item.words
    if choices:
        return "one of " + ", ".join(choices) if len(choices) > 1 else choices[0]
    limits = [words for item in metadata if (words := _limit(item))]
    return " ".join([_NOUNS[kind], " and ".join(limits)]).strip()


def _limit(item: object) -> str:
    match item:
        case Ge(ge=bound):
            return f"of at least {bound}"
        case Gt(gt=bound):
            return f"above {bound}"
        case Le(le=bound):
            return "" if bound in (LARGEST, LARGEST_BYTES) else f"at most {bound}"
        case Lt(lt=bound):
            return f"below {bound}"
        case MinLen():
            return "that is not empty"
    return ""


def options_document() -> dict[str, Any]:
    """Return the content of options.json, from the classes of khop's components."""
    default = _fields_of(run_type({}, builtin=_of_class), "")
    taken = {name for entry in default for name in (entry.option, *entry.aliases)} | OPTIONS_OF_COMMANDS
    paths = frozenset(entry.path for entry in default)
    kinds: dict[str, Any] = {
        path: {kind: _kind_document(path, kind, paths, taken) for kind in family.builtin}
        for path, family in FAMILIES.items()
    }
    fields: list[dict[str, object]] = []
    summaries = {
        f"{path}.kind": ", ".join(
            f"{of['summary']} ({kind})" if of["summary"] else kind for kind, of in found.items()
        )
        for path, found in kinds.items()
    }
    for entry in default:
        words = entry.description.format(kinds=summaries.get(entry.path, ""))
        fields.append(replace(entry, description=words).document())
    return {"fields": fields, "kinds": kinds}


def _of_class(path: str, kind: str) -> Component | None:
    """Return a built-in component with the options of its class."""
    return FAMILIES[path].load(kind) if kind in FAMILIES[path].builtin else None


def _kind_document(path: str, kind: str, default: Set[str], taken: Set[str]) -> dict[str, Any]:
    component = FAMILIES[path].load(kind)
    table = composed(_table(path), component.options)
    declared = {name for name, _, _ in _declared(component.options)}
    options = []
    for name, info in table.model_fields.items():
        if name in declared:
            entry = _run_field(table, f"{path}.", name, info)
            entry = entry if entry.path in default else _with_free_option(entry, taken)
            limits = _limits(info)
            options.append(entry.document() | ({"limits": limits} if limits else {}))
    summary = getattr(component.declared, "summary", "")
    others = getattr(component.declared, "other_kinds", {})
    return {
        "summary": summary,
        "rule": component.rule,
        "other_kinds": others,
        "names": [*table.model_fields],
        "unread": getattr(component.options, "unread", ()),
        "column_setting": getattr(component.declared, "column_setting", ""),
        "options": options,
    }


def _limits(info: FieldInfo) -> dict[str, object]:
    names = ("ge", "gt", "le", "lt", "min_length", "pattern")
    metadata = [*info.metadata, *metadata_of(info.annotation)]
    found = {name: getattr(item, name, None) for item in metadata for name in names if hasattr(item, name)}
    limits = {name: limit for name, limit in found.items() if limit is not None}
    return limits | ({"optional": True} if NoneType in get_args(info.annotation) else {})


DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OF_OTHERS = (
    ":"  # in the name of a component of another package, whose options are unknown without importing it
)
_SIZE = {"type": "string", "pattern": r"^\s*[0-9.]+\s*([kKMGTP]i?)?B?\s*$"}

Schema = dict[str, Any]


def run_schema() -> Schema:
    """Return the schema, with the options of all components of khop."""
    schema = _of_table(run_type({}), "")
    for path, family in FAMILIES.items():
        tables = [
            _of_table(_table_at(run_type(_with_kind(path, kind)), path), path) for kind in family.kinds()
        ]
        _schema_at(schema, path).update(_joined(tables, family.kinds()))
    return {"$schema": DIALECT, "title": "A run of khop", **schema}


def _of_table(table: type[BaseModel], path: str) -> Schema:
    """Return the schema of the table at this path, without references to other schemas."""
    written = table.model_json_schema()
    return _plain(written, written.get("$defs", {}), path)


def _table_at(table: type[BaseModel], path: str) -> type[BaseModel]:
    for name in path.split("."):
        annotation = table.model_fields[name].annotation
        (table,) = (
            each
            for each in (annotation, *get_args(annotation))
            if isinstance(each, type) and issubclass(each, BaseModel)
        )
    return table


def _with_kind(path: str, kind: str) -> dict[str, object]:
    values: dict[str, object] = {"kind": kind}
    for name in reversed(path.split(".")):
        values = {name: values}
    return values


def _schema_at(schema: Schema, path: str) -> Schema:
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


def _plain(schema: Mapping[str, Any], defs: Mapping[str, Any], path: str) -> Schema:
    """Inline definitions, and remove values that TOML lacks, such as null."""
    if "$ref" in schema:
        own = {name: value for name, value in schema.items() if name not in ("$ref", "default")}
        return _plain(defs[schema["$ref"].rpartition("/")[2]], defs, path) | own
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "$defs", "title")}
    if "default" in rest and rest["default"] is None:
        del rest["default"]
    if len(choices) == 1:
        return _plain(choices[0], defs, path) | rest
    if choices:
        rest["anyOf"] = [_plain(each, defs, path) for each in choices]
    if "properties" in rest:
        prefix = f"{path}." if path else ""
        rest["properties"] = {
            name: _plain(each, defs, prefix + name) for name, each in rest["properties"].items()
        }
    return _field_schema(rest, path)


def _field_schema(schema: Schema, path: str) -> Schema:
    """Add the allowed values of a field to its description; sizes may be strings."""
    entry = field_at(path)
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    if entry is None:
        return schema
    schema["description"] = f"{entry.description}. Values: {entry.allowed}"
    if entry.allowed.startswith("bytes"):
        kept: Schema = {name: schema[name] for name in ("description", "default") if name in schema}
        return {"anyOf": [{"type": "integer", "minimum": 0}, _SIZE], **kept}
    return schema


def _joined(tables: list[Schema], kinds: tuple[str, ...]) -> Schema:
    """Merge the tables of all kinds of a component: each kind has its options, custom kinds any options."""
    properties: Schema = {}
    for table in tables:
        for name, found in table["properties"].items():
            before = properties.setdefault(name, found)
            if {**before, "default": None} != {**found, "default": None} and name != "kind":
                same = {"description": found.get("description", "")}
                properties[name] = {"anyOf": [before, found], **same}
    kind = {"type": "string", "anyOf": [{"enum": list(kinds)}, {"pattern": _OF_OTHERS}]}
    kept = {name: value for name, value in properties["kind"].items() if name in ("description", "default")}
    properties["kind"] = kind | kept
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": True,
        "if": {"properties": {"kind": {"pattern": _OF_OTHERS}}, "required": ["kind"]},
        "else": {"properties": dict.fromkeys(properties, True), "additionalProperties": False},
    }
