"""Requests of in-degrees name their nodes one by one or by two ends, and answers are checked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.servers.counts import checked_counts, read_nodes, written_nodes
from khop.servers.frame import Frame, Tensors, parsed, whole


def sent(fields: object, tensors: Tensors) -> Frame:
    return parsed(whole(fields, tensors.all), 1 << 20, "request")  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 9), max_size=6) | st.integers(0, 50).map(lambda n: list(range(n, n + 7))))
def test_nodes_come_back_as_they_were(nodes: list[int]) -> None:
    tensors = Tensors()
    fields = written_nodes(torch.tensor(nodes, dtype=torch.int64), tensors)
    assert read_nodes(sent(fields, tensors), 10).tolist() == nodes


def test_consecutive_nodes_take_no_bytes_each() -> None:
    tensors = Tensors()
    assert written_nodes(torch.arange(5, 1000), tensors) == {"first": 5, "end": 1000}
    assert not tensors.all


def test_too_many_nodes_or_wrong_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="1,000,000,000,000 nodes are requested at once; ask for at most 10"):
        read_nodes(sent({"first": 0, "end": 10**12}, Tensors()), 10)
    tensors = Tensors()
    with pytest.raises(ValueError, match=r"nodes: is torch\.float32 \(3,\), must be int64"):
        read_nodes(sent({"nodes": tensors(torch.zeros(3))}, tensors), 10)


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        (torch.tensor([1, -1]), "number of edges"),
        (torch.tensor([1]), "for 2 nodes"),
        (torch.ones(2), "are torch.float32"),
    ],
)
def test_an_answer_that_is_no_counts_is_refused(counts: torch.Tensor, sentence: str) -> None:
    tensors = Tensors()
    with pytest.raises(ValueError, match=sentence):
        checked_counts(sent({"counts": tensors(counts)}, tensors), 2)
