"""Import of a DGL CSVDataset: `khop import dgl:FOLDER`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from khop.data.formats.set_graph import EDGE, NODE, SetGraph, stored_name
from khop.data.importers import Dgl, ImportContext, NamedImport
from khop.data.tables.labels import canonical_integers, string_keys
from khop.data.tables.packages import numpy_of, pa, pa_csv, pc, reading, refuse
from khop.data.tables.read_spec import validated
from khop.graph.atomic import ProgressCallback
from khop.graph.folder import ORIGINAL_ID
from khop.graph.networkx_tables import narrowed
from khop.graph.tables import EdgeTable, NodeTable
from khop.kernels.id_table import StringKeys, id_table
from khop.schema import EdgeType, NodeType

LABEL, SPLIT, UNKNOWN = "label", "split", -1
_TRUE = ["true", "1", "1.0"]
_MASKS = {"train": "train_mask", "val": "val_mask", "test": "test_mask"}
_NODE, _EDGE = "_V", "_E"  # DGL's names of types that meta.yaml does not name
_MOST_BYTES = 1 << 20
INSTALL = "khop import dgl:FOLDER needs PyYAML: pip install pyyaml"
_LIST = r"[\s\[(]*[-+0-9.eE]+\s*(,[-+0-9.eE\s]+)*,?[\s\])]*"
Numbers = npt.NDArray[Any]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    file_name: str
    graph_id_field: str = "graph_id"


class DglNodes(_Table):
    """A file of nodes."""

    ntype: str = _NODE
    node_id_field: str = "node_id"


class DglEdges(_Table):
    """A file of edges."""

    etype: Annotated[tuple[str, str, str], Field(strict=False)] = (_NODE, _EDGE, _NODE)
    src_id_field: str = "src_id"
    dst_id_field: str = "dst_id"


class DglMeta(BaseModel):
    """The content of meta.yaml."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal["1.0.0"] = "1.0.0"
    dataset_name: str
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","
    node_data: Annotated[Sequence[DglNodes], Field(min_length=1)]
    edge_data: Annotated[Sequence[DglEdges], Field(min_length=1)]
    graph_data: Any = None

    @classmethod
    def read(cls, path: Path) -> DglMeta:
        """Read and check the file. YAML is loaded without tags, so that it has only plain values."""
        try:
            import yaml
        except ImportError:
            raise ValueError(INSTALL) from None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise ValueError(f"{path}: no such file; give the folder of a CSVDataset") from None
        if len(data) > _MOST_BYTES:
            raise ValueError(f"{path}: has {len(data):,} bytes; meta.yaml must have at most {_MOST_BYTES:,}")
        try:
            values: Any = yaml.safe_load(data)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else f"{path}"
            raise ValueError(f"{where}: not plain YAML; correct it, and remove tags") from None
        return validated(cls, values, str(path))


def dgl_importer(options: Dgl, context: ImportContext) -> NamedImport:
    """Return the import of the CSV files of a folder."""
    folder = context.folder / options.name

    def write(out: Path, notice: ProgressCallback | None) -> str:
        meta = DglMeta.read(folder / "meta.yaml")
        reading = _Reading(folder, meta.separator)
        if meta.graph_data is not None:
            reading.notes.append("graph_data: omitted, because columns of a whole graph are not stored")
        for part in meta.node_data:
            reading.add_nodes(part)
        for table in meta.edge_data:
            reading.add_edges(table)
        graph = SetGraph(meta.dataset_name, reading.nodes, reading.edges, notes=reading.notes)
        return graph.write(out, context, notice)

    return NamedImport(folder.name, write)


