"""Servers of a graph or of one of its parts, and the client's view of a graph on servers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from khop.api.open_graph import Graph, open_graph
from khop.api.split_links import (
    LinkSplit,
    edges_before,
    split_links,
    split_links_by_column,
    split_links_by_time,
    time_cut_offs,
)
from khop.arguments import check_word, list_of, path_of, real_number
from khop.data.importers import graph_name
from khop.graph.folder import TimeCutOffs
from khop.graph.layout import is_partitioned
from khop.graph.node_ids import label_records, stored_ids
from khop.graph.partitions.book import read_book
from khop.graph.partitions.parts_folder import PartsFolder, open_parts
from khop.graph.partitions.placements import Placement
from khop.graph.rule_arrays import check_edge_type
from khop.kernels.id_table import Keys
from khop.sampling.links.link_split import Shares
from khop.sampling.seeds import ids_here
from khop.schema import NodeType
from khop.servers.access import Access, Encryption, Limits
from khop.servers.connections import Pool
from khop.servers.graph import RemoteFeatures, RemoteView, listed_splits, read_description, remote_graph
from khop.servers.messages import ByColumn, EdgesBefore, Only, SplitArguments, SplitPart, Step, View
from khop.servers.parts.exchange import OwnerAddresses, PartExchange, identity_of_owner
from khop.servers.parts.served import ServedPart
from khop.servers.registry import BUILTIN, Registry
from khop.servers.service import Service
from khop.servers.views import KeptViews, Viewed, default_view_bytes

_WHOLE = ""  # name of the only part of a step that is not a split


@dataclass(frozen=True, eq=False)
class ServedGraph:
    """A graph with its views, each made once and cached while there is room."""

    graph: Graph
    name: str
    fingerprint: str
    views: KeptViews

    @classmethod
    def of(cls, graph: Graph, name: str | None = None, view_bytes: int | None = None) -> ServedGraph:
        """Return a graph to serve; the default name is that of its folder or of the built-in graph.

        Views use up to `view_bytes` of memory, by default a quarter of the memory that the process may use.
        """
        if graph.folder is None:
            raise ValueError("serve: a graph in memory has no fingerprint; save it, and serve the folder")
        views = KeptViews(graph, default_view_bytes() if view_bytes is None else view_bytes)
        return cls(graph, name or graph_name(Path(graph.folder.path)), graph.folder.fingerprint, views)

    @cached_property
    def cut_offs(self) -> TimeCutOffs | None:
        """Cut-offs of a split by time, as recorded by the graph's import, or None."""
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

    def viewed(self, view: View) -> Viewed:
        """Return the graph after the steps of a view; ValueError for an invalid step."""
        return self._after(view).viewed

    def _after(self, view: View) -> _View:
        if not view:
            return _View(self.graph, self.whole)
        before, last = view[:-1], view[-1]
        part, key = _WHOLE, view
        if isinstance(last, SplitPart):
            # All parts of a split are made together, once, also for concurrent requests.
            part, key = last.part, (*before, SplitPart(last.split, _WHOLE))
        found = self.views.of(key, lambda: _step(self._after(before).graph, last))
        if part not in found:
            raise ValueError(f"view.part: is {part!r}, and must be one of {list(found)}")
        return found[part]


@dataclass(frozen=True, eq=False)
class _View:
    graph: Graph
    viewed: Viewed


