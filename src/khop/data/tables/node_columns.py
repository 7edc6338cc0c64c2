"""Columns of one node type: statistics of the training rows, then features, labels, times and splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.data.tables.encoders import ColumnEncoder, FeatureRows, WordsEncoder, fitter, numbers_of
from khop.data.tables.labels import (
    NAMES,
    NONE,
    TRAIN,
    UNKNOWN,
    UNKNOWN_BYTE,
    CutOffs,
    LabelReader,
    Parts,
    parts_of,
)
from khop.data.tables.later_spec import FEATURES, LABEL, TIME, record_of
from khop.data.tables.packages import is_text, numpy_of, pa, pc, refuse, refuse_null, shown, without_blanks
from khop.data.tables.rows import TableRows
from khop.data.tables.source import OpenSource
from khop.data.tables.spec import NodeSpec, Raw, Split, Unit
from khop.data.tables.times import to_unit
from khop.graph import layout
from khop.graph.atomic import check_disk, in_order
from khop.graph.folder_writer import ArrayWriter, FolderWriter
from khop.graph.manifest import NodeEntry
from khop.graph.node_ids import LABEL_TIME, UNDATED
from khop.kernels.id_table import Kind

_MOST_INT64 = (1 << 63) - 1


@dataclass(frozen=True, eq=False)
class NodeReader:
    """Reader of one node type's table."""

    node_type: str
    spec: NodeSpec
    source: OpenSource
    kind: Kind  # of the ids
    unit: Unit  # of times
    split: Split | None
    cut_offs: CutOffs | None  # for statistics; None: all training rows count
    touched: npt.NDArray[np.bool_] | None  # by an edge before validation; None: no edge has a time
    threads: int
    encoders: Mapping[str, ColumnEncoder] | None = None  # for later data; None: fitted to the rows

    @property
    def key(self) -> str:
        """The key of the type in the spec."""
        return f"nodes.{self.node_type}"

    def columns(self) -> dict[str, str]:
        """Return the columns that are read, each with its key in the spec."""
        assert self.spec.id is not None
        found = {self.spec.id: f"{self.key}.id"}
        if self.spec.time is not None:
            found.setdefault(self.spec.time, f"{self.key}.time")
        if self.spec.label is not None:
            found.setdefault(self.spec.label.column, f"{self.key}.label")
            if self.spec.label.time is not None:
                found.setdefault(self.spec.label.time, f"{self.key}.label.time")
        if self.split is not None and self.split.column is not None:
            found.setdefault(self.split.column, f"{self.key}.split.column")
        for name, column in self.spec.columns.items():
            found.setdefault(column.column or name, f"{self.key}.columns.{name}")
        return found

    def rows(self) -> Iterator[tuple[int, TableRows]]:
        """Yield all rows in order, each piece with the node of its first row."""
        first = 0
        for rows in in_order(self.source.pieces(list(self.columns())), self.threads):
            yield first, rows
            first += len(rows)

    def times(self, rows: TableRows) -> npt.NDArray[np.int64] | None:
        """Return the times of rows in the unit of the graph."""
        return None if self.spec.time is None else self._times(self.spec.time, f"{self.key}.time", rows)

    def label_times(self, rows: TableRows) -> npt.NDArray[np.int64] | None:
        """Return the dates of labels, UNDATED for nodes without one; None if the times of nodes are used."""
        label = self.spec.label
        if label is None or label.time is None:
            return None
        return self._times(label.time, f"{self.key}.label.time", rows)

    def dates(self, rows: TableRows) -> npt.NDArray[np.int64] | None:
        """Return the date of each row: its label's, else its time."""
        labels, times = self.label_times(rows), self.times(rows)
        if labels is None or times is None:
            return times if labels is None else labels
        return np.where(labels == UNDATED, times, labels)

    def _times(self, name: str, key: str, rows: TableRows) -> npt.NDArray[np.int64]:
        array = rows.column(name)
        known = numpy_of(array.is_valid())
        if known.all() or self.spec.label is None:
            return to_unit(array, self.source.time_format, self.unit, key, rows.row)
        # A node without a label may lack a time: it then always exists.
        labeled = numpy_of(rows.column(self.spec.label.column).is_valid())
        kept = known | labeled
        of_kept = rows.keep(kept)
        times = np.full(len(rows), UNDATED, np.int64)
        column = of_kept.column(name)
        times[kept] = to_unit(column, self.source.time_format, self.unit, key, of_kept.row)
        return times

    def parts(self, rows: TableRows, times: npt.NDArray[np.int64] | None) -> Parts | None:
        """Return the part of each row by the split of the type; None without a split."""
        return parts_of(self.split, rows, [self.spec.id or ""], times, self.unit, self.key)

    def counts_for_statistics(
        self, first: int, rows: TableRows, times: npt.NDArray[np.int64] | None, parts: Parts | None
    ) -> npt.NDArray[np.bool_]:
        """Return the rows for statistics: training rows before validation begins."""
        allowed = np.ones(len(rows), bool) if parts is None else parts == TRAIN
        if self.cut_offs is None:
            return allowed
        if times is not None:
            allowed = allowed & (times < self.cut_offs.val)
        if times is not None and not (times == UNDATED).any():
            return allowed
        if times is not None and self.touched is not None:
            allowed = allowed & ((times != UNDATED) | self.touched[first : first + len(rows)])
        elif self.touched is not None:
            allowed = allowed & self.touched[first : first + len(rows)]
        return np.asarray(allowed, bool)


