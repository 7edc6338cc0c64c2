"""A small shop in memory: two node types, columns of nodes and edges; and what to compare batches by."""

from __future__ import annotations

import torch
from torch import Tensor

from khop import Batch, Graph, Schema
from khop.draw import DrawKey, Purpose
from khop.graph.features.table import FeatureTable
from khop.graph.store import CscGraph
from khop.kernels.csc import Csc
from khop.kernels.philox import permutation_slice
from khop.schema import ColumnSpec, EdgeType, NodeType

BUYS = ("user", "buys", "item")
BOUGHT_BY = ("item", "bought by", "user")
COUNTS = {"user": 40, "item": 30}
DEGREE = 7


def _edges(edge_type: EdgeType) -> Csc:
    source, relation, destination = edge_type
    rows = COUNTS[destination]
    key = DrawKey.of(len(relation), Purpose.SPLIT).value
    indices = permutation_slice(key, rows * DEGREE, 0, rows * DEGREE) % COUNTS[source]
    return Csc(torch.arange(0, rows * DEGREE + 1, DEGREE), indices.int())


def _columns() -> dict[NodeType | EdgeType, dict[str, Tensor]]:
    users, items = torch.arange(COUNTS["user"]), torch.arange(COUNTS["item"])
    return {
        "user": {"x": torch.stack([users, -users], dim=1).float(), "age": users + 20},
        "item": {"x": items[:, None].float() / 8, "price": items.double() * 1.5},
        BUYS: {"amount": torch.arange(COUNTS["item"] * DEGREE)},
    }


def shop() -> Graph:
    columns = _columns()
    specs = {
        type_: {
            name: ColumnSpec(str(column.dtype).removeprefix("torch."), tuple(column.shape[1:]))
            for name, column in of_type.items()
        }
        for type_, of_type in columns.items()
    }
    schema = Schema(("user", "item"), (BUYS, BOUGHT_BY), columns=specs)
    topology = CscGraph(schema, COUNTS, {BUYS: _edges(BUYS), BOUGHT_BY: _edges(BOUGHT_BY)})
    return Graph(topology, FeatureTable(columns))


def tensors(batch: Batch) -> list[Tensor]:
    """Every tensor of a batch."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    batch.map(note)
    return found


def bits(batch: Batch) -> tuple[object, ...]:
    """All that a batch is, but the seconds it took."""
    shape = [sorted(map(str, block.adjacencies)) for block in batch.blocks]
    columns = [(t, sorted(of_type)) for t, of_type in batch.columns.items()]
    return (
        batch.epoch,
        batch.step,
        batch.num_global_seeds,
        shape,
        columns,
        [t.tolist() for t in tensors(batch)],
    )
