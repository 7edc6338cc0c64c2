"""Arrays of all nodes that every machine has, regardless of its parts: a few bytes per node."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from khop.graph import layout
from khop.graph.folder import ORIGINAL_ID, GraphFolder
from khop.kernels.build_csc import index_dtype
from khop.kernels.gather import gather
from khop.partition.book import DEGREES
from khop.partition.cut import Renumbering


def whole_arrays(source: GraphFolder, renumbering: Renumbering) -> Iterator[tuple[str, Tensor]]:
    """Yield files and arrays by new ids: splits, scalar node columns, original ids, in-degrees.

    Splits keep their order, so that seeds have the same order as in the unpartitioned graph.
    """
    for name in source.split_names:
        for node_type, ids in source.split(name).items():
            yield layout.node_split(node_type, name), renumbering.new_ids[node_type][ids].long()
    columns = source.columns()
    for node in source.manifest.nodes:
        order, of_type = renumbering.old_ids[node.type], columns[node.type]
        if ORIGINAL_ID not in of_type:
            yield layout.node_column(node.type, ORIGINAL_ID), order
        for name, column in of_type.items():
            if column.dim() == 1:
                yield layout.node_column(node.type, name), gather(column, order)
    for edge in source.manifest.edges:
        degrees = source.csc(edge.type).degrees()[renumbering.old_ids[edge.type[2]]]
        yield layout.edge_array(edge.type, DEGREES), degrees.to(index_dtype(edge.count))