def write_nodes(
    reader: NodeReader, count: int, writer: FolderWriter
) -> tuple[NodeEntry, Mapping[str, Any], Mapping[str, int]]:
    """Read a table twice, for statistics and for values, and write its columns and splits.

    Nodes after those of the table, which edges have added, have zeros and no label. Features are streamed;
    labels, times and raw columns are in memory. Returns the entry of the type, its record for import.json,
    and by column the number of rows with a category or word that is not in training rows.
    """
    out = _Output.of(reader, count, *_fitted(reader), writer)
    try:
        for first, rows in reader.rows():
            out.put(first, rows)
        return out.finished(), node_document(reader, out.encoders, out.label), out.unknown
    finally:
        for file in out.files.values():
            file.abandon()


def _fitted(reader: NodeReader) -> tuple[dict[str, ColumnEncoder], LabelReader | None]:
    spec = reader.spec
    if reader.encoders is not None:
        given = None if spec.label is None else LabelReader(spec.label, f"{reader.key}.label", "unknown")
        return dict(reader.encoders), given
    fitters = {
        name: fitter(column, f"{reader.key}.columns.{name}")
        for name, column in spec.columns.items()
        if not isinstance(column, Raw)
    }
    label = None if spec.label is None else LabelReader(spec.label, f"{reader.key}.label")
    for first, rows in reader.rows() if fitters or label else ():
        times = reader.dates(rows)
        seen = rows.keep(reader.counts_for_statistics(first, rows, times, reader.parts(rows, times)))
        for name, one in fitters.items():
            one.add(seen.column(spec.columns[name].column or name), seen.row)
        if label is not None:
            label.add(seen.column(label.spec.column), seen.row)
    if label is not None:
        label.warn_of_spellings()
    return {name: one.encoder() for name, one in fitters.items()}, label


