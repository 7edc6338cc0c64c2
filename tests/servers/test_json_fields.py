"""Documents are plain JSON, and a wrong field is named."""

from __future__ import annotations

import re

import pytest

from khop.servers.frame import Document, by_type, written

BUYS = ("user", "buys", "item")


def read(text: str) -> Document:
    return Document.parsed(text.encode(), "answer")


def test_a_mapping_by_type_comes_back_in_order() -> None:
    given = {"user": 3, BUYS: 4, "item": 5}
    found = read(written(by_type(given)).decode()).entries()
    assert [(type_, number.whole()) for type_, number in found] == list(given.items())


def test_a_missing_field_and_null_are_not_given() -> None:
    given = read('{"a":null,"b":0}')
    assert (given.given("a"), given.given("c")) == (None, None)
    assert given["b"].whole() == 0


@pytest.mark.parametrize(
    ("text", "reader", "sentence"),
    [
        ('{"n":-1}', lambda d: d["n"].whole(), "answer.n: is -1, not a whole number from 0"),
        ('{"n":true}', lambda d: d["n"].whole(), "answer.n: is True, not a whole number"),
        ('{"n":1.0}', lambda d: d["n"].whole(), "answer.n: is 1.0, not a whole number"),
        ('{"n":[1,"x"]}', lambda d: d["n"].each()[1].whole(), "answer.n[1]: is 'x'"),
        ("[1]", lambda d: d["n"], "answer: has no field 'n'"),
        ('{"n":1}', lambda d: d["n"].text(), "answer.n: is 1, not text"),
        ('{"n":1}', lambda d: d["n"].each(), "answer.n: is 1, not a list"),
        ('{"n":"1"}', lambda d: d["n"].real(), "answer.n: is '1', not a number"),
        ('[["user"]]', lambda d: list(d.entries()), "answer[0]: is ['user'], not a pair"),
        ('[["user",1],["user",2]]', lambda d: list(d.entries()), "answer[1]: 'user' is given twice"),
        ('[[["a","b"],1]]', lambda d: list(d.entries()), "not a node type, or an edge type"),
    ],
)
def test_a_wrong_field_is_named(text: str, reader: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        reader(read(text))  # type: ignore[operator]


@pytest.mark.parametrize(
    "text", [b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b'{"n":Infinity}', b"\x80\x04K\x01.", b"1" * 5000]
)
def test_other_bytes_than_finite_json_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="answer: is not JSON of khop"):
        Document.parsed(text, "answer")


def test_numbers_that_are_not_finite_are_not_written() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        written({"n": float("nan")})
