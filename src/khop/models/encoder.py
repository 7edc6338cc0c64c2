"""Encoder of input columns and embeddings, and the sizes that determine the shapes of a model's parameters.

Nodes that are unseen in training get the shared embedding `unknown`. `renumbered` maps embeddings to the
nodes of a part of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from khop.arguments import check_word
from khop.batch import Batch
from khop.draw import DrawKey, Purpose
from khop.kernels.activations import current_dropout_key
from khop.kernels.lazy_rows import SparseRows
from khop.kernels.philox import mix64_reference, signed
from khop.models.layer import parameter_name
from khop.models.node_embedding import EmbeddingUpdate, NodeEmbedding
from khop.schema import EdgeType, NodeType, Schema

Targets = NodeType | tuple[NodeType, ...]
# Node types with embeddings: those without the input column; all, in addition to the column.
EmbeddedTypes = Literal["missing", "others", "all"]


class HasTypes(Protocol):
    """An object with types, columns and counts: a graph, a graph store or a folder."""

    @property
    def schema(self) -> Schema:
        """Types of the graph."""
        ...

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        ...

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Return the ids before renumbering, int64 (nodes); None if not renumbered."""
        ...


@dataclass(frozen=True)
class ModelSizes:
    """Types, widths and counts that determine the shapes of a model's parameters.

    Args:
        inputs: Width of the input column by node type. Types without the column are left out.
        edge_types: Edge types that the model uses.
        targets: Node type of the output's rows. For a tuple of types, the output is a mapping by type.
        outputs: Width of an output row: the number of classes, or the input width of a decoder.
        column: Name of the input column (default "x").
        embedding: Width of the embeddings of node types without the column; 0: no embeddings; None
            (default): such types are an error.
        embedded: Number of nodes by node type with embeddings (default: no types).
        embedding_update: Training of the embeddings: "dense" (default), "sparse" or "sharded".
        sparse: Node types whose input column is sparse (default: none).
        unknown: Probability that training replaces a node's embedding by the shared embedding `unknown`,
            which unseen nodes get at inference (default 0: no shared embedding).
        numbers: Positions of the nodes in the order of their original ids, int64 (nodes), by renumbered node
            type, so that initial embeddings do not depend on the renumbering (default: none).
    Example:
        >>> sizes = khop.models.ModelSizes.of(khop.open_graph("debian"))
        >>> sizes.inputs, sizes.outputs
        ({'package': 512}, 58)
    """

    inputs: Mapping[NodeType, int]  # width of the input column; types without the column are left out
    edge_types: tuple[EdgeType, ...]
    targets: Targets  # one node type: outputs are its rows; several: outputs are a mapping
    outputs: int  # width of an output row: number of classes, or the decoder's input width
    column: str = "x"
    embedding: int | None = None  # width of embeddings of types without the column; 0: none, None: an error
    embedded: Mapping[NodeType, int] = field(default_factory=dict)  # number of nodes of types with embeddings
    embedding_update: EmbeddingUpdate = "dense"  # training of those embeddings
    sparse: frozenset[NodeType] = frozenset()  # types whose input column is sparse
    unknown: float = 0.0  # probability that training reads the shared embedding; 0: no shared embedding
    # Positions of nodes in the order of their original ids, for renumbered types with embeddings: the initial
    # embedding of a node is that in the graph before renumbering.
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
        """Return the sizes of a classifier or, for a list of targets, of an encoder.

        Args:
            graph: Graph whose types, columns and counts are used.
            target: Node type of the output's rows; default: the only type with a label. A list of types makes
                an encoder.
            column: Input column of nodes (default "x").
            label: Label column of a classifier; default: the only one of the target.
            outputs: Width of an output row, for an encoder, or for regression or multi-label classification
                of a named target. Default: the number of classes of the label.
            embedding: Width of the embeddings; 0: no embeddings; None (default): node types without `column`
                are an error.
            embedding_update: Training of the embeddings: "dense" (default), "sparse" or "sharded".
            embedded_types: Node types with embeddings: "missing" (default): types without `column`; "others":
                such types except targets; "all".
            unknown: Probability that training replaces a node's embedding by the shared embedding of unseen
                nodes (default 0: no shared embedding).
        Returns:
            The sizes.
        Raises:
            ValueError: The graph does not have the types or columns, or arguments exclude each other.
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
            raise ValueError(
                f"unknown {unknown}: must be a probability below 1; 0 disables the shared embedding"
            )
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
            f"outputs {outputs}: a classifier has one output per class of its label; for other outputs, "
            "name the target, as target='item', or for an encoder a list, as target=['item']"
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
            f"label {label!r}: an encoder of {list(targets)} has no label; for a classifier, name one "
            "target, without outputs"
        )
    strangers = [t for t in targets if t not in schema.node_types]
    if strangers or not targets or len(set(targets)) != len(targets):
        raise ValueError(
            f"target {list(targets)}: must be different node types of the graph, of {list(schema.node_types)}"
        )
    if outputs is None or outputs < 1:
        raise ValueError(
            f"outputs {outputs}: an encoder of {list(targets)} needs the width of its output rows, at least 1"
        )
    return targets, outputs


_STEPS = 1 << 31  # rates are rounded to this number of steps


class UnknownRow(nn.Module):
    """The shared embedding of unseen nodes, which training reads instead of some nodes' embeddings.

    A step drops a node with probability `rate`, depending on its id, the step, the epoch and `key`, which is
    drawn from torch's generator. All ranks and resumed runs drop the same nodes. Evaluation drops none.
    `numbers`, int64 (nodes), replace renumbered ids.
    """

    key: Tensor

    def __init__(self, width: int, rate: float, numbers: Tensor | None = None) -> None:
        super().__init__()
        if not 0 < rate < 1:
            raise ValueError(f"unknown {rate}: must be a probability above 0 and below 1")
        self.rate = rate
        self.numbers = numbers  # not a buffer, so that checkpoints and DistributedDataParallel leave it out
        self.weight = nn.Parameter(torch.zeros(width))
        self.register_buffer("key", torch.empty((), dtype=torch.int64).random_())

    def forward(self, rows: Tensor, ids: Tensor, batch: Batch) -> Tensor:
        """Return (nodes, width): the embeddings `rows` of the nodes `ids`, or the row of dropped nodes."""
        if not self.training:
            return rows
        return torch.where(self.dropped(ids, batch).unsqueeze(1), self.weight.to(rows.dtype), rows)

    def dropped(self, ids: Tensor, batch: Batch) -> Tensor:
        """Return bool (nodes): the nodes that this step drops."""
        of_step = current_dropout_key()  # of a recorded step, whose tensors are reused for each batch
        if of_step is None:
            # `full`, not `tensor`, which would copy its value to the device and wait for it.
            value = signed(DrawKey.of(0, Purpose.DROPOUT, batch.epoch, batch.step).value)
            of_step = torch.full((), value, dtype=torch.int64, device=self.key.device)
        if self.numbers is not None:
            ids = self.numbers[ids]
        words = mix64_reference(ids ^ mix64_reference(self.key ^ of_step.to(self.key.device)))
        return words >> 33 & (_STEPS - 1) < round(self.rate * _STEPS)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> UnknownRow:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.numbers is not None:
            self.numbers = fn(self.numbers)
        return self


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """Inputs of the `build` of a model; `khop.run.contexts.ModelContext` in a run."""

    graph: HasTypes
    sizes: ModelSizes  # widths of inputs and outputs, target types, edge types that the sampler follows
    hidden: int  # the setting model.hidden
    layers: int  # number of blocks of a batch

    def relation_count(self, edge_type: EdgeType, column: str) -> int:
        """Return the number of relations in an edge column, counted in the graph."""
        raise NotImplementedError


Encoding = Literal["none", "linear"]


class Encoder(nn.Module):
    """The unchanged input column ("none"), or a linear layer over it per node type ("linear").

    Types in `sizes.embedded` have an embedding of width `sizes.embedding` per node, which is concatenated
    with the column if they have it. The output lacks types with neither. With "linear", all output rows have
    width `width`. `tables` contains the embeddings: `torch.nn.Embedding` if they are dense, else
    `NodeEmbedding`. With `sizes.unknown` above 0, `unknown` contains a row for unseen nodes of each of these
    types.
    """

    def __init__(
        self, sizes: ModelSizes, node_types: Sequence[NodeType], encoding: Encoding, width: int
    ) -> None:
        super().__init__()
        check_word("encoder", encoding, Encoding)
        self.column = sizes.column
        self.sparse = sizes.sparse
        self.inputs = {t: sizes.inputs[t] for t in node_types if t in sizes.inputs}
        counts = {t: sizes.embedded[t] for t in node_types if t in sizes.embedded}
        self.embedded: tuple[NodeType, ...] = tuple(counts)
        linear = encoding == "linear"
        _check_sparse(sizes, encoding, [t for t in counts if t in self.inputs])
        learned = sizes.embedding or 0
        self.tables = nn.ModuleDict({parameter_name(t): _table(t, sizes) for t in counts})
        raw = {t: self.inputs.get(t, 0) + (learned if t in counts else 0) for t in node_types}
        raw = {t: before for t, before in raw.items() if t in self.inputs or t in counts}
        self.linear = nn.ModuleDict(
            {parameter_name(t): nn.Linear(before, width) for t, before in raw.items() if linear}
        )
        rows = {t: UnknownRow(learned, sizes.unknown, sizes.numbers.get(t)) for t in counts if sizes.unknown}
        self.unknown = nn.ModuleDict({parameter_name(t): row for t, row in rows.items()})
        self.widths: Mapping[NodeType, int] = dict.fromkeys(raw, width) if linear else raw

    def forward(self, batch: Batch) -> dict[NodeType, Tensor]:
        """Return (rows, width) for each type in `widths`; a type without nodes in the batch has 0 rows."""
        return {node_type: self._rows(node_type, batch) for node_type in self.widths}

    def _rows(self, node_type: NodeType, batch: Batch) -> Tensor:
        name = parameter_name(node_type)
        embedded = self._embedded(name, batch.sample.nodes[node_type], batch) if name in self.tables else None
        column = self._column(node_type, batch) if node_type in self.inputs else None
        if embedded is not None and node_type in self.sparse:
            return self._beside_entries(self.linear[name], column, embedded)
        if embedded is None or column is None:
            rows = column if embedded is None else embedded
        else:
            rows = torch.cat([column.to(embedded.dtype), embedded], dim=1)
        assert rows is not None  # `widths` only has these types
        if name not in self.linear:
            return rows
        linear = self.linear[name]
        out: Tensor = linear(rows.to(next(linear.parameters()).dtype))
        return out

    def _beside_entries(self, linear: nn.Module, column: Tensor | None, embedded: Tensor) -> Tensor:
        """Multiply sparse entries and embeddings by their columns of the weight."""
        weight, bias = linear.weight, linear.bias
        assert isinstance(weight, Tensor)
        assert isinstance(bias, Tensor)
        assert column is not None
        width = column.shape[1]
        out: Tensor = F.linear(column.to(weight.dtype), weight[:, :width], bias)
        return out + F.linear(embedded.to(weight.dtype), weight[:, width:])

    def _embedded(self, name: str, ids: Tensor, batch: Batch) -> Tensor:
        rows: Tensor = self.tables[name](ids)
        return self.unknown[name](rows, ids, batch) if name in self.unknown else rows

    def _column(self, node_type: NodeType, batch: Batch) -> Tensor:
        if self.column not in batch.columns.get(node_type, {}):
            raise ValueError(
                f"column {self.column!r} of {node_type!r}: the model reads it, but the batch does not have "
                f"it; give the loader columns=[{self.column!r}]"
            )
        column, width = batch.columns[node_type][self.column], self.inputs[node_type]
        return SparseRows.of(column, width) if node_type in self.sparse else column.reshape(-1, width)


def _check_sparse(sizes: ModelSizes, encoding: Encoding, embedded: Sequence[NodeType]) -> None:
    for node_type in embedded:
        if node_type in sizes.sparse and encoding == "none":
            raise ValueError(
                f"column {sizes.column!r} of {node_type!r} is sparse, and the type also has embeddings: give "
                'encoder="linear", which supports both'
            )


def _table(node_type: NodeType, sizes: ModelSizes) -> nn.Module:
    count, width, numbers = sizes.embedded[node_type], sizes.embedding or 0, sizes.numbers.get(node_type)
    if sizes.embedding_update != "dense":
        return NodeEmbedding(count, width, sizes.embedding_update, numbers)
    table = nn.Embedding(count, width)
    # The norm of a row is 1, not each of its values, because many rows are summed.
    nn.init.normal_(table.weight, std=width**-0.5)
    if numbers is not None:
        table.weight = nn.Parameter(table.weight.detach()[numbers])
    return table


@contextmanager
def renumbered(
    model: nn.Module, nodes: Mapping[NodeType, Tensor], counts: Mapping[NodeType, int]
) -> Iterator[None]:
    """Look up embeddings by new node numbers during the block: node i of a type is `nodes[type][i]`, int64.

    `counts` are the numbers of nodes in training. Later nodes have the row `unknown` of their type. Raises
    ValueError if the model was trained without this row, and for tables by node outside the encoder of
    `khop.models`.
    """
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    refuse_other_tables(model, counts)
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
    """Return (nodes, width): the embeddings of nodes, or the row `unknown` for new nodes."""
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
                f"node type {node_type!r}: the model has node embeddings for it, but none for new nodes; "
                "set model.unknown, such as 0.05, and train again, or give the type columns instead of "
                "embeddings"
            )
        rows[is_new] = encoder.unknown[name].weight.detach()  # type: ignore[operator]
    return rows


def refuse_other_tables(model: nn.Module, counts: Mapping[NodeType, int]) -> None:
    """Raise ValueError for tables by node outside encoders; `counts` are the numbers of nodes by type."""
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    known_tables = [table for encoder in encoders for table in encoder.tables.values()]
    for name, module in model.named_modules():
        match module:
            case nn.Embedding(num_embeddings=rows) | NodeEmbedding(count=rows):
                is_known = any(module is table for table in known_tables)
                if rows in counts.values() and not is_known:
                    raise ValueError(
                        f"{type(model).__name__}.{name}: has {rows:,} rows, one for each node of a type; "
                        "new nodes have no embedding in a table of a custom model"
                    )
