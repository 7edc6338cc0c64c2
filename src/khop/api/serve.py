"""The graph of a server: a folder, its splits, and its views by edge types and splits of links."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from khop.api.open_graph import Graph, open_graph
from khop.api.split_links import LinkSplit, split_links
from khop.api.time_split import edges_before, split_links_by_column, split_links_by_time, time_cut_offs
from khop.datasets.names import graph_name
from khop.graph.import_record import TimeCutOffs
from khop.graph.names import label_records
from khop.graph.node_ids import stored_ids
from khop.kernels.id_table import Keys
from khop.partition.placements import Placement
from khop.sampling.link_split import Shares
from khop.sampling.listed import ids_here
from khop.schema import NodeType
from khop.servers.json_fields import Document, written
from khop.servers.kept_views import KeptViews, default_view_bytes
from khop.servers.registry import Registry
from khop.servers.served import Viewed
from khop.servers.service import Service
from khop.servers.split_arguments import ByColumn, SplitArguments, edge_type_of, time_of

_WHOLE = ""  # name of the only part of a step that is no split


@dataclass(frozen=True, eq=False)
class ServedGraph:
    """A graph with its views, each made once and kept while there is room."""

    graph: Graph
    name: str
    fingerprint: str
    views: KeptViews

    @classmethod
    def of(cls, graph: Graph, name: str | None = None, view_bytes: int | None = None) -> ServedGraph:
        """Return a graph to serve; the default name is that of its folder or of the built-in graph.

        Views take up to `view_bytes` of memory, by default a quarter of what the process may use.
        """
        if graph.folder is None:
            raise ValueError("serve: a graph in memory has no fingerprint; save it, and serve the folder")
        views = KeptViews(graph, default_view_bytes() if view_bytes is None else view_bytes)
        return cls(graph, name or graph_name(Path(graph.folder.path)), graph.folder.fingerprint, views)

    @cached_property
    def cut_offs(self) -> TimeCutOffs | None:
        """Cut-offs of a split by time, as the graph's import recorded them; None if it records none."""
        return time_cut_offs(self.graph)

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

    @cached_property
    def own_ids(self) -> Mapping[NodeType, Keys]:
        """The users' ids by node, mapped, for the node types that have them."""
        return {} if self.graph.folder is None else stored_ids(self.graph.folder)

    @cached_property
    def labels(self) -> Mapping[NodeType, Mapping[str, Any]]:
        """Records of labels in the graph's import, by node type."""
        return {} if self.graph.folder is None else label_records(self.graph.folder)

    def viewed(self, view: Document) -> Viewed:
        """Return the graph after the steps of a view; ValueError for a step that does not fit."""
        return self._after(view.each()).viewed

    def _after(self, steps: Sequence[Document]) -> _View:
        if not steps:
            return _View(self.graph, self.whole)
        *before, last = steps
        split = last.given("split_links")
        key = written([*(step.value for step in before), last.value if split is None else split.value])
        # All parts of a split are made at once, also when several clients ask for them at once.
        found = self.views.of(key, lambda: _step(self._after(before).graph, last))
        part = _WHOLE if split is None else last["part"].text()
        if part not in found:
            raise ValueError(f"{last.where}.part: is {part!r}, and must be one of {list(found)}")
        return found[part]


@dataclass(frozen=True, eq=False)
class _View:
    graph: Graph
    viewed: Viewed


def _step(graph: Graph, step: Document) -> Mapping[str, _View]:
    """Return the graph after a step, or by name the parts of the split that the step is about."""
    if step.given("only") is not None:
        kept = graph.only([edge_type_of(each.type_(), graph.schema) for each in step["only"].each()])
        return {_WHOLE: _View(kept, Viewed(kept, kept.features))}
    if step.given("edges_before") is not None:
        before = edges_before(graph, time_of(step["edges_before"]))
        return {_WHOLE: _View(before, Viewed(before, before.features))}
    split = _split(graph, SplitArguments.read(step["split_links"], graph.schema))
    graphs = {"train": split.train, "val": split.val, "test": split.test}
    links = {"train": split.train_links, "val": split.val_links, "test": split.test_links}
    return {name: _View(of, Viewed(of, of.features, links)) for name, of in graphs.items()}


def _split(graph: Graph, given: SplitArguments) -> LinkSplit:
    columns, method = {**vars(given.columns), "seed": given.seed}, given.method
    match method:
        case Shares():
            shares = (method.val, method.test)
            disjoint = method.disjoint_share
            return split_links(graph, given.edge_types, *shares, disjoint_share=disjoint, **columns)
        case TimeCutOffs():
            return split_links_by_time(graph, given.edge_types, method, **columns)
        case ByColumn():
            return split_links_by_column(graph, given.edge_types, **columns)


def service_of(
    path: str | os.PathLike[str],
    modules: Iterable[ModuleType] = (),
    max_batch_bytes: int | None = None,
    view_bytes: int | None = None,
) -> Service:
    """Return the service of a graph folder, whole or partitioned, or of a built-in graph by name.

    Requests may name the samplers, rules and dataclasses that `modules` define. Views of the graph take up to
    `view_bytes` of memory (default: a quarter).
    """
    graph = open_graph(path, placement=Placement.WHOLE)
    return Service(ServedGraph.of(graph, view_bytes=view_bytes), Registry.of(modules), max_batch_bytes)
