"""Responses of a server other than batches: description, seed lists, rows, ids and names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from khop.draw import RANDOMNESS
from khop.graph.features.store import Rows
from khop.graph.node_ids import IdsHere
from khop.graph.rule_arrays import check_edge_type
from khop.graph.store import GraphStore
from khop.kernels.id_table import Int64s, Keys, StringKeys, keys_at
from khop.sampling.links.link_seeds import LinkList
from khop.sampling.seeds import SeedList
from khop.schema import ColumnSpec, NodeType
from khop.servers import messages
from khop.servers.codec import DTYPES, VERSION
from khop.servers.errors import TooLarge
from khop.servers.views import Served

MOST_IDS = 1 << 20  # nodes per request for ids
MOST_IDS_BYTES = 1 << 26  # of one answer
MOST_NODES = 1 << 20  # nodes per request for in-degrees
MOST_ROWS_BYTES = 1 << 29  # per answer; clients request an eighth of it at a time
FACTS = ("labels", "times", "negatives", "relations")
_OFFSET = 8  # bytes


def described_graph(served: Served, max_batch_bytes: int | None, part: int | None) -> messages.Description:
    """Return the description of a graph."""
    graph = served.whole.graph
    schema = graph.schema
    return messages.Description(
        VERSION,
        RANDOMNESS,
        served.name,
        served.fingerprint,
        schema,
        {t: graph.num_nodes(t) for t in schema.node_types},
        {t: graph.num_edges(t) for t in schema.edge_types},
        {name: {t: ids.numel() for t, ids in of_types.items()} for name, of_types in served.splits.items()},
        tuple(t for t in schema.node_types if graph.original_ids(t) is not None),
        _bounds(graph),
        served.cut_offs,
        {t: IdsHere(keys).kind for t, keys in served.own_ids.items()},
        tuple(served.labels),
        max_batch_bytes,
        part,
    )


def _bounds(graph: GraphStore) -> dict[NodeType, tuple[int, ...]]:
    """Return the bounds of partitions, so clients divide nodes into the same chunks as a local process."""
    bounds = {t: graph.partition_bounds(t) for t in graph.schema.node_types}
    return {t: ends for t, ends in bounds.items() if len(ends) > 2}


def seed_list(served: Served, reference: messages.ListOfSeeds) -> SeedList:
    """Return the seed list that a reference names: the nodes of a split, or the links of a part."""
    if isinstance(reference, messages.LinksOfPart):
        return link_list(served, reference)
    whole = served.whole
    return SeedList.of(whole.graph, _split(served, reference), reference.times, whole.features)


def link_list(served: Served, reference: messages.LinksOfPart) -> LinkList:
    """Return the links of one part of a link split."""
    links = served.viewed(reference.view).links
    if reference.part not in links:
        raise ValueError(f"links of part {reference.part!r}: the view has those of {list(links)}")
    return links[reference.part]


def _split(served: Served, reference: messages.NodesOfSplit) -> dict[NodeType, Tensor]:
    if reference.split not in served.splits:
        raise ValueError(f"no split {reference.split!r}; there are {list(served.splits)}")
    of_types = served.splits[reference.split]
    for node_type in reference.types:
        if node_type not in of_types:
            raise ValueError(
                f"split {reference.split!r}: has nodes of {list(of_types)}, none of {node_type!r}"
            )
    return {t: of_types[t] for t in reference.types}


def _list(served: Served, asked: messages.ListOf, max_bytes: int | None) -> messages.ListAnswer:
    found = seed_list(served, asked.list)
    facts = link_list(served, asked.list).facts if isinstance(asked.list, messages.LinksOfPart) else ()
    return messages.ListAnswer({t: count for t, count in found.counts.items()}, tuple(facts), found.digest())


def _ids(served: Served, asked: messages.IdsOf, max_bytes: int | None) -> messages.IdsAnswer:
    (ids,) = _split(served, asked.list).values()
    if not asked.first <= asked.last <= ids.numel():
        raise ValueError(f"ids {asked.first} to {asked.last}: the split has {ids.numel()}")
    return messages.IdsAnswer(ids[asked.first : asked.last])


def _links(served: Served, asked: messages.LinksOf, max_bytes: int | None) -> messages.LinksAnswer:
    links = link_list(served, asked.list)
    if asked.edge_type not in links.counts:
        raise ValueError(f"links of {asked.edge_type!r}: the list has those of {list(links.counts)}")
    messages.check_numbers(asked.numbers, links.counts[asked.edge_type], "link")
    found = links.rows(asked.edge_type, asked.numbers)
    return messages.LinksAnswer(found.edges, **{name: getattr(found, name) for name in FACTS})


def _rows(served: Served, asked: messages.RowsOf, max_bytes: int | None) -> messages.RowsAnswer:
    _check_size(served, asked, max_bytes)
    viewed, type_ = served.viewed(asked.view), asked.type
    for name in asked.columns:
        viewed.graph.schema.column(type_, name)
    count = viewed.graph.num_nodes(type_) if isinstance(type_, str) else viewed.graph.num_edges(type_)
    messages.check_numbers(asked.ids, count, "row")
    rows = Rows(asked.ids, asked.columns, as_float32=frozenset(asked.float32))
    return messages.RowsAnswer(viewed.features.gather({type_: rows})[type_])


def _check_size(served: Served, asked: messages.RowsOf, max_bytes: int | None) -> None:
    """Raise TooLarge if the rows exceed the size limit, before any work."""
    schema = served.whole.graph.schema
    size = asked.ids.numel() * sum(_row_bytes(schema.column(asked.type, n)) for n in asked.columns)
    most = MOST_ROWS_BYTES if max_bytes is None else min(MOST_ROWS_BYTES, max_bytes)
    if size > most:
        raise TooLarge(
            f"rows of {', '.join(asked.columns)}: {size:,} bytes are requested at once, but this server "
            f"sends at most {most:,}; request fewer rows at a time, or start the servers with a larger "
            "--max-batch-bytes"
        )


def _row_bytes(spec: ColumnSpec) -> int:
    """Return the bytes of a column's row, as stored or as float32."""
    return math.prod(spec.shape) * max(4, DTYPES[spec.dtype].itemsize)


