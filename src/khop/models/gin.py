"""Graph isomorphism networks (Xu et al. 2019), over the blocks of any schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from khop.batch import Block
from khop.kernels.dropout import dropout
from khop.models.layer import LayerOptions, Norm, Residual
from khop.models.layer_sum import aggregated
from khop.models.names import parameter_name
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.sizes import HasTypes, ModelSizes
from khop.models.stack import Stack
from khop.schema import EdgeType, NodeType


class GIN(Stack):
    """Graph isomorphism network with a linear encoder per node type below and a linear head on top.

    A layer computes norm(MLP((1 + eps) h + sum of the in-neighbors' h over all edge types)) for each
    destination, then ReLU and dropout, plus h itself with `residual="add"`. Each node type has its own MLP of
    two linear layers and its own learned eps. The sampler must draw by `khop.Sum()`, so that sampled
    neighbors estimate the sum over all.
    """

    def __init__(
        self,
        sizes: ModelSizes,
        hidden: int = 256,
        layers: int = 2,
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: Residual = "none",
    ) -> None:
        super().__init__(sizes, "linear", layers, LayerOptions(hidden, dropout, norm, residual), GinLayer)

    @classmethod
    def for_graph(
        cls,
        graph: HasTypes,
        hidden: int = 256,
        layers: int = 2,
        target: NodeType | Sequence[NodeType] | None = None,
        column: str = "x",
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: Residual = "none",
        label: str | None = None,
        outputs: int | None = None,
        embedding: int | None = None,
        embedding_update: EmbeddingUpdate = "dense",
    ) -> GIN:
        """Make a GIN that fits the graph; the arguments are as in `SAGE.for_graph`."""
        sizes = ModelSizes.of(graph, target, column, label, outputs, embedding, embedding_update)
        return cls(sizes, hidden, layers, dropout, norm, residual)


class GinLayer(nn.Module):
    """An MLP of own rows and sums of in-neighbors, per destination type."""

    def __init__(
        self,
        widths: Mapping[NodeType, int],
        destinations: tuple[NodeType, ...],
        edge_types: tuple[EdgeType, ...],
        options: LayerOptions,
    ) -> None:
        super().__init__()
        self.destinations = destinations
        self.edge_types = edge_types
        self.options = options
        hidden, names = options.hidden, [parameter_name(t) for t in destinations]
        has_own = [parameter_name(t) for t in destinations if t in widths]
        self.eps = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in has_own})
        self.mlp = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
                for name in names
            }
        )
        normed = names if options.norm == "layer" else ()
        self.norm = nn.ModuleDict({name: nn.LayerNorm(hidden) for name in normed})

    def forward(self, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """Return (destinations, hidden) per destination type; nothing else is computed."""
        present = [node_type for node_type in self.destinations if node_type in block.dst_counts]
        return {node_type: self._rows(node_type, h, block) for node_type in present}

    def _rows(self, node_type: NodeType, h: Mapping[NodeType, Tensor], block: Block) -> Tensor:
        name, count = parameter_name(node_type), block.dst_counts[node_type]
        mlp = self.mlp[name]
        own = h[node_type][:count] if name in self.eps else None
        total = next(mlp.parameters()).new_zeros(count, self.options.hidden)
        if own is not None:
            total = own * (1 + self.eps[name])
        for edge_type in self.edge_types:
            adjacency = block.adjacencies.get(edge_type)
            if edge_type[2] != node_type:
                continue
            if adjacency is None:  # the rows take part nevertheless: their parameters need a gradient
                total = total + h[edge_type[0]][:0].sum()
                continue
            if adjacency.weight is None:
                raise ValueError(
                    f"neighbors of {edge_type} have no weights: GIN sums neighbors; draw them by "
                    'rule=khop.Sum(), in a run file sampler.rule.kind = "sum"'
                )
            total = total + aggregated(h[edge_type[0]], adjacency)
        out: Tensor = mlp(total)
        out = (self.norm[name](out) if name in self.norm else out).relu()
        if self.training:
            out = dropout(out, self.options.dropout)
        return out + own if self.options.residual == "add" and own is not None else out
