"""Messages arrive as they were sent, in memory of their own, or are refused by the name of what is wrong."""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.draw import DrawKey, Purpose
from khop.schema import EdgeType, NodeType, Type
from khop.servers.codec import (
    DTYPES,
    LEAST_PIECE,
    PIECE,
    VERSION,
    Codec,
    Ids,
    Outgoing,
    Range,
    Tensors,
    header,
    json_of,
    parsed,
    parsed_json,
    pieces,
    received,
)
from khop.servers.errors import WrongVersion
from khop.servers.messages import CODEC, CountsAnswer, NodeList, NodeSpan, read_nodes, some_nodes
from support.same_samples import assert_same

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
    assert frame.whole("a") == 1
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
    frame = parsed(b"".join([header({}, sent), *pieces(sent)]), LIMIT, "answer")
    frame.tensors[1].add_(1)
    assert torch.equal(frame.tensors[1], sent[1] + 1)
    assert len({tensor.untyped_storage().data_ptr() for tensor in frame.tensors}) == 1
    assert all(tensor.data_ptr() % 64 == 0 for tensor in frame.tensors)


def test_a_tensor_travels_once() -> None:
    tensors, one = Tensors(), torch.arange(3)
    assert [tensors(one), tensors(torch.arange(3)), tensors(one)] == [0, 1, 0]
    assert len(tensors.all) == 2


def message(text: bytes, version: int = VERSION, magic: bytes = b"khop") -> bytes:
    return struct.pack("<4sIQ", magic, version, len(text)) + text


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (b"", "answer: 0 bytes are not a khop message"),
        (
            pickle.dumps(ValueError("a pickle, longer than the start of a message")),
            "answer: is not a khop message",
        ),
        (message(b"{}", magic=b"khoP"), "is not a khop message"),
        (message(b"[]"), "answer: has no field 'tensors'"),
        (message(b'{"tensors":[["float32"]]}'), "not a dtype and a shape"),
        (message(b'{"tensors":[["object",[1]]]}'), "not a dtype and a shape"),
        (message(b'{"tensors":[["int8",[-1]]]}'), "not a dtype and a shape"),
        (message(b'{"tensors":[["int8",[4194304,4194304,4194304]]]}'), "not a dtype and a shape"),
        (message(b'{"tensors":[["int64",[1000000000]]]}'), "8,000,000,000 bytes are announced"),
        (
            message(b'{"tensors":[["int8",[3]]]}') + b"12",
            "is truncated: 1 bytes that its header announces are missing",
        ),
        (message(b'{"tensors":[["int8",[3]]]}') + b"1234", "has more bytes than its header announces"),
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
    words = f"message version {VERSION + 1}, but this khop reads version {VERSION}"
    with pytest.raises(WrongVersion, match=words):
        parsed(message(b"{}", version=VERSION + 1), LIMIT, "answer")


def test_no_memory_is_taken_for_what_is_not_allowed() -> None:
    def body() -> Iterator[bytes]:
        yield message(b'{"tensors":[["int64",[1000]]]}')
        raise AssertionError("the body was asked for")

    with pytest.raises(ValueError, match="at most 100 are allowed"):
        received(body(), 100, "answer")


def test_a_message_in_one_piece_takes_no_memory_for_bytes_that_it_lacks() -> None:
    sent = message(b'{"tensors":[["uint8",[536870912]]]}') + bytes(100)
    with pytest.raises(ValueError, match="536,870,912 bytes are announced, but at most 4,194,404"):
        parsed(sent, LIMIT, "request")


def test_an_answer_larger_than_the_free_memory_is_refused_before_allocation() -> None:
    shape = [["int64", [1 << 40]]]
    text = json_of({"tensors": shape})
    head = b"khop" + VERSION.to_bytes(4, "little") + len(text).to_bytes(8, "little") + text
    with pytest.raises(ValueError, match="8,796,093,022,208 bytes are announced, but this machine has"):
        received([head], 1 << 44, "answer")


class Kind(StrEnum):
    PLAIN = "plain"


@dataclass(frozen=True)
class Inner:
    ids: Ids
    names: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.names == {"bad"}:
            raise ValueError("names must not be bad")


@dataclass(frozen=True)
class Other:
    share: float | int


@dataclass(frozen=True)
class Outer:
    text: str
    number: Annotated[int, Range(0, 9)]
    truth: bool
    real: float
    word: Literal["one", "two"]
    kind: Kind
    maybe: Inner | None
    either: Inner | Other
    by_type: Mapping[Type, Tensor]
    edges: Mapping[EdgeType, tuple[NodeType, ...]]
    left_out: int = 7


FORMS = Codec({Outer: {"left_out": None}})
BUYS = ("user", "buys", "item")
VALUE = Outer(
    "text", 9, True, 0.5, "two", Kind.PLAIN, Inner(torch.arange(3), frozenset({"b", "a"})), Other(3),
    {"user": torch.rand(2, 2), BUYS: torch.zeros(0, dtype=torch.bool)}, {BUYS: ("user", "item")},
)  # fmt: skip


def plain() -> dict[str, object]:
    found = FORMS.write(VALUE, Tensors())
    assert isinstance(found, dict)
    return found


