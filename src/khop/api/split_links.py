"""Links of a graph split into training, validation and test, and the graph for messages of each part."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from khop.api.link_split_folder import open_parts, save_parts
from khop.api.open_graph import Graph
from khop.arguments import graph_of, list_of, path_of, seed_number
from khop.distributed.link_split import split_over_ranks
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.distributed.partitioned_links import PartitionedLinks, in_this_process
from khop.draw import DrawKey, Positives, Purpose
from khop.features.store import FeatureStore
from khop.graph.csc_graph import CscGraph
from khop.graph.progress import ProgressCallback
from khop.graph.store import GraphStore
from khop.sampling.link_seeds import Links
from khop.sampling.link_split import (
    Chosen,
    EdgeRange,
    LinkColumns,
    Shares,
    WholeEdges,
    as_first_numbered,
    split_edges,
)
from khop.sampling.listed import ListedLinks
from khop.schema import EdgeType, EdgeTypeName, NodeType, edge_type_of
from khop.servers.graph import split_view
from khop.servers.split_arguments import SplitArguments

AnyLinks = Links | PartitionedLinks | ListedLinks


@dataclass(frozen=True, eq=False)
class LinkSplit:
    """The parts of `split_links`: graphs of the edges that carry messages, and the links to predict."""

    train: Graph
    val: Graph
    test: Graph
    train_links: AnyLinks
    val_links: AnyLinks
    test_links: AnyLinks

    def save(self, path: str | os.PathLike[str], *, notice: ProgressCallback | None = None) -> Path:
        """Write a folder of graph folders, one per field of this class, and return its path.

        The folder appears whole or not at all. Files that are equal in several parts take space once if the
        file system has hard links.
        """
        graphs = {"train": self.train, "val": self.val, "test": self.test}
        links = {"train": self.train_links, "val": self.val_links, "test": self.test_links}
        here = {part: in_this_process(of_part, "save") for part, of_part in links.items()}
        return save_parts(Path(path), graphs, here, notice)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> LinkSplit:
        """Open a saved split, mapped: it opens in milliseconds, and processes share its pages."""
        graphs, links = open_parts(path_of("path", path))
        return cls(
            graphs["train"], graphs["val"], graphs["test"], links["train"], links["val"], links["test"]
        )


def split_links(
    graph: Graph,
    edge_type: EdgeTypeName | Sequence[EdgeTypeName],
    val: float = 0.1,
    test: float = 0.1,
    *,
    disjoint_share: float = 0.0,
    negatives: int = 1,
    label: str | None = None,
    time: str | None = None,
    relation: str | None = None,
    seed: int = 0,
) -> LinkSplit:
    """Split the edges of one or several types into training, validation and test at random, without leaks.

    `val` and `test` are shares or counts of the links of each type. All edges between two nodes, and their
    reverses of the reverse type, go to the same part. Validation passes messages over training edges, test
    over training and validation edges. For an edge type that is its own reverse, a link appears in one
    direction. With `disjoint_share`, this share of the training links is to be predicted and carries no
    message. Without it, all training links are predicted and carry messages. Validation and test links have
    `negatives` each, which are no edges of the whole graph. `label`, `time` and `relation` are edge columns
    to use as the links' labels, times and relations; negatives are then no edges of the same relation. The
    split is a function of the graph, the arguments and `seed`; partitions and ranks do not change it.

    The parts share the node columns with `graph`, and stay in memory until they are saved. Where ranks hold
    partitions of the edges, each rank gets its own edges and a share of the links, and the call is
    collective. The links of a graph on servers are split there, and stay there.
    """
    graph_of("graph", graph)
    edge_types, facts = edge_types_of(edge_type), LinkColumns(negatives, label, time, relation)
    _check(graph, edge_types, facts)
    shares, key = Shares(val, test, disjoint_share), DrawKey.of(seed_number(seed), Purpose.SPLIT)
    if graph.servers is not None:
        return split_on_servers(graph, SplitArguments(edge_types, shares, facts, seed_number(seed)))
    parts: list[tuple[Graph, AnyLinks]]
    if graph.rank_edges is not None:
        of_ranks = split_over_ranks(graph.rank_edges, edge_types, shares, key, facts)
        parts = [(beside(graph, part.graph, graph.features, part.graph), part.links) for part in of_ranks]
    else:
        parts = _split_whole(graph, graph.in_one_piece("split_links"), edge_types, shares, key, facts)
    (train, train_links), (val_graph, val_links), (test_graph, test_links) = parts
    return LinkSplit(train, val_graph, test_graph, train_links, val_links, test_links)


def split_on_servers(graph: Graph, arguments: SplitArguments) -> LinkSplit:
    """Return graphs and lists of links that every server makes by itself, when it first needs them."""
    assert graph.servers is not None
    parts = split_view(graph.servers, arguments)
    made = [parts[name](graph.schema) for name in ("train", "val", "test")]
    train, val, test = (replace(graph, topology=edges, features=columns) for edges, columns, _ in made)
    train_links, val_links, test_links = (links for *_, links in made)
    return LinkSplit(train, val, test, train_links, val_links, test_links)


def _split_whole(
    graph: Graph,
    topology: CscGraph,
    edge_types: Sequence[EdgeType],
    shares: Shares,
    key: DrawKey,
    facts: LinkColumns,
) -> list[tuple[Graph, AnyLinks]]:
    """Return the graph and the links of each part, for edges in this process."""
    split = split_edges(WholeEdges(topology), edge_types, shares, key)
    graphs: dict[int, Graph] = {}  # training and validation often share one
    parts: list[tuple[Graph, AnyLinks]] = []
    for draw, part in enumerate((split.train, split.val, split.test)):
        if id(part.kept) not in graphs:
            graphs[id(part.kept)] = with_edges_of(graph, topology, part.kept)
        asked = {t: as_first_numbered(topology, t, at) for t, (at,) in part.links.items()}
        links = links_at(graph, topology, asked, facts if draw else facts.of_training, key.plus(draw))
        parts.append((graphs[id(part.kept)], links))
    return parts


def links_at(
    graph: Graph, topology: CscGraph, asked: Mapping[EdgeType, Tensor], facts: LinkColumns, key: DrawKey
) -> Links:
    """Return the links at these positions, with their columns."""
    edges = {t: EdgeRange(topology.csc(t)).ends(at) for t, at in asked.items()}

    def column(name: str) -> dict[EdgeType, Tensor]:
        return {t: graph.columns[t][name][at] for t, at in asked.items()}

    labels = None if facts.label is None else column(facts.label)
    times = None if facts.time is None else {t: of_type.long() for t, of_type in column(facts.time).items()}
    relations = None
    if facts.relation is not None:
        relations = {t: of_type.long() for t, of_type in column(facts.relation).items()}
    negatives = {}
    for edge_type, (sources, _) in edges.items() if facts.negatives else ():
        until = None if times is None else times[edge_type]
        of_relations = (None if relations is None else relations[edge_type], facts.relation)
        wanted = Positives(sources, torch.arange(sources.numel()), until, facts.time, *of_relations)
        negatives[edge_type] = topology.sample_negatives(edge_type, facts.eval_negatives, wanted, key)
    return Links(edges, labels, times, negatives or None, relations)


def edge_types_of(given: EdgeTypeName | Sequence[EdgeTypeName]) -> tuple[EdgeType, ...]:
    """Return the edge types: one, as text or a tuple of three single words, or several."""
    if isinstance(given, str) or (
        isinstance(given, tuple)
        and given
        and all(isinstance(part, str) and " " not in part for part in given)
    ):
        return (edge_type_of(given),)
    several = list_of("edge type", given, '["user buys item"]')
    return tuple(edge_type_of(edge_type) for edge_type in several)


def _check(graph: Graph, edge_types: Sequence[EdgeType], facts: LinkColumns) -> None:
    if not edge_types:
        raise ValueError("split_links: no edge type is given; name at least one")
    for number, edge_type in enumerate(edge_types):
        if edge_type not in graph.schema.edge_types:
            there = list(graph.schema.edge_types)
            raise ValueError(f"split_links of {edge_type}: not an edge type; there are {there}")
        if edge_type in edge_types[:number] or graph.schema.reverse(edge_type) in edge_types[:number]:
            raise ValueError(
                f"split_links of {edge_type}: is given twice, directly or as the reverse of "
                "another type; name it once"
            )
        if facts.label is not None:
            graph.schema.column(edge_type, facts.label)
        for what, name in (("time", facts.time), ("relation", facts.relation)):
            dtype = "int64" if name is None else graph.schema.column(edge_type, name).dtype
            if "int" not in dtype:
                raise ValueError(
                    f"{what} {name!r} of {edge_type} is {dtype}: {what}s are whole numbers, convert the "
                    "column"
                )


def with_edges_of(whole: Graph, topology: CscGraph, kept: Chosen) -> Graph:
    """Return a graph with only the kept edges and their columns, and everything else of the whole graph."""
    features = whole.features
    chosen: dict[NodeType | EdgeType, Tensor] = {
        t: at for t, (at,) in kept.items() if whole.schema.columns.get(t)
    }
    if chosen:
        features = features.choosing(chosen)
    return beside(whole, topology.keeping(kept), features)


def beside(
    whole: Graph, topology: GraphStore, features: FeatureStore, rank_edges: PartitionedGraph | None = None
) -> Graph:
    """Return a graph of some edges with the splits and the folder of the whole graph."""
    splits = {name: whole.split(name) for name in whole.split_names}
    origin = whole.folder or whole.origin
    return Graph(topology, features, splits=splits, origin=origin, lanes=whole.lanes, rank_edges=rank_edges)
