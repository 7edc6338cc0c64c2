"""The feature store over whole columns, in memory and mapped from a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.build import write_graph
from khop.graph.features.store import Rows
from khop.graph.features.table import FeatureTable, read_into, read_rows
from khop.graph.folder import feature_columns, open_folder
from khop.graph.inputs import quantize
from khop.graph.tables import EdgeTable, NodeTable
from khop.schema import ColumnSpec, Schema
from khop.testing.feature_store import BUYS, PROMISES, Columns, Make, int64


def mapped(path: Path, columns: Columns, *, in_memory: bool = True) -> FeatureTable:
    edges = columns[BUYS]["price"].numel()
    in_order = EdgeTable(int64(*([0] * edges)), int64(*([0] * edges)), columns[BUYS])
    nodes = {name: NodeTable(columns=columns[name]) for name in ("user", "item")}
    folder = open_folder(write_graph(path, nodes, {BUYS: in_order}))
    return FeatureTable(folder.columns() if in_memory else feature_columns(folder, room_bytes=0))


@pytest.fixture(params=["in memory", "mapped", "larger than memory", "two threads"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    makers: dict[str, Make] = {
        "in memory": FeatureTable,
        "mapped": lambda columns: mapped(tmp_path / "g", columns),
        "larger than memory": lambda columns: mapped(tmp_path / "g", columns, in_memory=False),
        "two threads": lambda columns: FeatureTable(columns, threads=2),
    }
    return makers[request.param]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], make: Make) -> None:
    promise(make)


def test_the_number_of_threads_changes_nothing() -> None:
    x = torch.arange(300_000.0).view(-1, 6)
    ids = (torch.arange(90_000) * 7919) % len(x)
    one, four = (FeatureTable({"item": {"x": x}}, n).gather({"item": Rows(ids, ("x",))}) for n in (1, 4))
    assert torch.equal(one["item"]["x"], four["item"]["x"])
    assert torch.equal(one["item"]["x"], x[ids])


def test_quantized_columns_come_times_their_scales_from_a_folder(tmp_path: Path) -> None:
    x = torch.randn(50, 2, 3, generator=torch.Generator().manual_seed(0))
    edges = EdgeTable(int64(0, 1), int64(1, 0), {"w": quantize(torch.tensor([2.0, -1.0]))})
    node = NodeTable(columns={"x": quantize(x), "bytes": torch.arange(50, dtype=torch.int8)})
    folder = open_folder(write_graph(tmp_path / "g", {"n": node}, {("n", "to", "n"): edges}))
    table = FeatureTable.of(folder.schema, folder.columns(), threads=2)
    ids = int64(49, 0, 49)
    rows = table.gather(
        {
            "n": Rows(ids, ("x", "bytes"), as_float32=frozenset({"x", "bytes"})),
            ("n", "to", "n"): Rows(int64(1, 0), ("w",), as_float32=frozenset({"w"})),
        }
    )
    assert (rows["n"]["x"] - x[ids]).abs().max() <= x.abs().max() / 254 * 1.001
    assert (rows["n"]["bytes"].dtype, rows["n"]["bytes"].tolist()) == (torch.int8, [49, 0, 49])
    torch.testing.assert_close(rows[("n", "to", "n")]["w"], torch.tensor([2.0, -1.0]), atol=2 / 254, rtol=0)
    assert table.gather({"n": Rows(ids, ("x",))})["n"]["x"].dtype == torch.int8


SPECS = {"x": ColumnSpec("int8", (3,), scales=(0.5, 1.0, 2.0)), "age": ColumnSpec("int64", ())}
COLUMNS = {"x": torch.arange(30).view(10, 3).to(torch.int8), "age": torch.arange(10) * 3}


@given(
    ids=st.lists(st.integers(0, 9), max_size=12),
    cuts=st.lists(st.integers(0, 10), max_size=3).map(sorted),
    threads=st.integers(1, 3),
)
def test_rows_are_those_of_the_joined_columns(ids: list[int], cuts: list[int], threads: int) -> None:
    pieces = {name: column.tensor_split(cuts) for name, column in COLUMNS.items()}
    rows = Rows(torch.tensor(ids, dtype=torch.int64), ("x", "age"))
    found = read_rows(pieces, SPECS, "user", rows, threads)
    whole = FeatureTable.of(Schema(("user",), (), columns={"user": SPECS}), {"user": COLUMNS})
    for name, expected in whole.gather({"user": rows})["user"].items():
        assert torch.equal(found[name], expected)
    out = {
        name: torch.empty(len(ids), *column.shape[1:], dtype=column.dtype) for name, column in COLUMNS.items()
    }
    read_into(pieces, rows.ids, out)
    for name, column in COLUMNS.items():
        assert torch.equal(out[name], column[rows.ids])


def test_a_row_behind_the_last_piece_is_named() -> None:
    pieces = {name: column.split(4) for name, column in COLUMNS.items()}
    with pytest.raises(ValueError, match="10"):
        read_rows(pieces, SPECS, "user", Rows(torch.tensor([3, 10]), ("age",)))
