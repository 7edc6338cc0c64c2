"""Numbers of edges in messages: the requests of in-degrees, and their checked answers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from khop.exchange.codec import check_below
from khop.servers.frame import Frame, Tensors
from khop.servers.json_fields import Document, Plain

MOST_EDGES = 1 << 48


def checked_counts(frame: Frame, nodes: int) -> Tensor:
    """Return the counts of an answer, int64 (nodes); ValueError if they are no numbers of edges."""
    counts = frame.tensor(frame.document["counts"])
    if counts.dtype != torch.int64 or counts.shape != (nodes,):
        raise ValueError(f"counts: are {counts.dtype} {tuple(counts.shape)}, for {nodes} nodes")
    check_below(counts, MOST_EDGES, "number of edges")
    return counts


def written_nodes(nodes: Tensor, tensors: Tensors) -> Mapping[str, Plain]:
    """Return the fields of a request for some nodes, int64 (n): consecutive ones by their ends alone."""
    count = nodes.numel()
    if count and bool((nodes.diff() == 1).all()):
        return {"first": int(nodes[0]), "end": int(nodes[0]) + count}
    return {"nodes": tensors(nodes)}


def read_nodes(frame: Frame, most: int) -> Tensor:
    """Return the nodes of a request, int64 (n); ValueError for more than `most`."""
    given = frame.document
    number = given.given("nodes")
    if number is None:
        first = given["first"].whole(0, 1 << 62)
        count = given["end"].whole(first, 1 << 62) - first
        _check_count(given, count, most)
        return torch.arange(first, first + count)
    nodes = frame.tensor(number)
    if nodes.dtype != torch.int64 or nodes.dim() != 1:
        raise ValueError(f"{number.where}: is {nodes.dtype} {tuple(nodes.shape)}, must be int64 (n)")
    _check_count(given, nodes.numel(), most)
    return nodes


def check_numbers(numbers: Tensor, count: int, what: str) -> None:
    """Raise ValueError unless `numbers` are int64 (n), each of 0 to `count` - 1; `what` names them."""
    if numbers.dim() != 1 or str(numbers.dtype) != "torch.int64":
        raise ValueError(f"numbers of {what}s: are {numbers.dtype} {tuple(numbers.shape)}, must be int64 (n)")
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
        raise ValueError(f"{what}s {int(numbers.min())} to {int(numbers.max())}: there are {count}")


def _check_count(given: Document, count: int, most: int) -> None:
    if count > most:
        raise ValueError(f"{given.where}: {count:,} nodes are requested at once; ask for at most {most:,}")
