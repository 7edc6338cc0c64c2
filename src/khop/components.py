"""Components of a run and of the command by name: khop's own, installed ones, and `package.module:Class`.

A component is a class with `Options`, a pydantic model or a dataclass, and `build(options, context)`. This
module imports neither torch nor another part of khop, and loads a component only when it is named.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any


@dataclass(frozen=True)
class NoOptions:
    """Options of a component without settings."""


@dataclass(frozen=True)
class Permission:
    """Permission to import the code that a `kind` names as `package.module:Class`."""

    packages: tuple[str, ...] | None = None  # None: all, because the user's own file or command names them

    def check(self, module: str) -> None:
        """Raise ValueError unless the module may be imported."""
        if self.packages is None or any(f"{module}.".startswith(f"{name}.") for name in self.packages):
            return
        raise ValueError(
            "a run folder imports no code by itself; if you trust this code, give --allow-code "
            f"{module.partition('.')[0]}"
        )


ANY_NAMED = Permission()


@dataclass(frozen=True)
class Component:
    """A loaded component."""

    kind: str
    options: type  # a pydantic model or a dataclass
    build: Callable[[Any, Any], Any]  # (options, context) -> the object that khop uses
    resolve: Callable[[Any, Any], Any]  # (options, context) -> options with open settings filled in


@dataclass(frozen=True)
class ImportedLater:
    """A function that is imported at its first call, so that options need no import of torch."""

    target: str  # "module:function"

    def __call__(self, options: object, context: object) -> Any:  # noqa: ANN401
        """Import the function and call it."""
        return _object(self.target)(options, context)


@dataclass(frozen=True)
class Family:
    """Components that are used in the same place."""

    name: str  # in errors: "model"
    group: str  # of entry points that other packages declare: "khop.models"
    builtin: Mapping[str, str]  # kind -> "module:Class"

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of khop and of installed packages, without loading any of them."""
        return (*self.builtin, *(kind for kind in self._installed() if kind not in self.builtin))

    def allowed(self) -> str:
        """Return the allowed kinds in words."""
        kinds = self.kinds()
        return f"{'one of ' * (len(kinds) > 1)}{', '.join(kinds)}, or package.module:Class"

    def load(self, kind: str, permission: Permission = ANY_NAMED) -> Component:
        """Import a component. Raises ValueError if there is none, or if it may not be imported."""
        if kind in self.builtin:
            return _component(kind, _object(self.builtin[kind]))
        installed = self._installed()
        if kind in installed:
            return _component(kind, _loaded(installed[kind]))
        module, separator, name = kind.partition(":")
        if not (separator and all(part.isidentifier() for part in [*module.split("."), *name.split(".")])):
            raise ValueError(f"must be {self.allowed()}")
        permission.check(module)
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # python -m adds it, the script `khop` does not
        return _component(kind, _object(kind))

    def _installed(self) -> Mapping[str, EntryPoint]:
        return _installed_in(self.group, tuple(sys.path))


@cache
def _installed_in(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group below a `sys.path`; reading them for each field is slow."""
    return {entry.name: entry for entry in entry_points(group=group)}


def _loaded(entry: EntryPoint) -> Any:  # noqa: ANN401
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        package = "its package" if entry.dist is None else entry.dist.name
        raise ValueError(
            f"{entry.value}, which {package} declares in {entry.group}, cannot be loaded: {error}; "
            f"update or reinstall {package}"
        ) from error


def _object(target: str) -> Any:  # noqa: ANN401
    """Import "module:name"; ValueError if it does not exist."""
    module, _, name = target.partition(":")
    try:
        found: Any = import_module(module)
    except ImportError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"{module} cannot be imported: {error}; correct it") from error
        raise ValueError(
            f"there is no module {error.name!r}; install its package, or start khop in the folder that "
            "contains it"
        ) from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module} has no {name!r}; name a class or object of that module")
        found = getattr(found, part)
    return found


def _component(kind: str, found: Any) -> Component:  # noqa: ANN401
    """Read the declaration of a component.

    A dataclass without `Options` is its own options: its instances are the objects that khop uses.
    """
    options = getattr(found, "Options", None)
    if options is None and isinstance(found, type) and is_dataclass(found):
        options = found
    if options is None:
        options = NoOptions
    build = getattr(found, "build", _itself if options is found else None)
    if not isinstance(options, type) or not callable(build):
        raise ValueError(
            "a component is a class with build(options, context), and with Options, a dataclass or pydantic "
            "model; or it is a dataclass without both"
        )
    return Component(kind, options, build, getattr(found, "resolve", _unchanged))


def _itself(options: object, context: object) -> object:
    return options


def _unchanged(options: object, context: object) -> object:
    return options
