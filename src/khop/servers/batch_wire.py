"""Drawn batches as messages: the structure in the header, each tensor once. Readers check all they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from khop.batch import Adjacency, Block, Columns, LinkRows, LossWeights, Sample, Span, Subgraph
from khop.kernels.csc import check_ids, check_segments
from khop.loading.columns import ColumnChoice
from khop.loading.source import Drawn
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema
from khop.servers.frame import DTYPES, Document, Frame, Plain, Tensors, Type, by_type

Key = TypeVar("Key", NodeType, EdgeType, Type)


@dataclass(frozen=True)
class Expected:
    """The contents of an answer, known before it comes."""

    schema: Schema
    num_nodes: Mapping[NodeType, int]
    columns: ColumnChoice

    def spec(self, type_: Type, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Return dtype and shape of a row of a column."""
        spec: ColumnSpec = self.schema.columns[type_][name]
        widened = spec.is_narrow and name in self.columns.as_float32.get(type_, ())
        return torch.float32 if widened else DTYPES[spec.dtype], spec.shape


def written_batch(drawn: Drawn, origin: float, tensors: Tensors) -> Plain:
    """Return the structure of a batch, and add its tensors. Spans count seconds from `origin`."""
    return {
        "sample": _written_sample(drawn.sample, tensors),
        "seed_nodes": _all(drawn.seed_nodes, tensors),
        "columns": _columns(drawn.columns, tensors),
        "seed_columns": _columns(drawn.seed_columns, tensors),
        "spans": [[s.stage, s.begun - origin, s.ended - origin, s.thread, s.part] for s in drawn.spans],
        "traffic": by_type(drawn.traffic),
    }


def read_batch(frame: Frame, given: Document, expected: Expected, origin: float) -> Drawn:
    """Return the batch of a message; ValueError names the field that does not fit."""
    reader = _Reader(frame, expected)
    sample = reader.sample(given["sample"])
    seed_nodes = reader.tensors(given["seed_nodes"], torch.int64)
    if list(seed_nodes) != list(sample.seed_index):
        raise ValueError(f"{given.where}: seeds of {list(seed_nodes)}, rows of {list(sample.seed_index)}")
    for node_type, ids in seed_nodes.items():
        check_ids(ids, expected.num_nodes.get(node_type, 0), f"{given.where}: seed of {node_type!r}")
    for node_type, ids in seed_nodes.items():
        if ids.shape != sample.seed_index[node_type].shape:
            raise ValueError(
                f"{given.where}: {ids.numel()} seeds of {node_type!r} have another number of rows"
            )
    return Drawn(
        sample,
        seed_nodes,
        reader.columns(given["columns"], expected.columns.of_nodes, sample.nodes),
        reader.columns(given["seed_columns"], expected.columns.of_seeds, seed_nodes),
        spans=tuple(_span(each, origin) for each in given["spans"].each()),
        traffic={str(name): value.real() for name, value in given["traffic"].entries()},
    )


def _written_sample(sample: Sample, tensors: Tensors) -> Plain:
    subgraph, weights = sample.subgraph, sample.loss_weights
    return {
        "nodes": _all(sample.nodes, tensors),
        "seed_index": _all(sample.seed_index, tensors),
        "blocks": None if subgraph is not None else [_written_block(b, tensors) for b in sample.blocks],
        "subgraph": None if subgraph is None else _written_subgraph(subgraph, tensors),
        "trees": None if sample.trees is None else _all(sample.trees, tensors),
        "links": by_type({t: _written_links(rows, tensors) for t, rows in sample.links.items()}),
        "loss_weights": None
        if weights is None
        else {"by_type": _all(weights.by_type, tensors), "total": weights.total},
    }


def _written_block(block: Block, tensors: Tensors) -> Plain:
    return {
        "adjacencies": by_type({t: _written_edges(a, tensors) for t, a in block.adjacencies.items()}),
        "src": by_type(block.src_counts),
        "dst": by_type(block.dst_counts),
    }


def _written_subgraph(subgraph: Subgraph, tensors: Tensors) -> Plain:
    edges = subgraph.edges_per_hop
    return {
        "adjacencies": by_type({t: _written_edges(a, tensors) for t, a in subgraph.adjacencies.items()}),
        "nodes_per_hop": by_type({t: list(counts) for t, counts in subgraph.nodes_per_hop.items()}),
        "edges_per_hop": None if edges is None else by_type({t: list(counts) for t, counts in edges.items()}),
        "turned": by_type({t: list(origin) for t, origin in subgraph.turned.items()}),
    }


