"""Links of a graph dealt to training, validation and test, and the graphs that each part may hear of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from khop.api import Graph
from khop.datasets.link_split_folder import PARTS, open_parts, save_parts
from khop.draw import DrawKey, Positives, Purpose, UniformNegatives
from khop.features.overlaid import OverlaidFeatures
from khop.features.table import FeatureTable
from khop.graph.csc_graph import CscGraph
from khop.graph.progress import Notice
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

    def save(self, path: str | os.PathLike[str], *, notice: Notice | None = None) -> Path:
        """Write a folder of graph folders, one per field of this class, and give its path.

        It appears whole or not at all. Files that are equal in several parts take their space once, where the
        file system has hard links.
        """
        graphs = {part: getattr(self, part) for part in PARTS}
        return save_parts(Path(path), graphs, {p: getattr(self, f"{p}_links") for p in PARTS}, notice)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> LinkSplit:
        """A saved split, mapped: it opens in milliseconds, and processes share the pages."""
        graphs, links = open_parts(Path(path))
        return cls(
            graphs["train"], graphs["val"], graphs["test"], links["train"], links["val"], links["test"]
        )


def split_links(
    graph: Graph,
    edge_type: EdgeType | Sequence[EdgeType],
    val: float = 0.1,
    test: float = 0.1,
    *,
    disjoint_share: float = 0.0,
    negatives: int = 1,
    label: str | None = None,
    time: str | None = None,
    seed: int = 0,
) -> LinkSplit:
    """Deal the edges of one or several types to training, validation and test at random, without leaks.

    `val` and `test` are shares or numbers of the links of each type. All edges between two nodes, and those
    of the type's reverse, go to the same part. Validation hears training's edges, test those of both. Of an
    edge type that is its own reverse a link stands in one direction. `disjoint_share` of the training links
    are asked and carry no message; otherwise all are asked and all carry messages. Links for validation and
    test bring `negatives` each, which are no edges of the whole graph. `label` and `time` are edge columns to
    be the links'. `seed` alone decides. The parts share the columns of nodes with `graph`, and lie in memory
    until they are saved.
    """
    edge_types = _edge_types(edge_type)
    topology = _checked_topology(graph, edge_types, negatives)
    for one in edge_types:
        if label is not None:
            graph.schema.column(one, label)
        if time is not None and "int" not in (dtype := graph.schema.column(one, time).dtype):
            raise ValueError(
                f"time {time!r} of {one} is {dtype}: times are whole numbers, convert the column"
            )
    key = DrawKey.of(seed, Purpose.SPLIT)
    parts = split_edges(topology, edge_types, Shares(val, test, disjoint_share), key)

    def links(part: Part, count: int, draw: int) -> Links:
        def column(name: str) -> dict[EdgeType, Tensor]:
            return {t: graph.columns[t][name][positions] for t, positions in part.positions.items()}

        def rivals(of: EdgeType, sources: Tensor) -> Tensor:
            until = None if times is None else times[of]
            wanted = Positives(sources, torch.arange(sources.numel()), until, time)
            return topology.sample_negatives(of, UniformNegatives(count, exact=True), wanted, key.plus(draw))

        times = None if time is None else {t: of_type.long() for t, of_type in column(time).items()}
        drawn = {t: rivals(t, ends[0]) for t, ends in part.links.items()} if count else None
        return Links(part.links, None if label is None else column(label), times, drawn)

    return LinkSplit(
        train=_graph_of(parts.train, graph),
        val=_graph_of(parts.val, graph),
        test=_graph_of(parts.test, graph),
        train_links=links(parts.train, 0, 0),
        val_links=links(parts.val, negatives, 1),
        test_links=links(parts.test, negatives, 2),
    )


def _edge_types(given: EdgeType | Sequence[EdgeType]) -> tuple[EdgeType, ...]:
    is_one = any(isinstance(part, str) for part in given)
    return (cast(EdgeType, given),) if is_one else tuple(cast(Sequence[EdgeType], given))


def _checked_topology(graph: Graph, edge_types: Sequence[EdgeType], negatives: int) -> CscGraph:
    if not edge_types:
        raise ValueError("split_links of no edge type: name one or more")
    for number, edge_type in enumerate(edge_types):
        if edge_type not in graph.schema.edge_types:
            there = list(graph.schema.edge_types)
            raise ValueError(f"split_links of {edge_type}: not an edge type; there are {there}")
        if edge_type in edge_types[:number] or graph.schema.reverse(edge_type) in edge_types[:number]:
            raise ValueError(
                f"split_links of {edge_type}: it is split already, with the type that it is or turns round; "
                "name it once"
            )
    if isinstance(negatives, bool) or not isinstance(negatives, int) or negatives < 0:
        raise ValueError(f"negatives {negatives!r}: must be 0 or more, for each link of validation and test")
    return graph.in_one_piece("split_links")


def _graph_of(part: Part, whole: Graph) -> Graph:
    """The part's edges, with their columns, and all else of the whole graph."""
    features, edges = whole.features, part.kept
    if any(whole.schema.columns.get(edge_type) for edge_type in edges):
        chosen: dict[NodeType | EdgeType, Mapping[str, Tensor]] = {
            edge_type: {name: c[positions] for name, c in whole.columns.get(edge_type, {}).items()}
            for edge_type, positions in edges.items()
        }
        if isinstance(features, FeatureTable):
            features = replace(features, columns={**features.columns, **chosen})
        else:
            features = OverlaidFeatures(features, FeatureTable.of(whole.schema, chosen))
    return Graph(part.graph, features, splits={name: whole.split(name) for name in whole.split_names})
