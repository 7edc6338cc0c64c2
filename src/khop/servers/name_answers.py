"""The users' names that a server looks up for its clients: ids of nodes, class names, units."""

from __future__ import annotations

import numpy as np
import torch

from khop.kernels.id_table import Int64s, Keys, StringKeys, keys_at
from khop.servers.counts import check_numbers, read_nodes
from khop.servers.errors import TooLarge
from khop.servers.frame import Frame, Tensors
from khop.servers.json_fields import Plain
from khop.servers.served import Answered, Served

NODE_IDS, LABELS = "node-ids", "labels"  # kinds of requests
MOST_IDS = 1 << 20  # nodes whose ids are requested at once
MOST_IDS_BYTES = 1 << 26  # of one answer
_OFFSET = 8  # bytes


def node_ids_answer(served: Served, frame: Frame, max_bytes: int | None) -> Answered:
    """Return the users' ids of some nodes of one type, one or more, in their order.

    An answer has up to `MOST_IDS_BYTES`, or `max_bytes` if they are fewer: clients ask again for the ids of
    the nodes that are left. TooLarge if the first id alone has more.
    """
    node_type = frame.document["type"].text()
    if node_type not in served.own_ids:
        raise ValueError(f"ids of {node_type!r}: the graph stores those of {list(served.own_ids)}")
    keys, nodes = served.own_ids[node_type], read_nodes(frame, MOST_IDS)
    check_numbers(nodes, len(keys), "node")
    rows, most = nodes.numpy(), min(MOST_IDS_BYTES, max_bytes or MOST_IDS_BYTES)
    count = int(np.searchsorted(_ends(keys, rows), most, "right"))
    if len(rows) and not count:
        raise TooLarge(
            f"the id of node {rows[0]} of {node_type!r} has more than the {most:,} bytes that this server "
            "sends at once; start the servers with a larger --max-batch-bytes"
        )
    found, tensors = keys_at(keys, rows[:count]), Tensors()
    if not isinstance(found, StringKeys):
        return {"ids": tensors(torch.from_numpy(found))}, tensors
    text = torch.from_numpy(found.data)
    return {"offsets": tensors(torch.from_numpy(found.offsets)), "text": tensors(text)}, tensors


def label_answer(served: Served, frame: Frame) -> Answered:
    """Return class names and the unit of the labels of a node type, as the graph's import recorded them."""
    node_type = frame.document["type"].text()
    if node_type not in served.labels:
        raise ValueError(f"labels of {node_type!r}: the import recorded those of {list(served.labels)}")
    record = served.labels[node_type]
    fields: dict[str, Plain] = {name: record.get(name) for name in ("classes", "unit")}
    return fields, Tensors()


def _ends(keys: Keys, rows: Int64s) -> Int64s:
    """Return the bytes of the ids of the rows up to each."""
    of_offsets = _OFFSET * np.arange(1, len(rows) + 1)
    if not isinstance(keys, StringKeys):
        return of_offsets
    ends: Int64s = np.cumsum(keys.offsets[rows + 1] - keys.offsets[rows]) + of_offsets
    return ends
