"""Dictionaries of ids: exact, in the order of first appearance, whatever the chunks.

Indexes of keys: every key leads to its row, and nothing else does.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop._core as _core
from khop.kernels.id_table import (
    Int64s,
    Keys,
    Kind,
    StringKeys,
    bucket_bits,
    id_table,
    joined_keys,
    key_buckets,
    key_parts,
    keys_at,
)
from khop.kernels.node_index import FirstSeen, NodeIndex, TorchTreeIndex, TreeIndex
from support.key_indexes import key_index_of
from support.peak import peak_bytes

STRINGS = st.lists(st.text(max_size=40), max_size=60)
INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9), max_size=60)


class TableReference:
    """The same as the native tables, as a dict of Python."""

    def __init__(self) -> None:
        self.ids: dict[bytes | int, int] = {}

    def append(self, keys: Keys) -> int:
        for at, key in enumerate(_plain(keys)):
            if key in self.ids:
                return at
            self.ids[key] = len(self.ids)
        return -1

    def add(self, keys: Keys) -> Int64s:
        return np.array([self.ids.setdefault(key, len(self.ids)) for key in _plain(keys)], np.int64)

    def find(self, keys: Keys) -> Int64s:
        return np.array([self.ids.get(key, -1) for key in _plain(keys)], np.int64)


def _plain(keys: Keys) -> list[bytes | int]:
    if isinstance(keys, StringKeys):
        return [keys.bytes_at(row) for row in range(len(keys))]
    return [int(key) for key in keys]


def keys_of(values: list[Any], kind: Kind) -> Any:  # noqa: ANN401
    return StringKeys.of(values) if kind == "string" else np.array(values, np.int64)


def some(kind: Kind, data: st.DataObject) -> list[Any]:
    return data.draw(STRINGS if kind == "string" else INTEGERS)


@given(st.data(), st.sampled_from(["string", "int64"]), st.integers(1, 7))
def test_ids_follow_first_appearance_whatever_the_chunks(data: st.DataObject, kind: Kind, step: int) -> None:
    values, wanted = some(kind, data), some(kind, data)
    table, reference = id_table(kind), TableReference()
    for at in range(0, len(values), step):
        chunk = keys_of(values[at : at + step], kind)
        assert table.add(chunk).tolist() == reference.add(chunk).tolist()
    assert len(table) == len(reference.ids)
    sought = keys_of(wanted + values, kind)
    assert table.find(sought).tolist() == reference.find(sought).tolist()
    back = table.keys(np.arange(len(table)))
    expected = keys_of(list(dict.fromkeys(values)), kind)
    assert table.find(back).tolist() == list(range(len(table)))
    assert table.find(expected).tolist() == list(range(len(table)))


@given(st.data(), st.sampled_from(["string", "int64"]))
def test_append_stops_at_the_first_key_that_is_there_already(data: st.DataObject, kind: Kind) -> None:
    values = some(kind, data)
    table, reference = id_table(kind, expected=3), TableReference()
    keys = keys_of(values, kind)
    at = table.append(keys)
    assert at == reference.append(keys)
    assert len(table) == (len(values) if at < 0 else at)


def test_many_keys_grow_the_table_and_threads_find_at_once() -> None:
    names = StringKeys.of([f"user-{number * 7919}" for number in range(200_000)])
    table = id_table("string")
    assert table.append(names) == -1
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: table.find(names), range(8)):
            assert np.array_equal(found, np.arange(200_000))
    assert table.nbytes < 200_000 * 50


def test_slices_of_strings_share_their_bytes() -> None:
    names = StringKeys.of(["a", "", "länger als sechzehn Bytes", "b"])
    table = id_table("string")
    assert table.add(names[1:3]).tolist() == [0, 1]
    assert table.find(names).tolist() == [-1, 0, 1, -1]
    assert names[1:3].strings() == ["", "länger als sechzehn Bytes"]
    assert names[3:1].strings() == []


def test_read_only_keys_are_taken_as_they_lie() -> None:
    keys = np.arange(5)
    keys.flags.writeable = False
    table = id_table("int64")
    assert table.append(keys) == -1
    assert table.append(keys[3:]) == 0


@given(st.data(), st.sampled_from(["string", "int64"]), st.integers(0, 40), st.integers(0, 8))
def test_parts_depend_on_the_key_alone(data: st.DataObject, kind: Kind, skip: int, bits: int) -> None:
    values = some(kind, data)
    parts = key_parts(keys_of(values, kind), skip, bits).tolist()
    assert all(0 <= part < 2**bits for part in parts)
    assert parts == [int(key_parts(keys_of([value], kind), skip, bits)[0]) for value in values]


def test_parts_are_even() -> None:
    for keys in (np.arange(64_000), StringKeys.of([f"p{n}" for n in range(64_000)])):
        counts = np.bincount(key_parts(keys, 40, 6), minlength=64)
        assert counts.min() > 700
        assert counts.max() < 1300


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([], "no entry"),
        ([0, 9], "there are 3 bytes"),
        ([0, 2, 1, 3], "decrease at 2"),
        ([-1, 2], "offsets -1"),
    ],
)
def test_offsets_that_are_none_are_refused(offsets: list[int], message: str) -> None:
    keys = StringKeys(np.array(offsets, np.int64), np.frombuffer(b"abc", np.uint8))
    with pytest.raises(ValueError, match=message):
        id_table("string").append(keys)


def test_a_table_refuses_ids_it_does_not_have() -> None:
    table = id_table("int64")
    table.append(np.array([4, 5]))
    with pytest.raises(ValueError, match="key id 2 at position 1"):
        table.keys(np.array([0, 2]))
    with pytest.raises(ValueError, match="expected -1"):
        id_table("string", -1)


@given(STRINGS, st.lists(st.integers(0, 60), max_size=4))
def test_pieces_of_keys_are_joined_to_the_whole(words: list[str], cuts: list[int]) -> None:
    strings, integers = StringKeys.of(words), np.array([len(word) for word in words], np.int64)
    ends = [0, *sorted(min(cut, len(words)) for cut in cuts), len(words)]
    spans = [slice(a, b) for a, b in pairwise(ends)]
    found = joined_keys([strings[span] for span in spans], "string")
    assert isinstance(found, StringKeys)
    assert found.strings() == words
    assert joined_keys([integers[span] for span in spans], "int64").tolist() == integers.tolist()  # type: ignore[union-attr]
    copies = joined_keys([keys_at(strings, np.arange(span.start, span.stop)) for span in spans], "string")
    assert isinstance(copies, StringKeys)
    assert copies.strings() == words
    assert (len(joined_keys([], "string")), len(joined_keys([], "int64"))) == (0, 0)


@given(st.data(), st.sampled_from(["string", "int64"]), st.integers(0, 2000))
def test_a_table_in_files_gives_the_same_ids(data: st.DataObject, kind: Kind, most: int) -> None:
    table, reference = id_table(kind), TableReference()
    table.spill_beyond(most, gettempdir())
    for values in (some(kind, data), some(kind, data)):
        chunk = keys_of(values, kind)
        assert table.add(chunk).tolist() == reference.add(chunk).tolist()
        assert table.find(chunk).tolist() == reference.find(chunk).tolist()
    assert _plain(table.keys(np.arange(len(table)))) == list(reference.ids)
    assert table.is_spilled or table.nbytes <= most or not len(table)


def test_the_first_key_may_pass_the_limit() -> None:
    table = id_table("int64")
    table.spill_beyond(512, gettempdir())
    table.add(np.array([7]))
    assert table.is_spilled
    assert table.find(np.array([7, 8])).tolist() == [0, -1]


@pytest.mark.long
def test_a_table_in_files_takes_no_memory(tmp_path: Path) -> None:
    work = """
