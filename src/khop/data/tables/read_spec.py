"""Specs read from TOML files and Python mappings.

Errors name file, key and remedy.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from khop.arguments import toml_values
from khop.data.tables.spec import Kind, Spec

AnyModel = TypeVar("AnyModel", bound=BaseModel)
_PASSWORD = re.compile(r"(password|passwd|pwd)\s*=|://[^/\s@]*:[^/\s@]*@", re.IGNORECASE)
_KINDS = frozenset(get_args(Kind))
_BOUNDS = {
    "too_short": "have at least {} items", "too_long": "have at most {} items",
    "string_too_short": "have at least {} characters", "string_too_long": "have at most {} characters",
    "greater_than": "be more than {}", "greater_than_equal": "be at least {}",
    "less_than": "be less than {}", "less_than_equal": "be at most {}",
}  # fmt: skip
_WORDS = {
    "string": "text", "int": "a whole number", "float": "a number", "finite": "a finite number",
    "bool": "true or false", "tuple": "a list", "list": "a list", "dict": "a table", "model": "a table",
    "mapping": "a table", "datetime": "a time, as 2020-09-20T00:00:00Z",
}  # fmt: skip
_TAGS = _KINDS | {"datetime", "int"}  # names of alternatives in the locations of errors


def read_spec(path: Path) -> Spec:
    """Read and check a spec file; ValueError with the first problem."""
    try:
        values = toml_values(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; khop import --guess FILES... proposes one") from None
    except PermissionError:
        raise ValueError(f"{path}: no permission to read it; chmod u+r {path}") from None
    return checked_spec(values, str(path))


def checked_spec(values: Mapping[str, Any], source: str) -> Spec:
    """Check the values of a spec; `source` names their place in errors."""
    _refuse_passwords(values, source, ())
    return validated(Spec, values, source)


def validated(model: type[AnyModel], values: Mapping[str, Any], source: str) -> AnyModel:
    """Validate values as a model; ValueError with the first problem."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ValueError(_sentence(error.errors(include_url=False)[0], values, source)) from None


def nearest(name: str, there: Sequence[str]) -> str:
    """Return a hint to existing names: the nearest ones, or all if there are few."""
    close = difflib.get_close_matches(name, there, n=3, cutoff=0.6)
    lower = {one.lower(): one for one in there}
    close = [lower[name.lower()]] if name.lower() in lower else close
    if close:
        return f"did you mean {' or '.join(one if one == one.strip() else repr(one) for one in close)}?"
    shown = ", ".join(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
    return f"there are {shown}" if there else "there are none"


def _refuse_passwords(values: object, source: str, path: tuple[str, ...]) -> None:
    match values:
        case Mapping():
            for name, value in values.items():
                _refuse_passwords(value, source, (*path, str(name)))
        case list() | tuple():
            for value in values:
                _refuse_passwords(value, source, path)
        case str() if path[-1] in ("database", "files") and _holds_password(values):
            raise ValueError(
                f"{_dotted(path)}: contains a password; put the connection into an environment variable and "
                f'give database = "env:NAME" ({source})'
            )


def _holds_password(text: str) -> bool:
    return any(_PASSWORD.search(form) for form in (text, unquote(text)))


def _sentence(error: ErrorDetails, values: Mapping[str, Any], source: str) -> str:
    names = _written_path(error["loc"], values)
    path = _dotted(names)
    where = f"{path}: " if path else ""
    match error["type"]:
        case "unknown_field":
            name, fields = error["ctx"]["name"], error["ctx"]["fields"]
            path = _dotted(_written_path((*error["loc"], name), values))
            return f"{path}: no such field; {nearest(name, fields)} ({source})"
        case "missing":
            return f"{path} is missing; add it ({source})"
        case "value_error":
            return f"{where}{error['ctx']['error']} ({source})"
        case "union_tag_invalid":
            tag, kinds = error["ctx"]["tag"], sorted(_KINDS)
            return f"{path}: kind {tag!r} does not exist; {nearest(str(tag), kinds)} ({source})"
        case "union_tag_not_found":
            return f'{path}: kind is missing; give kind = "number", or the kind alone ({source})'
    shown = _shown(error["input"])
    return f"{path or 'the file'} is {shown}: {_broken_rule(error)} ({source})"


def _broken_rule(error: ErrorDetails) -> str:
    """Return the rule that a value breaks, without the text of pydantic."""
    context, kind = error.get("ctx", {}), error["type"]
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind in _BOUNDS:
        limit = next(value for value in context.values() if isinstance(value, int | float))
        return f"must {_BOUNDS[kind].format(limit)}".removesuffix("s" if limit == 1 else "")
    return f"must be {_WORDS.get(kind.split('_')[0], 'another value')}"


def _written_path(location: tuple[int | str, ...], values: object) -> tuple[str | int, ...]:
    """Return the keys of an error's location in the file, without the type names that pydantic adds."""
    kept: list[str | int] = []
    for number, part in enumerate(location):
        match values:
            case Mapping() if part in values:
                values = values[part]
            case list() | tuple() if isinstance(part, int) and part < len(values):
                values = values[part]
            case str() if isinstance(part, int):  # one value for a list
                continue
            case _ if number < len(location) - 1 or part in _TAGS or "[" in str(part):
                continue
        kept.append(part)
    return tuple(kept)


def _dotted(path: Sequence[str | int]) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[\w-]+", part) else f'"{part}"'
            text += f".{name}" if text else name
    return text


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
