"""Classes that requests may name: khop's own, and those of modules that a server was started with.

A name that came over the network is only looked up. Nothing is ever imported by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import ModuleType

from khop.draw import (
    DegreeNegatives,
    GivenNegatives,
    MixedNegatives,
    UniformNegatives,
    WeightedNegatives,
)
from khop.errors import Unsupported
from khop.rules.labor import Labor
from khop.rules.relation_mean import RelationMean
from khop.rules.sum import Sum
from khop.rules.symmetric_sum import SymmetricSum
from khop.rules.temporal import Temporal
from khop.rules.top_k import TopK
from khop.rules.uniform import Uniform
from khop.rules.weighted import Weighted
from khop.sampling.links import LinkSampler
from khop.sampling.neighbor import NeighborSampler
from khop.sampling.spot_target import SpotTarget
from khop.servers.json_fields import Document, Plain

_BUILTIN: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        NeighborSampler,
        LinkSampler,
        Uniform,
        Weighted,
        Sum,
        SymmetricSum,
        RelationMean,
        Labor,
        TopK,
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
        """Return khop's classes and those of some modules."""
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

    def made(self, given: Document, *before: object) -> object:
        """Return the value that a document describes; `before` are the first arguments of its class.

        ValueError for a class that is not registered, or for arguments that it does not take.
        """
        match given.value:
            case list():
                return tuple(self.made(each) for each in given.each())
            case dict():
                if given.given("map") is not None:
                    return {entry.type_(): self.made(each) for entry, each in _pairs(given["map"])}
                return self._instance(given, before)
        return given.value

    def _instance(self, given: Document, before: tuple[object, ...]) -> object:
        name, arguments = given["kind"].text(), given["with"]
        if name not in self.classes:
            raise ValueError(
                f"{name}: is not registered on this server, which has {', '.join(self.classes)}; "
                f"start it with `khop serve --module` of the file that defines {name.rpartition(':')[2]}"
            )
        keywords = {key: self.made(arguments[key]) for key in arguments.names()}
        try:
            return self.classes[name](*before, **keywords)
        except TypeError as error:
            raise ValueError(
                f"{name} with {sorted(keywords)}: {error}; use the same khop and module here"
            ) from error


BUILTIN = Registry()


def _pairs(given: Document) -> list[tuple[Document, Document]]:
    pairs = [pair.each() for pair in given.each()]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{given.where}: is no list of pairs")
    return [(key, value) for key, value in pairs]


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
