"""The arrays of a graph folder as they lie on the disk, and draws from them by NumPy and plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from damage.questions import KEY, Answer, Draw, ExactNegatives, RowQuery
from khop.draw import stream
from khop.graph import layout
from khop.graph.layout import is_partitioned
from khop.graph.manifest import Manifest, read_manifest
from khop.graph.npy import STORED, ArrayEntry
from khop.graph.partitions.book import PartitionBook, part_folder, read_book
from khop.graph.rule import Rule
from khop.sampling.rules.temporal import Temporal, TemporalStrategy
from khop.sampling.rules.weighted import Weighted
from khop.schema import EdgeType, NodeType
from khop.testing.reference import MASK64, Row, allowed_range, negatives, whole_weights

Array = npt.NDArray[np.generic]


class IllFormed(Exception):
    """The arrays have no such row, or the row breaks a promise: there is no right batch."""


@dataclass
class Piece:
    """The arrays of one graph folder, or of one part."""

    path: Path
    manifest: Manifest
    first_node: Mapping[NodeType, int]
    first_edge: Mapping[EdgeType, int]
    _read: dict[str, Array] = field(default_factory=dict)

    def array(self, file: str) -> Array:
        if file not in self._read:
            self._read[file] = stored(self.path / file, self.manifest.arrays[file])
        return self._read[file]

    def edge_array(self, edge_type: EdgeType, name: str) -> Array:
        return self.array(layout.edge_array(edge_type, name))

    def edge_column(self, edge_type: EdgeType, name: str) -> Array | None:
        file = layout.edge_column(edge_type, name)
        return self.array(file) if file in self.manifest.arrays else None


def stored(path: Path, entry: ArrayEntry) -> Array:
    """The data at the file's end, whatever its header says."""
    content = path.read_bytes()
    if len(content) != entry.bytes:
        raise IllFormed(f"{path} has another size")
    dtype = np.dtype(STORED[entry.dtype])
    data = np.frombuffer(content, dtype, math.prod(entry.shape), entry.bytes - entry.data_bytes)
    return data.reshape(entry.shape)


class Described:
    """Descriptions of the folders as they were written, before any damage."""

    def __init__(self, path: Path) -> None:
        self.book: PartitionBook | None = read_book(path) if is_partitioned(path) else None
        parts = range(self.book.num_parts) if self.book else ()
        self.folders = [part_folder(path, part) for part in parts] or [path]
        self.manifests = [read_manifest(folder)[0] for folder in self.folders]
        self.path = path


@dataclass
class AsTheyLie:
    """A graph of one folder or of parts. Ids of parts count on, as khop's do."""

    described: Described
    kept_times: bool  # of parts: times of edges as each part keeps them, or as columns have them
    pieces: list[Piece] = field(init=False)

    def __post_init__(self) -> None:
        book, manifests = self.described.book, self.described.manifests
        self.pieces = [
            Piece(
                folder,
                manifest,
                {node.type: book.offsets[node.type][at] if book else 0 for node in manifest.nodes},
                {edge.type: book.first_edges(edge.type)[at] if book else 0 for edge in manifest.edges},
            )
            for at, (folder, manifest) in enumerate(zip(self.described.folders, manifests, strict=True))
        ]

    @property
    def edge_types(self) -> list[EdgeType]:
        return [edge.type for edge in self.described.manifests[0].edges]

    def num_nodes(self, node_type: NodeType) -> int:
        last = self.pieces[-1]
        return last.first_node[node_type] + last.manifest.node(node_type).count

    def place(self, node_type: NodeType, node: int) -> tuple[Piece, int]:
        """The piece that owns a node, and its row there."""
        if not 0 <= node < self.num_nodes(node_type):
            raise IllFormed(f"no {node_type} {node}")
        piece = next(p for p in reversed(self.pieces) if p.first_node[node_type] <= node)
        return piece, node - piece.first_node[node_type]

    def node_value(self, node_type: NodeType, name: str, node: int) -> Array | None:
        """A node's entry of a column: of all nodes' own array, where a folder of parts has one."""
        file, book = layout.node_column(node_type, name), self.described.book
        if book is not None and file in book.wholes:
            if not 0 <= node < self.num_nodes(node_type):
                raise IllFormed(f"no {node_type} {node}")
            return np.asarray(stored(self.described.path / file, book.wholes[file])[node])
        piece, row = self.place(node_type, node)
        return np.asarray(piece.array(file)[row]) if file in piece.manifest.arrays else None

    def original_id(self, node_type: NodeType, node: int) -> int:
        found = self.node_value(node_type, "original_id", node)
        return (node if found is None else int(found)) & MASK64

    def split(self, name: str) -> dict[NodeType, list[int]]:
        book, manifest = self.described.book, self.described.manifests[0]
        entries = book.wholes if book else manifest.arrays
        files = {t: layout.node_split(t, name) for t in (node.type for node in manifest.nodes)}
        return {
            t: [int(i) for i in stored(self.described.path / file, entries[file])]
            for t, file in files.items()
            if file in entries
        }

    def row(self, edge_type: EdgeType, node: int) -> tuple[Piece, int, int]:
        """Where the in-edges of a node lie: begin and end within a piece."""
        piece, row = self.place(edge_type[2], node)
        begin, end = (int(piece.edge_array(edge_type, "indptr")[row + more]) for more in (0, 1))
        if not 0 <= begin <= end <= piece.manifest.edge(edge_type).count:
            raise IllFormed(f"row {node} of {edge_type} is [{begin}, {end})")
        return piece, begin, end

    def sources(self, edge_type: EdgeType, node: int) -> list[int]:
        piece, begin, end = self.row(edge_type, node)
        found = [int(source) for source in piece.edge_array(edge_type, "indices")[begin:end]]
        if not all(0 <= source < self.num_nodes(edge_type[0]) for source in found):
            raise IllFormed(f"row {node} of {edge_type} holds {found}")
        return found

    def times(self, edge_type: EdgeType, node: int, column: str) -> list[int] | None:
        """Of each edge of a row, its own time or its source's, the later of both."""
        piece, begin, end = self.row(edge_type, node)
        is_kept = self.kept_times and piece.manifest.edge(edge_type).times
        own = piece.edge_array(edge_type, "times") if is_kept else piece.edge_column(edge_type, column)
        times = None if own is None else [int(time) for time in own[begin:end]]
        if not is_kept and layout.node_column(edge_type[0], column) in self.pieces[0].manifest.arrays:
            found = [self.node_value(edge_type[0], column, n) for n in self.sources(edge_type, node)]
            of_sources = [int(time) for time in found if time is not None]
            times = of_sources if times is None else list(map(max, times, of_sources))
        if times is not None and times != sorted(times):
            raise IllFormed(f"row {node} of {edge_type} is not sorted: {times}")
        return times

    def picks(self, question: Draw, edge_type: EdgeType, node: int, word: int) -> list[int]:
        """Positions within a row."""
        piece, begin, end = self.row(edge_type, node)
        first, last, rule, fanout = 0, end - begin, question.rule, question.fanout
        if isinstance(rule, Temporal):
            times = self.times(edge_type, node, rule.column)
            if times is not None:
                assert question.until is not None
                first, last = allowed_range(times, question.until, rule.window)
                if rule.strategy is TemporalStrategy.LATEST:
                    return list(range(max(first, last - fanout), last))
            rule = rule.inner
        draws = Row(KEY.value, self.original_id(edge_type[2], node), word, last - first)
        weights = _weights(piece, edge_type, rule, begin, end)
        if weights is not None:
            found = draws.weighted_picks(fanout, rule.replacement, weights[first:last])
        else:
            found = draws.picks(fanout, rule.replacement)
        return [first + pick for pick in found]


