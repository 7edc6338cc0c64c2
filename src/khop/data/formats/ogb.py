"""Import of OGB's node and link datasets: `khop import ogb:NAME`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from khop.data.formats.downloads import known_set, mirrored, root_folder, set_folder
from khop.data.formats.raw_arrays import (
    Scratch,
    csv_blocks,
    csv_numbers,
    csv_rows,
    csv_table,
    npz_array,
    npz_names,
)
from khop.data.formats.set_graph import EDGE, NODE, SetGraph, memory_budget
from khop.data.formats.tensor_file import tensor_file
from khop.data.importers import ImportContext, NamedImport, Ogb
from khop.data.tables.packages import pa, pq
from khop.graph.atomic import ProgressCallback, naming, new_folder
from khop.graph.folder import negatives_folder
from khop.graph.npy import flush
from khop.graph.remote import refuse_existing_in_store
from khop.graph.tables import EdgeChunks, EdgeTable, NodeTable
from khop.schema import EdgeType, NodeType

ADDRESS = "http://snap.stanford.edu/ogb/data"


@dataclass(frozen=True)
class OgbSet:
    """One set, with the flags of master.csv."""

    name: str
    download_name: str
    split: str  # folder of the official split
    layout: Literal["csv", "npz"] = "csv"  # "binary" in master.csv
    kind: Literal["plain", "typed"] = "plain"  # "is hetero" in master.csv
    edges: Literal["as stored", "both directions"] = "as stored"  # "add_inverse_edge" in master.csv
    num_classes: int = 0  # 0: multi-label

    @property
    def has_links(self) -> bool:
        """True for a link set."""
        return self.name.startswith("ogbl-")

    @property
    def url(self) -> str:
        """Address of the archive."""
        return f"{ADDRESS}/{'link' if self.has_links else 'node'}proppred/{self.download_name}.zip"

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of the set's folder: in the archive, and in OGB's package."""
        return self.download_name, self.name.replace("-", "_"), self.name


_BOTH: Literal["both directions"] = "both directions"
OGB_SETS: Mapping[str, OgbSet] = {
    one.name: one
    for one in (
        OgbSet("ogbn-arxiv", "arxiv", "time", num_classes=40),
        OgbSet("ogbn-products", "products", "sales_ranking", edges=_BOTH, num_classes=47),
        OgbSet("ogbn-proteins", "proteins", "species", edges=_BOTH),
        OgbSet("ogbn-mag", "mag", "time", kind="typed", num_classes=349),
        OgbSet("ogbn-papers100M", "papers100M-bin", "time", layout="npz", num_classes=172),
        OgbSet("ogbl-ppa", "ppassoc", "throughput", edges=_BOTH),
        OgbSet("ogbl-collab", "collab", "time", edges=_BOTH),
        OgbSet("ogbl-ddi", "ddi", "target", edges=_BOTH),
        OgbSet("ogbl-citation2", "citation-v2", "time"),
        OgbSet("ogbl-wikikg2", "wikikg-v2", "time"),
        OgbSet("ogbl-biokg", "biokg", "random", kind="typed"),
        OgbSet("ogbl-vessel", "vessel", "random", layout="npz"),
    )
}


UNKNOWN_CLASS, UNKNOWN_ANSWER = -1, 255


def ogb_labels(values: npt.NDArray[Any], num_classes: int, path: Path) -> npt.NDArray[Any]:
    """Return classes as int64 (nodes,), -1 for NaN; or with 0 classes, multi-labels as uint8, 255 for NaN.

    `values` is (nodes, tasks). ValueError for a value that is neither.
    """
    unknown = np.isnan(values) if np.issubdtype(values.dtype, np.floating) else np.zeros(values.shape, bool)
    whole = np.where(unknown, 0, values).astype(np.int64)
    most = num_classes or 2
    wrong = ~unknown & ((whole != np.where(unknown, 0, values)) | (whole < 0) | (whole >= most))
    if wrong.any():
        row, column = (int(at[0]) for at in np.nonzero(wrong))
        raise ValueError(
            f"{path}, row {row + 1}: the label is {values[row, column]:g}, but there are {most} classes, "
            f"0 to {most - 1}; download the set again"
        )
    if num_classes == 0:
        return np.where(unknown, UNKNOWN_ANSWER, whole).astype(np.uint8)
    if values.shape[1] != 1:
        raise ValueError(f"{path}: has {values.shape[1]} labels per node, but 1 is expected")
    return np.where(unknown, UNKNOWN_CLASS, whole)[:, 0]


