"""Links of a graph split into training, validation and test, each with its message graph.

A split is saved as a folder with a message graph and a graph of links for each part.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from khop.api.open_graph import Graph, open_graph, save_sound
from khop.arguments import graph_of, list_of, path_of, seed_number
from khop.distributed.link_split import (
    HeldLinks,
    LinkSums,
    held_edges,
    nodes_existing,
    owned_links,
    split_over_ranks,
)
from khop.distributed.owners import summed
from khop.draw import DrawKey, Positives, Purpose
from khop.graph import layout
from khop.graph.atomic import ProgressCallback, new_folder, refuse_existing
from khop.graph.build import write_graph
from khop.graph.derived import Derived
from khop.graph.features.store import FeatureStore
from khop.graph.folder import GraphFolder, TimeCutOffs, open_folder, recorded_cut_offs, refuse_damage
from khop.graph.manifest import read_manifest
from khop.graph.store import CscGraph, GraphStore, drawing_from
from khop.graph.tables import EdgeTable, NodeTable
from khop.sampling.links.link_seeds import LinkList, Links
from khop.sampling.links.link_split import (
    Chosen,
    EdgeRange,
    EdgeSplit,
    EdgesToSplit,
    LinkColumns,
    Part,
    Shares,
    WholeEdges,
    as_first_numbered,
    check_parts,
    nodes_before,
    nodes_with_edges_before,
    parts_by_column,
    parts_by_time,
    positions_before,
    split_by_column,
    split_by_time,
    split_edges,
)
from khop.schema import EdgeType, EdgeTypeName, NodeType, edge_type_of
from khop.servers.graph import split_view, view_before
from khop.servers.messages import ByColumn, SplitArguments

PARTS = ("train", "val", "test")


# column -> field of Links
_FACTS = {"label": "labels", "time": "times", "negatives": "negatives", "relation": "relations"}
_POSITION = "position"  # the column of input positions, for links that are not sorted by destination


def save_parts(
    target: Path, graphs: Mapping[str, Graph], links: Mapping[str, Links], notice: ProgressCallback | None
) -> Path:
    """Write the parts' graphs as `<part>`, and their links, as edges with columns, as `<part>_links`."""
    refuse_existing(target)
    origins = {id(graph.origin): graph.origin for graph in graphs.values() if graph.origin is not None}
    for origin in origins.values():
        refuse_damage(origin, notice)  # shared by all parts
    with new_folder(target) as folder:
        written: dict[str, Path] = {}
        for part, graph in graphs.items():
            _share_files(save_sound(graph, folder / part, notice), written)
            _write_links(folder / f"{part}_links", graph, links[part], notice)
    return target


def open_parts(path: Path) -> tuple[dict[str, Graph], dict[str, Links]]:
    """Open the graphs and the links of a folder, by part."""
    for part in PARTS:
        if not (path / f"{part}_links").is_dir():
            raise ValueError(
                f"{path}: not a link split, it has no {part}_links; write one with `khop graph split`"
            )
    graphs = {part: open_graph(path / part) for part in PARTS}
    return graphs, {part: _links_of(open_folder(path / f"{part}_links")) for part in PARTS}


def _write_links(path: Path, graph: Graph, links: Links, notice: ProgressCallback | None) -> None:
    edges: dict[EdgeType, EdgeTable] = {}
    for edge_type, (sources, destinations) in links.edges.items():
        columns = {
            column: by_type[edge_type]
            for column, field in _FACTS.items()
            if (by_type := getattr(links, field)) is not None
        }
        if bool((destinations.diff() < 0).any()):
            columns[_POSITION] = torch.arange(destinations.numel())
        edges[edge_type] = EdgeTable(sources, destinations, columns)
    ends = dict.fromkeys(end for edge_type in links.edges for end in (edge_type[0], edge_type[2]))
    write_graph(path, {t: NodeTable(graph.num_nodes(t)) for t in ends}, edges, notice=notice)


def _links_of(folder: GraphFolder) -> Links:
    columns = folder.columns()
    orders = {
        t: of_type[_POSITION].argsort()
        for t in folder.schema.edge_types
        if _POSITION in (of_type := columns[t])
    }

    def in_order(edge_type: EdgeType, values: Tensor) -> Tensor:
        return values[orders[edge_type]] if edge_type in orders else values

    facts = {
        field: {t: in_order(t, columns[t][column]) for t in folder.schema.edge_types}
        for column, field in _FACTS.items()
        if any(column in columns[t] for t in folder.schema.edge_types)
    }
    edges = {t: in_order(t, _ends(folder, t).T).T for t in folder.schema.edge_types}
    return Links(edges, **facts)


