"""Tensors arrive with the bits they were sent with, in memory of their own, or not at all.

Requests of in-degrees name their nodes one by one or by two ends, and answers are checked.

Keys of draws arrive with their epoch and step.
"""

from __future__ import annotations

import json
import pickle
import re
import struct
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.draw import DrawKey, Purpose
from khop.servers.errors import WrongVersion
from khop.servers.frame import (
    DTYPES,
    LEAST_PIECE,
    PIECE,
    VERSION,
    Document,
    Frame,
    Tensors,
    checked_counts,
    header,
    parsed,
    pieces,
    read_key,
    read_nodes,
    received,
    whole,
    written,
    written_key,
    written_nodes,
)

LIMIT = 1 << 30


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = int(torch.tensor(shape).prod()) if shape else 1
    return (
        (torch.arange(count) % 2 if dtype is torch.bool else torch.arange(count) % 100).to(dtype).view(shape)
    )


def same(found: Tensor, sent: Tensor) -> bool:
    return found.dtype == sent.dtype and found.shape == sent.shape and torch.equal(found, sent)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(DTYPES)),
            st.one_of(
                st.tuples(),
                st.tuples(st.integers(0, 50)),
                st.tuples(st.integers(0, 400), st.integers(0, 300)),
            ),
        ),
        max_size=12,
    ),
    st.data(),
)
def test_tensors_arrive_however_the_bytes_are_cut(
    specs: list[tuple[str, tuple[int, ...]]], data: st.DataObject
) -> None:
    sent = [tensor_of(DTYPES[name], shape) for name, shape in specs]
    body = b"".join(pieces(sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=5)))
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    frame = received([header({"a": 1}, sent), *parts], LIMIT, "answer")
    assert frame.document["a"].whole() == 1
    assert all(same(found, each) for found, each in zip(frame.tensors, sent, strict=True))
    assert frame.num_bytes == len(header({"a": 1}, sent)) + len(body)


@given(st.lists(st.integers(0, 3 << 20), max_size=8))
def test_all_pieces_but_the_last_have_half_to_one_mebibyte(sizes: list[int]) -> None:
    lengths = [len(piece) for piece in pieces([torch.zeros(size, dtype=torch.uint8) for size in sizes])]
    assert sum(lengths) == sum(sizes)
    assert all(LEAST_PIECE <= length <= PIECE for length in lengths[:-1])
    assert all(0 < length <= PIECE for length in lengths[-1:])


def test_large_tensors_are_sliced_and_not_copied() -> None:
    tensor = torch.zeros(4 * PIECE, dtype=torch.uint8)
    first = next(pieces([tensor]))
    tensor[0] = 7
    assert first[0] == 7


def test_received_tensors_can_be_written_and_share_one_block() -> None:
    sent = [torch.arange(5), torch.rand(3, 2), torch.ones(2, dtype=torch.bool)]
    frame = parsed(whole({}, sent), LIMIT, "answer")
    frame.tensors[1].add_(1)
    assert torch.equal(frame.tensors[1], sent[1] + 1)
    assert len({tensor.untyped_storage().data_ptr() for tensor in frame.tensors}) == 1
    assert all(tensor.data_ptr() % 64 == 0 for tensor in frame.tensors)


def test_a_tensor_travels_once() -> None:
    tensors, one = Tensors(), torch.arange(3)
    assert [tensors(one), tensors(torch.arange(3)), tensors(one), tensors.given(None)] == [0, 1, 0, None]
    assert len(tensors.all) == 2


