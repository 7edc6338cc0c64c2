"""Links of a graph dealt to training, validation and test, and the graphs that each part may hear of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.api import Graph
from khop.draw import DrawKey, Positives, Purpose, UniformNegatives
from khop.features.table import FeatureTable
from khop.graph.csc_graph import CscGraph
from khop.sampling.link_seeds import Links
from khop.sampling.link_split import Part, Shares, split_edges
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True, eq=False)
class LinkSplit:
    """The parts of `split_links`: graphs of the edges that carry messages, and the links to predict."""

    train: Graph
    val: Graph
    test: Graph
    train_links: Links
    val_links: Links
    test_links: Links


def split_links(
    graph: Graph,
    edge_type: EdgeType,
    val: float = 0.1,
    test: float = 0.1,
    *,
    disjoint_share: float = 0.0,
    negatives: int = 1,
    label: str | None = None,
    time: str | None = None,
    seed: int = 0,
) -> LinkSplit:
    """Deal the edges of a type to training, validation and test at random, by `seed` alone, without leaks.

    `val` and `test` are shares or numbers of links. All edges between two nodes, and those of the type's
    reverse, go to the same part. Validation hears training's edges, test those of both. Of an edge type that
    is its own reverse a link stands in one direction. `disjoint_share` of the training links are asked and
    carry no message; otherwise all are asked and all carry messages. Links for validation and test bring
    `negatives` each, which are no edges of the whole graph. `label` and `time` are edge columns to be the
    links'. The parts share the columns of nodes with `graph`, and lie in memory.
    """
    topology = _checked_topology(graph, edge_type, negatives)
    key = DrawKey.of(seed, Purpose.SPLIT)
    parts = split_edges(topology, edge_type, Shares(val, test, disjoint_share), key)
    columns = {name: graph.columns[edge_type][name] for name in _columns(graph, edge_type, (label, time))}

    def links(part: Part, count: int, draw: int) -> Links:
        facts = {name: {edge_type: column[part.positions]} for name, column in columns.items()}
        times = None if time is None else {edge_type: facts[time][edge_type].long()}
        drawn = None
        if count:
            until = None if times is None else times[edge_type]
            wanted = Positives(part.links[0], torch.arange(part.positions.numel()), until, time)
            rule = UniformNegatives(count, exact=True)
            drawn = {edge_type: topology.sample_negatives(edge_type, rule, wanted, key.plus(draw))}
        return Links({edge_type: part.links}, None if label is None else facts[label], times, drawn)

    return LinkSplit(
        train=_graph_of(parts.train, graph),
        val=_graph_of(parts.val, graph),
        test=_graph_of(parts.test, graph),
        train_links=links(parts.train, 0, 0),
        val_links=links(parts.val, negatives, 1),
        test_links=links(parts.test, negatives, 2),
    )


def _checked_topology(graph: Graph, edge_type: EdgeType, negatives: int) -> CscGraph:
    if edge_type not in graph.schema.edge_types:
        raise ValueError(f"split_links of {edge_type}: not an edge type; there are {graph.schema.edge_types}")
    if negatives < 0:
        raise ValueError(f"negatives {negatives}: must be 0 or more, for each link of validation and test")
    if not isinstance(graph.topology, CscGraph):
        place = type(graph.topology).__name__
        raise ValueError(f"split_links: the edges of a {place} do not lie in this process")
    return graph.topology


def _columns(graph: Graph, edge_type: EdgeType, names: tuple[str | None, ...]) -> list[str]:
    """The names that are given; ValueError unless the edge type has all of them."""
    given = [name for name in names if name is not None]
    for name in given:
        graph.schema.column(edge_type, name)
    return given


def _graph_of(part: Part, whole: Graph) -> Graph:
    """The part's edges, with their columns, and all else of the whole graph."""
    features, edges = whole.features, part.kept
    if any(whole.schema.columns.get(edge_type) for edge_type in edges):
        if not isinstance(features, FeatureTable):
            raise ValueError(f"split_links: columns of edges in {type(features).__name__} cannot be split")
        chosen: dict[NodeType | EdgeType, Mapping[str, Tensor]] = {
            edge_type: {name: c[positions] for name, c in features.columns.get(edge_type, {}).items()}
            for edge_type, positions in edges.items()
        }
        features = replace(features, columns={**features.columns, **chosen})
    return Graph(part.graph, features, splits={name: whole.split(name) for name in whole.split_names})
