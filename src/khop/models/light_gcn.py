"""LightGCN (He et al. 2020): normalized sums of neighbors without weights, over the blocks of any schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from khop.batch import Batch, Block
from khop.components import NoOptions
from khop.graph.rule import Rule
from khop.models.encoder import EmbeddedTypes, Encoding, HasTypes, ModelInputs, ModelSizes
from khop.models.layer import NORMALIZED, LayerOptions, aggregated, weighted
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.stack import Stack
from khop.schema import EdgeType, NodeType


class LightGCN(Stack):
    """LightGCN, from "LightGCN: Simplifying and Powering Graph Convolution Network for Recommendation".

    A layer has no parameters. It computes `sum(h_u / sqrt(d_u d_v))` over the in-neighbors u of a destination
    v, of all edge types. The output is the mean of a node's rows before and after each layer; a classifier
    has a linear head on top. The input is a trained embedding per node. If a node type has the input column,
    every type has a linear layer over the column or, with `embedded_types="all"`, over column and embedding.
    The sampler must use `rule`, `khop.SymmetricSum()`. The paper is by He et al. (2020).

    Args:
        sizes: Types, widths and counts of the graph. `for_graph` derives them.
        hidden: Width of all rows, embeddings included (default 64).
        layers: Number of layers, which is the number of blocks of a batch (default 3).
    Raises:
        ValueError: The width of embeddings, or of an encoder's outputs, is not `hidden`.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> model = khop.models.LightGCN.for_graph(graph, hidden=32, layers=2, target=["package"])
        >>> sampler = khop.NeighborSampler(graph, fanouts=[5, 5], rule=model.rule)
        >>> loader = khop.Loader(sampler, graph.split("train"), batch_size=16, columns=["x"])
        >>> model(loader.batch(epoch=0, step=0))["package"].shape
        torch.Size([16, 32])
    """

    rule: Rule = NORMALIZED

    summary = "LightGCN"
    embeds_hidden = True  # the rows of all layers are added, so embeddings have the same width

    def __init__(self, sizes: ModelSizes, hidden: int = 64, layers: int = 3) -> None:
        encoding: Encoding = "linear" if sizes.inputs else "none"
        super().__init__(
            sizes,
            encoding,
            layers,
            LayerOptions(hidden),
            lambda _, destinations, edge_types, options: LightLayer(destinations, edge_types, hidden),
        )
        self.hidden = hidden
        _check_widths(self, hidden)
        if not isinstance(sizes.targets, str):
            if sizes.outputs != hidden:
                raise ValueError(f"outputs {sizes.outputs}: LightGCN returns rows of width hidden={hidden}")
            self.heads = nn.ModuleDict()

    @classmethod
    def for_graph(
        cls,
        graph: HasTypes,
        hidden: int = 64,
        layers: int = 3,
        target: NodeType | Sequence[NodeType] | None = None,
        column: str = "x",
        label: str | None = None,
        outputs: int | None = None,
        embedding: int | None = None,
        embedding_update: EmbeddingUpdate = "dense",
        embedded_types: EmbeddedTypes = "missing",
    ) -> LightGCN:
        """Make a model with the types and widths of a graph.

        The other arguments are those of `SAGE.for_graph`.

        Args:
            outputs: Width of an output row for a named target; `hidden` (default) for an encoder.
            embedding: Width of trained embeddings of node types without `column`; default: `hidden`.
        Returns:
            The model, with new weights from torch's generator.
        """
        if outputs is None and target is not None and not isinstance(target, str):
            outputs = hidden
        embedding = hidden if embedding is None else embedding
        inputs = (column, label, outputs, embedding, embedding_update, embedded_types)
        return cls(ModelSizes.of(graph, target, *inputs), hidden, layers)

    @classmethod
    def build(cls, options: NoOptions, context: ModelInputs) -> LightGCN:
        """Make the model of a run, with new weights from torch's generator."""
        return cls(context.sizes, context.hidden, context.layers)

    def encode(self, batch: Batch) -> dict[NodeType, Tensor]:
        """Return (rows, 2 * hidden) by node type: the rows, and their sum over layers, initially the same."""
        rows = self.encoder(batch)
        return {t: torch.cat([of_type, of_type], dim=1) for t, of_type in rows.items()}

    def embedding(self, h: Tensor, layers: int) -> Tensor:
        """Return (rows, hidden): the mean over the input and the layers."""
        return h[:, self.hidden :] / (layers + 1)

    def head(self, node_type: NodeType, h: Tensor) -> Tensor:
        """Return (rows, outputs): the mean over layers of an encoder's targets, or logits of a classifier."""
        mean = self.embedding(h, self.num_layers)
        return super().head(node_type, mean) if len(self.heads) else mean


class LightLayer(nn.Module):
    """Sums of normalized in-neighbors, concatenated with the sum of the rows of all layers so far."""

    def __init__(
        self, destinations: tuple[NodeType, ...], edge_types: tuple[EdgeType, ...], hidden: int
    ) -> None:
        super().__init__()
        self.destinations = destinations
        self.edge_types = edge_types
        self.hidden = hidden

    def forward(self, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """Return (destinations, 2 * hidden) per destination type: rows, and their sums so far."""
        present = [node_type for node_type in self.destinations if node_type in block.dst_counts]
        return {node_type: self._rows(node_type, h, block) for node_type in present}

    def _rows(self, node_type: NodeType, h: Mapping[NodeType, Tensor], block: Block) -> Tensor:
        count, hidden = block.dst_counts[node_type], self.hidden
        rows = h[node_type].new_zeros(count, hidden)
        for edge_type in self.edge_types:
            if edge_type[2] != node_type:
                continue
            sources, adjacency = h[edge_type[0]][:, :hidden], block.adjacencies.get(edge_type)
            if adjacency is None:  # the rows take part anyway, because their parameters need a gradient
                rows = rows + sources[:0].sum()
            else:
                rows = rows + aggregated(sources, weighted(edge_type, adjacency, "LightGCN", LightGCN.rule))
        return torch.cat([rows, h[node_type][:count, hidden:] + rows], dim=1)


def _check_widths(model: LightGCN, hidden: int) -> None:
    """Raise ValueError unless the input rows of all node types have width `hidden`."""
    sizes, widths = model.sizes, model.encoder.widths
    if any(width != hidden for width in widths.values()):
        raise ValueError(
            f"embedding {sizes.embedding}: LightGCN adds the rows of all layers, so their widths must be "
            f"equal; give embedding={hidden}, which is hidden"
        )
    ends = {node_type for t in sizes.edge_types for node_type in (t[0], t[2])} | set(sizes.target_types)
    without = sorted(ends - set(widths))
    if without and not sizes.embedding:
        raise ValueError(
            f"node types {without}: LightGCN needs input rows for each; give embedding={hidden}, which is "
            "hidden"
        )