@dataclass(frozen=True)
class _Reading:
    """The tables read so far."""

    folder: Path
    separator: str
    nodes: dict[NodeType, NodeTable] = field(default_factory=dict)
    edges: dict[EdgeType, EdgeTable] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add_nodes(self, part: DglNodes) -> None:
        """Read a file of nodes."""
        node_type, path = self._type(part.ntype), self.folder / part.file_name
        if node_type in self.nodes:
            raise ValueError(f"{self.folder / 'meta.yaml'}: node type {part.ntype!r} is given twice")
        table = self._table(path, part.graph_id_field)
        texts = table.pop(part.node_id_field) if part.node_id_field in table else _lack(path, part, table)
        numbers = canonical_integers(texts)
        ids = string_keys(texts.cast(pa.large_string())) if numbers is None else numbers
        twice = id_table("string" if numbers is None else "int64", len(ids)).append(ids)
        if twice >= 0:
            where = _rows_of(f"{path}, column {part.node_id_field}")(twice)
            raise ValueError(f"{where}: an earlier node has the id {texts[twice].as_py()!r}; remove one")
        masks = self._masks(table, path)
        columns, unknown = self._columns(table, path, "nodes")
        labels = columns.get(LABEL)
        is_class = labels is not None and labels.ndim == 1 and labels.dtype == np.int64
        most = int(labels.max(initial=-1)) if labels is not None and is_class else -1
        classes = {LABEL: most + 1} if most >= 0 else {}
        splits = {split: mask for split, mask in masks.items() if mask.any()}
        self.nodes[node_type] = NodeTable(len(texts), columns, splits, classes, ids, unknown)

    def add_edges(self, part: DglEdges) -> None:
        """Read a file of edges. Masks become the column `split`."""
        source, relation, destination = part.etype
        relation = EDGE[1] if relation == _EDGE else self._type(relation)
        edge_type = (self._type(source), relation, self._type(destination))
        path = self.folder / part.file_name
        if edge_type in self.edges:
            raise ValueError(f"{self.folder / 'meta.yaml'}: edge type {part.etype} is given twice")
        table = self._table(path, part.graph_id_field)
        ends = []
        for node_type, name in ((edge_type[0], part.src_id_field), (edge_type[2], part.dst_id_field)):
            texts = table.pop(name) if name in table else _lack(path, part, table)
            ends.append(self._rows(node_type, texts, f"{path}, column {name}"))
        masks = self._masks(table, path)
        columns, _ = self._columns(table, path, "edges", {SPLIT} if masks else set())
        if masks:
            split = np.full(len(ends[0]), -1, np.int8)
            for number, name in enumerate(_MASKS):
                split[masks.get(name, np.zeros(len(split), bool))] = number
            columns[SPLIT] = split
        self.edges[edge_type] = EdgeTable(ends[0], ends[1], dict(columns))

    def _type(self, name: str) -> str:
        stored = NODE if name == _NODE else stored_name(name)
        note = f"type {name!r} is {stored!r}"
        if stored != name and note not in self.notes:
            self.notes.append(note)
        return stored

    def _table(self, path: Path, graph_id: str) -> dict[str, Any]:
        """Return the columns of a CSV file as text; ValueError for a file with several graphs."""
        options = pa_csv.ParseOptions(delimiter=self.separator, newlines_in_values=True)
        if not path.is_file():
            raise ValueError(f"{path}: no such file; correct its name in meta.yaml")
        remedy = "give each row as many fields as the first row"
        with reading(str(path), remedy, "is not a table of CSV"):
            with path.open("rb") as file:
                start = pa_csv.open_csv(file, parse_options=options).schema.names
            kinds = pa_csv.ConvertOptions(
                column_types=dict.fromkeys(start, pa.string()), strings_can_be_null=False
            )
            table = pa_csv.read_csv(path, parse_options=options, convert_options=kinds)
        twice = [name for name in table.column_names if table.column_names.count(name) > 1]
        if twice:
            raise ValueError(f"{path}: column {twice[0]!r} occurs twice; rename one")
        found = {name: table.column(name).combine_chunks() for name in table.column_names}
        graphs = found.pop(graph_id, pa.array([])).unique()
        if len(graphs) > 1:
            raise ValueError(f"{path}: has {len(graphs)} graphs; only datasets of one graph are imported")
        return {name: texts for name, texts in found.items() if name and not name.startswith("Unnamed")}

    def _masks(self, table: dict[str, Any], path: Path) -> dict[str, npt.NDArray[np.bool_]]:
        """Return masks without common rows: each row is in the first split that marks it."""
        masks: dict[str, npt.NDArray[np.bool_]] = {}
        several = 0
        for split, name in _MASKS.items():
            if name in table:
                texts = pc.utf8_lower(table.pop(name))
                true, false = (pc.is_in(texts, pa.array(of)) for of in (_TRUE, ["false", "0", "0.0"]))
                _refuse_wrong(pc.invert(pc.or_(true, false)), texts, f"{path}, column {name}")
                mask = numpy_of(true)
                earlier = np.any([*masks.values(), np.zeros_like(mask)], axis=0)
                several += int((mask & earlier).sum())
                masks[split] = mask & ~earlier
        if several:
            self.notes.append(
                f"{path}: {several:,} marks are ignored, because their row is already in an earlier split "
                f"(order: {', '.join(masks)})"
            )
        return masks

    def _columns(
        self, table: Mapping[str, Any], path: Path, what: str, reserved: Collection[str] = ()
    ) -> tuple[dict[str, Numbers], list[str]]:
        """Return the columns, and the names of node columns in which NaN means missing.

        A column whose name is valid and not `reserved` keeps it.
        """
        reserved = {*reserved, ORIGINAL_ID}  # values of the latter would key draws
        columns: dict[str, Numbers] = {}
        unknown: list[str] = []
        for name, texts in table.items():
            taken = {*columns, *reserved, *(other for other in table if other != name)}
            where, stored = f"{path}, column {name}", stored_name(name, taken)
            missing = numpy_of(pc.is_in(pc.utf8_lower(texts), pa.array(["", "nan", "null", "na"])))
            values = _numbers(texts, missing, where)
            if values is None and name == LABEL and what == "nodes":
                words = pc.unique(texts.filter(pa.array(~missing))).sort()
                values = numpy_of(pc.fill_null(pc.index_in(texts, words), UNKNOWN)).astype(np.int64)
                self.notes.append(f"{where}: classes are {', '.join(words.to_pylist())}, in this order")
            elif values is None:
                self.notes.append(f"{where}: text is omitted")
                continue
            elif name == LABEL and what == "nodes" and _is_whole(values):
                values = np.where(missing, UNKNOWN, values).astype(np.int64)
            if stored != name:
                self.notes.append(f"{where}: is column {stored!r}")
            columns[stored] = values
            if missing.any():
                fill = "they are NaN" if values.dtype.kind == "f" else "they are -1, unknown"
                if what == "edges":
                    values[missing] = 0
                    mark = stored_name(f"{stored}_missing", {*columns, *table, *reserved})
                    columns[mark] = missing.astype(np.uint8)
                    fill = f"they are 0, and 1 in {mark}"
                elif values.dtype.kind == "f":
                    unknown.append(stored)
                self.notes.append(f"{where}: {missing.sum():,} of {len(missing):,} have no value; {fill}")
        return columns, unknown

    def _rows(self, node_type: NodeType, texts: Any, where: str) -> npt.NDArray[np.int64]:
        """Return the rows of nodes by their ids."""
        if node_type not in self.nodes:
            raise ValueError(f"{where}: no node type {node_type!r}; there are {', '.join(self.nodes)}")
        known: Any = self.nodes[node_type].ids
        is_text = isinstance(known, StringKeys)
        numbers = None if is_text else canonical_integers(texts)
        if not is_text and numbers is None:  # ids of nodes are integers: compare as text
            known = string_keys(pa.array(known).cast(pa.large_string()))
        table = id_table("int64" if numbers is not None else "string", len(known))
        table.append(known)
        keys = string_keys(texts.cast(pa.large_string())) if numbers is None else numbers
        rows: npt.NDArray[np.int64] = np.asarray(table.find(keys)).astype(np.int64)
        remedy = "add it or drop the row"
        reason = f"no {node_type!r} node has the id"
        refuse(rows < 0, _rows_of(where), lambda at: f"{reason} {texts[at].as_py()}; {remedy}")
        return rows