def message(text: bytes, version: int = VERSION, magic: bytes = b"khop") -> bytes:
    return struct.pack("<4sIQ", magic, version, len(text)) + text


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (b"", "answer: 0 bytes are no message of khop"),
        (
            pickle.dumps(ValueError("a pickle, longer than the start of a message")),
            "answer: is no message of khop",
        ),
        (message(b"{}", magic=b"khoP"), "is no message of khop"),
        (message(b"[]"), "answer: has no field 'tensors'"),
        (message(b'{"tensors":[["float32"]]}'), "not a dtype and a shape"),
        (message(b'{"tensors":[["object",[1]]]}'), "not a dtype and a shape"),
        (message(b'{"tensors":[["int8",[-1]]]}'), "a whole number from 0"),
        (message(b'{"tensors":[["int8",[4194304,4194304,4194304]]]}'), "not a dtype and a shape"),
        (message(b'{"tensors":[["int64",[1000000000]]]}'), "8,000,000,000 bytes are announced"),
        (message(b'{"tensors":[["int8",[3]]]}') + b"12", "1 bytes of what its header announces did not come"),
        (message(b'{"tensors":[["int8",[3]]]}') + b"1234", "more bytes came than its header announces"),
        (
            message(b'{"tensors":[["bool",[3]]]}') + b"\0\1\2",
            "a boolean is a byte of 0 or 1, and 2 is another",
        ),
        (struct.pack("<4sIQ", b"khop", VERSION, 1 << 40), "a header of 1,099,511,627,776 bytes"),
    ],
)
def test_a_wrong_message_is_refused_by_what_is_wrong(sent: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parsed(sent, LIMIT, "answer")


def test_another_version_is_named() -> None:
    with pytest.raises(
        WrongVersion, match=f"version 9 of the messages, and this khop reads version {VERSION}"
    ):
        parsed(message(b"{}", version=9), LIMIT, "answer")


def test_no_memory_is_taken_for_what_is_not_allowed() -> None:
    def body() -> Iterator[bytes]:
        yield message(b'{"tensors":[["int64",[1000]]]}')
        raise AssertionError("the body was asked for")

    with pytest.raises(ValueError, match="at most 100 are allowed"):
        received(body(), 100, "answer")


def test_a_message_in_one_piece_takes_no_memory_for_bytes_that_it_lacks() -> None:
    sent = message(b'{"tensors":[["uint8",[536870912]]]}') + bytes(100)
    with pytest.raises(ValueError, match="536,870,912 bytes are announced, and at most 4,194,404"):
        parsed(sent, LIMIT, "request")


def test_an_answer_larger_than_the_free_memory_is_refused_before_allocation() -> None:
    shape = [["int64", [1 << 40]]]
    text = written({"tensors": shape})
    head = b"khop" + VERSION.to_bytes(4, "little") + len(text).to_bytes(8, "little") + text
    with pytest.raises(ValueError, match="8,796,093,022,208 bytes are announced, and this machine has"):
        received([head], 1 << 44, "answer")


def sent(fields: object, tensors: Tensors) -> Frame:
    return parsed(whole(fields, tensors.all), 1 << 20, "request")  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 9), max_size=6) | st.integers(0, 50).map(lambda n: list(range(n, n + 7))))
def test_nodes_come_back_as_they_were(nodes: list[int]) -> None:
    tensors = Tensors()
    fields = written_nodes(torch.tensor(nodes, dtype=torch.int64), tensors)
    assert read_nodes(sent(fields, tensors), 10).tolist() == nodes


def test_consecutive_nodes_take_no_bytes_each() -> None:
    tensors = Tensors()
    assert written_nodes(torch.arange(5, 1000), tensors) == {"first": 5, "end": 1000}
    assert not tensors.all


def test_too_many_nodes_or_wrong_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="1,000,000,000,000 nodes are requested at once; ask for at most 10"):
        read_nodes(sent({"first": 0, "end": 10**12}, Tensors()), 10)
    tensors = Tensors()
    with pytest.raises(ValueError, match=r"nodes: is torch\.float32 \(3,\), must be int64"):
        read_nodes(sent({"nodes": tensors(torch.zeros(3))}, tensors), 10)


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        (torch.tensor([1, -1]), "number of edges"),
        (torch.tensor([1]), "for 2 nodes"),
        (torch.ones(2), "are torch.float32"),
    ],
)
def test_an_answer_that_is_no_counts_is_refused(counts: torch.Tensor, sentence: str) -> None:
    tensors = Tensors()
    with pytest.raises(ValueError, match=sentence):
        checked_counts(sent({"counts": tensors(counts)}, tensors), 2)


def draw_keys_sent(fields: object) -> Document:
    """Return fields as they arrive."""
    return Document(json.loads(json.dumps(fields)), "request.key")


@pytest.mark.parametrize("key", [DrawKey((1 << 64) - 1), DrawKey.of(3, Purpose.HOP, 2, 7).plus(5)], ids=str)
def test_a_key_is_read_as_it_was_written(key: DrawKey) -> None:
    found = read_key(draw_keys_sent(written_key(key)))
    assert (found.value, found.of_epoch, found.step) == (key.value, key.of_epoch, key.step)
    assert found.at_step(4) == key.at_step(4)


@pytest.mark.parametrize("field", ["value", "of_epoch", "step"])
def test_a_field_that_is_no_number_of_64_bits_is_named(field: str) -> None:
    for wrong in (-1, "7", 1 << 64):
        with pytest.raises(ValueError, match=rf"request\.key\.{field}"):
            read_key(draw_keys_sent({**written_key(DrawKey.of(3, Purpose.HOP, 2, 7)), field: wrong}))
