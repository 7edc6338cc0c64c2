"""A graph in parts as a server of one part serves it: whole batches, and its part for other servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from khop.graph.import_record import TimeCutOffs, recorded_cut_offs
from khop.graph.layout import node_column
from khop.graph.names import label_records
from khop.graph.node_ids import stored_ids
from khop.kernels.id_table import Keys
from khop.partition.local_partitions import LocalPartitions
from khop.partition.parts_folder import PartsFolder
from khop.sampling.time_split import TIME
from khop.schema import NodeType
from khop.servers.json_fields import Document
from khop.servers.kept_views import KeptViews, default_view_bytes
from khop.servers.parts.answers import PartAnswers
from khop.servers.parts.exchange import PartExchange
from khop.servers.parts.features import SharedFeatures
from khop.servers.parts.graph import SharedGraph
from khop.servers.parts.views import PartViews
from khop.servers.registry import Registry
from khop.servers.served import Viewed

_NO_STEPS = Document([], "view")


@dataclass(frozen=True, eq=False)
class ServedPart:
    """A graph of which one part is here (a Served). Its fingerprint is that of the whole graph."""

    folder: PartsFolder
    graph: SharedGraph
    features: SharedFeatures
    part_views: PartViews
    cut_offs: TimeCutOffs | None

    @classmethod
    def of(
        cls,
        folder: PartsFolder,
        exchange: PartExchange,
        cache_bytes: int = 0,
        view_bytes: int | None = None,
    ) -> ServedPart:
        """Return the graph of a folder with one open part; the owners of the others are asked for theirs.

        Rows of other parts are kept in `cache_bytes` of memory. Views take up to `view_bytes`, by default a
        quarter of what the process may use. ValueError if the graph is split by time, and times of nodes are
        not on this machine.
        """
        cut_offs = recorded_cut_offs(folder)
        if cut_offs is not None:
            _check_times(folder)
        graph = SharedGraph(LocalPartitions.of(folder), exchange)
        features = SharedFeatures.of(folder, exchange, cache_bytes)
        most = default_view_bytes() if view_bytes is None else view_bytes
        return cls(folder, graph, features, PartViews(graph, features, most), cut_offs)

    def answers(self, registry: Registry) -> PartAnswers:
        """Return the answers to other servers."""
        return PartAnswers(self.graph, self.features, self.part_views, registry)

    @property
    def name(self) -> str:
        """Name of the graph: that of its folder."""
        return self.folder.path.name

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the whole graph."""
        return self.folder.fingerprint

    @property
    def whole(self) -> Viewed:
        """The whole graph."""
        return self.part_views.viewed(_NO_STEPS)

    @property
    def views(self) -> KeptViews:
        """The views that are kept, with their memory."""
        return self.part_views.kept

    @property
    def splits(self) -> Mapping[str, Mapping[NodeType, Tensor]]:
        """Node ids of each split by type."""
        return {name: self.folder.split(name) for name in self.folder.split_names}

    @cached_property
    def own_ids(self) -> Mapping[NodeType, Keys]:
        """The users' ids of the nodes of all parts, mapped: every machine has them."""
        return stored_ids(self.folder)

    @cached_property
    def labels(self) -> Mapping[NodeType, Mapping[str, Any]]:
        """Records of labels in the graph's import, by node type."""
        return label_records(self.folder)

    def viewed(self, view: Document) -> Viewed:
        """Return the graph after the steps of a view; ValueError for a step that does not fit."""
        return self.part_views.viewed(view)


def _check_times(folder: PartsFolder) -> None:
    """Raise ValueError unless this machine has the times of the nodes of all parts."""
    for node_type in folder.schema.node_types:
        has_times = TIME in folder.schema.columns.get(node_type, {})
        if has_times and node_column(node_type, TIME) not in folder.book.wholes:
            raise ValueError(
                f"{folder.path}: is split by time, and each part has the column {TIME!r} of its own "
                f"{node_type!r} nodes alone; serve the graph whole, or give the column one number per node, "
                "and partition again"
            )
