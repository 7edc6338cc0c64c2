"""Registry of the classes that requests may name: khop's, and those of modules given at server start.

A name from the network is only looked up, never imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import ModuleType
from typing import Any

from khop.components import RULES
from khop.draw import DegreeNegatives, GivenNegatives, MixedNegatives, UniformNegatives, WeightedNegatives
from khop.errors import Unsupported
from khop.sampling.links.exclusion import SpotTarget
from khop.sampling.links.links import LinkSampler
from khop.sampling.rules.temporal import Temporal
from khop.sampling.sampler import NeighborSampler
from khop.servers.codec import Plain

_BUILTIN: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        NeighborSampler,
        LinkSampler,
        *(RULES.load(kind).declared for kind in RULES.builtin),
        Temporal,
        UniformNegatives,
        DegreeNegatives,
        WeightedNegatives,
        GivenNegatives,
        MixedNegatives,
        SpotTarget,
    )
}
_NAMES = {kind: name for name, kind in _BUILTIN.items()}


@dataclass(frozen=True)
class Registry:
    """The classes of a server, by name."""

    classes: Mapping[str, type] = field(default_factory=lambda: _BUILTIN)

    @classmethod
    def of(cls, modules: Iterable[ModuleType]) -> Registry:
        """Return a registry of khop's classes and those of the modules."""
        found = cls()
        for module in modules:
            found = found.with_module(module)
        return found

    def with_module(self, module: ModuleType) -> Registry:
        """Return a registry with the samplers, rules and dataclasses that a module defines."""
        found = {
            name_of(kind): kind
            for kind in vars(module).values()
            if isinstance(kind, type)
            and kind.__module__ == module.__name__
            and (is_dataclass(kind) or hasattr(kind, "settings"))  # rules and values; samplers
        }
        if not found:
            raise ValueError(
                f"module {module.__name__}: defines no sampler (khop.SamplerBase), rule (khop.RuleBase) or "
                "dataclass; name the module that defines your classes"
            )
        return Registry({**self.classes, **found})

    def made(self, given: Plain, *before: object) -> Any:  # noqa: ANN401
        """Return the value that plain values describe; `before` are the first arguments of its class.

        Raises ValueError if the class is not registered or does not accept the arguments.
        """
        match given:
            case list():
                return tuple(self.made(each) for each in given)
            case {"map": list(pairs), **rest} if not rest:
                return dict(self._entry(pair) for pair in pairs)
            case {"kind": str(name), "with": dict(arguments), **rest} if not rest:
                return self._instance(name, arguments, before)
            case dict():
                raise ValueError(f"{given!r:.60}: does not describe a value")
        return given

    def _entry(self, pair: Plain) -> tuple[Any, Any]:
        match pair:
            case [str(key), value]:
                return key, self.made(value)
            case [[str(source), str(relation), str(destination)], value]:
                return (source, relation, destination), self.made(value)
        raise ValueError(f"{pair!r:.60}: is not a pair of a type and a value")

    def _instance(self, name: str, arguments: Mapping[str, Plain], before: tuple[object, ...]) -> object:
        if name not in self.classes:
            raise ValueError(
                f"{name}: is not registered on this server, which has {', '.join(self.classes)}; "
                f"start it with `khop serve --module` of the file that defines {name.rpartition(':')[2]}"
            )
        keywords = {key: self.made(argument) for key, argument in arguments.items()}
        try:
            return self.classes[name](*before, **keywords)
        except TypeError as error:
            raise ValueError(
                f"{name} with {sorted(keywords)}: {error}; use the same khop and module on client and server"
            ) from error


BUILTIN = Registry()


def name_of(kind: type) -> str:
    """Return the name of a class in requests."""
    return _NAMES.get(kind, f"{kind.__module__}:{kind.__qualname__}")


def described(value: object) -> Plain:
    """Return plain values that describe a value, for `Registry.made`; Unsupported if there are none."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return str(value)  # a StrEnum too
        case list() | tuple():
            return [described(each) for each in value]
        case Mapping():
            return {"map": [[list(k) if isinstance(k, tuple) else k, described(v)] for k, v in value.items()]}
    if is_dataclass(value) and not isinstance(value, type):
        return instance(type(value), {f.name: getattr(value, f.name) for f in fields(value) if f.init})
    raise Unsupported(
        f"{value!r:.60}: cannot be sent to a server, which takes numbers, text, lists, mappings and frozen "
        "dataclasses of them; state the sampler by such values"
    )


def instance(kind: type, arguments: Mapping[str, object]) -> Plain:
    """Return plain values that describe an instance of a class by its arguments."""
    if kind.__module__ == "__main__":
        raise Unsupported(
            f"{kind.__qualname__}: is defined in the script itself, which servers do not have; move it to a "
            "module, import it from there, and start the servers with `khop serve --module` of that file"
        )
    return {"kind": name_of(kind), "with": {name: described(value) for name, value in arguments.items()}}
