"""Model of edges: an encoder computes node rows, a head per edge type computes outputs of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from khop.arguments import whole_number
from khop.batch import Batch
from khop.models.names import parameter_name
from khop.models.stack import OutputUnit
from khop.rules.rule import Rule
from khop.rules.uniform import Uniform
from khop.schema import EdgeType, EdgeTypeName, by_edge_type, edge_type_of

HeadsByType = Mapping[EdgeType, nn.Module] | Mapping[str, nn.Module]


class EdgeHead(nn.Module):
    """A layer of `hidden` ReLU units over the rows of both ends, concatenated, and a linear layer on top.

    Source and destination are not exchangeable: an edge and its reverse have different outputs.
    """

    def __init__(self, width: int, outputs: int, hidden: int | None = None) -> None:
        super().__init__()
        width, outputs = whole_number("width", width, 1), whole_number("outputs", outputs, 1)
        hidden = width if hidden is None else whole_number("hidden", hidden, 1)
        self.hidden = nn.Linear(2 * width, hidden)
        self.out = nn.Linear(hidden, outputs)
        self.unit: nn.Module | None = None

    def rescale(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        """Give outputs in the unit of labels: numbers times `deviation`, plus `mean`, one per output each."""
        self.unit = OutputUnit(mean, deviation)

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """Return (edges, outputs) from (edges, width) of the sources and of the destinations."""
        out: Tensor = self.out(self.hidden(torch.cat([source, destination], -1)).relu())
        return out if self.unit is None else self.unit(out)


class EdgePredictor(nn.Module):
    """Logits or numbers for the links of a LinkSampler's batch, as `khop.EdgeClassification` needs them.

    The encoder is any module that returns a batch's rows by node type, one per seed, such as
    `khop.models.SAGE.for_graph(graph, target=["user", "item"], outputs=64)`. Each edge type has a separate
    head: a module of the rows of both ends, such as `khop.models.EdgeHead`.
    """

    def __init__(self, encoder: nn.Module, heads: HeadsByType) -> None:
        super().__init__()
        heads = by_edge_type(heads)
        if not heads:
            raise ValueError("edge predictor: no heads, give one per edge type whose edges are predicted")
        self.encoder = encoder
        self.edge_types = tuple(heads)
        self.heads = nn.ModuleDict({parameter_name(*t): head for t, head in heads.items()})

    @property
    def rule(self) -> Rule:
        """Rule by which a sampler draws neighbors for the encoder, unless another one is chosen."""
        return getattr(self.encoder, "rule", Uniform())

    @classmethod
    def of(
        cls, encoder: nn.Module, edge_types: Iterable[EdgeTypeName], width: int, outputs: int
    ) -> EdgePredictor:
        """Make a predictor with one new `EdgeHead` per edge type, for rows of `width` numbers."""
        return cls(encoder, {edge_type_of(t): EdgeHead(width, outputs) for t in edge_types})

    def head(self, edge_type: EdgeTypeName) -> nn.Module:
        """Return the head of an edge type."""
        edge_type = edge_type_of(edge_type)
        name = parameter_name(*edge_type)
        if name not in self.heads:
            raise ValueError(f"edges of {edge_type}: the model predicts those of {list(self.edge_types)}")
        return self.heads[name]

    def forward(self, batch: Batch) -> dict[EdgeType, Tensor]:
        """Return (links, outputs) of the batch's links, by edge type."""
        if not batch.links:
            raise ValueError("the batch has no links: give the loader a khop.LinkSampler and links as seeds")
        rows: Mapping[str, Tensor] = self.encoder(batch)
        # index_select: its backward adds in a fixed order if a row is in several pairs.
        return {
            edge_type: self.head(edge_type)(
                rows[edge_type[0]].index_select(0, links.source),
                rows[edge_type[2]].index_select(0, links.destination),
            )
            for edge_type, links in batch.links.items()
        }