def _lack(path: Path, part: DglNodes | DglEdges, table: Mapping[str, Any]) -> Any:
    names = [name for key, name in part if key.endswith("_id_field") and key != "graph_id_field"]
    name = next(name for name in names if name not in table)
    raise ValueError(f"{path}: has no column {name!r}, but {', '.join(table)}; meta.yaml names it")


def _rows_of(where: str) -> Callable[[int], str]:
    """Return a function that describes the place of a row in a file with a header."""
    return lambda row: f"{where}, row {row + 2}"


def _refuse_wrong(wrong: Any, texts: Any, where: str) -> None:
    problem = "is neither true nor false; correct it"
    refuse(numpy_of(wrong), _rows_of(where), lambda row: f"{texts[row].as_py()!r} {problem}")


def _numbers(texts: Any, missing: npt.NDArray[np.bool_], where: str) -> Numbers | None:
    """Return int64, floats, bool, or lists as floats (rows, numbers); None for text. See `narrowed`."""
    if missing.all():
        return None
    lower, present = pc.utf8_lower(texts), texts.filter(pa.array(~missing))
    if not missing.any() and pc.all(pc.is_in(lower, pa.array(["true", "false"]))).as_py():
        return numpy_of(pc.equal(lower, "true"))
    whole = None if missing.any() else canonical_integers(texts)
    if whole is not None:
        return whole
    try:
        numbers = pc.if_else(pa.array(missing), "nan", texts).cast(pa.float64())
        return narrowed(numpy_of(numbers))
    except pa.ArrowInvalid:
        pass
    return _lists(texts.to_pylist(), where) if re.fullmatch(_LIST, present[0].as_py()) else None


def _lists(texts: list[str], where: str) -> Numbers:
    width = texts[0].strip(" []()").strip(",").count(",") + 1
    made = np.empty((len(texts), width), np.float64)
    for row, text in enumerate(texts):
        try:
            parsed = [float(number) for number in text.strip(" []()").split(",") if number.strip()]
        except ValueError:
            parsed = []
        if len(parsed) != width:
            raise ValueError(f"{where}, row {row + 2}: {text!r} is not a list of {width} numbers; correct it")
        made[row] = parsed
    return narrowed(made)


def _is_whole(values: Numbers) -> bool:
    known = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return values.ndim == 1 and bool((known == np.rint(known)).all())