@dataclass(eq=False)
class _Output:
    """The columns and splits of a node type while they are written."""

    reader: NodeReader
    count: int
    encoders: Mapping[str, ColumnEncoder]
    label: LabelReader | None
    writer: FolderWriter
    features: FeatureRows
    files: Mapping[str, ArrayWriter]  # of features and sparse columns
    parts: Parts | None  # of all nodes; None: the reader has no splits
    rows: int = 0  # written so far
    columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)  # in memory
    unknown: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        reader: NodeReader,
        count: int,
        encoders: Mapping[str, ColumnEncoder],
        label: LabelReader | None,
        writer: FolderWriter,
    ) -> _Output:
        """Open the files of a node type; ValueError if the disk has no room for them."""
        node_type, features = reader.node_type, FeatureRows.of(encoders)
        shapes = {FEATURES: features.stored} if features.width else {}
        shapes |= {name: ("int32", (2, one.longest)) for name, one in _sparse(encoders).items()}
        sizes = [np.dtype(dtype).itemsize * prod(shape) for dtype, shape in shapes.values()]
        check_disk(writer.folder, count * sum(sizes), f"node type {node_type}")
        files = {
            name: writer.open_array(layout.node_column(node_type, name), dtype, (count, *shape))
            for name, (dtype, shape) in shapes.items()
        }
        parts = None if reader.split is None else np.full(count, NONE, np.int8)
        return cls(reader, count, encoders, label, writer, features, files, parts)

    def put(self, first: int, rows: TableRows) -> None:
        spec, joined, features = self.reader.spec, [], self.features
        for name, encoder in self.encoders.items():
            array, is_joined = rows.column(spec.columns[name].column or name), name in features.encoders
            encoded = features.encode(name, array, rows.row) if is_joined else encoder.encode(array, rows.row)
            self.unknown[name] = self.unknown.get(name, 0) + encoded.unknown
            if is_joined:
                joined.append(encoded.values)
            else:
                self.files[name].write(encoded.values)
        if joined:
            self.files[FEATURES].write(features.joined(joined))
        self.rows = first + len(rows)
        for name, column in spec.columns.items():
            if isinstance(column, Raw):
                key = f"{self.reader.key}.columns.{name}"
                dtype = raw_dtype(self.reader.source.schema.field(column.column or name).type, column.dtype)
                self._set(name, first, raw_values(rows.column(column.column or name), dtype, key, rows))
        times = self.reader.times(rows)
        if times is not None:
            self._set(TIME, first, times)
        label_times = self.reader.label_times(rows)
        if label_times is not None:
            self._set(LABEL_TIME, first, label_times)
        parts = self.reader.parts(rows, self.reader.dates(rows))
        if self.label is not None:
            labeled = self.label.read(rows.column(self.label.spec.column), rows.row)
            self._set(LABEL, first, labeled.values)
            self.unknown[LABEL] = self.unknown.get(LABEL, 0) + labeled.outside
            parts = None if parts is None else np.where(labeled.known, parts, NONE).astype(np.int8)
        if parts is not None and self.parts is not None:
            self.parts[first : first + len(rows)] = parts

    def finished(self) -> NodeEntry:
        node_type, splits = self.reader.node_type, {}
        for written in self.files.values():
            written.fill(self.count - self.rows)
            written.close()
        for name, values in self.columns.items():
            file = layout.node_column(node_type, name)
            self.writer.array(file, values.dtype.name, values.shape, [values])
        if self.parts is not None and (self.label is not None or self.reader.spec.split is not None):
            found = {name: np.flatnonzero(self.parts == number) for number, name in enumerate(NAMES)}
            splits = {name: ids for name, ids in found.items() if len(ids)}
        for name, ids in splits.items():
            self.writer.array(layout.node_split(node_type, name), "int64", ids.shape, [ids])
        is_class = self.label is not None and self.label.spec.kind == "class"
        classes = {LABEL: len(self.label.classes)} if self.label is not None and is_class else {}
        names = (*self.files, *self.columns)
        sparse = {FEATURES: self.features.width} if self.features.is_sparse else {}
        sparse |= {name: one.width for name, one in _sparse(self.encoders).items()}
        return NodeEntry(node_type, self.count, names, tuple(splits), classes, sparse=sparse)

    def _set(self, name: str, first: int, values: npt.NDArray[Any]) -> None:
        if name not in self.columns:
            unknown = {np.dtype(np.int64): UNKNOWN, np.dtype(np.uint8): UNKNOWN_BYTE}
            fills = {LABEL: unknown.get(values.dtype, np.nan), LABEL_TIME: UNDATED}
            shape = (self.count, *values.shape[1:])
            self.columns[name] = np.full(shape, fills.get(name, 0), values.dtype)
        self.columns[name][first : first + len(values)] = values


