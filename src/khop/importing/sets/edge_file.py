"""Import of one file with a graph: all steps of `khop import edges:FILE`."""

from __future__ import annotations

import io
import re
import shlex
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx
import numpy as np
from networkx.readwrite import gexf, graphml, pajek

from khop.datasets.importers import ImportContext
from khop.graph.atomic import refuse_existing
from khop.graph.networkx_tables import NetworkxTables
from khop.graph.progress import ProgressCallback
from khop.graph.tables import EdgeTable, NodeTable
from khop.importing.packages import pa, reading
from khop.importing.sets.edge_list import WEIGHT, Header, ReadEdges, edge_list
from khop.importing.sets.options import EdgeFileOptions
from khop.importing.sets.set_graph import EDGE, NODE, SetGraph, memory_budget, stored_name
from khop.kernels.id_table import StringKeys
from khop.schema import EdgeType

BACK: EdgeType = (NODE, "rev_to", NODE)
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
_LIST_SUFFIXES = (".txt", ".csv", ".tsv", ".edges", ".edgelist", ".el")
_ERRORS = (
    networkx.NetworkXException, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
    SyntaxError, StopIteration, RecursionError,
)  # fmt: skip
_MATRIX_MARKET = b"%%MatrixMarket"


@dataclass(frozen=True)
class EdgeFileImporter:
    """An import of one file."""

    path: Path
    undirected: bool
    header: Header
    context: ImportContext

    @property
    def name(self) -> str:
        """Name of the file without its endings."""
        name = self.path.name
        for suffix in (*_COMPRESSED, *_FORMATS, *_LIST_SUFFIXES):
            name = name.removesuffix(suffix)
        return name

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder; return its counts and notes. Nodes are numbered as they first appear."""
        refuse_existing(out)
        if not self.path.is_file():
            raise ValueError(
                f"{self.path}: no such file; give an edge list, or a GraphML, GML, GEXF, Pajek or "
                "MatrixMarket file"
            )
        read = self._read()
        notes = list(read.notes)
        node_columns, edge_columns = (_stored(c, notes) for c in (read.node_columns, read.edge_columns))
        edges = {EDGE: EdgeTable(read.sources, read.destinations, edge_columns)}
        if self.undirected or read.direction == "undirected":
            edges[BACK] = EdgeTable(read.destinations, read.sources, edge_columns, EDGE)
        unknown = [name for name, column in node_columns.items() if np.isnan(column).any()]
        node = NodeTable(len(read.ids), node_columns, ids=read.ids, unknown=unknown)
        graph = SetGraph(self.name, {NODE: node}, edges, notes=notes)
        return graph.write(out, memory_budget(self.context), self.context.threads, notice)

    def _read(self) -> ReadEdges:
        name = self.path.name.lower()
        for suffix in _COMPRESSED:
            name = name.removesuffix(suffix)
        read = next((read for suffix, read in _FORMATS.items() if name.endswith(suffix)), None)
        if read is None and _content(self.path, len(_MATRIX_MARKET)) == _MATRIX_MARKET:
            read = _matrix_market
        return edge_list(self.path, self.header) if read is None else read(self.path)


def edge_file_importer(options: EdgeFileOptions, context: ImportContext) -> EdgeFileImporter:
    """Make the importer."""
    return EdgeFileImporter(context.folder / options.name, options.undirected, options.header, context)


def _stored(columns: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return columns as the graph stores them, under names of files; a note tells each that is renamed."""
    found: dict[str, Any] = {}
    for name, column in columns.items():
        short = stored_name(name, found)
        if short != name:
            notes.append(f"attribute {name!r} is column {short!r}")
        found[short] = column.astype(np.uint8) if column.dtype == bool else column
    return found


def _content(path: Path, size: int | None = None) -> bytes:
    with reading(str(path), "correct the file"), pa.input_stream(str(path), compression="detect") as stream:
        content: bytes = stream.read(size)
    return content


