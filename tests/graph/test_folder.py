"""An opened folder says what it holds at once, maps arrays lazily, and never opens what is damaged.

A copy starts with a check: one flipped bit of any array is named, an undamaged folder passes.

Columns for gathers: in memory as far as they fit, else read from disk row by row.

The record of an import lies beside the arrays of a graph folder.

Arrays for reads of single rows have the contents of the file, as arrays for other reads do.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from data.tables.shop import spec
from khop import import_tables
from khop.graph import layout
from khop.graph.build import write_graph
from khop.graph.folder import (
    DOCUMENT,
    STANDARD_SET,
    feature_columns,
    import_record,
    map_sparse_array,
    open_folder,
    read_document,
    refuse_damage,
    standard_set,
    write_documents,
)
from khop.graph.manifest import VERSION, fingerprint
from khop.graph.npy import map_array, write_array
from khop.graph.tables import EdgeTable, GivenEdges, GivenNodes, NodeTable, id_dtype
from khop.graph.verify import document_problems
from khop.schema import ColumnSpec
from support.small_folders import write_learnable_graph

BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought-by", "user")


def test_it_says_what_it_holds(shop: Path) -> None:
    folder = open_folder(str(shop))
    assert folder.path == shop
    assert folder.schema.node_types == ("user", "item")
    assert folder.schema.edge_types == (BUYS, BOUGHT_BY)
    assert folder.schema.reverse_of == {BUYS: BOUGHT_BY, BOUGHT_BY: BUYS}
    assert folder.schema.column("item", "y") == ColumnSpec("int64", (), num_classes=3)
    assert folder.schema.column("item", "half") == ColumnSpec("bfloat16", ())
    assert folder.schema.column(BUYS, "price") == ColumnSpec("float32", ())
    assert (folder.num_nodes("user"), folder.num_nodes("item"), folder.num_edges(BUYS)) == (4, 3, 5)
    assert folder.csc(BUYS).indptr.tolist() == [0, 2, 3, 5]
    assert folder.csc(BUYS).indices.tolist() == [3, 2, 0, 0, 1]
    assert folder.columns()[BUYS]["price"].tolist() == [1, 4, 3, 0, 2]
    assert folder.edge_id(BUYS).tolist() == [1, 4, 3, 0, 2]
    assert folder.edge_id(BOUGHT_BY) is None
    assert folder.split_names == ("train", "test")
    assert {node_type: ids.tolist() for node_type, ids in folder.split("test").items()} == {"item": [1, 0]}
    assert folder.original_ids("item").tolist() == [7, 5, 6]
    assert folder.original_ids("user") is None


def test_what_it_does_not_hold_is_named(shop: Path) -> None:
    folder = open_folder(shop)
    with pytest.raises(ValueError, match=r"no node type 'shop'; there are \['user', 'item'\]"):
        folder.num_nodes("shop")
    with pytest.raises(ValueError, match=r"no edge type \('a', 'b', 'c'\); there are .*'buys'"):
        folder.csc(("a", "b", "c"))
    with pytest.raises(ValueError, match=r"shop: no split 'val'; there are \['train', 'test'\]"):
        folder.split("val")


def test_arrays_are_mapped_once_and_copied_when_written(shop: Path) -> None:
    folder = open_folder(shop)
    x = folder.columns()["item"]["x"]
    assert folder.columns()["item"]["x"].data_ptr() == x.data_ptr()
    assert str(shop / "nodes/item/x.npy") in Path("/proc/self/maps").read_text()
    x[0, 0] = 99
    assert open_folder(shop).columns()["item"]["x"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_a_read_only_folder_can_be_opened_and_its_arrays_written_to(shop: Path) -> None:
    for path in shop.rglob("*.npy"):
        path.chmod(0o444)
    open_folder(shop).csc(BUYS).indices.zero_()
    assert open_folder(shop).csc(BUYS).indices.tolist() == [3, 2, 0, 0, 1]


def test_mapped_arrays_outlive_the_folder(shop: Path) -> None:
    x = open_folder(shop).columns()["item"]["x"]
    shutil.rmtree(shop)
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_a_folder_pickles_as_its_path(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.parent)
    pickled = pickle.dumps(open_folder("shop"))
    monkeypatch.chdir("/")
    assert len(pickled) < 1000
    assert pickle.loads(pickled).fingerprint == open_folder(shop).fingerprint


def test_opening_takes_milliseconds_whatever_the_size(tmp_path: Path) -> None:
    """A sparse file stands for a large one: of its terabyte nothing is read, nor a page of it mapped in."""
    path = write_graph(tmp_path / "g", {"n": NodeTable(columns={"x": np.zeros((4, 8))})}, {})
    costs = [cost_of_opening(path)]
    rows = (1 << 40) // 64
    replace_array(path, "nodes/n/x.npy", rows)
    costs.append(cost_of_opening(path))
    for bytes_read, faults in costs:
        assert bytes_read < 1 << 16
        assert faults < 1000  # of 4 kB each
    x = open_folder(path).columns()["n"]["x"]
    assert x.shape == (rows, 8)
    assert x[rows // 2].tolist() == [0.0] * 8


def cost_of_opening(path: Path) -> tuple[int, int]:
    """Bytes that this process reads for it, and page faults."""

    def so_far() -> tuple[int, int]:
        faults = resource.getrusage(resource.RUSAGE_SELF)
        (read,) = re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())
        return int(read), faults.ru_minflt + faults.ru_majflt

    before = so_far()
    assert open_folder(path).columns()["n"]["x"].shape[1] == 8
    return tuple(later - earlier for earlier, later in zip(before, so_far(), strict=True))


def replace_array(path: Path, file: str, rows: int) -> None:
    """Make the one column of node type n `rows` long, with a hole for its data."""
    graph = json.loads((path / "graph.json").read_text())
    entry = graph["arrays"][file]
    width = entry["shape"][1]
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, {width}), }}".ljust(117) + "\n"
    with (path / file).open("wb") as out:
        out.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        out.truncate(out.tell() + rows * width * 8)
        entry["bytes"] = 128 + rows * width * 8
    entry["shape"][0] = graph["nodes"][0]["count"] = rows
    seal(path, graph)


def seal(path: Path, graph: dict[str, object]) -> None:
    """Write graph.json as one who made another folder would."""
    del graph["fingerprint"]
    (path / "graph.json").write_text(json.dumps({**graph, "fingerprint": fingerprint(graph)}))


def test_checksums_are_what_sha256sum_prints(shop: Path) -> None:
    arrays = json.loads((shop / "graph.json").read_text())["arrays"]
    lines = "".join(f"{entry['sha256']}  {file}\n" for file, entry in arrays.items())
    subprocess.run(["sha256sum", "--check", "--strict"], cwd=shop, input=lines, text=True, check=True)
    assert {str(path.relative_to(shop)) for path in shop.rglob("*.npy")} == set(arrays)


def test_any_tool_can_read_the_arrays(shop: Path) -> None:
    assert np.load(shop / "nodes/item/x.npy").tolist() == [[0, 1], [2, 3], [4, 5]]
    half = np.load(shop / "nodes/item/half.npy")
    assert half.dtype == np.uint16
    assert torch.from_numpy(half).view(torch.bfloat16).tolist() == [1, 2, -3]
    assert np.load(shop / "edges/user__buys__item/indices.npy").dtype == np.int32
    assert np.load(shop / "edges/user__buys__item/columns/price.npy").tolist() == [1, 4, 3, 0, 2]


def test_arrays_that_numpy_wrote_are_read_too(shop: Path) -> None:
    file = shop / "nodes/item/x.npy"
    np.save(file, np.load(file))
    graph = json.loads((shop / "graph.json").read_text())
    graph["arrays"]["nodes/item/x.npy"]["bytes"] = file.stat().st_size
    seal(shop, graph)
    assert open_folder(shop).columns()["item"]["x"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_what_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere: no such folder"):
        open_folder(tmp_path / "nowhere")
    with pytest.raises(
        ValueError, match=r"not a graph folder, or unfinished: graph\.json is missing; write it again"
    ):
        open_folder(tmp_path)


def test_a_newer_folder_says_which_khop_it_needs(shop: Path) -> None:
    graph = json.loads((shop / "graph.json").read_text())
    graph |= {"version": VERSION + 1, "needs_khop": "3.2.1", "something": "new"}
    seal(shop, graph)
    with pytest.raises(
        ValueError, match=rf"graph\.json: format version {VERSION + 1}.*up to {VERSION}.*khop 3\.2\.1"
    ):
        open_folder(shop)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda file: os.truncate(file, file.stat().st_size - 1), "has 151 bytes, graph.json says 152"),
        (lambda file: os.truncate(file, 0), "has 0 bytes, graph.json says 152"),
        (lambda file: file.write_bytes(file.read_bytes() + b"\0"), "has 153 bytes, graph.json says 152"),
        (lambda file: file.unlink(), "is missing"),
        (lambda file: file.write_bytes(b"\0" * 152), "has no readable .npy header"),
        (
            lambda file: file.write_bytes(file.read_bytes().replace(b"'<f4'", b"'<i4'")),
            "holds <i4 of shape (3, 2), graph.json says <f4 of shape (3, 2)",
        ),
        (
            lambda file: file.write_bytes(file.read_bytes().replace(b"False", b"True ")),
            "has no readable .npy header",
        ),
    ],
)  # fmt: skip
def test_a_damaged_array_does_not_open(shop: Path, damage: object, sentence: str) -> None:
    file = shop / "nodes/item/x.npy"
    damage(file)
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        open_folder(shop)
    message = f"{file}: {sentence}; the file was changed or damaged. Re-import, or copy it again"
    assert str(refused.value) == message


def test_a_type_cannot_lead_out_of_the_folder(shop: Path) -> None:
    graph = json.loads((shop / "graph.json").read_text())
    graph["nodes"][0]["type"] = "../../user"
    seal(shop, graph)
    with pytest.raises(ValueError, match=r"'\.\./\.\./user': becomes a file name"):
        open_folder(shop)


def test_edges_come_back_from_int64_lists_of_any_size(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    count, edges = 5_000, 200_000
    sources, destinations = generator.integers(0, count, (2, edges))
    table = EdgeTable(sources, destinations, {"at": np.arange(edges)})
    folder = open_folder(
        write_graph(tmp_path / "g", {"n": NodeTable(count)}, {("n", "to", "n"): table}, threads=2)
    )
    order = np.argsort(destinations, kind="stable")
    csc = folder.csc(("n", "to", "n"))
    assert np.array_equal(csc.indices, sources[order])
    assert np.array_equal(csc.indptr.diff(), np.bincount(destinations, minlength=count))
    assert np.array_equal(folder.edge_id(("n", "to", "n")), order)
    assert np.array_equal(folder.columns()["n", "to", "n"]["at"], order)


def test_an_id_of_a_split_that_is_no_node_is_named_with_file_and_row(shop: Path) -> None:
    file = shop / "nodes" / "item" / "splits" / "test.npy"
    content = bytearray(file.read_bytes())
    content[-7] ^= 32  # of the last of its two ids
    file.write_bytes(content)
    folder = open_folder(shop)
    assert folder.split("train")
    with pytest.raises(
        ValueError, match=r"splits/test\.npy: node id 8192 at position 1: must be in \[0, 3\); "
    ):
        folder.split("test")


def test_every_byte_is_read_and_reported_once(shop: Path) -> None:
    folder = open_folder(shop)
    reports: list[tuple[str, int, int]] = []
    refuse_damage(folder, lambda *report: reports.append(report))
    assert reports[-1][1] == reports[-1][2] == sum(entry.bytes for entry in folder.arrays.values())
    assert {what for what, _, _ in reports} == {f"checking {file}" for file in folder.arrays}


def test_a_flipped_bit_of_any_array_is_named(shop: Path) -> None:
    folder = open_folder(shop)
    for file in folder.arrays:
        content = (shop / file).read_bytes()
        (shop / file).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ValueError, match="checksum differs") as raised:
            refuse_damage(folder)
        assert str(shop / file) in str(raised.value)
        (shop / file).write_bytes(content)
    refuse_damage(folder)


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    digests = write_documents(tmp_path, {"a.json": b'{"b": 1}'})
    assert read_document(tmp_path, "a.json", digests["a.json"]) == {"b": 1}


def test_a_changed_or_missing_document_is_damage(tmp_path: Path) -> None:
    digests = write_documents(tmp_path, {"a.json": b"{}"})
    (tmp_path / "a.json").write_bytes(b"[]")
    with pytest.raises(ValueError, match="checksum differs"):
        read_document(tmp_path, "a.json", digests["a.json"])
    with pytest.raises(ValueError, match="is missing"):
        read_document(tmp_path, "b.json", "")


@pytest.mark.parametrize("name", ["../a.json", "a.npy", "b/a.json"])
def test_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"must be the name of a \.json file"):
        write_documents(tmp_path, {name: b"{}"})


def test_verify_finds_a_damaged_document(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"{}")
    assert [finding.file for finding in document_problems(tmp_path, "a.json", "0")] == ["a.json"]


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


def test_an_imported_folder_has_a_record_and_others_have_none(tmp_path: Path) -> None:
    import_tables(spec(), tmp_path / "shop")
    assert import_record(open_folder(tmp_path / "shop"))["nodes"]["user"]["id"]["column"] == "user_id"
    graph = write_learnable_graph(tmp_path / "toy")
    assert import_record(open_folder(graph)) == {}
    (graph / DOCUMENT).write_text("{}")  # of something else: graph.json does not name it
    assert import_record(open_folder(graph)) == {}


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    import_tables(spec(), tmp_path / "shop")
    with (tmp_path / "shop" / DOCUMENT).open("a") as file:
        file.write(" ")
    with pytest.raises(ValueError, match=r"import\.json: checksum differs from graph\.json"):
        import_record(open_folder(tmp_path / "shop"))


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_rows_are_those_of_the_file(tmp_path: Path, rows: int) -> None:
    path, array = tmp_path / "a.npy", np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    entry = write_array(path, "float32", (rows, 3), [array], lambda size: None)
    found = map_sparse_array(path, entry)
    assert torch.equal(found, map_array(path, entry))
    assert np.array_equal(found.numpy(), array)
    found += 1
    assert np.array_equal(np.load(path), array)


# Names become file names: every safe name has one place, no unsafe one has any.


SAFE = st.from_regex(r"[A-Za-z0-9]([._-]?[A-Za-z0-9]){0,9}", fullmatch=True)


@given(name=SAFE)
def test_letters_digits_and_single_marks_between_them_are_safe(name: str) -> None:
    layout.check_names([name], "column")


@given(name=st.text(max_size=12))
def test_what_passes_is_one_part_of_a_path_on_any_system(name: str) -> None:
    try:
        layout.check_names([name], "column")
    except ValueError:
        return
    assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
    assert name.strip("._-") == name


UNSAFE = ["", ".", "..", "a/b", "a\\b", "a b", "-a", "a.", "a__b", "_a", "a\n", "a\0", "ä", "a" * 81]


@pytest.mark.core(6)
@pytest.mark.parametrize("name", UNSAFE)
def test_anything_else_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"column {name!r}: becomes a file name")):
        layout.check_names([name], "column")


@given(types=st.lists(st.tuples(SAFE, SAFE, SAFE), unique_by=lambda parts: "\n".join(parts).lower()))
def test_edge_types_that_differ_have_folders_that_differ(types: list[tuple[str, str, str]]) -> None:
    layout.check_edge_types(types)
    files = {layout.edge_array(edge_type, "indptr").lower() for edge_type in types}
    assert len(files) == len(types)
    assert all(len(file.split("/")[1]) <= 255 for file in files)


def test_the_layout_is_the_documented_one() -> None:
    edge_type = ("user", "buys", "item")
    assert layout.node_column("item", "x") == "nodes/item/x.npy"
    assert layout.node_split("item", "train") == "nodes/item/splits/train.npy"
    assert layout.edge_array(edge_type, "indices") == "edges/user__buys__item/indices.npy"
    assert layout.edge_column(edge_type, "price") == "edges/user__buys__item/columns/price.npy"


# Tables of nodes and edges: counts come from what is given.


def test_the_count_of_nodes_comes_from_ids_or_a_column() -> None:
    assert GivenNodes.of("user", NodeTable(ids=["a", "b"])).entry.count == 2
    assert GivenNodes.of("user", NodeTable(columns={"x": np.zeros(3)})).entry.count == 3
    with pytest.raises(ValueError, match="neither a count nor a column"):
        GivenNodes.of("user", NodeTable())


def test_ends_are_both_of_one_width() -> None:
    table = EdgeTable(np.array([0], np.int32), np.array([0], np.int64))
    given = GivenEdges.of(("a", "to", "a"), table, {"a": 1})
    assert [str(end.dtype) for end in given.ends()] == ["torch.int64", "torch.int64"]


@pytest.mark.parametrize(("count", "dtype"), [(2**31, "int32"), (2**31 + 1, "int64")])
def test_ids_are_as_narrow_as_they_fit(count: int, dtype: str) -> None:
    assert id_dtype(count) == dtype


# The record of a standard set.


def test_a_record_is_read_back_and_damage_is_found(tmp_path: Path) -> None:
    nodes = {"node": khop.NodeTable(2)}
    khop.write_graph(tmp_path / "a", nodes, {}, documents={STANDARD_SET: b'{"name": "x"}'})
    khop.write_graph(tmp_path / "b", nodes, {})
    assert standard_set(open_folder(tmp_path / "a")) == {"name": "x"}
    assert standard_set(open_folder(tmp_path / "b")) == {}
    (tmp_path / "a" / STANDARD_SET).write_text('{"name": "y"}')
    with pytest.raises(ValueError, match="checksum differs"):
        standard_set(open_folder(tmp_path / "a"))
