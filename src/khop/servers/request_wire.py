"""Requests for batches as messages: settings by hash, key, and seeds or their numbers in a list.

Settings of requests: all that stays the same from batch to batch, sent once and then named by its hash.

Classes that requests may name: khop's own, and those of modules that a server was started with.

A name that came over the network is only looked up. Nothing is ever imported by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from types import ModuleType

import torch
from torch import Tensor

from khop.draw import (
    RANDOMNESS,
    DegreeNegatives,
    DrawKey,
    GivenNegatives,
    MixedNegatives,
    UniformNegatives,
    WeightedNegatives,
)
from khop.errors import Unsupported
from khop.loading.columns import ColumnChoice, Names
from khop.sampling.links.exclusion import SpotTarget
from khop.sampling.links.links import LinkSampler
from khop.sampling.rules.labor import Labor
from khop.sampling.rules.relation_mean import RelationMean
from khop.sampling.rules.sum import Sum, SymmetricSum
from khop.sampling.rules.temporal import Temporal
from khop.sampling.rules.top_k import TopK
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.sampling.sampler import NeighborSampler
from khop.sampling.seeds import LinkSeeds, SeedLinks, Seeds, StepShare
from khop.schema import Schema
from khop.servers.errors import WrongGraph, WrongVersion
from khop.servers.frame import (
    Document,
    Frame,
    Plain,
    Tensors,
    Type,
    by_type,
    read_key,
    whole,
    written,
    written_key,
)

View = tuple[Plain, ...]  # steps from the whole graph to the edges that a client asked for


@dataclass(frozen=True)
class Settings:
    """The settings of a source of batches."""

    fingerprint: str  # of the graph
    view: View
    sampler: Plain  # a description for `Registry.made`
    columns: ColumnChoice
    seeds: Plain = None  # reference to a list on the servers; None: requests have the seeds

    @cached_property
    def document(self) -> Mapping[str, Plain]:
        """The settings as plain values."""
        choice = self.columns
        return {
            "graph": self.fingerprint,
            "randomness": RANDOMNESS,
            "view": list(self.view),
            "sampler": self.sampler,
            "columns": {
                "nodes": _named(choice.of_nodes),
                "edges": _named(choice.of_edges),
                "seeds": _named(choice.of_seeds),
                "float32": _named({t: sorted(names) for t, names in choice.as_float32.items()}),
            },
            "seeds": self.seeds,
        }

    @cached_property
    def digest(self) -> str:
        """The hash that names the settings in requests."""
        return digest_of(self.document)


def digest_of(document: object) -> str:
    """Return the hash of settings."""
    return hashlib.sha256(written(document)).hexdigest()[:32]


def read_columns(given: Document, schema: Schema) -> ColumnChoice:
    """Return the columns of settings; ValueError names a column that the graph does not have."""

    def of(kind: str) -> dict[Type, Names]:
        found = {t: tuple(name.text() for name in names.each()) for t, names in given[kind].entries()}
        for type_, names in found.items():
            for name in names:
                schema.column(type_, name)
        return found

    of_nodes, of_edges, of_seeds = of("nodes"), of("edges"), of("seeds")
    return ColumnChoice(
        {t: names for t, names in of_nodes.items() if isinstance(t, str)},
        {t: names for t, names in of_edges.items() if isinstance(t, tuple)},
        {t: names for t, names in of_seeds.items() if isinstance(t, str)},
        {t: frozenset(names) for t, names in of("float32").items()},
    )


def check_versions(given: Document, fingerprint: str) -> None:
    """Raise WrongVersion or WrongGraph unless a request is for these draws and this graph."""
    randomness = given["randomness"].whole()
    if randomness != RANDOMNESS:
        raise WrongVersion(
            f"the client draws by version {randomness} of docs/randomness.md, and this server by version "
            f"{RANDOMNESS}; install the same khop on clients and servers"
        )
    check_graph(given["graph"].text(), fingerprint)


def check_graph(asked: str, fingerprint: str) -> None:
    """Raise WrongGraph unless a request is for this graph."""
    if asked != fingerprint:
        raise WrongGraph(
            f"the client asks for the graph with fingerprint {asked[:12]}..., and this server has "
            f"{fingerprint[:12]}...; start all servers with the same graph, then connect again"
        )


def _named(
    by: Mapping[Type, Sequence[str]] | Mapping[str, Names] | Mapping[tuple[str, str, str], Names],
) -> Plain:
    return by_type({t: list(names) for t, names in by.items()})


BATCH = "batch"
_FACTS = ("labels", "times", "negatives", "relations")


@dataclass(frozen=True)
class BatchQuery:
    """A request for a batch, as a server reads it."""

    settings: str  # hash
    given: Document | None  # the settings, if they came with the request
    key: DrawKey
    epoch: int
    step: int
    seeds: Seeds  # with the numbers of a list, or with the seeds themselves

    @property
    def stage(self) -> str:
        """Name of the batch in logs and errors."""
        return f"batch of epoch {self.epoch}, step {self.step}"


def written_query(
    settings: Settings, seeds: Seeds, key: DrawKey, epoch: int, step: int, *, with_settings: bool
) -> bytes:
    """Return the message that asks for a batch."""
    tensors = Tensors()
    fields: dict[str, Plain] = {
        "kind": BATCH,
        "settings": settings.digest,
        "given": settings.document if with_settings else None,
        "key": written_key(key),
        "epoch": epoch,
        "step": step,
        "share": None if seeds.listed is None else _written_share(seeds.listed, tensors),
        "seeds": None if seeds.listed is not None else _written_seeds(seeds, tensors),
    }
    return whole(fields, tensors.all)


def read_query(frame: Frame) -> BatchQuery:
    """Read a request; ValueError names the field that is wrong."""
    given = frame.document
    share = given.given("share")
    seeds = _seeds(frame, given["seeds"]) if share is None else Seeds({}, {}, listed=_share(frame, share))
    return BatchQuery(
        given["settings"].text(),
        given.given("given"),
        read_key(given["key"]),
        given["epoch"].whole(),
        given["step"].whole(),
        seeds,
    )


def _written_share(share: StepShare, tensors: Tensors) -> Plain:
    return {
        "order": tensors(share.order),
        "start": share.start,
        "mine": None if share.is_whole else tensors(share.mine),
        "negative_key": written_key(share.negative_key),
    }


def _share(frame: Frame, given: Document) -> StepShare:
    order = _ids(frame, given["order"])
    count = order.numel()
    mine = torch.arange(count) if given.given("mine") is None else _ids(frame, given["mine"])
    if mine.numel() and not (
        int(mine.min()) >= 0 and int(mine.max()) < count and bool((mine.diff() > 0).all())
    ):
        raise ValueError(f"{given.where}.mine: must be ascending numbers below {count}")
    key = read_key(given["negative_key"])
    return StepShare(order, given["start"].whole(0, 1 << 62), mine, key)


def _written_seeds(seeds: Seeds, tensors: Tensors) -> Plain:
    links = seeds.links

    def all_of(values: Mapping[str, Tensor] | None) -> Plain:
        return None if values is None else by_type({t: tensors(ids) for t, ids in values.items()})

    return {
        "nodes": all_of(seeds.nodes),
        "positions": all_of(seeds.positions),
        "times": all_of(seeds.times),
        "batch_nodes": all_of(seeds.batch_nodes),
        "links": None
        if links is None
        else by_type({t: _written_links(of, tensors) for t, of in links.by_type.items()}),
        "negative_key": None if links is None else written_key(links.negative_key),
    }


def _written_links(links: SeedLinks, tensors: Tensors) -> Plain:
    facts = {name: tensors.given(getattr(links, name)) for name in _FACTS}
    ends = {"edges": links.edges, "positions": links.positions, "batch_edges": links.batch_edges}
    of_all = {"batch_relations": tensors.given(links.batch_relations)}
    return {**{name: tensors(value) for name, value in ends.items()}, **facts, **of_all}


def _seeds(frame: Frame, given: Document) -> Seeds:
    nodes, positions = _by_node_type(frame, given["nodes"]), _by_node_type(frame, given["positions"])
    times = None if given.given("times") is None else _by_node_type(frame, given["times"])
    batch = None if given.given("batch_nodes") is None else _by_node_type(frame, given["batch_nodes"])
    sizes = {t: ids.numel() for t, ids in nodes.items()}
    for name, values in (("positions", positions), ("times", times)):
        if values is not None and {t: of.numel() for t, of in values.items()} != sizes:
            raise ValueError(f"{given.where}.{name}: are not one for each of the seeds, {sizes}")
    if given.given("links") is None:
        return Seeds(nodes, positions, times, batch_nodes=batch)
    by_edge_type = {}
    for type_, of_type in given["links"].entries():
        if not isinstance(type_, tuple):
            raise ValueError(f"{of_type.where}: {type_!r} is no edge type")
        by_edge_type[type_] = _links(frame, of_type)
    return Seeds(nodes, positions, times, LinkSeeds(by_edge_type, read_key(given["negative_key"])), batch)


def _links(frame: Frame, given: Document) -> SeedLinks:
    edges, batch_edges = (frame.tensor(given[name]) for name in ("edges", "batch_edges"))
    positions = _ids(frame, given["positions"])
    for name, ends in (("edges", edges), ("batch_edges", batch_edges)):
        if ends.dtype != torch.int64 or ends.dim() != 2 or ends.shape[0] != 2:
            raise ValueError(
                f"{given.where}.{name}: is {ends.dtype} {tuple(ends.shape)}, must be int64 (2, n)"
            )
    if edges.shape[1] != positions.numel():
        raise ValueError(f"{given.where}: {edges.shape[1]} links with {positions.numel()} positions")
    facts = {}
    for name in _FACTS:
        number = given.given(name)
        if number is None:
            continue
        fact = facts[name] = frame.tensor(number)
        dimensions = {"times": 1, "negatives": 2, "relations": 1}.get(name, max(1, fact.dim()))
        is_whole = name == "labels" or fact.dtype == torch.int64
        if fact.dim() != dimensions or fact.shape[0] != positions.numel() or not is_whole:
            raise ValueError(
                f"{number.where}: is {fact.dtype} {tuple(fact.shape)}, of {positions.numel()} links"
            )
    number = given.given("batch_relations")
    of_all = None if number is None else _ids(frame, given["batch_relations"])
    if (of_all is None) != ("relations" not in facts) or (
        of_all is not None and of_all.numel() != batch_edges.shape[1]
    ):
        raise ValueError(f"{given.where}.batch_relations: are not one for each of the links of the step")
    return SeedLinks(edges, positions, batch_edges, **facts, batch_relations=of_all)


def _by_node_type(frame: Frame, given: Document) -> dict[str, Tensor]:
    found = {}
    for type_, number in given.entries():
        if not isinstance(type_, str):
            raise ValueError(f"{number.where}: {type_!r} is no node type")
        found[type_] = _ids(frame, number)
    return found


def _ids(frame: Frame, number: Document) -> Tensor:
    ids = frame.tensor(number)
    if ids.dtype != torch.int64 or ids.dim() != 1:
        raise ValueError(f"{number.where}: is {ids.dtype} {tuple(ids.shape)}, must be int64 (n)")
    return ids


def type_plain(type_: Type) -> Plain:
    """Return a type as plain values."""
    return list(type_) if isinstance(type_, tuple) else type_


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
