"""A small knowledge graph, written in two ways: relations as a column of one edge type, or as edge types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import khop
from khop.schema import EdgeType

ENTITIES, RELATIONS = 30, 4
FACT, BACK = ("entity", "fact", "entity"), ("entity", "back", "entity")


@dataclass(frozen=True)
class Triples:
    """Distinct triples: int64 (3, n), sources, relations and destinations."""

    all: Tensor

    @classmethod
    def drawn(cls, count: int = 160, seed: int = 0) -> Triples:
        random = torch.Generator().manual_seed(seed)
        ends = torch.randint(ENTITIES, (2, count), generator=random)
        ends[:, ::2] %= 5  # so that some nodes are linked by several relations
        relations = torch.randint(RELATIONS, (count,), generator=random)
        return cls(torch.stack([ends[0], relations, ends[1]]).unique(dim=1))

    def of(self, relation: int) -> Tensor:
        """The ends of the triples of a relation: int64 (2, n)."""
        source, relations, destination = self.all
        return torch.stack([source, destination])[:, relations == relation]


def relation_type(relation: int, back: bool = False) -> EdgeType:
    return ("entity", f"r{relation}{'-back' if back else ''}", "entity")


def entities() -> dict[str, khop.NodeTable]:
    x = torch.randn(ENTITIES, 6, generator=torch.Generator().manual_seed(7))
    return {"entity": khop.NodeTable(columns={"x": x})}


def as_column(path: Path, triples: Triples, sort_by: str | None = None) -> khop.Graph:
    """The triples as one edge type with a column `r`, and their reverses as another."""
    source, relation, destination = triples.all
    edges = {
        FACT: khop.EdgeTable(source, destination, {"r": relation}, reverse_of=BACK),
        BACK: khop.EdgeTable(destination, source, {"r": relation}, reverse_of=FACT),
    }
    return khop.open_graph(khop.write_graph(path, entities(), edges, sort_by=sort_by))


def as_types(path: Path, triples: Triples) -> khop.Graph:
    """Each relation as an edge type, first all forward, then all reverses."""
    edges: dict[EdgeType, khop.EdgeTable] = {}
    for back in (False, True):
        for relation in range(RELATIONS):
            ends = triples.of(relation).flip(0) if back else triples.of(relation)
            reverse = relation_type(relation, not back)
            edges[relation_type(relation, back)] = khop.EdgeTable(*ends, reverse_of=reverse)
    return khop.open_graph(khop.write_graph(path, entities(), edges))
