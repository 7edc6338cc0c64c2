"""Embeddings of a model while it computes a part of its graph with new numbers of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from khop.models.encoder import Encoder
from khop.models.names import parameter_name
from khop.models.node_embedding import NodeEmbedding
from khop.schema import NodeType


@contextmanager
def renumbered(
    model: nn.Module, nodes: Mapping[NodeType, Tensor], counts: Mapping[NodeType, int]
) -> Iterator[None]:
    """Read embeddings by new numbers inside the block: node i of a type is `nodes[type][i]`, int64.

    `counts` are the nodes of the graph of training. A node from there on has the row `unknown` of its type.
    ValueError if the model was trained without such a row, and for tables by node outside of `khop.models`'
    encoder.
    """
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    _refuse_others(model, [encoder.tables for encoder in encoders], counts)
    before = [(encoder.tables, name, table) for encoder in encoders for name, table in encoder.tables.items()]
    rows = [
        (encoder.tables, parameter_name(node_type), _rows(encoder, node_type, ids, counts[node_type]))
        for encoder in encoders
        for node_type, ids in nodes.items()
        if parameter_name(node_type) in encoder.tables
    ]
    try:
        for tables, name, of_type in rows:
            tables[name] = nn.Embedding.from_pretrained(of_type)
        yield
    finally:
        for tables, name, table in before:
            tables[name] = table


def _rows(encoder: Encoder, node_type: NodeType, nodes: Tensor, count: int) -> Tensor:
    """Return (nodes, width): the embeddings of nodes, and for new nodes the row `unknown`."""
    name = parameter_name(node_type)
    weight = encoder.tables[name].weight
    assert isinstance(weight, Tensor)
    is_new = (nodes >= count).to(weight.device)
    rows = (
        weight.detach()[nodes.to(weight.device).masked_fill(is_new, 0)]
        if count
        else weight.new_zeros(nodes.numel(), weight.shape[1])
    )
    if is_new.any():
        if name not in encoder.unknown:
            raise ValueError(
                f"node type {node_type!r}: the model reads embeddings by node of it, and new nodes have "
                "none; set model.unknown, such as 0.05, and train again, or give the type columns instead of "
                "embeddings"
            )
        rows[is_new] = encoder.unknown[name].weight.detach()  # type: ignore[operator]
    return rows


def _refuse_others(model: nn.Module, known: list[nn.ModuleDict], counts: Mapping[NodeType, int]) -> None:
    known_tables = [table for of in known for table in of.values()]
    for name, module in model.named_modules():
        match module:
            case nn.Embedding(num_embeddings=rows) | NodeEmbedding(count=rows):
                is_known = any(module is table for table in known_tables)
                if rows in counts.values() and not is_known:
                    raise ValueError(
                        f"{type(model).__name__}.{name}: has {rows:,} rows, as many as the graph has nodes "
                        "of a type; new nodes have no embedding in a table of a custom model"
                    )