def _ends(folder: GraphFolder, edge_type: EdgeType) -> Tensor:
    """Return int64 (2, links), cached in the folder: computed once, mapped by all processes."""
    csc = folder.csc(edge_type)

    def made() -> Tensor:
        csc.check()
        return torch.cat([csc.indices.long(), csc.destinations()])

    name = layout.edge_array(edge_type, "ends").removesuffix(".npy")
    sources = [layout.edge_array(edge_type, array) for array in ("indptr", "indices")]
    derived = Derived(folder.path, folder.fingerprint, folder.manifest.arrays)
    return derived.vector(name, 2 * csc.num_edges, made, sources).view(2, -1)


def _share_files(graph: Path, written: dict[str, Path]) -> None:
    """Replace files that are equal to an earlier part's file by hard links."""
    for file, entry in read_manifest(graph)[0].arrays.items():
        earlier = written.setdefault(entry.sha256, graph / file)
        if earlier == graph / file:
            continue
        linked = graph / f"{file}.linked"
        try:
            os.link(earlier, linked)
        except OSError:  # a file system without hard links has a copy per part
            return
        linked.replace(graph / file)


@dataclass(frozen=True, eq=False)
class LinkSplit:
    """The result of `split_links`: message graphs, and the links to predict.

    Args:
        train: Message graph of training.
        val: Message graph of validation.
        test: Message graph of test.
        train_links: Links to predict in training.
        val_links: Links to predict in validation, with negatives.
        test_links: Links to predict in test, with negatives.
    Example:
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(20), torch.arange(1, 21) % 20)}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", {"item": khop.NodeTable(20)}, edges))
        >>> split = khop.split_links(graph, "item to item", val=4, test=2)
        >>> split.train.num_edges("item to item"), split.test.num_edges("item to item")
        (14, 18)
    """

    train: Graph
    val: Graph
    test: Graph
    train_links: LinkList
    val_links: LinkList
    test_links: LinkList

    def save(self, path: str | os.PathLike[str], *, notice: ProgressCallback | None = None) -> Path:
        """Write a folder of graph folders, one per field of this class, and return its path.

        The folder is written atomically. Files that are equal in several parts are stored once if the file
        system supports hard links.

        Args:
            path: The new folder.
            notice: Function called with a text, the bytes done and the total bytes.
        """
        graphs = {"train": self.train, "val": self.val, "test": self.test}
        links = {"train": self.train_links, "val": self.val_links, "test": self.test_links}
        here = {part: of_part.in_this_process("save") for part, of_part in links.items()}
        return save_parts(Path(path), graphs, here, notice)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> LinkSplit:
        """Open a saved split. It is memory-mapped, opens in milliseconds, and processes share its pages.

        Args:
            path: The folder.
        """
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

    All edges between two nodes, and their reverse edges, are assigned to the same part. Validation
    passes messages over training edges, test over training and validation edges. For an edge type that is
    its own reverse, a link appears in one direction. The split is a function of the graph, the arguments
    and `seed`; partitions and ranks do not change it.

    The parts share the node columns with `graph`, and are in memory until they are saved. If edges are
    partitioned across ranks, the call is collective, and each rank gets its edges and a share of the links.
    The links of a graph on servers are split on the servers, and stay there.

    Args:
        graph: The graph.
        edge_type: Edge type, or several.
        val: Share (below 1) or number of the links of each type for validation, default 0.1.
        test: Share or number of the links of each type for test, default 0.1.
        disjoint_share: Share of the training links that are only targets, outside the message graph;
            the others are then only in the message graph. Default 0: all training links are both.
        negatives: Negatives per validation and test link, never edges of the whole graph; default 1.
        label: Edge column to use as labels of the links; default None.
        time: Edge column to use as times of the links; default None.
        relation: Edge column to use as relations of the links: negatives are then never edges with the
            same relation. Default None.
        seed: Random seed of the split, default 0.
    Returns:
        Graphs and links of the three parts.
    Raises:
        ValueError: The graph lacks an edge type or a column, or the shares leave no links.
    Example:
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(20), torch.arange(1, 21) % 20)}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", {"item": khop.NodeTable(20)}, edges))
        >>> split = khop.split_links(graph, "item to item", val=0.2, test=2, negatives=5)
        >>> split.val_links.counts, split.test_links.negatives["item", "to", "item"].shape
        ({('item', 'to', 'item'): 4}, torch.Size([2, 5]))
    """
    graph_of("graph", graph)
    edge_types, facts = edge_types_of(edge_type), LinkColumns(negatives, label, time, relation)
    _check(graph, edge_types, facts)
    shares, key = Shares(val, test, disjoint_share), DrawKey.of(seed_number(seed), Purpose.SPLIT)
    if graph.servers is not None:
        return split_on_servers(graph, SplitArguments(edge_types, shares, facts, seed_number(seed)))
    parts: list[tuple[Graph, LinkList]]
    if graph.rank_edges is not None:
        of_ranks = split_over_ranks(graph.rank_edges, edge_types, shares, key, facts)
        parts = [(beside(graph, part.graph, graph.features), part.links) for part in of_ranks]
    else:
        parts = _split_whole(graph, graph.in_one_piece("split_links"), edge_types, shares, key, facts)
    (train, train_links), (val_graph, val_links), (test_graph, test_links) = parts
    return LinkSplit(train, val_graph, test_graph, train_links, val_links, test_links)


def split_on_servers(graph: Graph, arguments: SplitArguments) -> LinkSplit:
    """Return graphs and lists of links that each server computes when they are first needed."""
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
) -> list[tuple[Graph, LinkList]]:
    """Return the graph and the links of each part, for edges in this process."""
    split = split_edges(WholeEdges(topology), edge_types, shares, key)
    graphs: dict[int, Graph] = {}  # training and validation often share a graph
    parts: list[tuple[Graph, LinkList]] = []
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
    """Return a list of edge types from one edge type (a string or triple) or several."""
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
                f"split_links of {edge_type}: given twice, directly or as the reverse of "
                "another type; name it once"
            )
        if facts.label is not None:
            graph.schema.column(edge_type, facts.label)
        for what, name in (("time", facts.time), ("relation", facts.relation)):
            dtype = "int64" if name is None else graph.schema.column(edge_type, name).dtype
            if "int" not in dtype:
                raise ValueError(
                    f"{what} {name!r} of {edge_type} is {dtype}: {what}s must be whole numbers; convert the "
                    "column"
                )


def with_edges_of(whole: Graph, topology: CscGraph, kept: Chosen) -> Graph:
    """Return the whole graph with only the kept edges and their columns."""
    features = whole.features
    chosen: dict[NodeType | EdgeType, Tensor] = {
        t: at for t, (at,) in kept.items() if whole.schema.columns.get(t)
    }
    if chosen:
        features = features.choosing(chosen)
    return beside(whole, topology.keeping(kept), features)


def beside(whole: Graph, topology: GraphStore, features: FeatureStore) -> Graph:
    """Return a graph of some edges with the splits and the folder of the whole graph."""
    splits = {name: whole.split(name) for name in whole.split_names}
    origin = whole.folder or whole.origin
    return Graph(topology, features, splits=splits, origin=origin, lanes=whole.lanes)


def time_cut_offs(graph: Graph) -> TimeCutOffs | None:
    """Return the recorded cut-offs of a graph, from its folder or servers, or None."""
    if graph.servers is not None:
        return graph.servers.cut_offs
    folder = graph.folder or graph.origin
    return None if folder is None else recorded_cut_offs(folder)


def edges_of_split(graph: Graph, split: str) -> Graph:
    """Return the message graph of a split.

    In a graph split by time, training has the edges before `val`, validation those before `test`, and test
    and other splits all edges. A graph without cut-offs is returned unchanged.
    """
    cut_offs = time_cut_offs(graph)
    limits = {} if cut_offs is None else {"train": cut_offs.val, "val": cut_offs.test}
    return edges_before(graph, limits[split]) if split in limits else graph


def edges_before(graph: Graph, limit: int) -> Graph:
    """Return the graph with the edges before a time, and with all nodes, columns and splits.

    The time of an edge is that of its column, that of its source, or the later of both. Edges without a time
    are kept. Needs 8 bytes of memory for each kept edge of a type with times, and its indices. Negatives are
    drawn from the nodes that exist before the time: nodes with an earlier time, or, in types without times,
    nodes with an earlier edge. For a graph on servers, the servers select the edges.
    """
    if graph.servers is not None:
        topology, features = view_before(graph.servers, graph.schema, limit)
        return replace(graph, topology=topology, features=features)
    edges = _edges(graph)
    kept = positions_before(edges, limit)
    return _with_edges(graph, kept, _existing(graph, edges, limit)) if kept else graph


def split_links_by_time(
    graph: Graph,
    edge_type: EdgeTypeName | Sequence[EdgeTypeName],
    cut_offs: TimeCutOffs,
    *,
    negatives: int = 1,
    label: str | None = None,
    time: str | None = None,
    relation: str | None = None,
    seed: int = 0,
) -> LinkSplit:
    """Split the edges of one or several types by their times: training < val <= validation < test <= test.

    Training and validation pass messages over the edges of all types before `val`, test over those before
    `test`; a reverse type without times has no edges between the ends of later links. Negatives are nodes
    that exist before these times, as in `edges_before`, and never edges of the whole graph. The other
    arguments are those of `khop.split_links`.
    """
    edge_types, columns = edge_types_of(edge_type), LinkColumns(negatives, label, time, relation)
    if graph.servers is not None:
        return split_on_servers(graph, SplitArguments(edge_types, cut_offs, columns, seed_number(seed)))
    edges = _edges(graph)
    return _split(graph, edges, split_by_time(edges, edge_types, cut_offs), columns, seed)


def split_links_by_column(
    graph: Graph,
    edge_type: EdgeTypeName | Sequence[EdgeTypeName],
    *,
    negatives: int = 1,
    label: str | None = None,
    time: str | None = None,
    relation: str | None = None,
    seed: int = 0,
) -> LinkSplit:
    """Split the edges of one or several types by their column `split`: 0 train, 1 val, 2 test, -1 none.

    Training and validation pass messages over training edges, test over those of training and validation.
    The same holds for other edge types with such a column. A reverse type without one has no edges between
    the ends of links that are left out; other edge types are kept. The other arguments are those of
    `khop.split_links`.
    """
    edge_types, columns = edge_types_of(edge_type), LinkColumns(negatives, label, time, relation)
    if graph.servers is not None:
        return split_on_servers(graph, SplitArguments(edge_types, ByColumn(), columns, seed_number(seed)))
    edges = _edges(graph)
    return _split(graph, edges, split_by_column(edges, edge_types), columns, seed)


def link_counts(graph: Graph, edge_type: EdgeType, by: Literal["time", "column"]) -> tuple[int, ...]:
    """Return the numbers of training, validation and test links of a type."""
    cut_offs, edges = time_cut_offs(graph), _edges(graph)
    if by == "time" and cut_offs is not None:
        parts = parts_by_time(edges, edge_type, cut_offs)
    else:
        parts = parts_by_column(edges, edge_type)
    counts = torch.tensor([sum(int((of == number).sum()) for of in parts) for number in range(len(PARTS))])
    return tuple(_summed(graph, counts).tolist())


def _split(graph: Graph, edges: EdgesToSplit, split: EdgeSplit, columns: LinkColumns, seed: int) -> LinkSplit:
    """Return the graphs and the links of a split of the local edges."""
    parts = (split.train, split.val, split.test)
    for edge_type in split.train.links:
        counts = torch.tensor([sum(at.numel() for at in part.links[edge_type]) for part in parts])
        check_parts(edge_type, dict(zip(PARTS, _summed(graph, counts).tolist(), strict=True)))
    exist: dict[int | None, dict[NodeType, Tensor]] = {None: {}}
    for part in (split.train, split.test):
        if part.limit is not None and part.limit not in exist:
            exist[part.limit] = _existing(graph, edges, part.limit)
    train, test = (_with_edges(graph, of.kept, exist[of.limit]) for of in (split.train, split.test))
    key = DrawKey.of(seed, Purpose.SPLIT)
    links = [
        _links(graph, part, exist[part.limit], columns if number else columns.of_training, key.plus(number))
        for number, part in enumerate(parts)
    ]
    return LinkSplit(train, train, test, *links)


def _links(
    graph: Graph, part: Part, exist: Mapping[NodeType, Tensor], columns: LinkColumns, key: DrawKey
) -> LinkList:
    """Return the links of a part, with negatives among the nodes that `exist`."""
    if graph.rank_edges is not None:
        drawn = graph.rank_edges.keeping({}, exist)
        return owned_links(HeldLinks(drawn, part.links, columns), drawn, key)
    topology = drawing_from(graph.in_one_piece("split_links"), exist)
    asked = {t: as_first_numbered(topology, t, at) for t, (at,) in part.links.items()}
    return links_at(graph, topology, asked, columns, key)


def _with_edges(graph: Graph, kept: Chosen, exist: Mapping[NodeType, Tensor]) -> Graph:
    """Return the graph with the kept edges, and negatives among the nodes that `exist`."""
    if graph.rank_edges is not None:
        return beside(graph, graph.rank_edges.keeping(kept, exist), graph.features)
    return with_edges_of(graph, drawing_from(graph.in_one_piece("edges before a time"), exist), kept)


def _edges(graph: Graph) -> EdgesToSplit:
    """Return the local edges of the graph: all, or those of this rank's partitions."""
    if graph.rank_edges is not None:
        return held_edges(graph.rank_edges)
    return WholeEdges(graph.in_one_piece("the split by time"), graph.columns)


def _summed(graph: Graph, counts: Tensor) -> Tensor:
    """Return the sum of the counts over all ranks with edges."""
    return counts if graph.rank_edges is None else summed(graph.rank_edges.owners, counts, LinkSums())


def _existing(graph: Graph, edges: EdgesToSplit, limit: int) -> dict[NodeType, Tensor]:
    """Return the nodes that exist before a time, bool (nodes), for the types with known times."""
    if graph.rank_edges is not None:
        return nodes_existing(graph.rank_edges, limit)
    return nodes_before(edges, limit, nodes_with_edges_before(edges, limit))
