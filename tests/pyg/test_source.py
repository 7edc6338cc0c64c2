"""Sources of a sampler: edges and their attributes, however they are given."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import (
    NodeSamplerInput,
)

from khop import pyg
from khop.pyg import NeighborSampler
from pyg.pyg_cases import PAIRS, plain


def test_a_sparse_tensor_of_torch_sparse_is_taken_as_it_lies() -> None:
    """By its `csr()`, rows being destinations; stood in for here, as torch-sparse need not be there."""

    class Sparse:
        def csr(self) -> tuple[Tensor, Tensor, None]:
            return torch.tensor([0, 2, 2, 3]), torch.tensor([1, 2, 0]), None

    sampler = NeighborSampler(Data(num_nodes=3, adj_t=Sparse()), [-1])
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0, 2])))
    assert out.node.tolist() == [0, 2, 1]
    assert torch.stack([out.row, out.col]).tolist() == [[2, 1, 0], [0, 0, 1]]
    assert sampler.edge_permutation is None


@pytest.mark.parametrize("kind", ["bidirectional", "induced"])
@pytest.mark.parametrize(
    ("name", "inputs"), [("NeighborLoader", torch.arange(9)), ("LinkNeighborLoader", PAIRS)]
)
def test_attributes_of_edges_are_those_of_the_edge_whichever_way_it_is_shown(
    name: str, inputs: Tensor, kind: str
) -> None:
    data = plain()
    assert data.edge_index is not None
    turned = 0
    for batch in getattr(pyg, name)(data, [2, 2], inputs, subgraph_type=kind, batch_size=4):
        shown, of_graph = batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id]
        forward = (shown == of_graph).all(0)
        assert bool((forward | (shown == of_graph.flip(0)).all(0)).all())
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        turned += int((~forward).sum())
    assert (turned > 0) == (kind == "bidirectional")
