"""Folders of parts hold what the graph held: every node, edge and number once, in its order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from khop.api.partition import METHODS, partition_graph, verify_partition
from khop.graph import layout
from khop.graph.csc_graph import CscGraph
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.layout import is_partitioned
from khop.partition.book import (
    PartitionBook,
    edge_key,
    part_folder,
    read_book,
    write_book,
)
from khop.partition.part_files import map_splits, open_part
from khop.schema import EdgeType
from support.small_typed_folders import BUYS, write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


def _originals(parts: list[GraphFolder], node_type: str) -> Tensor:
    return torch.cat([part.columns()[node_type]["original_id"] for part in parts])


def _rows(folder: GraphFolder, edge_type: EdgeType, originals: Tensor | None = None) -> list[list[int]]:
    """The sources of each destination, in order; by original ids where those of the source type are given."""
    csc = folder.csc(edge_type)
    sources = csc.indices.long() if originals is None else originals[csc.indices.long()]
    return [row.tolist() for row in sources.tensor_split(csc.indptr[1:-1])]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 3])
def test_parts_hold_every_node_edge_and_number_once(
    shop: Path, tmp_path: Path, method: str, parts: int
) -> None:
    whole, out = open_folder(shop), tmp_path / "parts"
    book = partition_graph(shop, out, parts, method=method)
    folders = [open_part(out, book, part) for part in range(parts)]
    for node_type in whole.schema.node_types:
        ids = _originals(folders, node_type)
        assert sorted(ids.tolist()) == list(range(whole.num_nodes(node_type)))
        for name, column in whole.columns()[node_type].items():
            assert torch.equal(torch.cat([f.columns()[node_type][name] for f in folders]), column[ids])
            assert folders[0].schema.column(node_type, name) == whole.schema.column(node_type, name)
    for edge_type in whole.schema.edge_types:
        originals, rows = _originals(folders, edge_type[0]), _rows(whole, edge_type)
        found = [row for folder in folders for row in _rows(folder, edge_type, originals)]
        assert found == [rows[node] for node in _originals(folders, edge_type[2]).tolist()]
        assert folders[0].schema.reverse(edge_type) == whole.schema.reverse(edge_type)
    assert verify_partition(out) == []


def test_edge_columns_and_input_positions_follow_their_edges(shop: Path, tmp_path: Path) -> None:
    whole = open_folder(shop)
    book = partition_graph(shop, tmp_path / "parts", 3)
    kept, indptr = dict(whole.columns()[BUYS]), whole.csc(BUYS).indptr
    edge_id = whole.edge_id(BUYS)
    assert edge_id is not None
    for part in range(3):
        folder = open_part(tmp_path / "parts", book, part)
        items = folder.columns()["item"]["original_id"].tolist()
        positions = torch.cat([torch.arange(int(indptr[i]), int(indptr[i + 1])) for i in items])
        for name, column in kept.items():
            assert torch.equal(folder.columns()[BUYS][name], column[positions])
        of_part = folder.edge_id(BUYS)
        assert of_part is not None
        assert torch.equal(of_part, edge_id[positions])
        assert folder.manifest.edge(BUYS).row_order == "time"


def test_seeds_keep_their_order_and_ids_say_who_owns_them(shop: Path, tmp_path: Path) -> None:
    whole, out = open_folder(shop), tmp_path / "parts"
    book = partition_graph(shop, out, 4)
    parts = [open_part(out, book, part) for part in range(4)]
    for name in whole.split_names:
        for node_type, ids in map_splits(out, book)[name].items():
            originals = _originals(parts, node_type)
            assert torch.equal(originals[ids], whole.split(name)[node_type])
            owners = book.owner(node_type, ids)
            expected = [p for p in range(4) for _ in range(parts[p].num_nodes(node_type))]
            assert owners.tolist() == [expected[node] for node in ids.tolist()]
    assert map_splits(out, book).keys() == set(whole.split_names)


def test_ids_that_were_new_once_already_stay_those_of_the_first_graph(tmp_path: Path) -> None:
    graph = write_typed_graph(tmp_path / "graph", renumbered=True)
    book = partition_graph(graph, tmp_path / "parts", 2)
    parts = [open_part(tmp_path / "parts", book, part) for part in range(2)]
    assert sorted(_originals(parts, "user").tolist()) == list(range(1000, 1300))
    ages = {int(i): int(a) for i, a in zip(*_id_and_age(open_folder(graph)), strict=True)}
    for part in parts:
        assert all(ages[int(i)] == int(a) for i, a in zip(*_id_and_age(part), strict=True))
    assert verify_partition(tmp_path / "parts") == []


def _id_and_age(folder: GraphFolder) -> tuple[Tensor, Tensor]:
    return folder.columns()["user"]["original_id"], folder.columns()["user"]["age"]


def test_the_reported_cut_and_shares_are_those_of_the_parts(shop: Path, tmp_path: Path) -> None:
    book = partition_graph(shop, tmp_path / "parts", 3, balance=["nodes", "edges", "bytes", "train", "val"])
    parts = [open_part(tmp_path / "parts", book, part) for part in range(3)]
    cut = edges = 0
    for edge_type in parts[0].schema.edge_types:
        of_type = [
            int((book.owner(edge_type[0], part.csc(edge_type).indices) != number).sum())
            for number, part in enumerate(parts)
        ]
        count = sum(part.num_edges(edge_type) for part in parts)
        assert book.quality.cut[edge_key(edge_type)] == pytest.approx(sum(of_type) / count)
        cut, edges = cut + sum(of_type), edges + count
    assert book.quality.cut["all"] == pytest.approx(cut / edges)
    shares = book.quality.shares
    assert shares["user nodes"] == pytest.approx([part.num_nodes("user") / 100 for part in parts])
    assert shares["edges"] == pytest.approx(
        [3 * sum(part.num_edges(t) for t in part.schema.edge_types) / edges for part in parts]
    )
    assert set(shares) == {"user nodes", "item nodes", "tag nodes", "edges", "bytes", "train", "val"}
    assert all(share <= 1.05 + 3 / 7 for of_parts in shares.values() for share in of_parts)  # 7 tags


@pytest.mark.parametrize("method", ["ldg", "fennel"])
def test_no_part_is_fuller_than_its_share_where_bytes_are_balanced(
    shop: Path, tmp_path: Path, method: str
) -> None:
    """A user has 14 bytes and an item 4, so parts of as many nodes could be unequally full."""
    book = partition_graph(shop, tmp_path / "parts", 3, method=method, balance=["bytes"], slack=0.02)
    full = [
        sum(
            column.nbytes
            for node_type in part.schema.node_types
            for name, column in part.columns()[node_type].items()
            if name != "original_id"  # what partitioning adds
        )
        for part in (open_part(tmp_path / "parts", book, number) for number in range(3))
    ]
    assert sum(full) == 300 * 14 + 200 * 4
    assert max(full) <= 1.02 * sum(full) / 3
    assert book.quality.shares["bytes"] == pytest.approx([3 * of_part / sum(full) for of_part in full])


def test_streaming_cuts_less_than_chance(shop: Path, tmp_path: Path) -> None:
    cut = {
        method: partition_graph(shop, tmp_path / method, 3, method=method).quality.cut["all"]
        for method in ("ldg", "fennel", "random", "metis")
    }
    assert cut["random"] == pytest.approx(2 / 3, abs=0.05)
    assert max(cut["ldg"], cut["fennel"], cut["metis"]) < 0.6 * cut["random"]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "metis"])
def test_the_parts_depend_on_no_number_of_threads(shop: Path, tmp_path: Path, method: str) -> None:
    first = partition_graph(shop, tmp_path / "one", 3, method=method, threads=1)
    assert partition_graph(shop, tmp_path / "four", 3, method=method, threads=4) == first


def _damage(path: Path, what: str) -> None:
    part = part_folder(path, 1)
    if what == "lost part":
        part.rename(path / "elsewhere")
    elif what == "flipped bit":
        file = part / layout.edge_array(BUYS, "indices")
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    elif what == "split":
        (path / layout.node_split("user", "train")).unlink()
    elif what == "part twice":
        part.rename(path / "elsewhere")
        part_folder(path, 0).rename(part)
        (path / "elsewhere").rename(part_folder(path, 0))


@pytest.mark.parametrize(
    ("what", "file", "problem"),
    [
        ("lost part", "part-0001", "no such folder"),
        ("flipped bit", "part-0001/edges/user__buys__item/indices.npy", "checksum differs from graph.json"),
        ("split", "nodes/user/splits/train.npy", "is missing, or its checksum differs from partition.json"),
        ("part twice", "partition.json", "not the part that partition.json was written with"),
    ],
)
def test_verify_names_what_is_damaged(shop: Path, tmp_path: Path, what: str, file: str, problem: str) -> None:
    partition_graph(shop, tmp_path / "parts", 2)
    _damage(tmp_path / "parts", what)
    findings = verify_partition(tmp_path / "parts")
    assert [(finding.file, problem in finding.problem) for finding in findings] == [(file, True)]


def test_verify_finds_edges_that_are_not_those_of_the_graph(shop: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts"
    book = partition_graph(shop, out, 2)
    digests = {**book.edge_digests, edge_key(BUYS): book.edge_digests[edge_key(BUYS)] ^ 1}
    _rewrite(out, PartitionBook(**{**book.__dict__, "edge_digests": digests}))
    assert [finding.problem for finding in verify_partition(out)] == [
        f"the edges of {BUYS} differ from those of the graph before partitioning; write the graph again"
    ]


def _rewrite(out: Path, book: PartitionBook) -> None:
    write_book(out, book)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not what khop writes"),
        (
            '{"format": "khop-partition", "version": 9, "fingerprint": ""}',
            "this khop reads 'khop-partition' 2",
        ),
        ('{"format": "khop-partition", "version": 2, "fingerprint": ""}', "fingerprint differs"),
    ],
)
def test_a_damaged_book_is_an_error(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "partition.json").write_text(text)
    assert is_partitioned(tmp_path)
    with pytest.raises(ValueError, match=complaint):
        read_book(tmp_path)


def test_a_folder_without_a_book_is_an_error(shop: Path) -> None:
    assert not is_partitioned(shop)
    with pytest.raises(ValueError, match=r"no folder of parts, or unfinished: .* make one: khop partition"):
        read_book(shop)


def test_a_part_alone_is_no_graph(shop: Path, tmp_path: Path) -> None:
    partition_graph(shop, tmp_path / "parts", 2)
    with pytest.raises(ValueError, match=r"part 1 of 2 of a graph; open the folder of all parts, .*parts$"):
        CscGraph.open(tmp_path / "parts" / "part-0001")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"parts": 0}, "parts 0: must be 1 to 4096"),
        ({"parts": 2, "method": "louvain"}, "method 'louvain': must be one of ldg, fennel, metis, random"),
        (
            {"parts": 2, "balance": ["rows"]},
            "parts can be balanced by nodes, edges, bytes, train",
        ),
        ({"parts": 2, "balance": ["nodes", "nodes"]}, "give one name or more, each once"),
        ({"parts": 2, "slack": -0.1}, "slack -0.1: must be a number from 0 on"),
        ({"parts": 2, "fanouts": [5, -2]}, r"fanouts \[5, -2\]: must be 0 or more, or -1"),
        ({"parts": 2, "batch_size": 0}, "batch_size 0: must be a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_asked_for_is_said_in_one_sentence(
    shop: Path, tmp_path: Path, arguments: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        partition_graph(shop, tmp_path / "parts", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "parts").exists()


def test_an_interrupted_partition_leaves_nothing(shop: Path, tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith("part 1: edges"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition_graph(shop, tmp_path / "parts", 2, notice=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_partitions_of_the_same_graph_say_so(shop: Path, tmp_path: Path) -> None:
    partition_graph(shop, tmp_path / "parts", 2)
    document = json.loads((tmp_path / "parts" / "partition.json").read_text())
    assert document["source"] == open_folder(shop).fingerprint