def _by_networkx(parse: Callable[[bytes, list[str]], Any]) -> Callable[[Path], ReadEdges]:
    """Return the reader of a format that networkx parses from the bytes of a file."""

    def read(path: Path) -> ReadEdges:
        content, notes = _content(path).removeprefix(b"\xef\xbb\xbf"), list[str]()
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                graph = parse(content, notes)
        except _ERRORS as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"{path}: cannot be read ({reason}); correct the file") from None
        tables = NetworkxTables.of(graph)
        notes += [str(one.message) for one in told] + list(tables.notes)
        is_int = all(type(node) is int and -(2**63) <= node < 2**63 for node in tables.ids)
        ids = np.array(tables.ids, np.int64) if is_int else StringKeys.of([str(node) for node in tables.ids])
        return ReadEdges(
            ids, tables.sources, tables.destinations, "directed" if graph.is_directed() else "undirected",
            tables.node_columns, tables.edge_columns, notes,
        )  # fmt: skip

    return read


class _NamedKeys(graphml.GraphMLReader):  # type: ignore[misc]  # networkx has no types
    """Reader of GraphML that keeps both of two keys with one name."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self._notes = notes

    def find_graphml_keys(self, graph_element: Any) -> Any:
        """Return the keys; the second of a name is NAME_ID."""
        keys, defaults = super().find_graphml_keys(graph_element)
        taken: set[tuple[str, str]] = set()
        for key_id, key in keys.items():
            if (key["for"], key["name"]) in taken:
                name = f"{key['name']}_{key_id}"
                self._notes.append(f"key {key_id!r} has the name {key['name']!r} of another: it is {name!r}")
                key["name"] = name
            taken.add((key["for"], key["name"]))
        return keys, defaults


def _graphml(content: bytes, notes: list[str]) -> Any:
    content = _plain_xml(content)
    if len(re.findall(rb"<(?:\w+:)?graph[\s>/]", content)) > 1:
        raise ValueError("it has several or nested graphs; keep one")
    graphs = list(_NamedKeys(notes)(path=io.BytesIO(content)))
    if not graphs:
        raise ValueError("it has no graph of the namespace http://graphml.graphdrawing.org/xmlns")
    _check_xml(content, graphs[0])
    return graphs[0]


def _gexf(content: bytes, notes: list[str]) -> Any:
    content = _plain_xml(content)
    for elements in re.findall(rb"(?s)<attributes\b.*?</attributes>", content):
        titles = re.findall(rb"<attribute\s[^>]*?\btitle\s*=\s*[\"']([^\"']*)", elements)
        if len(set(titles)) < len(titles):
            raise ValueError(f"two attributes have one title; there are {b', '.join(titles).decode()}")
    graph = gexf.read_gexf(io.BytesIO(content))
    _check_xml(content, graph)
    return graph


def _plain_xml(content: bytes) -> bytes:
    """Return XML without comments; ValueError for entities, whose expansion may be endless."""
    if b"<!ENTITY" in content:
        raise ValueError("it declares an entity; remove it")
    return re.sub(rb"(?s)<!--.*?-->", b"", content)


def _check_xml(content: bytes, graph: Any) -> None:
    """Raise ValueError if networkx has merged nodes or edges of one id."""
    nodes = re.findall(rb"<(?:\w+:)?node\s[^>]*?\bid\s*=\s*[\"']([^\"']*)", content)
    _check_nodes([node.decode(errors="replace") for node in nodes], len(graph))
    edges = len(re.findall(rb"<(?:\w+:)?edge[\s/>]", content))
    lost = edges - graph.number_of_edges()
    if lost > 0:
        raise ValueError(f"{lost:,} edges have the id of another edge; rename them")


def _check_nodes(declared: list[str], count: int) -> None:
    if len(set(declared)) < len(declared):
        twice = next(node for at, node in enumerate(declared) if node in declared[:at])
        raise ValueError(f"two nodes are named {twice!r}; rename one")
    if len(declared) < count:
        raise ValueError(f"{count - len(declared):,} nodes of edges are not declared; add them to the nodes")


def _gml(content: bytes, notes: list[str]) -> Any:
    """Nodes have their labels as ids, or their numbers if labels are missing or not distinct."""
    lines = content.decode().splitlines()
    try:
        return networkx.parse_gml(lines)
    except networkx.NetworkXError as error:
        graph = networkx.parse_gml(lines, label="id")
        notes.append(f"ids of nodes are their numbers ({error})")
        return graph


def _pajek(content: bytes, notes: list[str]) -> Any:
    """Arcs and edges have a section each; where both are there, each edge is two arcs."""
    sections: dict[str, list[str]] = {}
    section: list[str] = []
    for line in content.decode().splitlines():
        word = (line.split() or ["%"])[0].lower()
        if word.startswith("*"):
            section = sections.setdefault(word, [])
        if not word.startswith("%"):
            section.append(line)
    for word in sections:
        if word not in ("*network", "*vertices", *_PAJEK_LINKS):
            raise ValueError(f"it has a section {word}; *Vertices, *Arcs, *Edges and *Matrix are read")
    vertices = sections.get("*vertices", [""])
    if len(vertices[0].split()) != 2:
        raise ValueError(f"{vertices[0]!r} is not '*Vertices' and a number; two-mode networks are not read")
    parts = [sections[word] for word in _PAJEK_LINKS if len(sections.get(word, [])) > 1] or [[]]
    graph, *more = [pajek.parse_pajek(iter(vertices + part)) for part in parts]
    for edges in more:
        given = list(edges.edges(data=True))
        graph.add_edges_from([*given, *((v, u, of) for u, v, of in given)])
        notes.append(f"{len(given):,} edges stand beside arcs: each is two arcs")
    for of in [*(of for _, of in graph.nodes(data=True)), *(of for *_, of in graph.edges(data=True))]:
        of.pop("id", None)  # the number of a vertex
        of |= {name: float(value) for name, value in of.items() if re.fullmatch(_NUMBER, str(value))}
    _check_nodes([shlex.split(line)[1] for line in vertices[1:]], len(graph))
    return graph


def _matrix_market(path: Path) -> ReadEdges:
    """Rows are sources and columns are destinations. Node i has the id i, from 1 on."""
    try:
        import scipy.io
    except ImportError:
        raise ValueError(f"{path}: MatrixMarket files need scipy: pip install scipy") from None
    source = io.BytesIO(_content(path)) if path.suffix in (".zst", ".lz4") else str(path)
    try:
        rows, columns, _, layout, kind, symmetry = scipy.io.mminfo(source)
        if layout != "coordinate" or kind == "complex" or rows != columns:
            raise ValueError(
                f"it is a {kind} {layout} matrix of {rows:,} rows and {columns:,} columns; give a square "
                "sparse one of real numbers"
            )
        matrix = scipy.io.mmread(source if isinstance(source, str) else io.BytesIO(_content(path)))
    except (ValueError, OverflowError, OSError, StopIteration) as error:
        raise ValueError(f"{path}: MatrixMarket file cannot be read ({error}); correct the file") from None
    is_undirected = symmetry in ("symmetric", "hermitian")
    kept = matrix.row >= matrix.col if is_undirected else slice(None)  # scipy has added the opposites
    values = {} if kind == "pattern" else {WEIGHT: matrix.data[kept].astype(np.float32)}
    return ReadEdges(
        np.arange(1, rows + 1), matrix.row[kept].astype(np.int64), matrix.col[kept].astype(np.int64),
        "undirected" if is_undirected else "directed", edge_columns=values,
    )  # fmt: skip


_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_PAJEK_LINKS = ("*arcs", "*edges", "*matrix")
_FORMATS: Mapping[str, Callable[[Path], ReadEdges]] = {
    ".graphml": _by_networkx(_graphml),
    ".xml": _by_networkx(_graphml),
    ".gml": _by_networkx(_gml),
    ".gexf": _by_networkx(_gexf),
    ".net": _by_networkx(_pajek),
    ".paj": _by_networkx(_pajek),
    ".pajek": _by_networkx(_pajek),
    ".mtx": _matrix_market,
}
