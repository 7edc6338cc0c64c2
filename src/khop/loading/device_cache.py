"""Rows cached on the device, which are neither gathered nor copied."""

from __future__ import annotations

from khop.batch import Sample
from khop.features.row_cache import RowCache
from khop.features.store import Rows
from khop.loading.columns import ColumnChoice
from khop.loading.source import CachedRows
from khop.schema import NodeType


def rows_in_cache(cache: RowCache, choice: ColumnChoice, sample: Sample) -> dict[NodeType, CachedRows]:
    """Return the rows of a sample that need not be gathered, for each type with cached rows.

    If seed columns are requested, the rows of seeds are gathered anyway: seed columns are selected on the
    host.
    """
    found = {}
    for node_type, names in choice.of_nodes.items():
        if cache.covers(node_type, names):
            slots = cache.find(node_type, sample.nodes[node_type])
            if node_type in choice.of_seeds and sample.seed_index[node_type].numel():
                slots[: int(sample.seed_index[node_type].max()) + 1] = -1
            rows = (slots >= 0).nonzero().view(-1)
            widened = choice.as_float32.get(node_type, frozenset())
            found[node_type] = CachedRows(
                node_type,
                cache.rows,
                Rows(slots[rows], names, as_float32=widened),
                rows,
                (slots < 0).nonzero().view(-1),
            )
    return found
