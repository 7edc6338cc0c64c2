"""Protocol between a service and the graph that it serves: views of the graph, and their seed lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from khop.features.store import FeatureStore
from khop.graph.import_record import TimeCutOffs
from khop.graph.store import GraphStore
from khop.kernels.id_table import Keys
from khop.sampling.link_seeds import LinkList
from khop.schema import NodeType
from khop.servers.frame import Frame, Tensors
from khop.servers.json_fields import Document, Plain
from khop.servers.kept_views import KeptViews


@dataclass(frozen=True, eq=False)
class Viewed:
    """A graph for messages, its columns, and the links of the split that it is a part of."""

    graph: GraphStore
    features: FeatureStore
    links: Mapping[str, LinkList] = field(default_factory=dict)  # by part of a split of links


Answered = tuple[dict[str, Plain], Tensors]


class AnswersServers(Protocol):
    """Answers to requests that servers of the parts of a graph send to each other. Threads may share it."""

    @property
    def part(self) -> int:
        """Number of the part that the answers are about."""
        ...

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of requests."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Return what was counted so far, beside requests."""
        ...

    def answered(self, kind: str, frame: Frame) -> Answered:
        """Return the answer to a request of a kind; ValueError if it does not fit the part."""
        ...


class Served(Protocol):
    """A graph that a server was started with. Threads may share it."""

    @property
    def name(self) -> str:
        """Name of the graph, in messages and in the lists of graphs that a token may read."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint, equal on all servers of the graph."""
        ...

    @property
    def cut_offs(self) -> TimeCutOffs | None:
        """Cut-offs of a split by time, as the graph's import recorded them; None if it records none."""
        ...

    @property
    def whole(self) -> Viewed:
        """The whole graph."""
        ...

    @property
    def splits(self) -> Mapping[str, Mapping[NodeType, Tensor]]:
        """Node ids of each split by type, mapped from files."""
        ...

    @property
    def own_ids(self) -> Mapping[NodeType, Keys]:
        """The users' ids by node, mapped from files, for the node types that have them."""
        ...

    @property
    def labels(self) -> Mapping[NodeType, Mapping[str, Any]]:
        """Records of labels in the graph's import, with class names and units, by node type."""
        ...

    @property
    def views(self) -> KeptViews:
        """The views that are kept, with their memory."""
        ...

    def viewed(self, view: Document) -> Viewed:
        """Return the graph after the steps of a view: fewer edge types, a part of a split of links.

        The result depends on the graph and the steps alone, so it is the same on every server. It is the same
        object while it is kept in `views`.
        """
        ...