def _written_edges(edges: Adjacency, tensors: Tensors) -> Plain:
    return {
        "indptr": tensors(edges.indptr),
        "indices": tensors(edges.indices),
        "num_src": edges.num_src,
        "edge_ids": tensors.given(edges.edge_ids),
        "columns": _all(edges.columns, tensors),
        "reverse": tensors.given(edges.reverse),
        "weight": tensors.given(edges.weight),
    }


def _written_links(rows: LinkRows, tensors: Tensors) -> Plain:
    return {
        "source": tensors(rows.source),
        "destination": tensors(rows.destination),
        "positions": tensors(rows.positions),
        "labels": tensors.given(rows.labels),
        "negatives": tensors.given(rows.negatives),
        "pairs_per_link": rows.pairs_per_link,
        "source_negatives": tensors.given(rows.source_negatives),
        "relations": tensors.given(rows.relations),
        "times": tensors.given(rows.times),
    }


def _all(values: Mapping[Key, Tensor], tensors: Tensors) -> Plain:
    return by_type({key: tensors(value) for key, value in values.items()})


def _columns(columns: Columns, tensors: Tensors) -> Plain:
    return by_type({t: _all(of_type, tensors) for t, of_type in columns.items()})


@dataclass(frozen=True)
class _Reader:
    """Reads the parts of a batch, and checks each of them."""

    frame: Frame
    expected: Expected

    def sample(self, given: Document) -> Sample:
        nodes = self.tensors(given["nodes"], torch.int64)
        for node_type, ids in nodes.items():
            check_ids(ids, self.expected.num_nodes.get(node_type, 0), f"{given.where}: {node_type!r}")
        seed_index = self.tensors(given["seed_index"], torch.int64)
        for node_type, rows in seed_index.items():
            check_ids(rows, _count(nodes, node_type), f"{given.where}: row of a seed of {node_type!r}")
        subgraph = None if given.given("subgraph") is None else self.subgraph(given["subgraph"])
        if subgraph is None:
            blocks = tuple(self.block(block) for block in given["blocks"].each())
        else:
            blocks = subgraph.blocks()
        trees = None if given.given("trees") is None else self.trees(given["trees"], nodes, seed_index)
        links = {
            _edge_type(t): self.links(of, seed_index, _edge_type(t)) for t, of in given["links"].entries()
        }
        weights = None
        if given.given("loss_weights") is not None:
            counts: dict[Type, int] = {t: rows.numel() for t, rows in seed_index.items()}
            counts.update({t: rows.positions.numel() for t, rows in links.items()})
            weights = self.weights(given["loss_weights"], counts)
        _check_rows(given.where, blocks, subgraph, nodes)
        return Sample(nodes, blocks, seed_index, subgraph, trees, links, weights)

    def trees(
        self, given: Document, nodes: Mapping[NodeType, Tensor], seeds: Mapping[NodeType, Tensor]
    ) -> dict[NodeType, Tensor]:
        """Read the number of the seed of each node."""
        trees = self.tensors(given, torch.int64)
        found, rows = ({t: ids.numel() for t, ids in of.items()} for of in (trees, nodes))
        if found != rows:
            raise ValueError(f"{given.where}: trees of {found} nodes, the batch has {rows}")
        count = sum(ids.numel() for ids in seeds.values())
        for node_type, numbers in trees.items():
            check_ids(numbers, count, f"{given.where}: tree of {node_type!r}")
        return trees

    def weights(self, given: Document, counts: Mapping[Type, int]) -> LossWeights:
        """Read the weights of losses: one for each seed of a node type, or link of an edge type."""
        values = {t: self.frame.tensor(number) for t, number in given["by_type"].entries()}
        for type_, weights in values.items():
            if not weights.is_floating_point() or weights.shape != (counts.get(type_),):
                raise ValueError(
                    f"{given.where}: weights of {type_!r} are {weights.dtype} {tuple(weights.shape)}, and "
                    f"must be of a float type, ({counts.get(type_, 0)})"
                )
        return LossWeights(values, given["total"].real())

    def block(self, given: Document) -> Block:
        src, dst = ({_node_type(t): n.whole() for t, n in given[end].entries()} for end in ("src", "dst"))
        return Block(self.adjacencies(given["adjacencies"], {}), src, dst)

    def subgraph(self, given: Document) -> Subgraph:
        turned = {_edge_type(t): _edge_type(origin.type_()) for t, origin in given["turned"].entries()}
        adjacencies = self.adjacencies(given["adjacencies"], turned)
        nodes = {_node_type(t): _numbers(counts) for t, counts in given["nodes_per_hop"].entries()}
        missing = [end for t in adjacencies for end in (t[0], t[2]) if end not in nodes]
        if missing:
            raise ValueError(f"{given.where}: edges join {missing[0]!r}, of which there are no nodes per hop")
        lengths = {len(counts) for counts in nodes.values()}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"{given.where}: nodes per hop of {sorted(lengths)} hops")
        if given.given("edges_per_hop") is None:
            return Subgraph(adjacencies, nodes, None, turned)
        per_hop = {_edge_type(t): _numbers(counts) for t, counts in given["edges_per_hop"].entries()}
        edges = {t: a.indices.numel() for t, a in adjacencies.items()}
        if {t: sum(counts) for t, counts in per_hop.items()} != edges or any(
            len(counts) + 1 not in lengths for counts in per_hop.values()
        ):
            raise ValueError(f"{given.where}: edges per hop are {per_hop}, in all {edges}")
        return Subgraph(adjacencies, nodes, per_hop, turned)

    def adjacencies(self, given: Document, turned: Mapping[EdgeType, EdgeType]) -> dict[EdgeType, Adjacency]:
        found = {}
        for type_, edges in given.entries():
            edge_type = _edge_type(type_)
            found[edge_type] = self.edges(edges, turned.get(edge_type, edge_type))
        return found

    def edges(self, given: Document, origin: EdgeType) -> Adjacency:
        indptr, indices = (
            self.vector(given["indptr"], torch.int64),
            self.vector(given["indices"], torch.int32),
        )
        count = indices.numel()

        def per_edge(name: str, dtype: torch.dtype) -> Tensor | None:
            number = given.given(name)
            return None if number is None else self.vector(number, dtype, count)

        columns = self.named(given["columns"], origin, self.expected.columns.of_edges.get(origin, ()), count)
        return Adjacency(
            indptr,
            indices,
            given["num_src"].whole(0, 1 << 31),
            per_edge("edge_ids", torch.int64),
            columns,
            per_edge("reverse", torch.bool),
            per_edge("weight", torch.float32),
        )

    def links(self, given: Document, seeds: Mapping[NodeType, Tensor], edge_type: EdgeType) -> LinkRows:
        source, destination = (
            self.vector(given["source"], torch.int64),
            self.vector(given["destination"], torch.int64),
        )
        positions = self.vector(given["positions"], torch.int64)
        sources, destinations = _count(seeds, edge_type[0]), _count(seeds, edge_type[2])
        check_ids(source, sources, f"{given.where}: source")
        check_ids(destination, destinations, f"{given.where}: destination")
        per_link, pairs = given["pairs_per_link"].whole(1, 1 << 40), source.numel()
        if destination.numel() != pairs or positions.numel() * per_link != pairs:
            raise ValueError(f"{given.where}: {pairs} pairs of {positions.numel()} links")
        labels = None if given.given("labels") is None else self.frame.tensor(given["labels"])
        negatives = self.negatives(given, "negatives", positions.numel(), destinations)
        of_sources = self.negatives(given, "source_negatives", positions.numel(), sources)
        relations, times = (
            None if given.given(name) is None else self.vector(given[name], torch.int64, count)
            for name, count in (("relations", pairs), ("times", positions.numel()))
        )
        if labels is not None and labels.shape[:1] != source.shape:
            raise ValueError(f"{given.where}: labels of shape {tuple(labels.shape)} of {pairs} pairs")
        ends = (source, destination, positions, labels, negatives)
        return LinkRows(*ends, per_link, of_sources, relations, times)

    def negatives(self, given: Document, name: str, links: int, rows: int) -> Tensor | None:
        if given.given(name) is None:
            return None
        negatives = self.frame.tensor(given[name])
        if negatives.dim() != 2 or negatives.shape[0] != links:
            raise ValueError(f"{given.where}: {name} of shape {tuple(negatives.shape)}")
        check_ids(negatives.flatten(), rows, f"{given.where}: {name}")
        return negatives

    def columns(
        self, given: Document, wanted: Mapping[NodeType, Sequence[str]], rows: Mapping[NodeType, Tensor]
    ) -> Columns:
        found = {
            _node_type(t): self.named(columns, t, wanted.get(_node_type(t), ()), _count(rows, _node_type(t)))
            for t, columns in given.entries()
        }
        if list(found) != list(wanted):
            raise ValueError(
                f"{given.where}: columns of {list(found)}, requested were those of {list(wanted)}"
            )
        return found

    def named(self, given: Document, type_: Type, wanted: Sequence[str], rows: int) -> dict[str, Tensor]:
        """Read columns of a type by name; they must be the wanted ones, with a row for each node or edge."""
        found = {str(name): self.frame.tensor(number) for name, number in given.entries()}
        if list(found) != list(wanted):
            raise ValueError(
                f"{given.where}: columns {list(found)} of {type_!r}, requested were {list(wanted)}"
            )
        for name, column in found.items():
            dtype, shape = self.expected.spec(type_, name)
            if column.dtype != dtype or column.shape != (rows, *shape):
                raise ValueError(
                    f"{given.where}: column {name!r} of {type_!r} is {column.dtype} {tuple(column.shape)}, "
                    f"and must be {dtype} {(rows, *shape)}"
                )
        return found

    def tensors(self, given: Document, dtype: torch.dtype) -> dict[NodeType, Tensor]:
        return {_node_type(t): self.vector(number, dtype) for t, number in given.entries()}

    def vector(self, number: Document, dtype: torch.dtype, count: int | None = None) -> Tensor:
        found = self.frame.tensor(number)
        if found.dtype != dtype or found.dim() != 1 or count not in (None, found.numel()):
            wanted = "n" if count is None else count
            raise ValueError(
                f"{number.where}: is {found.dtype} {tuple(found.shape)}, must be {dtype} ({wanted})"
            )
        return found


