"""The stores of a folder of parts as one of several ranks has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

from khop.distributed.group import Group
from khop.distributed.holders import Holders
from khop.distributed.lanes import LANES, Lanes
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.distributed.row_request import Specs, Type
from khop.distributed.row_wire import Wire
from khop.features.store import FeatureStore
from khop.graph.store import GraphStore
from khop.partition.book import read_book
from khop.partition.parts_folder import PartsFolder, open_parts
from khop.partition.parts_graph import PartsGraph
from khop.partition.parts_table import PartsTable


class Spread(StrEnum):
    """What of a folder of parts ranks hold part by part, asking one another for the rest."""

    WHOLE = "whole"  # nothing: each has all parts
    FEATURES = "features"  # columns; each has the edges of all parts
    ALL = "all"  # columns and edges


@dataclass(frozen=True)
class Parting:
    """How ranks share a folder of parts."""

    spread: Spread = Spread.FEATURES
    lanes: int = LANES  # batches under way at once
    wire: Wire = Wire.STORED  # in what rows travel


def stores_of(
    path: str | os.PathLike[str], group: Group, parting: Parting
) -> tuple[GraphStore, FeatureStore, PartsFolder]:
    """Edges, columns and what is known of all parts. Collective, unless every rank has all."""
    if parting.spread is Spread.WHOLE or group.world_size == 1:
        whole = open_parts(path)
        return PartsGraph(whole), PartsTable(whole), whole
    book = read_book(path)
    holders = Holders(book.num_parts, group.rank, group.world_size)
    held = open_parts(path, holders.parts_of(group.rank))
    lanes = Lanes(group, parting.lanes)
    schema = held.schema
    types: list[Type] = [*schema.node_types, *schema.edge_types]
    offsets = {t: book.offsets[t] if isinstance(t, str) else book.first_edges(t) for t in types}
    specs: Specs = {t: schema.columns.get(t, {}) for t in types}
    features = PartitionedFeatures(PartsTable(held), specs, offsets, holders, lanes, wire=parting.wire)
    if parting.spread is Spread.ALL:
        return PartitionedGraph(PartsGraph(held), holders, lanes), features, held
    parts = open_parts(path)
    return PartsGraph(parts), features, parts