def _step(graph: Graph, step: Step) -> Mapping[str, _View]:
    """Return the graphs after a step, by name: the parts of a split, or a single graph."""
    match step:
        case Only():
            for edge_type in step.edge_types:
                check_edge_type(edge_type, graph.schema)
            kept = graph.only(list(step.edge_types))
            return {_WHOLE: _View(kept, Viewed(kept, kept.features))}
        case EdgesBefore():
            before = edges_before(graph, step.limit)
            return {_WHOLE: _View(before, Viewed(before, before.features))}
        case SplitPart():
            step.split.check(graph.schema)
            split = _split(graph, step.split)
        case _:
            raise ValueError(f"view: {step} is a step that only servers of parts support")
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

    Requests may name the samplers, rules and dataclasses that `modules` define. Views of the graph use up to
    `view_bytes` of memory (default: a quarter).
    """
    graph = open_graph(path, placement=Placement.WHOLE)
    return Service(ServedGraph.of(graph, view_bytes=view_bytes), Registry.of(modules), max_batch_bytes)


def part_service_of(
    path: str | os.PathLike[str],
    part: int,
    owners: OwnerAddresses,
    modules: Iterable[ModuleType] = (),
    max_batch_bytes: int | None = None,
    cache_bytes: int = 0,
    view_bytes: int | None = None,
) -> Service:
    """Return the service of one part of a partitioned graph; the servers in `owners` have the other parts.

    The most recently used rows of other parts are cached in `cache_bytes` of memory. Views of the graph use
    up to `view_bytes` (default: a quarter of the memory).
    """
    if not is_partitioned(path):
        raise ValueError(f"--part {part}: {path} is not a partitioned graph; make one with `khop partition`")
    owners.check(part, read_book(path).num_parts)
    folder = open_parts(path, range(part, part + 1))
    # Imported on use: it imports pyarrow, which is an extra.
    connected = import_module("khop.servers.flight_client").connected
    others = {
        number: connected(
            owners.parts[number],
            owners.access,
            owners.limits,
            identity_of_owner(folder.fingerprint, number),
        )
        for number in range(len(owners.parts))
        if number != part
    }
    return part_service(
        folder, others, owners, Registry.of(modules), max_batch_bytes, cache_bytes, view_bytes
    )


def part_service(
    folder: PartsFolder,
    others: Mapping[int, Pool],
    owners: OwnerAddresses,
    registry: Registry = BUILTIN,
    max_batch_bytes: int | None = None,
    cache_bytes: int = 0,
    view_bytes: int | None = None,
) -> Service:
    """Return the service of the open part of a folder; `others` are the servers of each other part."""
    exchange = PartExchange(folder.fingerprint, folder.held[0], others, owners.limits)
    served = ServedPart.of(folder, exchange, cache_bytes, view_bytes)
    return Service(served, registry, max_batch_bytes, served.answers(registry))


File = str | os.PathLike[str]


def connect(
    addresses: Sequence[str],
    *,
    token_file: File | None = None,
    ca: File | None = None,
    client_cert: File | None = None,
    client_key: File | None = None,
    encryption: Encryption = "remote",
    deadline: float = 60.0,
    attempt: float = 20.0,
) -> Graph:
    """Connect to servers that `khop serve` has started, and return their graph: types, counts and splits.

    The graph has no data in this process. A `khop.Loader` over it requests batches from the servers; they
    are bit-identical to batches of the graph's folder. Any server can make any batch: if one fails, requests
    are retried on others.

    Args:
        addresses: Addresses "host:port"; a name may resolve to several.
        token_file: File with the token that servers on other machines require; default None.
        ca: CA certificate that verifies the servers; default None: the certificates of the system.
        client_cert: Client certificate, for servers that require one; default None.
        client_key: Private key of the client certificate; default None.
        encryption: "remote" (default): connections to other machines are encrypted; "off": data and the
            token are sent unencrypted, for a network that you trust.
        deadline: Seconds without a response from any server until `khop.PeerLost` is raised, default 60.
        attempt: Seconds without a heartbeat of a server until the request is retried on another server,
            default 20.
    Returns:
        The graph on the servers.
    Raises:
        ValueError: The servers refuse the connection, have different graphs, or pyarrow is not installed.
        PeerLost: No server answers within `deadline`.
    Example:
        >>> def first_batch(address):
        ...     graph = khop.connect([address], token_file="token.txt", ca="ca.pem")
        ...     sampler = khop.NeighborSampler(graph, [10, 5])
        ...     loader = khop.Loader(sampler, graph.split("train"), batch_size=1024)
        ...     return loader.batch(epoch=0, step=0)
    """
    if find_spec("pyarrow") is None:
        raise ValueError("khop.connect needs pyarrow, which is not installed: pip install pyarrow")
    found = list_of("addresses", addresses, '["10.0.0.5:7311"]')
    files = {"token_file": token_file, "ca": ca, "client_cert": client_cert, "client_key": client_key}
    paths = {name: None if file is None else path_of(name, file) for name, file in files.items()}
    check_word("encryption", encryption, Encryption)
    access = Access(**paths, encryption=encryption)
    limits = Limits(real_number("deadline", deadline), real_number("attempt", attempt))
    # Imported on use: it imports pyarrow, which is an extra.
    exchange: Pool = import_module("khop.servers.flight_client").connected(found, access, limits)
    return graph_on(exchange)


def graph_on(exchange: Pool) -> Graph:
    """Return the graph that the servers of an exchange have."""
    view = RemoteView(exchange, read_description(exchange.describe(), exchange.addresses[0]))
    schema = view.description.schema
    features = RemoteFeatures(schema.columns, view)
    return Graph(remote_graph(view, schema), features, splits=listed_splits(view))