import numpy as np
from khop.kernels.id_table import StringKeys, id_table
table, size = id_table("string"), 0
table.spill_beyond(1 << 20, sys.argv[1])
for first in range(0, 400_000, 20_000):
    texts = "".join(f"customer-{number:032d}" for number in range(first, first + 20_000))
    table.add(StringKeys(np.arange(20_001) * 41, np.frombuffer(texts.encode(), np.uint8)))
assert len(table) == 400_000 and table.nbytes > 20_000_000 and table.is_spilled
"""
    assert peak_bytes(work, tmp_path) < 8 << 20


def test_a_full_or_missing_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    table = id_table("int64")
    table.spill_beyond(0, str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        table.append(np.arange(100))


KEYS = st.lists(st.text(max_size=20), unique=True, max_size=60) | st.lists(
    st.integers(-(2**63), 2**63 - 1), unique=True, max_size=60
)


def key_index_keys_of(values: list[Any], kind: type) -> Any:  # noqa: ANN401
    return StringKeys.of(values) if kind is str else np.array(values, np.int64)


@given(KEYS, st.data())
def test_each_key_leads_to_its_row(stored: list[Any], data: st.DataObject) -> None:
    kind = type(stored[0]) if stored else str
    others = data.draw(st.lists(st.text(max_size=5) if kind is str else st.integers(-9, 9), max_size=20))
    keys = key_index_keys_of(stored, kind)
    index = key_index_of(keys)
    found = index.find(keys, key_index_keys_of(others + stored, kind))
    rows = {key: row for row, key in enumerate(stored)}
    assert found.tolist() == [rows.get(key, -1) for key in others + stored]


def test_buckets_and_tags_are_those_of_the_documented_digest() -> None:
    """XXH64 of "" with seed 0 is ef46db3751d8e999, of "a" d24ec4f1a98c6e5b."""
    bucket, tag = key_buckets(StringKeys.of(["", "a"]), 8)
    assert bucket.tolist() == [0xEF, 0xD2]
    assert tag.tolist() == [0xE999 - 0x10000, 0x6E5B]
    assert key_buckets(StringKeys.of(["a"]), 0)[0].tolist() == [0]
    as_text = StringKeys(np.array([0, 8]), np.array([7], np.int64).view(np.uint8))
    assert key_buckets(np.array([7]), 8)[1].tolist() == key_buckets(as_text, 8)[1].tolist()


@pytest.mark.parametrize(("keys", "bits"), [(0, 0), (4, 0), (8, 1), (15, 1), (16, 2), (1 << 32, 30)])
def test_buckets_have_four_to_eight_keys(keys: int, bits: int) -> None:
    assert bucket_bits(keys) == bits


def test_damaged_files_are_an_error_and_no_crash() -> None:
    names = StringKeys.of([f"n{n}" for n in range(100)])
    index = key_index_of(names)
    with pytest.raises(ValueError, match=r"buckets: bucket .* lies outside of the ids"):
        replace(index, buckets=index.buckets + 1000).find(names, names)
    with pytest.raises(ValueError, match=r"rows: position .* names no node"):
        replace(index, rows=index.rows + np.int32(100)).find(names, names)
    with pytest.raises(ValueError, match=r"offsets: row .* lies outside of the bytes"):
        index.find(StringKeys(names.offsets + 5000, names.data), names)
    with pytest.raises(ValueError, match="tags"):
        replace(index, tags=index.tags[1:]).find(names, names)


def test_ids_of_another_kind_are_refused() -> None:
    names, numbers = StringKeys.of(["a"]), np.array([1])
    with pytest.raises(ValueError, match="ids are integers: this table has strings"):
        key_index_of(names).find(names, numbers)


# Keys are numbered as a dictionary numbers them, in torch.


DENSE_NODES = 1 << 22  # graphs beyond this get a hash table
SIZES = [1, 50, DENSE_NODES, DENSE_NODES + 1, 2**32, 2**32 + 1, 2**40]
DTYPES = {torch.int32: 2**31, torch.int64: 2**63}


def check(index: NodeIndex, batches: list[list[list[int]]], dtype: torch.dtype) -> None:
    """Every batch, in several inserts, beside a dict."""
    for batch in batches:
        index.clear()
        local_ids: dict[int, int] = {}
        for ids in batch:
            expected = [local_ids.setdefault(node, len(local_ids)) for node in ids]
            local = index.insert(torch.tensor(ids, dtype=dtype))
            assert local.dtype == torch.int32
            assert local.tolist() == expected
        assert len(index) == len(local_ids)
        assert index.nodes(0).tolist() == list(local_ids)
        assert index.nodes(2).tolist() == list(local_ids)[2:]


def batches_of(num_nodes: int, dtype: torch.dtype) -> st.SearchStrategy[list[list[list[int]]]]:
    last = min(num_nodes, DTYPES[dtype]) - 1
    near = st.integers(0, min(last, 20)) | st.integers(max(0, last - 20), last)
    ids = st.lists(near | st.integers(0, last), max_size=30)
    return st.lists(st.lists(ids, max_size=4), max_size=3)


@given(data=st.data())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_nodes", SIZES)
def test_local_ids_are_in_first_seen_order(num_nodes: int, dtype: torch.dtype, data: st.DataObject) -> None:
    check(NodeIndex(num_nodes), data.draw(batches_of(num_nodes, dtype)), dtype)


@given(data=st.data(), left=st.integers(0, 60))
@pytest.mark.parametrize("num_nodes", [50, DENSE_NODES + 1, 2**40])
def test_nothing_is_mistaken_when_stamps_run_out(num_nodes: int, left: int, data: st.DataObject) -> None:
    index = NodeIndex(num_nodes)
    index.core = _core.NodeIndex(num_nodes, base=2**32 - 1 - left)
    check(index, data.draw(batches_of(num_nodes, torch.int64)), torch.int64)


@pytest.mark.parametrize("num_nodes", [2**20, 2**30, 2**40])
def test_large_batches_grow_the_table(num_nodes: int) -> None:
    index = NodeIndex(num_nodes)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        index.clear()
        ids = torch.randint(num_nodes, (60_000,), generator=generator)
        local = index.insert(ids)
        nodes = index.nodes()
        assert torch.equal(nodes[local.long()], ids)
        assert nodes.unique().numel() == nodes.numel() == len(index)
        new = local.long() > torch.cat([torch.tensor([-1]), local.long().cummax(0).values[:-1]])
        assert torch.equal(ids[new], nodes), "first-seen order"


def test_nodes_are_a_copy() -> None:
    index = NodeIndex(10)
    index.insert(torch.tensor([7, 3]))
    nodes = index.nodes()
    index.clear()
    index.insert(torch.tensor([1, 2]))
    assert nodes.tolist() == [7, 3]


def test_strided_ids_are_read_as_they_stand() -> None:
    index = NodeIndex(10)
    assert index.insert(torch.arange(10)[::3]).tolist() == [0, 1, 2, 3]
    assert index.nodes().tolist() == [0, 3, 6, 9]


@pytest.mark.parametrize("num_nodes", [5, DENSE_NODES + 1, 2**40])
@pytest.mark.parametrize("bad", [-1, -(2**31)])
def test_a_negative_id_is_refused_and_nothing_is_inserted(num_nodes: int, bad: int) -> None:
    index = NodeIndex(num_nodes)
    for dtype in DTYPES:
        with pytest.raises(ValueError, match=f"node id {bad} at position 1: not in"):
            index.insert(torch.tensor([3, bad, 4], dtype=dtype))
    assert len(index) == 0


@pytest.mark.parametrize("num_nodes", [5, DENSE_NODES + 1, 2**40])
def test_an_id_behind_the_last_node_is_refused(num_nodes: int) -> None:
    with pytest.raises(ValueError, match=rf"node id {num_nodes} at position 0: not in \[0, {num_nodes}\)"):
        NodeIndex(num_nodes).insert(torch.tensor([num_nodes]))


@pytest.mark.parametrize(
    "ids",
    [torch.tensor([1.0]), torch.tensor([[1]]), torch.zeros(2, dtype=torch.int64, device="meta")],
    ids=str,
)
def test_ids_of_another_kind_are_refused_node_index(ids: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"must be int32 or int64 \(n\) on the cpu"):
        NodeIndex(5).insert(ids)


def test_a_negative_number_of_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="num_nodes -1"):
        NodeIndex(-1)


KEYS_NODE_INDEX = st.lists(st.integers(0, 9) | st.integers(-(2**63), 2**63 - 1), max_size=20)


@given(batches=st.lists(st.lists(KEYS_NODE_INDEX, max_size=3), max_size=3))
def test_numbers_are_in_first_seen_order(batches: list[list[list[int]]]) -> None:
    seen = FirstSeen(torch.device("cpu"))
    for batch in batches:
        seen.clear()
        known: dict[int, int] = {}
        for keys in batch:
            expected = [known.setdefault(key, len(known)) for key in keys]
            found = seen.insert(torch.tensor(keys, dtype=torch.int64))
            assert found.dtype == torch.int32
            assert found.tolist() == expected
        assert len(seen) == len(known)
        assert seen.keys(1).tolist() == list(known)[1:]


@given(hops=st.lists(st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=5), max_size=3))
def test_pairs_of_trees_are_numbered_as_the_core_does(hops: list[list[list[int]]]) -> None:
    """Row i is in tree i."""
    core, other = TreeIndex(7), TorchTreeIndex(7, torch.device("cpu"))
    for index in (core, other):
        index.reset(5)
    for rows in hops:
        ids = torch.tensor([node for row in rows for node in row], dtype=torch.int64)
        offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
        trees = torch.arange(len(rows))
        assert torch.equal(other.insert(ids, offsets, trees), core.insert(ids, offsets, trees))
        assert len(other) == len(core)
        for found, expected in zip(other.pairs(1), core.pairs(1), strict=True):
            assert torch.equal(found, expected)


# (tree, node) pairs get consecutive local ids in first-seen order, beside a dictionary.


@st.composite
def inserts(draw: st.DrawFn, num_nodes: int, num_trees: int) -> list[tuple[list[list[int]], list[int]]]:
    """Some calls: rows of node ids, and the tree of each row."""
    row = st.lists(st.integers(0, num_nodes - 1), max_size=4)
    trees = st.integers(0, num_trees - 1)
    calls = draw(st.lists(st.lists(st.tuples(row, trees), max_size=6), max_size=4))
    return [([ids for ids, _ in call], [tree for _, tree in call]) for call in calls]


@pytest.mark.parametrize("num_nodes", [1, 3, 700, 2**22 + 1, 2**40])
@given(data=st.data())
def test_local_ids_are_in_first_seen_order_tree_index(num_nodes: int, data: st.DataObject) -> None:
    index = TreeIndex(num_nodes)
    for num_trees in data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=3)):
        index.reset(num_trees)
        expected: dict[tuple[int, int], int] = {}
        for rows, trees in data.draw(inserts(num_nodes, num_trees)):
            pairs = [(tree, node) for ids, tree in zip(rows, trees, strict=True) for node in ids]
            local = [expected.setdefault(pair, len(expected)) for pair in pairs]
            offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
            ids = torch.tensor([node for _, node in pairs], dtype=torch.int64)
            assert index.insert(ids, offsets, torch.tensor(trees, dtype=torch.int64)).tolist() == local
            assert len(index) == len(expected)
        for start in {0, len(index) // 2, len(index)}:
            nodes, trees_of_nodes = index.pairs(start)
            pairs = list(zip(trees_of_nodes.tolist(), nodes.tolist(), strict=True))
            assert pairs == list(expected)[start:]


def test_narrow_ids_are_taken_as_they_are() -> None:
    index = TreeIndex(9)
    index.reset(2)
    ids, offsets = torch.tensor([8, 0, 8], dtype=torch.int32), torch.tensor([0, 2, 3])
    assert index.insert(ids, offsets, torch.tensor([1, 0])).tolist() == [0, 1, 2]
    assert index.pairs(1)[0].tolist() == [0, 8]


@pytest.mark.parametrize(
    ("ids", "offsets", "trees", "message"),
    [
        ([1, 5], [0, 2], [0], r"node id 5: not in \[0, 5\)"),
        ([-1, 0], [0, 2], [0], "node id -1"),
        ([1, 2], [0, 2], [3], r"tree 3: not in \[0, 3\)"),
        ([1, 2], [0, 1], [0], "offset 1 at position 1"),
        ([1, 2], [0, 2], [0, 1], "one offset more"),
        ([1.0, 2.0], [0, 2], [0], "must be int32 or int64"),
    ],
)
def test_what_is_out_of_range_is_refused_and_nothing_is_inserted(
    ids: list[float], offsets: list[int], trees: list[int], message: str
) -> None:
    index = TreeIndex(5)
    index.reset(3)
    with pytest.raises(ValueError, match=message):
        index.insert(torch.tensor(ids), torch.tensor(offsets), torch.tensor(trees))
    assert len(index) == 0


def test_more_pairs_than_63_bits_hold_are_refused() -> None:
    index = TreeIndex(2**50)
    with pytest.raises(ValueError, match=r"16384 disjoint trees .* make the batch smaller"):
        index.reset(2**14)
    with pytest.raises(ValueError, match="num_nodes -1"):
        TreeIndex(-1)
