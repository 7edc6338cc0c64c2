"""The graph of a run on servers: connected instead of opened, and seen by `resolve` as a folder is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from khop.api.connect import connect
from khop.api.open_graph import Graph
from khop.api.time_split import time_cut_offs
from khop.config.read import RawRun
from khop.config.values import RunConfig
from khop.errors import Unsupported
from khop.graph.folder import Folder
from khop.graph.import_record import TimeCutOffs, recorded_cut_offs
from khop.graph.npy import ArrayEntry
from khop.sampling.listed import ids_here
from khop.schema import EdgeType, NodeType, Schema


@dataclass(frozen=True, eq=False)
class GraphOnServers:
    """A graph on servers in the place of a run's graph folder. Ids are fetched when they are read."""

    graph: Graph
    path: Path  # the name of the graph, as in the run
    fingerprint: str
    arrays: Mapping[str, ArrayEntry] = field(default_factory=dict)  # none are on this machine
    documents: Mapping[str, str] = field(default_factory=dict)  # none are on this machine

    @property
    def schema(self) -> Schema:
        """Types of the graph, with their columns."""
        return self.graph.schema

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        return self.graph.num_nodes(node_type)

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type."""
        return self.graph.num_edges(edge_type)

    def columns(self) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """Raise Unsupported: columns are on the servers."""
        raise Unsupported("columns: are on the servers; gather rows from graph.features")

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits."""
        return self.graph.split_names

    def split(self, name: str) -> Mapping[NodeType, Tensor]:
        """Return the ids of a split by type, each fetched when it is read."""
        return _FetchedIds(self.graph, name)

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Fetch the ids of a type before renumbering; None if its nodes were never renumbered."""
        return self.graph.original_ids(node_type)


def cut_offs_of(graph: Folder) -> TimeCutOffs | None:
    """Return the cut-offs that a graph records, in its folder or on servers; None if it records none."""
    return time_cut_offs(graph.graph) if isinstance(graph, GraphOnServers) else recorded_cut_offs(graph)


@dataclass(frozen=True, eq=False)
class _FetchedIds(Mapping[NodeType, Tensor]):
    graph: Graph
    name: str

    def __getitem__(self, node_type: NodeType) -> Tensor:
        return ids_here(self.graph.split(self.name)[node_type])

    def __contains__(self, node_type: object) -> bool:
        return node_type in self.graph.split(self.name)

    def __iter__(self) -> Iterator[NodeType]:
        return iter(self.graph.split(self.name))

    def __len__(self) -> int:
        return len(self.graph.split(self.name))


def graph_on_servers(config: RunConfig, raw: RawRun) -> GraphOnServers:
    """Connect to the servers of a run. Raises ValueError if they do not have its graph."""
    servers = config.servers
    graph = connect(
        servers.addresses,
        token_file=servers.token_file,
        ca=servers.ca,
        client_cert=servers.client_cert,
        client_key=servers.client_key,
        encryption="off" if servers.insecure else "remote",
        deadline=servers.deadline,
        attempt=servers.attempt,
    )
    there = graph.servers
    assert there is not None
    wanted = Path(config.graph).name
    if wanted != there.name:
        raise ValueError(
            f"graph is {config.graph!r}: the servers have {there.name!r}; give --graph {there.name}, or "
            f"servers of {wanted} ({raw.where('graph', 'servers.addresses')})"
        )
    if config.gpu.topology not in ("auto", "host") or config.gpu.features not in ("auto", "host"):
        raise ValueError(
            f"gpu.topology is {config.gpu.topology!r}, gpu.features is {config.gpu.features!r}: the graph is "
            f"on servers, which send batches; leave them out ({raw.where('gpu.topology', 'gpu.features')})"
        )
    return GraphOnServers(graph, Path(config.graph), there.fingerprint)
