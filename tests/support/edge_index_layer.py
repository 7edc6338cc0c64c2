"""A layer of torch_geometric, which reads the ends of edges."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from khop.batch import Adjacency


class Convolution(nn.Module):
    """SAGEConv over the adjacency of a layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution = SAGEConv(inputs, outputs)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        """Return (destinations, outputs)."""
        rows: Tensor = self.convolution((x, x[: adjacency.num_dst]), adjacency.edge_index)
        return rows
