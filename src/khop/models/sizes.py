"""Sizes of a model, derived from its graph and its purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from torch import Tensor

from khop.arguments import check_word
from khop.models.node_embedding import EmbeddingUpdate
from khop.schema import EdgeType, NodeType, Schema

Targets = NodeType | tuple[NodeType, ...]
# Node types with embeddings: those without the input column; all, beside the column.
EmbeddedTypes = Literal["missing", "others", "all"]


class HasTypes(Protocol):
    """An object with known types, columns and counts: a graph, a graph store, a folder."""

    @property
    def schema(self) -> Schema:
        """Types of the graph."""
        ...

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        ...

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Return the ids before renumbering, int64 (nodes); None if never renumbered."""
        ...


@dataclass(frozen=True)
class ModelSizes:
    """Types, widths and counts that determine the shapes of a model's parameters."""

    inputs: Mapping[NodeType, int]  # width of the input column; types without the column are left out
    edge_types: tuple[EdgeType, ...]
    targets: Targets  # one node type: outputs are its rows; several: outputs are a mapping
    outputs: int  # width of an output row: number of classes, or the decoder's input width
    column: str = "x"
    embedding: int | None = None  # width of embeddings of types without the column; 0 = none, None = an error
    embedded: Mapping[NodeType, int] = field(default_factory=dict)  # number of nodes of types with embeddings
    embedding_update: EmbeddingUpdate = "dense"  # training of those embeddings
    sparse: frozenset[NodeType] = frozenset()  # types whose input column is sparse
    unknown: float = 0.0  # probability that training reads the row of nodes without an embedding; 0: no row
    # Numbers of nodes with embeddings in the order of their original ids, of types that were renumbered: a
    # node begins with the row that it has in the graph before.
    numbers: Mapping[NodeType, Tensor] = field(default_factory=dict, compare=False)

    @property
    def target_types(self) -> tuple[NodeType, ...]:
        """Node types of the output's rows."""
        return (self.targets,) if isinstance(self.targets, str) else self.targets

    @classmethod
    def of(
        cls,
        graph: HasTypes,
        target: NodeType | Sequence[NodeType] | None = None,
        column: str = "x",
        label: str | None = None,
        outputs: int | None = None,
        embedding: int | None = None,
        embedding_update: EmbeddingUpdate = "dense",
        embedded_types: EmbeddedTypes = "missing",
        unknown: float = 0.0,
    ) -> ModelSizes:
        """Return sizes of a model of one type or, for a list of targets, an encoder of several types.

        Without `outputs` the model is a classifier with an output per class; target and label default to the
        graph's only node type and its only column with classes. `outputs` are numbers per node: of a target
        that is named, for regression or multi-label classification, or of an encoder. Embeddings are for node
        types without the column; with `embedded_types="others"` for those of them that are no target, with
        "all" for all node types. `unknown` is the probability that a training step reads the row of new nodes
        in place of a node's embedding; 0 for no such row.
        """
        schema = graph.schema
        targets: Targets
        if isinstance(target, str) and outputs is not None:
            (targets,), outputs = _encoder(schema, (target,), label, outputs)
        elif target is None or isinstance(target, str):
            targets, outputs = _classifier(schema, target, label, outputs)
        else:
            targets, outputs = _encoder(schema, tuple(target), label, outputs)
        if embedding is not None and embedding < 0:
            raise ValueError(f"embedding {embedding}: must be a width of at least 1, or 0 for none")
        check_word("embedding_update", embedding_update, EmbeddingUpdate)
        check_word("embedded_types", embedded_types, EmbeddedTypes)
        if embedded_types == "all" and not embedding:
            raise ValueError(f"embedded_types 'all' with embedding {embedding}: give a width, such as 64")
        specs = {t: schema.columns.get(t, {}) for t in schema.node_types}
        inputs = {t: of_type[column].width for t, of_type in specs.items() if column in of_type}
        if not inputs and not embedding:
            there = {t: sorted(of_type) for t, of_type in specs.items()}
            raise ValueError(
                f"column {column!r}: no node type has it; there are {there}. Name one of these, or give "
                "embedding=64 for trained embeddings instead"
            )
        seeds = {targets} if isinstance(targets, str) else set(targets)
        left_out = {"missing": set(inputs), "others": {*inputs, *seeds}, "all": set[NodeType]()}
        having = [t for t in schema.node_types if embedding and t not in left_out[embedded_types]]
        embedded = {t: graph.num_nodes(t) for t in having}
        originals = {t: graph.original_ids(t) for t in having}
        numbers = {t: ids.argsort().argsort() for t, ids in originals.items() if ids is not None}
        if not 0 <= unknown < 1:
            raise ValueError(f"unknown {unknown}: must be a probability below 1, or 0 for no such row")
        sizes = cls(
            inputs, schema.edge_types, targets, outputs, column, embedding, embedded, embedding_update
        )
        sparse = {t for t in inputs if specs[t][column].sparse_width is not None}
        return replace(sizes, unknown=unknown, sparse=frozenset(sparse), numbers=numbers)


def _classifier(
    schema: Schema, target: NodeType | None, label: str | None, outputs: int | None
) -> tuple[NodeType, int]:
    if outputs is not None:
        raise ValueError(
            f"outputs {outputs}: a classifier has as many as its label has classes; name the target of other "
            "outputs, as target='item', or for an encoder a list, as target=['item']"
        )
    target, label = schema.label_column(target, label)
    classes = schema.column(target, label).num_classes
    assert classes is not None
    return target, classes


def _encoder(
    schema: Schema, targets: tuple[NodeType, ...], label: str | None, outputs: int | None
) -> tuple[tuple[NodeType, ...], int]:
    if label is not None:
        raise ValueError(
            f"label {label!r}: an encoder of {list(targets)} has none; name one target to classify it, "
            "without outputs"
        )
    strangers = [t for t in targets if t not in schema.node_types]
    if strangers or not targets or len(set(targets)) != len(targets):
        raise ValueError(
            f"target {list(targets)}: must be different node types of the graph, of {list(schema.node_types)}"
        )
    if outputs is None or outputs < 1:
        raise ValueError(
            f"outputs {outputs}: an encoder of {list(targets)} needs the width of its rows, at least 1"
        )
    return targets, outputs
