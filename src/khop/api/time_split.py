"""Graphs and links before the cut-offs of a split by time, as `khop import` records them in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.api.split_links import LinkSplit, links_at, with_edges_of
from khop.draw import DrawKey, Purpose
from khop.graph.documents import read_document
from khop.graph.manifest import read_manifest
from khop.graph.rule_arrays import edge_times
from khop.sampling.link_split import LinkColumns, as_first_numbered
from khop.schema import EdgeType

DOCUMENT = "import.json"
TIME = "time"  # the column of times
SPLIT = "split"  # the edge column of parts


@dataclass(frozen=True)
class TimeCutOffs:
    """The first times of validation and of test, in the unit of the graph."""

    val: int
    test: int


def time_cut_offs(graph: Graph) -> TimeCutOffs | None:
    """Return the cut-offs that the folder of a graph records; None if it records none."""
    folder = graph.folder or graph.origin
    return None if folder is None else recorded_cut_offs(folder.path)


def recorded_cut_offs(folder: Path) -> TimeCutOffs | None:
    """Return the cut-offs that a graph folder records; None if it records none."""
    if not (folder / DOCUMENT).is_file():
        return None
    digests = read_manifest(folder)[0].documents
    if DOCUMENT not in digests:
        return None
    found = read_document(folder, DOCUMENT, digests[DOCUMENT]).get("time_split")
    return None if found is None else TimeCutOffs(int(found["val"]), int(found["test"]))


def edges_before(graph: Graph, limit: int) -> Graph:
    """Return the graph with the edges before a time, and with all nodes, columns and splits.

    The time of an edge is its own, its source's, or the later of both. Edges without a time are kept. Takes
    8 bytes of memory for each kept edge of a type with times, and its indices.
    """
    kept = {
        edge_type: (torch.nonzero(times < limit).squeeze(1),)
        for edge_type in graph.schema.edge_types
        if (times := _times(graph, edge_type)) is not None
    }
    return with_edges_of(graph, graph.in_one_piece("edges_before"), kept) if kept else graph


def split_links_by_time(
    graph: Graph,
    edge_type: EdgeType,
    cut_offs: TimeCutOffs,
    *,
    negatives: int = 1,
    time: str | None = None,
    seed: int = 0,
) -> LinkSplit:
    """Split the edges of a type by their times: training < val <= validation < test <= test.

    Training and validation pass messages over the edges of all types before `val`, test over those before
    `test`; reverses have the times of their edges. The other arguments are those of `khop.split_links`.
    """
    times = _times(graph, edge_type)
    if times is None:
        raise ValueError(f"links of {edge_type}: have no column {TIME!r} to split by; add times")
    parts = (times >= cut_offs.val).long() + (times >= cut_offs.test).long()
    before = (edges_before(graph, cut_offs.val), edges_before(graph, cut_offs.test))
    return _with_links(graph, edge_type, parts, before, LinkColumns(negatives, None, time), seed)


def split_links_by_column(
    graph: Graph,
    edge_type: EdgeType,
    *,
    negatives: int = 1,
    time: str | None = None,
    seed: int = 0,
) -> LinkSplit:
    """Split the edges of a type by their column `split`: 0 training, 1 validation, 2 test, -1 none.

    Training and validation pass messages over training edges, test over those of training and validation.
    The same holds for other edge types with such a column; edge types without one are kept.
    """
    columns = {t: graph.columns.get(t, {}).get(SPLIT) for t in graph.schema.edge_types}
    parts = columns[edge_type]
    if parts is None:
        raise ValueError(
            f"links of {edge_type}: have no column {SPLIT!r} to split by; give the edge type a split in "
            "the spec of its import"
        )
    topology = graph.in_one_piece("split_links")

    def up_to(last: int) -> Graph:
        kept = {
            t: (torch.nonzero((of >= 0) & (of <= last)).squeeze(1),)
            for t, of in columns.items()
            if of is not None
        }
        return with_edges_of(graph, topology, kept)

    graphs = (up_to(0), up_to(1))
    return _with_links(graph, edge_type, parts.long(), graphs, LinkColumns(negatives, None, time), seed)


def _with_links(
    graph: Graph,
    edge_type: EdgeType,
    parts: Tensor,
    graphs: tuple[Graph, Graph],
    columns: LinkColumns,
    seed: int,
) -> LinkSplit:
    """Return the split with links by their part; `graphs` are those of training and of test."""
    topology, key, links = graph.in_one_piece("split_links"), DrawKey.of(seed, Purpose.SPLIT), []
    for number, name in enumerate(("train", "val", "test")):
        at = torch.nonzero(parts == number).squeeze(1)
        if not at.numel():
            raise ValueError(f"links of {edge_type}: none is of {name}; change the split, or import more")
        asked: dict[EdgeType, Tensor] = {edge_type: as_first_numbered(topology, edge_type, at)}
        of_part = columns if number else columns.of_training
        links.append(links_at(graph, topology, asked, of_part, key.plus(number)))
    return LinkSplit(graphs[0], graphs[0], graphs[1], *links)


def _times(graph: Graph, edge_type: EdgeType) -> Tensor | None:
    csc = graph.local_csc(edge_type)
    return edge_times(csc, edge_type, graph.columns, TIME)
