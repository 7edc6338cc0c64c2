"""Memory of tensors counts once, wherever it is referred to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from khop.graph.csc_graph import csc_graph_from_edges
from khop.servers.held_bytes import tensor_bytes


def total(value: object, *before: object) -> int:
    seen = set[int]()
    known = {address for each in before for address in tensor_bytes(each, seen)}
    return sum(size for address, size in tensor_bytes(value, seen).items() if address not in known)


def test_a_view_of_a_tensor_is_the_memory_of_the_tensor() -> None:
    tensor = torch.zeros(1000, dtype=torch.int64)
    assert total([tensor, tensor[3:5], {"a": tensor.view(10, 100)}]) == 8000
    assert total(tensor[3:5], tensor) == 0
    assert total(partial(print, tensor, sep=torch.zeros(3, dtype=torch.int8))) == 8003


def test_objects_of_khop_are_followed_and_circles_end() -> None:
    ends = torch.arange(6), torch.arange(6)
    graph = csc_graph_from_edges({"a": 6}, {("a", "to", "a"): ends})
    csc = graph.csc(("a", "to", "a"))
    assert total(graph) >= csc.indptr.nbytes + csc.indices.nbytes
    assert total(graph, graph) == 0
    kept = graph.keeping({("a", "to", "a"): (torch.arange(3),)})
    assert total(kept, graph) > 0
    circle: list[object] = [ends[0]]
    circle.append(circle)
    assert total(circle) == 48


@dataclass
class Elsewhere:
    held: Tensor


def test_objects_of_others_are_not_followed() -> None:
    assert total(Elsewhere(torch.zeros(3))) == 0