_NAMES = {"train": "train", "val": "valid", "test": "test"}
_DICT = "split_dict.pt"

Splits = dict[str, npt.NDArray[np.int64]]


def ogb_splits(folder: Path) -> Splits:
    """Return the nodes of train, val and test from a folder with three CSV files, or with split_dict.pt."""
    if (folder / _DICT).is_file():
        given = tensor_file(folder / _DICT)
        return {name: ids_of(given, published, folder / _DICT) for name, published in _NAMES.items()}
    found: Splits = {}
    for name, published in _NAMES.items():
        paths = [folder / f"{published}{suffix}" for suffix in (".csv.gz", ".csv")]
        if not any(path.is_file() for path in paths):
            raise ValueError(f"{paths[0]}: no such file; give the folder as it was published")
        path = next(path for path in paths if path.is_file())
        found[name] = csv_numbers(path)[:, 0].astype(np.int64)
    return found


def ids_of(given: Any, name: str, path: Path) -> npt.NDArray[np.int64]:
    """Return the integers of a name in a dict of tensors or arrays."""
    if not isinstance(given, dict) or name not in given:
        raise ValueError(f"{path}: has no {name!r}; download the set again")
    return np.asarray(given[name]).astype(np.int64)


Numbers = npt.NDArray[Any]
Directions = Literal["as stored", "both directions"]
FEATURES = "x"
_EDGES_AT_ONCE = 1 << 20
_SPECIES = "species.csv.gz"  # of ogbn-proteins; other node columns are named node_*


def csv_columns(
    folder: Path, kind: Literal["node", "edge"], rows: int, scratch: Scratch
) -> dict[str, Numbers]:
    """Return the columns of nodes or edges in CSV files: KIND-feat as x, KIND_year as year."""
    found: dict[str, Numbers] = {}
    for path in sorted(folder.glob(f"{kind}[-_]*.csv.gz")):
        name = path.name.removesuffix(".csv.gz")[len(kind) + 1 :]
        if name != "label":
            found[FEATURES if name == "feat" else name] = flat(csv_numbers(path, rows, scratch))
    if kind == "node" and (folder / _SPECIES).is_file():
        found["species"] = flat(csv_numbers(folder / _SPECIES, rows, scratch))
    return found


