"""A feature store written outside khop: rows of records in one mapped file per type."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

import khop
from extension.training import losses_of, train
from khop.graph.features.store import Gathered, Rows, Wanted
from khop.graph.features.table import FeatureTable
from khop.schema import ColumnSpec, EdgeType, NodeType, Specs
from khop.testing.feature_store import PROMISES, Columns, Make
from support.covered import covered
from support.small_graphs import one_type
from support.started_ranks import StartedRanks

NARROW = ("float16", "bfloat16")


class Records(khop.FeatureStoreBase):
    """Rows as records: all columns of a row side by side, so that a gather reads each row once.

    Every type has a file of records of equal size; records.json names types, columns and their places.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._specs: dict[NodeType | EdgeType, dict[str, ColumnSpec]] = {}
        self._places: dict[NodeType | EdgeType, dict[str, slice]] = {}
        self._rows: dict[NodeType | EdgeType, Tensor] = {}  # uint8 (rows, bytes of a record), mapped
        for number, of_type in enumerate(json.loads((folder / "records.json").read_text())):
            name, count, size = of_type["type"], of_type["rows"], of_type["bytes"]
            type_ = name if isinstance(name, str) else tuple(name)
            file = torch.from_file(str(folder / f"{number}.records"), size=count * size, dtype=torch.uint8)
            self._rows[type_] = file.view(count, size)
            columns = {column["name"]: column for column in of_type["columns"]}
            self._specs[type_] = {n: ColumnSpec(c["dtype"], tuple(c["shape"])) for n, c in columns.items()}
            self._places[type_] = {n: slice(c["begin"], c["end"]) for n, c in columns.items()}

    @property
    def specs(self) -> Specs:
        return self._specs

    def gather(self, wanted: Wanted) -> Gathered:
        return {type_: self._columns(type_, rows) for type_, rows in wanted.items()}

    def _columns(self, type_: NodeType | EdgeType, rows: Rows) -> dict[str, Tensor]:
        if type_ not in self._rows:
            raise ValueError(f"no columns of type {type_!r}; there are columns of {list(self._rows)}")
        specs, records = self._specs[type_], self._rows[type_]
        for name in rows.columns:
            if name not in specs:
                raise ValueError(f"no column {name!r} of {type_!r}; there are {sorted(specs)}")
        outside = ((rows.ids < 0) | (rows.ids >= len(records))).nonzero().flatten()
        if outside.numel():
            at = int(outside[0])
            raise ValueError(
                f"columns {list(rows.columns)} of {type_!r}: row {int(rows.ids[at])} at position {at}: must "
                f"be in [0, {len(records)})"
            )
        read = records[rows.ids]
        return {name: self._column(type_, name, rows, read) for name in rows.columns}

    def _column(self, type_: NodeType | EdgeType, name: str, rows: Rows, read: Tensor) -> Tensor:
        spec, limit = self._specs[type_][name], rows.limits.get(name)
        content = read[:limit, self._places[type_][name]]
        values = content.flatten().clone().view(getattr(torch, spec.dtype)).view(len(content), *spec.shape)
        return values.float() if name in rows.as_float32 and spec.dtype in NARROW else values


def write_records(folder: Path, columns: Columns) -> Path:
    """Write columns as a folder of records."""
    folder.mkdir(parents=True)
    described = []
    for number, (type_, of_type) in enumerate(columns.items()):
        count, begin, pieces, entries = len(next(iter(of_type.values()))), 0, [], []
        for name, column in of_type.items():
            pieces.append(column.contiguous().view(count, -1).view(torch.uint8))
            end = begin + pieces[-1].shape[1]
            dtype, shape = str(column.dtype).removeprefix("torch."), list(column.shape[1:])
            entries.append({"name": name, "dtype": dtype, "shape": shape, "begin": begin, "end": end})
            begin = end
        (folder / f"{number}.records").write_bytes(torch.cat(pieces, dim=1).numpy().tobytes())
        described.append({"type": type_, "rows": count, "bytes": begin, "columns": entries})
    (folder / "records.json").write_text(json.dumps(described))
    return folder


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda columns: Records(write_records(tmp_path / "records", columns))


@pytest.mark.core(5)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps_the_promises_of_a_feature_store(promise: Callable[[Make], None], make: Make) -> None:
    promise(make)


def columns_of(table: FeatureTable) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
    return table.columns


@pytest.mark.long
def test_training_reads_the_rows_of_the_file(tmp_path: Path, ranks: StartedRanks) -> None:
    """The losses are those of khop's own table, bit for bit, and those of two ranks equal to 1e-12."""
    write_records(tmp_path / "records", columns_of(one_type(torch.float64).features))
    train_on_records(0, torch.device("cpu"), str(tmp_path), "one")
    small = one_type(torch.float64)
    train(khop.Graph(small.store, small.features), tmp_path / "table")
    assert losses_of(tmp_path / "one") == losses_of(tmp_path / "table")
    ranks.launch(train_on_records, 2, (str(tmp_path), "two"))
    assert losses_of(tmp_path / "two") == pytest.approx(losses_of(tmp_path / "one"), rel=1e-12)


@covered
def train_on_records(rank: int, device: torch.device, home: str, name: str) -> None:
    """Every rank maps the same files."""
    graph = khop.Graph(one_type(torch.float64).store, Records(Path(home) / "records"))
    train(graph, Path(home) / name)
