"""Batches as messages: the tensors that a server sends, and checks of received batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.batch import Adjacency, Block, Columns, LinkRows, Sample, Span, Subgraph
from khop.kernels.csc import check_ids, check_segments
from khop.loading.columns import ColumnChoice
from khop.loading.source import Drawn
from khop.schema import EdgeType, NodeType, Schema, Type
from khop.servers.codec import DTYPES


def sent_batch(drawn: Drawn, origin: float) -> Drawn:
    """Return the parts of a batch to send. Spans are relative to `origin`; blocks of a subgraph are views."""
    sample = drawn.sample if drawn.sample.subgraph is None else replace(drawn.sample, blocks=())
    return replace(drawn, sample=sample, spans=_moved(drawn.spans, -origin))


@dataclass(frozen=True)
class BatchCheck:
    """The expected contents of an answer."""

    schema: Schema
    num_nodes: Mapping[NodeType, int]
    columns: ColumnChoice

    def checked(self, batch: Drawn, origin: float) -> Drawn:
        """Return a received batch; ValueError names the part that does not fit."""
        sample = self._sample(batch.sample)
        seeds = batch.seed_nodes
        if list(seeds) != list(sample.seed_index):
            raise ValueError(f"batch: seeds of {list(seeds)}, rows of {list(sample.seed_index)}")
        for node_type, ids in seeds.items():
            check_ids(ids, self.num_nodes.get(node_type, 0), f"batch: seed of {node_type!r}")
            if ids.shape != sample.seed_index[node_type].shape:
                raise ValueError(f"batch: {ids.numel()} seeds of {node_type!r} have another number of rows")
        self._check_columns(batch.columns, self.columns.of_nodes, sample.nodes)
        self._check_columns(batch.seed_columns, self.columns.of_seeds, seeds)
        return replace(batch, sample=sample, spans=_moved(batch.spans, origin))

    def _sample(self, sample: Sample) -> Sample:
        nodes, subgraph = sample.nodes, sample.subgraph
        for node_type, ids in nodes.items():
            check_ids(ids, self.num_nodes.get(node_type, 0), f"batch: {node_type!r}")
        for node_type, rows in sample.seed_index.items():
            check_ids(rows, _count(nodes, node_type), f"batch: row of a seed of {node_type!r}")
        if subgraph is not None:
            _check_hops(subgraph)
        blocks = sample.blocks if subgraph is None else subgraph.blocks()
        counts = {t: ids.numel() for t, ids in nodes.items()}
        whole = () if subgraph is None else (Block(subgraph.adjacencies, counts, counts),)
        for block in (*whole, *blocks):
            _check_block(block, counts)
        turned = {} if subgraph is None else subgraph.turned
        sent = [subgraph.adjacencies] if subgraph is not None else [block.adjacencies for block in blocks]
        for adjacencies in sent:
            for edge_type, edges in adjacencies.items():
                self._check_edges(edges, turned.get(edge_type, edge_type))
        if sample.trees is not None:
            _check_trees(sample.trees, counts, sum(rows.numel() for rows in sample.seed_index.values()))
        for edge_type, links in sample.links.items():
            _check_links(links, sample.seed_index, edge_type)
        for name in ("seed_positions", "seed_times"):
            for node_type, values in getattr(sample, name).items():
                if values.numel() != _count(sample.seed_index, node_type):
                    raise ValueError(f"batch: {values.numel()} {name} of the seeds of {node_type!r}")
        _check_weights(sample)
        return replace(sample, blocks=blocks)

    def _check_edges(self, edges: Adjacency, origin: EdgeType) -> None:
        """Check that there is one value per edge."""
        count = edges.indices.numel()
        for name in ("edge_ids", "reverse", "weight", "elapsed"):
            values = getattr(edges, name)
            if values is not None and values.numel() != count:
                raise ValueError(f"batch: {values.numel()} {name} of {count} edges of {origin}")
        self._check_named(edges.columns, origin, self.columns.of_edges.get(origin, ()), count)

    def _check_columns(
        self, found: Columns, wanted: Mapping[NodeType, Sequence[str]], rows: Mapping[NodeType, Tensor]
    ) -> None:
        if list(found) != list(wanted):
            raise ValueError(f"batch: columns of {list(found)}, requested were those of {list(wanted)}")
        for node_type, columns in found.items():
            self._check_named(columns, node_type, wanted[node_type], _count(rows, node_type))

    def _check_named(
        self, found: Mapping[str, Tensor], type_: Type, wanted: Sequence[str], rows: int
    ) -> None:
        """Check columns of a type: they must be the wanted ones, with a row for each node or edge."""
        if list(found) != list(wanted):
            raise ValueError(f"batch: columns {list(found)} of {type_!r}, requested were {list(wanted)}")
        for name, column in found.items():
            dtype, shape = self._spec(type_, name)
            if column.dtype != dtype or column.shape != (rows, *shape):
                raise ValueError(
                    f"batch: column {name!r} of {type_!r} is {column.dtype} {tuple(column.shape)}, and must "
                    f"be {dtype} {(rows, *shape)}"
                )

    def _spec(self, type_: Type, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Return dtype and shape of a column's row."""
        spec = self.schema.columns[type_][name]
        widened = spec.is_narrow and name in self.columns.as_float32.get(type_, ())
        return torch.float32 if widened else DTYPES[spec.dtype], spec.shape


