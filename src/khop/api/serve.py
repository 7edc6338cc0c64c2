"""The graph of a server: a folder, its splits, and its views by edge types and splits of links."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType

from torch import Tensor

from khop.api.open_graph import Graph, open_graph
from khop.api.split_links import split_links
from khop.api.time_split import time_cut_offs
from khop.partition.placements import Placement
from khop.sampling.link_seeds import LinkList
from khop.sampling.listed import ids_here
from khop.schema import EdgeType, NodeType
from khop.servers.json_fields import Document, written
from khop.servers.registry import Registry
from khop.servers.served import Viewed
from khop.servers.service import Service

_VIEWS = 16  # kept at a time: a split of links holds copies of edges


@dataclass(frozen=True, eq=False)
class ServedGraph:
    """A graph with its views, each made once and kept while it is used."""

    graph: Graph
    name: str
    fingerprint: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _views: OrderedDict[bytes, _View] = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, graph: Graph, name: str | None = None) -> ServedGraph:
        """Return a graph to serve; the default name is that of its folder."""
        if graph.folder is None:
            raise ValueError("serve: a graph in memory has no fingerprint; save it, and serve the folder")
        return cls(graph, name or Path(graph.folder.path).name, graph.folder.fingerprint)

    @cached_property
    def is_split_by_time(self) -> bool:
        """True if the folder records cut-offs in time."""
        return time_cut_offs(self.graph) is not None

    @cached_property
    def whole(self) -> Viewed:
        """The whole graph."""
        return Viewed(self.graph, self.graph.features)

    @cached_property
    def splits(self) -> Mapping[str, Mapping[NodeType, Tensor]]:
        """Node ids of each split by type."""
        graph = self.graph
        return {
            name: {t: ids_here(ids) for t, ids in graph.split(name).items()} for name in graph.split_names
        }

    def viewed(self, view: Document) -> Viewed:
        """Return the graph after the steps of a view; ValueError for a step that does not fit."""
        steps = view.each()
        if not steps:
            return self.whole
        key = written([step.value for step in steps])
        with self._lock:  # a split is made once, also when several clients ask for it at once
            if key not in self._views:
                self._views[key] = _View.of(self.graph, steps, self._splits_before(steps))
                while len(self._views) > _VIEWS:
                    self._views.popitem(last=False)
            self._views.move_to_end(key)
            return self._views[key].viewed

    def _splits_before(self, steps: list[Document]) -> Mapping[str, _Part]:
        """Return the parts of the same split of links, if another view has made it."""
        last = steps[-1].given("split_links")
        if last is None:
            return {}
        for found in self._views.values():
            if found.made_by == written([*(step.value for step in steps[:-1]), last.value]):
                return found.parts
        return {}


@dataclass(frozen=True, eq=False)
class _Part:
    graph: Graph
    links: LinkList


@dataclass(frozen=True, eq=False)
class _View:
    """A view, with the parts of its last split of links."""

    viewed: Viewed
    parts: Mapping[str, _Part] = field(default_factory=dict)
    made_by: bytes = b""

    @classmethod
    def of(cls, graph: Graph, steps: list[Document], parts: Mapping[str, _Part]) -> _View:
        found, made_by, done = cls(Viewed(graph, graph.features)), b"", list[object]()
        for step in steps:
            if step.given("only") is not None:
                kept = [_edge_type(each) for each in step["only"].each()]
                graph, parts = graph.only(kept), {}
                found = cls(Viewed(graph, graph.features))
            else:
                arguments, part = step["split_links"], step["part"].text()
                made_by = written([*done, arguments.value])
                parts = parts or _split(graph, arguments)
                if part not in parts:
                    raise ValueError(f"{step.where}.part: is {part!r}, and must be one of {list(parts)}")
                graph = parts[part].graph
                links = {name: of_part.links for name, of_part in parts.items()}
                found = cls(Viewed(graph, graph.features, links), parts, made_by)
            done.append(step.value)
        return replace(found, made_by=made_by)


def _split(graph: Graph, given: Document) -> dict[str, _Part]:
    label, time = given.given("label"), given.given("time")
    split = split_links(
        graph,
        [_edge_type(each) for each in given["edge_types"].each()],
        _share(given["val"]),
        _share(given["test"]),
        disjoint_share=given["disjoint_share"].real(),
        negatives=given["negatives"].whole(),
        label=None if label is None else label.text(),
        time=None if time is None else time.text(),
        seed=given["seed"].whole(),
    )
    parts = {"train": split.train, "val": split.val, "test": split.test}
    links = {"train": split.train_links, "val": split.val_links, "test": split.test_links}
    return {name: _Part(parts[name], links[name]) for name in parts}


def _share(given: Document) -> float:
    """Return a share, or a count of links as the whole number that it is."""
    return given.whole() if type(given.value) is int else given.real()


def _edge_type(given: Document) -> EdgeType:
    edge_type = given.type_()
    if isinstance(edge_type, str):
        raise ValueError(f"{given.where}: {edge_type!r} is no edge type")
    return edge_type


def service_of(
    path: str | os.PathLike[str], modules: Iterable[ModuleType] = (), max_batch_bytes: int | None = None
) -> Service:
    """Return the service of a graph folder, whole or partitioned, or of a built-in graph by name.

    Requests may name the samplers, rules and dataclasses that `modules` define.
    """
    graph = open_graph(path, placement=Placement.WHOLE)
    return Service(ServedGraph.of(graph), Registry.of(modules), max_batch_bytes)