def _sparse(encoders: Mapping[str, ColumnEncoder]) -> dict[str, WordsEncoder]:
    """Return the encoders of sparse columns, which have separate files."""
    return {name: one for name, one in encoders.items() if isinstance(one, WordsEncoder)}


def raw_dtype(dtype: Any, asked: str | None = None) -> str:
    """Return the dtype in which a raw column is stored."""
    if asked is not None:
        return asked
    if pa.types.is_boolean(dtype):
        return "bool"
    if pa.types.is_floating(dtype) or (pa.types.is_signed_integer(dtype) or dtype == pa.uint8()):
        return str(np.dtype(dtype.to_pandas_dtype()))
    return "int64" if pa.types.is_integer(dtype) else "float64"


def raw_values(array: Any, dtype: str, key: str, rows: TableRows) -> npt.NDArray[Any]:
    """Return numbers in a dtype that holds them exactly; ValueError for a null and for lost digits."""
    refuse_null(array, rows.row, f'{key} is null; give kind = "number", which replaces nulls')
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_nested(array.type) or pa.types.is_binary(array.type):
        remedy = 'give kind = "vector"' if pa.types.is_nested(array.type) else "convert the column"
        value = shown(array[0]) if len(array) else f"of type {array.type}"
        raise ValueError(f"{rows.row(0)}: {key} is {value}: not a number; {remedy}")
    is_parsed = is_text(array.type)
    values: npt.NDArray[Any] = _raw_of_text(array, dtype, key, rows) if is_parsed else numpy_of(array)
    with np.errstate(invalid="ignore"):
        stored = values.astype(dtype)
        lost = (stored.astype(values.dtype) != values) & ((values == values) | (stored.dtype.kind == "i"))
    if array.type == pa.uint64():
        lost |= (values > np.uint64(_MOST_INT64)) & (stored.dtype.kind == "i")
    refuse(lost, rows.row, lambda row: f"{key} is {values[row]}: beyond {dtype}; correct the row")
    return stored


def _raw_of_text(array: Any, dtype: str, key: str, rows: TableRows) -> npt.NDArray[Any]:
    """Return the numbers of text: all digits of integers, or an error."""
    numbers = numbers_of(array, key, rows.row)
    texts = without_blanks(array)
    is_whole = numpy_of(pc.match_substring_regex(texts, r"^-?\d+$"))
    if dtype == "int64":
        for row in np.flatnonzero(~is_whole | (np.abs(numbers) >= 2.0**62)):
            text = texts[row].as_py()
            if not (is_whole[row] and -_MOST_INT64 - 1 <= int(text) <= _MOST_INT64):
                raise ValueError(f"{rows.row(int(row))}: {key} is {text!r}: not an int64; correct the row")
        return np.asarray(numpy_of(texts.cast(pa.int64())))
    for row in np.flatnonzero(is_whole & (np.abs(numbers) >= 2.0**53)):
        text = texts[row].as_py()
        if int(text) != int(numbers[row]):
            raise ValueError(
                f'{rows.row(int(row))}: {key} is {text}: float64 loses its digits; give dtype = "int64"'
            )
    return numbers


def node_document(
    reader: NodeReader, encoders: Mapping[str, ColumnEncoder], label: LabelReader | None
) -> dict[str, Any]:
    """Return encoders and classes of a type as JSON values, for later data."""
    spec = reader.spec
    document: dict[str, Any] = {"id": {"column": spec.id, "kind": reader.kind}}
    document |= record_of(reader.source.spec, spec.columns, encoders)  # with the unit that was found
    if label is not None:
        document[LABEL] = {
            "kind": label.spec.kind, "column": label.spec.column, "unit": label.spec.unit,
            "classes": list(label.classes), **({} if label.spec.time is None else {TIME: label.spec.time}),
        }  # fmt: skip
    return document