def _check_hops(subgraph: Subgraph) -> None:
    nodes, per_hop = subgraph.nodes_per_hop, subgraph.edges_per_hop
    missing = [end for t in subgraph.adjacencies for end in (t[0], t[2]) if end not in nodes]
    if missing:
        raise ValueError(f"batch: edges join {missing[0]!r}, of which there are no nodes per hop")
    lengths = {len(counts) for counts in nodes.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"batch: nodes per hop of {sorted(lengths)} hops")
    if per_hop is None:
        return
    edges = {t: a.indices.numel() for t, a in subgraph.adjacencies.items()}
    if {t: sum(counts) for t, counts in per_hop.items()} != edges or any(
        len(counts) + 1 not in lengths for counts in per_hop.values()
    ):
        raise ValueError(f"batch: edges per hop are {per_hop}, in all {edges}")


def _check_block(block: Block, counts: Mapping[NodeType, int]) -> None:
    """Check that all edges are between rows of the batch's nodes."""
    for of_block in (block.src_counts, block.dst_counts):
        if any(count > counts.get(t, 0) for t, count in of_block.items()):
            raise ValueError(f"batch: a block of {dict(of_block)} rows, the batch has {dict(counts)}")
    for edge_type, edges in block.adjacencies.items():
        rows = (block.src_counts.get(edge_type[0]), block.dst_counts.get(edge_type[2]))
        if (edges.num_src, edges.num_dst) != rows:
            found = (edges.num_src, edges.num_dst)
            raise ValueError(f"batch: edges of {edge_type} join {found} rows in a block of {rows}")
        try:
            check_segments(edges.indptr, edges.indices, edges.num_src)
        except ValueError as error:
            raise ValueError(f"batch: edges of {edge_type}: {error}") from error


def _check_trees(trees: Mapping[NodeType, Tensor], rows: Mapping[NodeType, int], seeds: int) -> None:
    found = {t: ids.numel() for t, ids in trees.items()}
    if found != rows:
        raise ValueError(f"batch: trees of {found} nodes, the batch has {dict(rows)}")
    for node_type, numbers in trees.items():
        check_ids(numbers, seeds, f"batch: tree of {node_type!r}")


def _check_links(links: LinkRows, seeds: Mapping[NodeType, Tensor], edge_type: EdgeType) -> None:
    sources, destinations = _count(seeds, edge_type[0]), _count(seeds, edge_type[2])
    check_ids(links.source, sources, "batch: source")
    check_ids(links.destination, destinations, "batch: destination")
    pairs, count = links.source.numel(), links.positions.numel()
    if links.destination.numel() != pairs or count * links.pairs_per_link != pairs:
        raise ValueError(f"batch: {pairs} pairs of {count} links")
    if links.labels is not None and links.labels.shape[:1] != links.source.shape:
        raise ValueError(f"batch: labels of shape {tuple(links.labels.shape)} of {pairs} pairs")
    for name, rows in (("negatives", destinations), ("source_negatives", sources)):
        negatives = getattr(links, name)
        if negatives is not None:
            if negatives.shape[0] != count:
                raise ValueError(f"batch: {name} of shape {tuple(negatives.shape)}")
            check_ids(negatives.flatten(), rows, f"batch: {name}")
    for name, due in (("relations", pairs), ("times", count)):
        values = getattr(links, name)
        if values is not None and values.numel() != due:
            raise ValueError(f"batch: {name} of shape {tuple(values.shape)}, must be ({due})")


def _check_weights(sample: Sample) -> None:
    """Check the loss weights: one for each seed of a node type, or link of an edge type."""
    if sample.loss_weights is None:
        return
    counts: dict[Type, int] = {t: rows.numel() for t, rows in sample.seed_index.items()}
    counts |= {t: links.positions.numel() for t, links in sample.links.items()}
    for type_, weights in sample.loss_weights.by_type.items():
        if not weights.is_floating_point() or weights.shape != (counts.get(type_),):
            raise ValueError(
                f"batch: weights of {type_!r} are {weights.dtype} {tuple(weights.shape)}, and must be of a "
                f"float type, ({counts.get(type_, 0)})"
            )


def _moved(spans: Sequence[Span], seconds: float) -> tuple[Span, ...]:
    return tuple(replace(span, begun=span.begun + seconds, ended=span.ended + seconds) for span in spans)


def _count(by_node_type: Mapping[NodeType, Tensor], node_type: NodeType) -> int:
    return by_node_type[node_type].numel() if node_type in by_node_type else 0
