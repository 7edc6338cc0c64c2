"""Columns for gathers: in memory as far as they fit, else read from disk row by row."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from khop.graph.build import write_graph
from khop.graph.feature_columns import feature_columns
from khop.graph.folder import open_folder
from khop.graph.tables import NodeTable


def vm_flags(address: int) -> list[str]:
    """The kernel's flags of the mapping that holds an address; "rr" is advice to expect random reads."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(hex(address))


def test_the_largest_columns_stay_on_disk_where_memory_does_not_hold_all(tmp_path: Path) -> None:
    rows = 40_000
    columns = {"x": torch.rand(rows, 8), "y": torch.arange(rows)}
    folder = open_folder(write_graph(tmp_path / "g", {"a": NodeTable(columns=columns)}, {}))
    x_bytes, y_bytes = rows * 8 * 4, rows * 8
    for room, on_disk in [
        (x_bytes + y_bytes, ""),
        (x_bytes + y_bytes - 1, "x"),
        (y_bytes - 1, "xy"),
        (0, "xy"),
    ]:
        found = feature_columns(folder, room)["a"]
        for name, column in found.items():
            assert torch.equal(column, columns[name])
            assert ("rr" in vm_flags(column.data_ptr() + (1 << 17))) == (name in on_disk), (room, name)
    # A pass from end to end, as `columns` is for, still reads ahead.
    assert "rr" not in vm_flags(folder.columns()["a"]["x"].data_ptr() + (1 << 17))