def _in_degrees(served: Served, asked: messages.DegreesOf, max_bytes: int | None) -> messages.CountsAnswer:
    graph, edge_type = served.viewed(asked.view).graph, asked.edge_type
    check_edge_type(edge_type, graph.schema)
    nodes = messages.read_nodes(asked.nodes, graph.num_nodes(edge_type[2]), MOST_NODES)
    return messages.CountsAnswer(graph.in_degrees(edge_type, nodes))


def _labels(served: Served, asked: messages.LabelsOf, max_bytes: int | None) -> messages.LabelsAnswer:
    if asked.node_type not in served.labels:
        raise ValueError(
            f"labels of {asked.node_type!r}: the import recorded only those of {list(served.labels)}"
        )
    record = served.labels[asked.node_type]
    classes = record.get("classes")
    return messages.LabelsAnswer(None if classes is None else tuple(classes), record.get("unit"))


def node_ids_answer(
    served: Served, asked: messages.NodeIdsOf, max_bytes: int | None
) -> messages.NodeIdsAnswer:
    """Return the users' ids of one or more nodes of one type, in order.

    An answer has up to `MOST_IDS_BYTES`, or `max_bytes` if that is less; clients request the ids of the
    remaining nodes again. TooLarge if the first id alone exceeds the limit.
    """
    node_type = asked.node_type
    if node_type not in served.own_ids:
        raise ValueError(f"ids of {node_type!r}: the graph stores those of {list(served.own_ids)}")
    keys = served.own_ids[node_type]
    nodes = messages.read_nodes(asked.nodes, len(keys), MOST_IDS)
    rows, most = nodes.numpy(), min(MOST_IDS_BYTES, max_bytes or MOST_IDS_BYTES)
    count = int(np.searchsorted(_ends(keys, rows), most, "right"))
    if len(rows) and not count:
        raise TooLarge(
            f"the id of node {rows[0]} of {node_type!r} has more than the {most:,} bytes that this server "
            "sends at once; start the servers with a larger --max-batch-bytes"
        )
    found = keys_at(keys, rows[:count])
    if not isinstance(found, StringKeys):
        return messages.NodeIdsAnswer(messages.NumberIdsAnswer(torch.from_numpy(found)))
    return messages.NodeIdsAnswer(
        messages.TextIdsAnswer(torch.from_numpy(found.offsets), torch.from_numpy(found.data))
    )


def _ends(keys: Keys, rows: Int64s) -> Int64s:
    """Return the running sums of the bytes of the ids."""
    of_offsets = _OFFSET * np.arange(1, len(rows) + 1)
    if not isinstance(keys, StringKeys):
        return of_offsets
    ends: Int64s = np.cumsum(keys.offsets[rows + 1] - keys.offsets[rows]) + of_offsets
    return ends


# By kind of request; the last argument limits the bytes of the answer.
ANSWERS: dict[str, Callable[[Served, Any, int | None], object]] = {
    "list": _list,
    "ids": _ids,
    "links": _links,
    "in-degrees": _in_degrees,
    "labels": _labels,
    "rows": _rows,
    "node-ids": node_ids_answer,
}