def _check_rows(
    where: str, blocks: Sequence[Block], subgraph: Subgraph | None, nodes: Mapping[NodeType, Tensor]
) -> None:
    """Raise ValueError unless all edges are between rows of the nodes of the batch."""
    counts = {t: ids.numel() for t, ids in nodes.items()}
    whole = () if subgraph is None else (Block(subgraph.adjacencies, counts, counts),)
    for block in (*whole, *blocks):
        for of_block in (block.src_counts, block.dst_counts):
            if any(count > counts.get(t, 0) for t, count in of_block.items()):
                raise ValueError(f"{where}: a block of {dict(of_block)} rows, the batch has {counts}")
        for edge_type, edges in block.adjacencies.items():
            rows = (block.src_counts.get(edge_type[0]), block.dst_counts.get(edge_type[2]))
            if (edges.num_src, edges.num_dst) != rows:
                found = (edges.num_src, edges.num_dst)
                raise ValueError(f"{where}: edges of {edge_type} join {found} rows in a block of {rows}")
            try:
                check_segments(edges.indptr, edges.indices, edges.num_src)
            except ValueError as error:
                raise ValueError(f"{where}: edges of {edge_type}: {error}") from error


def _span(given: Document, origin: float) -> Span:
    match given.each():
        case [stage, begun, ended, thread, part]:
            return Span(
                stage.text(), origin + begun.real(), origin + ended.real(), thread.text(), part.text()
            )
    raise ValueError(f"{given.where}: is no span of five fields")


def _numbers(given: Document) -> tuple[int, ...]:
    return tuple(number.whole(0, 1 << 40) for number in given.each())


def _count(by_node_type: Mapping[NodeType, Tensor], node_type: NodeType) -> int:
    return by_node_type[node_type].numel() if node_type in by_node_type else 0


def _node_type(type_: Type) -> NodeType:
    if not isinstance(type_, str):
        raise ValueError(f"{type_!r}: is no node type")
    return type_


def _edge_type(type_: Type) -> EdgeType:
    if isinstance(type_, str):
        raise ValueError(f"{type_!r}: is no edge type")
    return type_