def test_a_dataclass_arrives_as_it_was_sent() -> None:
    message = Outgoing(FORMS, VALUE, {"kind": "outer"})
    frame = received([message.header, *message.pieces()], LIMIT, "answer")
    found = frame.body(FORMS, Outer)
    assert_same(found, VALUE)
    assert (frame.text("kind"), type(found.either.share), found.left_out) == ("outer", int, 7)
    assert parsed(message.whole(), LIMIT, "answer").num_bytes == len(message.whole())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"text": 3}, "answer.text: is 3, not text"),
        ({"number": 10}, "answer.number: is 10, not a whole number from 0 to 9"),
        ({"number": True}, "answer.number: is True, not a whole number"),
        ({"number": 1.0}, "answer.number: is 1.0, not a whole number"),
        ({"truth": 1}, "answer.truth: is 1, not true or false"),
        ({"real": "1"}, "answer.real: is '1', not a number"),
        ({"real": 10**400}, "000..., not a number of 64 bits"),
        ({"word": "three"}, "answer.word: is 'three', and must be one of one, two"),
        ({"kind": None}, "answer.kind: is None, and must be one of plain"),
        ({"maybe": {"ids": 0}}, "answer.maybe: has no field 'names'"),
        ({"maybe": {"ids": 0, "names": [], "more": 1}}, "answer.maybe: has an unknown field 'more'"),
        ({"maybe": {"ids": 4, "names": []}}, "answer.maybe.ids: is 4, not the number of a tensor"),
        ({"maybe": {"ids": 1, "names": []}}, "maybe.ids: is torch.float32 (2, 2), must be torch.int64 (n)"),
        ({"maybe": {"ids": 0, "names": ["a", 1]}}, "answer.maybe.names[1]: is 1, not text"),
        ({"maybe": {"ids": 0, "names": ["bad"]}}, "answer.maybe: names must not be bad"),
        ({"maybe": [1]}, "answer.maybe: is [1], not an object of names and values"),
        ({"either": ["None", {}]}, "answer.either: is ['None', {}], not one of Inner, Other"),
        ({"either": ["Other", {"share": "x"}]}, "answer.either.Other.share: is 'x', not a number"),
        ({"by_type": [["user"]]}, "answer.by_type[0]: is ['user'], not a pair"),
        ({"by_type": [["user", 0], ["user", 0]]}, "answer.by_type[1]: 'user' is given twice"),
        ({"by_type": [[["a", "b"], 0]]}, "by_type[0]: is ['a', 'b'], not a node type, or an edge type"),
        ({"edges": [["user", []]]}, "answer.edges[0]: 'user' is not an edge type"),
        ({"edges": 1}, "answer.edges: is 1, not a list of pairs"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(change: dict[str, object], sentence: str) -> None:
    tensors = (torch.arange(3), torch.rand(2, 2), torch.zeros(0, dtype=torch.bool))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        FORMS.read(Outer, {**plain(), **change}, tensors, "answer")


@pytest.mark.parametrize(
    "text", [b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b'{"n":Infinity}', b"\x80\x04K\x01.", b"1" * 5000]
)
def test_other_bytes_than_finite_json_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="answer: is not JSON of khop"):
        parsed_json(text, "answer")


def test_numbers_that_are_not_finite_are_not_written() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        json_of({"n": float("nan")})


@given(st.lists(st.integers(0, 9), max_size=6) | st.integers(0, 50).map(lambda n: list(range(n, n + 7))))
def test_nodes_come_back_as_they_were(nodes: list[int]) -> None:
    assert read_nodes(some_nodes(torch.tensor(nodes, dtype=torch.int64)), 60, 10).tolist() == nodes


def test_consecutive_nodes_take_no_bytes_each() -> None:
    assert some_nodes(torch.arange(5, 1000)) == NodeSpan(5, 1000)


def test_too_many_nodes_or_wrong_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="1,000,000,000,000 nodes are requested at once; request at most 10"):
        read_nodes(NodeSpan(0, 10**12), 10**13, 10)
    with pytest.raises(ValueError, match="ends before it starts"):
        read_nodes(NodeSpan(5, 4), 10, 10)
    with pytest.raises(ValueError, match="nodes -1 to 3: there are 10"):
        read_nodes(NodeList(torch.tensor([3, -1])), 10, 10)


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [(torch.tensor([1, -1]), "number of edges"), (torch.tensor([1]), "for 2 nodes")],
)
def test_an_answer_that_is_no_counts_is_refused(counts: torch.Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        CountsAnswer(counts).checked(2)


@pytest.mark.parametrize("key", [DrawKey((1 << 64) - 1), DrawKey.of(3, Purpose.HOP, 2, 7).plus(5)], ids=str)
def test_a_key_is_read_as_it_was_written(key: DrawKey) -> None:
    found = CODEC.read(DrawKey, parsed_json(json_of(CODEC.write(key, Tensors())), "key"), (), "key")
    assert (found.value, found.of_epoch, found.step) == (key.value, key.of_epoch, key.step)
    assert found.at_step(4) == key.at_step(4)


@pytest.mark.parametrize("field", ["value", "of_epoch", "step"])
def test_a_field_that_is_no_number_of_64_bits_is_named(field: str) -> None:
    fields = CODEC.write(DrawKey.of(3, Purpose.HOP, 2, 7), Tensors())
    assert isinstance(fields, dict)
    for wrong in (-1, "7", 1 << 64):
        with pytest.raises(ValueError, match=rf"key\.{field}"):
            CODEC.read(DrawKey, {**fields, field: wrong}, (), "key")
