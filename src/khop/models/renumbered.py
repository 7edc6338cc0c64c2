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

    `counts` are the nodes of the graph of training. ValueError for a node from there on, which has no
    embedding, and for tables by node outside of `khop.models`' encoder.
    """
    tables = [module.tables for module in model.modules() if isinstance(module, Encoder)]
    _refuse_others(model, tables, counts)
    found = [(of, t, of[parameter_name(t)]) for of in tables for t in nodes if parameter_name(t) in of]
    for _, node_type, _ in found:
        if nodes[node_type].numel() and int(nodes[node_type].max()) >= counts[node_type]:
            raise ValueError(
                f"node type {node_type!r}: the model reads embeddings by node of it, and new nodes have "
                "none; give the type columns in the import instead of embeddings, and train again"
            )
    try:
        for of, node_type, table in found:
            weight = table.weight
            assert isinstance(weight, Tensor)
            rows = weight.detach()[nodes[node_type].to(weight.device)]
            of[parameter_name(node_type)] = nn.Embedding.from_pretrained(rows)
        yield
    finally:
        for of, node_type, table in found:
            of[parameter_name(node_type)] = table


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