def _weights(piece: Piece, edge_type: EdgeType, rule: Rule, begin: int, end: int) -> list[int] | None:
    column = piece.edge_column(edge_type, rule.column) if isinstance(rule, Weighted) else None
    if column is None:
        return None
    weights = [weight.item() for weight in column[begin:end]]
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise IllFormed(f"weights {weights}")
    return whole_weights(weights)


def expected(described: Described, question: RowQuery, kept_times: bool = True) -> Answer:
    """What khop has to answer; IllFormed where nothing is right."""
    graph = AsTheyLie(described, kept_times)
    if isinstance(question, ExactNegatives):
        return _negatives(graph, question)
    seeds = graph.split(question.seeds) if isinstance(question.seeds, str) else dict(question.seeds)
    nodes = {t: list(ids)[:7] if isinstance(question.seeds, str) else list(ids) for t, ids in seeds.items()}
    found: Answer = []
    for number in (1, 2):
        reached: dict[NodeType, set[int]] = {}
        for edge_type in sorted(t for t in graph.edge_types if t[2] in nodes):
            rows = _drawn(graph, question, edge_type, nodes[edge_type[2]], number)
            found.append((number, edge_type, *rows))
            reached.setdefault(edge_type[0], set()).update(rows[1])
        if number == 1:
            for node_type in sorted(t for t, ids in reached.items() if ids):
                rows_of_x = [graph.node_value(node_type, "x", node) for node in sorted(reached[node_type])]
                found.append((node_type, b"".join(row.tobytes() for row in rows_of_x if row is not None)))
        nodes = {t: sorted(ids) for t, ids in reached.items()}
    return found


def _drawn(
    graph: AsTheyLie, question: Draw, edge_type: EdgeType, nodes: list[int], number: int
) -> tuple[list[int], list[int], list[int]]:
    """Offsets, sources and edges of a hop."""
    offsets, sources, edges = [0], list[int](), list[int]()
    for node in nodes:
        piece, begin, _ = graph.row(edge_type, node)
        row = piece.edge_array(edge_type, "indices")
        for pick in graph.picks(question, edge_type, node, stream(number, edge_type)):
            source = int(row[begin + pick])
            if not 0 <= source < graph.num_nodes(edge_type[0]):
                raise IllFormed(f"row {node} of {edge_type} leads to {source}")
            sources.append(source)
            edges.append(piece.first_edge[edge_type] + begin + pick)
        offsets.append(len(edges))
    return offsets, sources, edges


def _negatives(graph: AsTheyLie, question: ExactNegatives) -> Answer:
    source_type, _, node_type = question.edge_type
    nodes = range(graph.num_nodes(node_type))
    # As signed numbers: that is how ids are sorted.
    ids = [(graph.original_id(node_type, node) + (1 << 63)) % (1 << 64) for node in nodes]
    order = sorted(nodes, key=lambda node: ids[node])
    partners: dict[int, set[int]] = {source: set() for source in question.sources}
    for node in nodes:
        for source in graph.sources(question.edge_type, node):
            partners.setdefault(source, set()).add(node)
    rows: Answer = []
    for position, source in enumerate(question.sources):
        taken = partners[source] | ({source} if source_type == node_type else set())
        left = [node for node in order if node not in taken]
        word = stream(0, question.edge_type)
        ranks = negatives(KEY.value, position, word, len(left), question.per_positive)
        rows.append(tuple(left[rank] for rank in ranks))
    return rows
