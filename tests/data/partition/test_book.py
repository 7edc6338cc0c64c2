"""The partition book: written and read whole, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from khop.graph.layout import is_partitioned
from khop.graph.npy import ArrayEntry
from khop.graph.partitions.book import PartitionBook, Quality, read_book, write_book
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not what khop writes"),
        (
            '{"format": "khop-partition", "version": 9, "fingerprint": ""}',
            "this khop reads 'khop-partition' 2",
        ),
        (
            '{"format": "khop-partition", "version": 2, "fingerprint": ""}',
            "the fingerprint does not match the content",
        ),
    ],
)
def test_a_damaged_book_is_an_error(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "partition.json").write_text(text)
    assert is_partitioned(tmp_path)
    with pytest.raises(ValueError, match=complaint):
        read_book(tmp_path)


def test_a_folder_without_a_book_is_an_error(shop: Path) -> None:
    assert not is_partitioned(shop)
    with pytest.raises(
        ValueError, match=r"not a partitioned graph, or unfinished: .* write one with khop partition"
    ):
        read_book(shop)


ENTRY = ArrayEntry("int64", (5,), 168, "0" * 64)
BOOK = PartitionBook(
    method="ldg",
    source="f" * 64,
    offsets={"user": (0, 2, 2, 5)},
    edge_offsets={"user__knows__user": (0, 0, 3, 9)},
    parts=("a" * 64, "b" * 64, "c" * 64),
    edge_digests={"user__knows__user": (1 << 64) - 1},
    quality=Quality({"user__knows__user": 0.25, "all": 0.25}, {"nodes": (1.2, 0.0, 1.8)}, None),
    wholes={"nodes/user/original_id.npy": ENTRY},
)


def test_a_book_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_book(tmp_path, BOOK)
    assert read_book(tmp_path) == BOOK
    assert read_book(tmp_path).fingerprint == BOOK.fingerprint
    assert replace(BOOK, method="fennel").fingerprint != BOOK.fingerprint


def test_owners_are_the_parts_whose_ranges_have_the_ids() -> None:
    ids = torch.tensor([[0, 1], [2, 4]])
    assert BOOK.owner("user", ids).tolist() == [[0, 0], [2, 2]]
    assert BOOK.first_edges(("user", "knows", "user")) == (0, 0, 3, 9)
    with pytest.raises(ValueError, match="no edge type"):
        BOOK.first_edges(("user", "likes", "user"))


@pytest.mark.parametrize("offsets", [(0, 2, 5), (0, 3, 2, 5), (1, 2, 2, 5)])
def test_offsets_that_are_no_ranges_are_refused(tmp_path: Path, offsets: tuple[int, ...]) -> None:
    write_book(tmp_path, replace(BOOK, offsets={"user": offsets}))
    with pytest.raises(ValueError, match="offsets of 'user' are"):
        read_book(tmp_path)


def test_arrays_and_documents_outside_are_refused(tmp_path: Path) -> None:
    for book in (replace(BOOK, wholes={"../original_id.npy": ENTRY}), replace(BOOK, documents={"/x": "0"})):
        write_book(tmp_path, book)
        with pytest.raises(ValueError, match="is not a path below the folder"):
            read_book(tmp_path)