def flat(values: Numbers) -> Numbers:
    """Return a column of one number per row as a vector."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def only_count(path: Path, given: Numbers | None = None) -> int:
    """Return the number of nodes or edges in a file that lists it for each graph of a set, or as given."""
    counts = csv_numbers(path)[:, 0] if given is None else given
    if len(counts) != 1:
        raise ValueError(f"{path}: the set has {len(counts)} graphs; only sets of one graph are read")
    return int(counts[0])


def edge_table(ends: tuple[Numbers, Numbers], columns: Mapping[str, Numbers], edges: Directions) -> EdgeTable:
    """Make a table, with each edge followed by its opposite if both directions are asked for."""
    if edges == "as stored":
        return EdgeTable(*ends, columns=columns)
    sources, destinations = ends
    twice = {name: np.repeat(column, 2, axis=0) for name, column in columns.items()}
    pair = np.stack([sources, destinations], axis=1)
    return EdgeTable(pair.reshape(-1), pair[:, ::-1].reshape(-1), columns=twice)


def ogb_raw(raw: Path, scratch: Scratch, edges: Directions) -> tuple[NodeTable, Iterator[EdgeTable]]:
    """Read node columns; edges are read later, block by block."""
    if (raw / "data.npz").is_file():
        return _from_npz(raw / "data.npz", scratch, edges)
    num_nodes = only_count(raw / "num-node-list.csv.gz")
    nodes = NodeTable(num_nodes, dict(csv_columns(raw, "node", num_nodes, scratch)))
    return nodes, csv_edges(raw, scratch, edges)


def csv_edges(folder: Path, scratch: Scratch, edges: Directions) -> Iterator[EdgeTable]:
    """Yield the edges of edge.csv.gz with their columns."""
    num_edges, first, path = only_count(folder / "num-edge-list.csv.gz"), 0, folder / "edge.csv.gz"
    columns = csv_columns(folder, "edge", num_edges, scratch)
    for block in csv_blocks(path, "int64"):
        if block.shape[1] != 2:
            raise ValueError(f"{path}: has {block.shape[1]} columns, but 2 are expected; download it again")
        rows = slice(first, first + len(block))
        of_block = {name: column[rows] for name, column in columns.items()}
        yield edge_table((block[:, 0], block[:, 1]), of_block, edges)
        first += len(block)
    if first != num_edges:
        raise ValueError(
            f"{path}: has {first:,} edges, but num-edge-list has {num_edges:,}; download the set again"
        )


def _from_npz(path: Path, scratch: Scratch, edges: Directions) -> tuple[NodeTable, Iterator[EdgeTable]]:
    num_nodes = only_count(path, npz_array(path, "num_nodes_list", scratch.folder))
    of_nodes = [name for name in npz_names(path) if name.startswith("node_")]
    columns = {_column(name): flat(npz_array(path, name, scratch.folder)) for name in of_nodes}
    return NodeTable(num_nodes, dict(columns)), _npz_edges(path, scratch, edges)


def _npz_edges(path: Path, scratch: Scratch, edges: Directions) -> Iterator[EdgeTable]:
    index = npz_array(path, "edge_index", scratch.folder)
    if index.ndim != 2 or len(index) != 2:
        raise ValueError(f"{path}, array edge_index: has shape {index.shape}, but (2, edges) is expected")
    names = [name for name in npz_names(path) if name.startswith("edge_") and name != "edge_index"]
    columns = {_column(name): flat(npz_array(path, name, scratch.folder)) for name in names}
    if any(len(column) != index.shape[1] for column in columns.values()):
        raise ValueError(f"{path}: edges and their columns have different numbers of rows; download it again")
    for first in range(0, index.shape[1], _EDGES_AT_ONCE):
        rows = slice(first, first + _EDGES_AT_ONCE)
        of_block = {name: column[rows] for name, column in columns.items()}
        yield edge_table((index[0, rows], index[1, rows]), of_block, edges)


def _column(name: str) -> str:
    short = name.partition("_")[2]
    return FEATURES if short == "feat" else short


def typed_nodes(raw: Path, scratch: Scratch) -> dict[NodeType, NodeTable]:
    """Return the node types in alphabetical order, with their columns."""
    path = raw / "num-node-dict.csv.gz"
    counts = {node_type: int(values[0]) for node_type, values in sorted(csv_table(path).items())}
    folder = raw / "node-feat"
    return {t: NodeTable(n, dict(csv_columns(folder / t, "node", n, scratch))) for t, n in counts.items()}


def typed_edges(raw: Path, scratch: Scratch, directions: Directions) -> dict[EdgeType, EdgeChunks]:
    """Return the edge types in alphabetical order; with both directions, each with its rev_RELATION."""
    found = {}
    for edge_type in triplets(raw):
        reverse = reverse_of(edge_type) if directions == "both directions" else None
        edges = csv_edges(relation_folder(raw, edge_type), scratch, "as stored")
        found[edge_type] = EdgeChunks(edges, reverse)
    return found


def triplets(raw: Path) -> list[EdgeType]:
    """Return the edge types that triplet-type-list names, in alphabetical order."""
    path = raw / "triplet-type-list.csv.gz"
    rows = csv_rows(path)
    if any(len(row) != 3 for row in rows):
        raise ValueError(f"{path}: a row has {len(rows[0])} fields, but 3 are expected")
    return sorted((head, relation, tail) for head, relation, tail in rows)


def relation_folder(raw: Path, edge_type: EdgeType) -> Path:
    """Return the folder of an edge type."""
    return raw / "relations" / "___".join(edge_type)


def reverse_of(edge_type: EdgeType) -> EdgeType:
    """Return the name of the opposite edge type."""
    return (edge_type[2], f"rev_{edge_type[1]}", edge_type[0])


LABEL = "label"


def ogb_nodes(ogb: OgbSet, folder: Path, directions: Directions, scratch: Scratch) -> SetGraph:
    """Read a node set. `directions` adds opposite edges to those of the set.

    With several node types, the opposite edges are separate types, named rev_RELATION.
    """
    if ogb.kind == "typed":
        return _typed(ogb, folder, directions, scratch)
    both: Directions = "both directions" if "both directions" in (ogb.edges, directions) else "as stored"
    nodes, edges = ogb_raw(folder / "raw", scratch, both)
    nodes = replace(nodes, splits=ogb_splits(folder / "split" / ogb.split))
    assert nodes.count is not None
    nodes = labeled(nodes, _labels(ogb, folder / "raw", nodes.count, scratch), ogb)
    return SetGraph(ogb.name, {NODE: nodes}, {EDGE: EdgeChunks(edges)}, {NODE: task(ogb)})


def labeled(table: NodeTable, labels: npt.NDArray[Any], ogb: OgbSet) -> NodeTable:
    """Return the table with a column of labels."""
    classes = {LABEL: ogb.num_classes} if ogb.num_classes else {}
    return replace(table, columns={**table.columns, LABEL: labels}, num_classes=classes)


def task(ogb: OgbSet) -> str:
    """Return the kind of task of a node set."""
    return "node-classification" if ogb.num_classes else "multi-label"


def _labels(ogb: OgbSet, raw: Path, count: int, scratch: Scratch) -> npt.NDArray[Any]:
    path = raw / "node-label.npz"
    if path.is_file():
        return ogb_labels(npz_array(path, "node_label", scratch.folder), ogb.num_classes, path)
    path = raw / "node-label.csv.gz"
    return ogb_labels(csv_numbers(path, count), ogb.num_classes, path)


def _typed(ogb: OgbSet, folder: Path, directions: Directions, scratch: Scratch) -> SetGraph:
    raw, split = folder / "raw", folder / "split" / ogb.split
    nodes, labels = typed_nodes(raw, scratch), {}
    for node_type in _types_with(raw / "nodetype-has-label.csv.gz"):
        path = raw / "node-label" / node_type / "node-label.csv.gz"
        values = ogb_labels(csv_numbers(path, nodes[node_type].count), ogb.num_classes, path)
        nodes[node_type] = labeled(nodes[node_type], values, ogb)
        labels[node_type] = task(ogb)
    for node_type in _types_with(split / "nodetype-has-split.csv.gz"):
        nodes[node_type] = replace(nodes[node_type], splits=ogb_splits(split / node_type))
    return SetGraph(ogb.name, nodes, typed_edges(raw, scratch, directions), labels)


def _types_with(path: Path) -> list[NodeType]:
    """Return the node types whose flag is True in a file with a header of types."""
    return [node_type for node_type, values in csv_table(path).items() if values[0].lower() == "true"]


SPLIT = "split"  # 0 training, 1 validation, 2 test
_FILES = ("train.pt", "valid.pt", "test.pt")
_ENDS = (("source_node", "target_node"), ("head", "tail"))
_NO_COLUMNS = {"edge", "source_node", "target_node", "head", "tail", "head_type", "tail_type"}
Links = Mapping[str, Any]


def ogb_links(ogb: OgbSet, folder: Path, directions: Directions, scratch: Scratch) -> SetGraph:
    """Read a link set. Links of an undirected set are stored once, and as their reverse type rev_RELATION."""
    parts = [_part(folder / "split" / ogb.split / name) for name in _FILES]
    if ogb.kind == "typed":
        raw = folder / "raw"
        nodes = dict(typed_nodes(raw, scratch))
        tables = {t: _table(_only(parts, raw, t)) for t in triplets(raw)}
    else:
        nodes = {NODE: ogb_raw(folder / "raw", scratch, "as stored")[0]}
        tables = {EDGE: _table(parts)}
    if "both directions" in (ogb.edges, directions):
        tables |= {
            reverse_of(t): EdgeTable(table.destinations, table.sources, dict(table.columns), reverse_of=t)
            for t, table in tables.items()
        }
    return SetGraph(ogb.name, nodes, tables)


def _part(path: Path) -> Links:
    """Return the links of a split, without its negatives."""
    given = tensor_file(path)
    if not isinstance(given, dict):
        raise ValueError(f"{path}: has a {type(given).__name__}, but a dict is expected")
    found = {str(name): values for name, values in given.items() if "neg" not in str(name)}
    ends = [pair for pair in _ENDS if set(pair) <= set(found)]
    if "edge" in found:
        edge = np.asarray(found["edge"])
        found["source"], found["destination"] = edge[:, 0], edge[:, 1]
    elif ends:
        found["source"], found["destination"] = (np.asarray(found[name]) for name in ends[0])
    else:
        raise ValueError(f"{path}: has {', '.join(found)}, but no links; download the set again")
    return found


def published_negatives(ogb: OgbSet, folder: Path) -> dict[str, Any]:
    """Return the published negatives of val and test as Arrow tables; none for knowledge graphs.

    Either a list of destinations per link, or pairs that all links are compared with.
    """
    found: dict[str, Any] = {}
    for split, name in zip(("val", "test"), _FILES[1:], strict=True):
        given = tensor_file(folder / "split" / ogb.split / name)
        if "edge_neg" in given:
            pairs = np.asarray(given["edge_neg"]).astype(np.int64)
            found[split] = pa.table({"source": pairs[:, 0], "destination": pairs[:, 1]})
        elif "target_node_neg" in given:
            lists = np.asarray(given["target_node_neg"]).astype(np.int64)
            starts = np.arange(len(lists) + 1) * lists.shape[1]
            sources, destinations = (np.asarray(given[end]) for end in _ENDS[0])
            nodes = pa.LargeListArray.from_arrays(starts, lists.reshape(-1))
            found[split] = pa.table({"source": sources, "destination": destinations, "negatives": nodes})
    return found


@contextmanager
def with_negatives(ogb: OgbSet, folder: Path, out: Path) -> Iterator[list[str]]:
    """Write the published negatives of a link set; yield a note on their folder, if there are any.

    The folder appears at the end of the block, which writes the graph `out`, and only if that succeeds.
    """
    tables = published_negatives(ogb, folder) if ogb.has_links else {}
    if not tables:
        yield []
        return
    home = negatives_folder(out)
    with new_folder(home) as made:
        for split in list(tables):
            path = made / f"{split}.parquet"
            with naming(path), path.open("wb") as file:
                pq.write_table(tables.pop(split), file)
                flush(file)
        yield [f"published negatives: {home}; khop init proposes a run that is evaluated with them"]


def _only(parts: list[Links], raw: Path, edge_type: EdgeType) -> list[Links]:
    """Return the links of one edge type; the splits of a typed set name relations by number."""
    number = int(csv_numbers(relation_folder(raw, edge_type) / "edge_reltype.csv.gz")[0, 0])
    others = {"head_type", "tail_type", "relation"}
    return [
        {
            name: np.asarray(of)[np.asarray(part["relation"]) == number]
            for name, of in part.items()
            if name not in others
        }
        for part in parts
    ]


def _table(parts: list[Links]) -> EdgeTable:
    sizes = [len(part["source"]) for part in parts]
    columns: dict[str, Numbers] = {SPLIT: np.repeat(np.arange(3, dtype=np.int8), sizes)}
    for name in parts[0]:
        given = [np.asarray(part[name]) for part in parts if name in part]
        is_column = name not in _NO_COLUMNS | {"source", "destination"}
        if is_column and [len(values) for values in given] == sizes and given[0].dtype.kind in "iuf":
            columns["relation" if name == "reltype" else name] = np.concatenate(given)
    ends = [np.concatenate([part[end] for part in parts]) for end in ("source", "destination")]
    return EdgeTable(ends[0].astype(np.int64), ends[1].astype(np.int64), columns)


def ogb_importer(options: Ogb, context: ImportContext) -> NamedImport:
    """Return the import of one of OGB's sets; ValueError for an unknown set."""
    ogb = known_set("ogb", options.name, OGB_SETS, "node or link set")

    def write(out: Path, notice: ProgressCallback | None) -> str:
        if ogb.has_links:
            refuse_existing_in_store(negatives_folder(out))
        root = root_folder(options, context, ogb.url, notice)
        folder = set_folder(root, ogb.folders, ["raw"], mirrored(ogb.url, options.mirror))
        directions: Directions = "both directions" if options.undirected else "as stored"
        beside = Scratch.beside(out, memory_budget(context) // 4)
        with beside as scratch, with_negatives(ogb, folder, out) as notes:
            read = ogb_links if ogb.has_links else ogb_nodes
            size = read(ogb, folder, directions, scratch).write(out, context, notice)
        context.further.extend([negatives_folder(out)] if notes else [])
        return "\n".join([size, *notes])

    return NamedImport(ogb.name, write)
