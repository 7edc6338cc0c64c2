"""Tables of labels with dates as seeds of a run: joined by the users' ids, with classes in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.api.open_graph import names_of
from khop.data.tables.labels import LabelReader, Others, keys_of
from khop.data.tables.packages import converted, is_text, numpy_of, pa, pc, refuse, without_spec
from khop.data.tables.rows import TableRows, no_rows
from khop.data.tables.source import OpenSource, SourceFolder
from khop.data.tables.spec import Label, Source
from khop.data.tables.times import TimeFormat, are_epoch_times, to_unit
from khop.graph.folder import Folder, import_record
from khop.graph.node_ids import LABEL, ids_in, kind_of, stores_ids
from khop.run.parts import GraphOnServers
from khop.run.values import RunConfig, SeedFiles
from khop.sampling.seed_table import SeedTable
from khop.schema import NodeType

_KINDS: dict[str | None, Literal["class", "multi", "number"]] = {
    "node-classification": "class", "node-regression": "number", "multi-label": "multi",
}  # fmt: skip
Where = Callable[[int], str]


def resolved_seeds(config: RunConfig, folder: Folder) -> SeedFiles:
    """Fill in the seed tables of a run: absolute paths, the id column and the classes of training.

    The task of the config must be resolved. Raises ValueError for a table that lacks a column, and for a task
    without node labels.
    """
    seeds = config.seeds
    if seeds.train is None:
        return seeds
    if config.task.kind not in _KINDS:
        raise ValueError(
            f"seeds.train is {seeds.train!r}: seed tables have node labels, and the task is "
            f"{config.task.kind}; give one of {', '.join(map(str, _KINDS))}"
        )
    record = import_record(folder).get("nodes", {}).get(config.task.target, {})
    paths = {
        split: None if path is None else str(Path(path).absolute()) for split, path in seeds.paths.items()
    }
    found = seeds.model_copy(update={**paths, "id": seeds.id or record.get("id", {}).get("column") or "id"})
    tables = SeedTables(config.model_copy(update={"seeds": found}), folder)
    for split in found.paths:
        tables.source(split)  # an error comes before any work
    return found.model_copy(update={"classes": found.classes or tables.classes_of_training()})


@dataclass(frozen=True, eq=False)
class SeedTables:
    """The seed tables of a run, read lazily."""

    config: RunConfig  # resolved
    folder: Folder
    _read: dict[str, SeedTable] = field(default_factory=dict)

    @property
    def node_type(self) -> NodeType:
        """The node type of the rows."""
        target = self.config.task.target
        assert target is not None, "the task is resolved"
        return target

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have a table."""
        return tuple(self.config.seeds.paths)

    @property
    def record(self) -> dict[str, Any]:
        """Names of the classes and unit of the times, in the form of import.json."""
        classes, unit = self.config.seeds.classes, import_record(self.folder).get("time_unit")
        return {**({"classes": list(classes)} if classes else {}), **({"time_unit": unit} if unit else {})}

    def rows(self, split: str) -> SeedTable:
        """Return the rows of a split; ValueError if there are none."""
        if split not in self._read:
            found = self.read(self.source(split), is_labeled=True)
            if not found.num_rows:
                path = self.config.seeds.paths[split]
                raise ValueError(f"seeds.{split} is {path!r}: the table has no rows; give one with rows")
            self._read[split] = found
        return self._read[split]

    def source(self, split: str) -> OpenSource:
        """Open the table of a split. ValueError if it lacks a column."""
        return self.open(self.config.seeds.paths[split], f"seeds.{split}", is_labeled=True)

    @without_spec()
    def open(self, table: Any, key: str, *, is_labeled: bool) -> OpenSource:  # noqa: ANN401
        """Open a file, or a table of pandas, polars or Arrow. ValueError if it lacks a column.

        The columns of labels and weights are needed for labeled rows only.
        """
        seeds = self.config.seeds
        assert seeds.id is not None
        is_file = isinstance(table, str | os.PathLike)
        spec = Source(files=(os.fspath(table),)) if is_file else Source(rows=table)
        source = OpenSource.open(spec, key, SourceFolder(Path(), {})).with_ids([seeds.id])
        needed = {seeds.id: "seeds.id", **({self._label: "task.label"} if is_labeled else {})}
        needed |= {} if seeds.time is None else {seeds.time: "seeds.time"}
        needed |= {} if seeds.weight is None or not is_labeled else {seeds.weight: "seeds.weight"}
        source.check({column: f"{key}, {name}" for column, name in needed.items()})
        return source

    @without_spec()
    def classes_of_training(self) -> tuple[str, ...]:
        """Return the names of the classes in the training table, in ascending order; () for numbers."""
        reader = self._reader(())
        if reader.spec.kind == "number":
            return ()
        for rows in pieces_of(self.source("train"), [self._label]):
            reader.add(rows.column(self._label), rows.row)
        if not reader.classes:
            path = self.config.seeds.paths["train"]
            raise ValueError(
                f"seeds.train is {path!r}: the table has no rows with classes; give labeled rows"
            )
        return reader.classes

    @without_spec()
    def read(self, source: OpenSource, *, is_labeled: bool) -> SeedTable:
        """Read all rows of a table; labels and weights only if they are needed, or labels if it has them.

        Classes that training does not have are unknown labels if labels are not needed.

        ValueError names a row with an unknown id, without a time or, if labels are needed, without a class.
        """
        seeds = self.config.seeds
        has_labels = is_labeled or self._label in source.table.schema.names
        weight = seeds.weight if is_labeled else None
        columns = [seeds.id, seeds.time, weight, self._label if has_labels else None]
        wanted = [column for column in columns if column is not None]
        nodes, times, labels, weights = [], [], [], []
        reader, lookup = (
            self._reader(seeds.classes, "refuse" if is_labeled else "unknown"),
            node_lookup(self.folder, self.node_type, f"seeds.id {seeds.id!r}"),
        )
        for rows in pieces_of(source, wanted):
            assert seeds.id is not None
            nodes.append(lookup(rows.column(seeds.id), rows.row))
            if seeds.time is not None:
                times.append(self._times(rows.column(seeds.time), rows.row))
            if weight is not None:
                weights.append(_numbers(rows.column(weight), f"seeds.weight {weight!r}", rows.row))
            if has_labels:
                labels.append(self._labels(reader, rows, is_labeled=is_labeled))
        return SeedTable(
            {self.node_type: _joined(nodes)},
            {self.node_type: _joined(times)} if times else None,
            {self.node_type: _joined(labels)} if labels else None,
            {self.node_type: _joined(weights)} if weights else None,
        )

    @property
    def _label(self) -> str:
        return self.config.task.label or LABEL

    def _reader(self, classes: tuple[str, ...], others: Others = "refuse") -> LabelReader:
        spec = Label(column=self._label, kind=_KINDS[self.config.task.kind], classes=classes or None)
        return LabelReader(spec, f"label {self._label!r}", others)

    def _labels(self, reader: LabelReader, rows: TableRows, *, is_labeled: bool) -> npt.NDArray[Any]:
        found = reader.read(rows.column(self._label), rows.row)
        if is_labeled and reader.spec.kind == "class" and not found.known.all():
            row = rows.row(int(np.argmin(found.known)))
            raise ValueError(f"{row}: {reader.key} is null; give each row a label, or leave the row out")
        return found.values

    def _times(self, array: Any, where: Where) -> npt.NDArray[np.int64]:  # noqa: ANN401
        """Return times in the unit of the graph; those without a zone are UTC."""
        unit, key = import_record(self.folder).get("time_unit"), f"seeds.time {self.config.seeds.time!r}"
        texts, array = array, _numbers_of_text(array, key, where)
        if unit is None and not pa.types.is_integer(array.type):
            raise ValueError(
                f"{where(0)}: {key} is {array.type}, and the graph records no unit of its times; give whole "
                "numbers in the unit of the graph"
            )
        number_unit = unit if pa.types.is_integer(array.type) or pa.types.is_floating(array.type) else None
        format = TimeFormat(number_unit or ("s" if unit is None else None), "UTC")
        times = to_unit(array, format, unit or "s", key, where)
        if unit is not None and is_text(texts.type) and pa.types.is_integer(array.type):
            problem = f"not a time in {unit} from 1973 to 2099; give ISO 8601 times, or a column of integers"
            wrong = ~are_epoch_times(times, unit)
            refuse(wrong, where, lambda row: f"{key} is {texts[row].as_py()!r}: {problem}, as in Parquet")
        return times


