"""torch_geometric's loaders with columns on a GPU and edges on the CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torch_geometric")
from torch_geometric.data import Data

from khop.pyg import NeighborLoader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="without a GPU"),
]


@pytest.mark.parametrize("workers", [0, 2])
def test_columns_on_a_gpu_are_gathered_there(workers: int) -> None:
    nodes = torch.arange(400).repeat_interleave(20)
    sources = (nodes + torch.arange(1, 21).repeat(400)) % 400
    x, y = torch.randn(400, 7), torch.arange(400)
    data = Data(x=x, y=y, edge_index=torch.stack([sources, nodes])).to("cuda", "x", "y")
    count = 0
    for batch in NeighborLoader(data, [5, 3], batch_size=64, num_workers=workers):
        assert batch.edge_index.device.type == "cpu"
        assert torch.equal(batch.x.cpu(), x[batch.n_id])
        assert torch.equal(batch.y.cpu(), y[batch.n_id])
        count += 1
    assert count == 7
