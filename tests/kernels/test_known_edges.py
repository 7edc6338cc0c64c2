import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.draw import Neighbors
from khop.kernels.known_edges import known_edges
from khop.kernels.node_index import NodeIndex

DENSE_NODES = 1 << 22  # graphs beyond this get a hash table
SIZES = [30, DENSE_NODES + 1, 2**32 + 1]


def known_edges_reference(nodes: Tensor, found: Neighbors) -> tuple[Tensor, Tensor, Tensor]:
    """The same as `known_edges` in plain torch, for an index of `nodes`, int64 in local order."""
    assert found.edges is not None
    order = nodes.argsort()
    place = torch.searchsorted(nodes[order], found.nodes.long()).clamp(max=max(nodes.numel() - 1, 0))
    local = order[place] if nodes.numel() else place.new_full(place.shape, -1)
    known = nodes[local] == found.nodes if nodes.numel() else torch.zeros_like(place, dtype=torch.bool)
    counts = torch.cat([known.new_zeros(1).long(), known.cumsum(0)])
    return counts[found.offsets], local[known].int(), found.edges[known]


def found_of(rows: list[list[int]], dtype: torch.dtype) -> Neighbors:
    lengths = torch.tensor([0, *map(len, rows)])
    nodes = torch.tensor([node for row in rows for node in row], dtype=dtype)
    return Neighbors(lengths.cumsum(0), nodes, torch.arange(nodes.numel()) * 3 + 1)


@given(
    batches=st.lists(st.lists(st.integers(0, 29), max_size=30), min_size=1, max_size=3),
    rows=st.lists(st.lists(st.integers(0, 29), max_size=40), max_size=6),
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("num_nodes", SIZES)
def test_the_kernel_keeps_what_the_reference_keeps(
    num_nodes: int, dtype: torch.dtype, batches: list[list[int]], rows: list[list[int]]
) -> None:
    """Also of an index that has seen other batches before."""
    index = NodeIndex(num_nodes)
    for batch in batches:
        index.clear()
        index.insert(torch.tensor(batch, dtype=torch.int64))
    found = found_of(rows, dtype)
    kept = known_edges(index, found)
    assert [t.dtype for t in kept] == [torch.int64, torch.int32, torch.int64]
    expected = known_edges_reference(index.nodes(), found)
    assert [t.tolist() for t in kept] == [t.tolist() for t in expected]


def test_the_reference_is_right() -> None:
    """Rows stay, also empty ones, and the order within them; duplicates are kept."""
    nodes = torch.tensor([7, 2, 5])
    offsets, local, edges = known_edges_reference(nodes, found_of([[5, 1, 7], [], [9], [2, 2]], torch.int32))
    assert offsets.tolist() == [0, 2, 2, 2, 4]
    assert local.tolist() == [2, 0, 1, 1]
    assert edges.tolist() == [1, 7, 13, 16]


def test_bad_input_is_named() -> None:
    index = NodeIndex(10)
    with pytest.raises(ValueError, match="node id 10 at position 1"):
        known_edges(index, found_of([[1, 10]], torch.int64))
    with pytest.raises(ValueError, match="2 edges without an edge id each"):
        known_edges(index, Neighbors(torch.tensor([0, 2]), torch.tensor([1, 2])))
    with pytest.raises(ValueError, match="offsets has 3 at position 1"):
        known_edges(index, Neighbors(torch.tensor([0, 3]), torch.tensor([1, 2]), torch.tensor([1, 2])))