Lookup = Callable[[Any, Where], npt.NDArray[np.int64]]  # from a column of ids to nodes


def node_lookup(folder: Folder, node_type: NodeType, key: str) -> Lookup:
    """Return a function from a column of the users' ids to nodes. It raises ValueError for an unknown id.

    If the graph stores no ids, ids are node numbers before any renumbering. `key` is the column in errors.
    """
    if isinstance(folder, GraphOnServers) and node_type in names_of(folder.graph).ids:
        raise ValueError(
            f"{key}: ids are looked up in the graph folder, and the graph is on servers; open its folder"
        )
    count = folder.num_nodes(node_type)
    if not stores_ids(folder, node_type):
        numbered = _numbered(folder.original_ids(node_type), count)
        return lambda array, where: _known(numbered(keys_of(array, "int64", key, where)), array, key, where)
    own = ids_in(folder.path, folder.arrays, node_type, count)
    kind = kind_of(own.stored)

    def found(array: Any, where: Where) -> npt.NDArray[np.int64]:  # noqa: ANN401
        return _known(own.index.find(own.stored, keys_of(array, kind, key, where)), array, key, where)

    return found


def _known(nodes: npt.NDArray[np.int64], array: Any, key: str, where: Where) -> npt.NDArray[np.int64]:  # noqa: ANN401
    unknown = np.flatnonzero(nodes < 0)
    if len(unknown):
        row = int(unknown[0])
        raise ValueError(
            f"{where(row)}: {key} is {array[row].as_py()!r}, and no node has this id; "
            f"{len(unknown):,} of {len(nodes):,} rows have unknown ids. Leave them out, or add the nodes"
        )
    return nodes


def _numbered(originals: Tensor | None, count: int) -> Callable[[Any], npt.NDArray[np.int64]]:
    """Return a function from node numbers before any renumbering to nodes; -1 for unknown numbers."""
    place = np.arange(count) if originals is None else originals.argsort().numpy()

    def found(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        inside = (numbers >= 0) & (numbers < count)
        return np.where(inside, place[np.where(inside, numbers, 0)] if count else -1, -1)

    return found


def pieces_of(source: OpenSource, columns: list[str]) -> Iterator[TableRows]:
    """Yield the rows of a table; at least one piece, which has the types of the columns."""
    is_empty = True
    for piece in source.pieces(columns):
        is_empty = False
        yield piece()
    if is_empty:
        yield no_rows(source.table, columns)


def _numbers(array: Any, key: str, where: Where) -> npt.NDArray[np.float64]:  # noqa: ANN401
    if array.null_count:
        row = int(np.argmax(numpy_of(array.is_null())))
        raise ValueError(f"{where(row)}: {key} is null; give each row a weight")
    numbers = converted(
        array, lambda part: part.cast(pa.float64()), key, where, "not a number; correct the row"
    )
    return numpy_of(numbers).astype(np.float64)


def _numbers_of_text(array: Any, key: str, where: Where) -> Any:  # noqa: ANN401
    """Return whole numbers in text, as in CSV files, as integers; other columns as they are."""
    if not is_text(array.type) or not pc.all(pc.match_substring_regex(array, r"^-?\d+$")).as_py():
        return array
    return converted(array, lambda part: part.cast(pa.int64()), key, where, "not within int64; correct it")


def _joined(pieces: list[npt.NDArray[Any]]) -> Tensor:
    return torch.from_numpy(np.concatenate(pieces))
