"""Rows travel as they are stored, or rounded no further than is said; requests are small, and fuzzed.

Requests and answers of fixed size have a place for each id and row, and no two share bytes.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.distributed.exchange.peers import MARK_NUMBERS, Reader, as_bytes
from khop.distributed.exchange.row_wire import (
    FixedWire,
    RowGroup,
    RowRequest,
    Wire,
    is_rounded,
    largest,
    read,
    received_rows,
    rounded,
    sent_rows,
    wire_fields,
    written,
)
from khop.schema import ColumnSpec

COLUMNS = {
    "float32": torch.linspace(-3, 3, 42).view(7, 3, 2),
    "float64": torch.linspace(-3, 3, 14, dtype=torch.float64).view(7, 2),
    "bfloat16": torch.linspace(-3, 3, 14).view(7, 2).bfloat16(),
    "bool": torch.arange(7) % 2 == 0,
    "int64": torch.arange(7),
    "uint8": torch.arange(21, dtype=torch.uint8).view(7, 3),
}


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("dtype", COLUMNS)
def test_rows_come_through_bytes(dtype: str, wire: Wire) -> None:
    column = COLUMNS[dtype]
    spec = ColumnSpec(dtype, tuple(column.shape[1:]))
    reader = Reader(as_bytes(sent_rows(column, spec, wire)))
    sent = [reader.take(field.dtype, 7, field.shape) for field in wire_fields(spec, wire)]
    reader.check_done()
    found = received_rows(sent, spec, wire)
    assert found.dtype == column.dtype
    assert torch.equal(found, rounded(column, spec, wire))
    if not is_rounded(spec, wire):
        assert torch.equal(found, column)
    else:
        assert dtype in ("float32", "float64")
        assert torch.allclose(found, column, atol=0.002 if wire is Wire.FLOAT16 else 3 / 254 + 1e-6)


def test_rows_of_zeros_and_of_no_numbers_stay_what_they_are() -> None:
    for shape in ((2, 3), (2, 0), (0, 3)):
        rows = torch.zeros(shape)
        assert torch.equal(rounded(rows, ColumnSpec("float32", shape[1:]), Wire.INT8), rows)


def test_a_single_number_is_never_rounded() -> None:
    assert not is_rounded(ColumnSpec("float32", ()), Wire.FLOAT16)


LIKES = ("user", "likes", "item")
X = ColumnSpec("float32", (3,))
SPECS = {"user": {"x": X, "age": X}, "item": {"x": X}, LIKES: {}}
HELD = {"user": 1 << 40, "item": 70_000, LIKES: 300}
TYPES = st.sampled_from(list(SPECS))


@st.composite
def requests(draw: st.DrawFn) -> list[RowRequest]:
    found = []
    for type_ in draw(st.lists(TYPES, max_size=4)):
        most = draw(st.sampled_from([256, 70_000, HELD[type_]]))
        ids = draw(st.sets(st.integers(0, min(most, HELD[type_]) - 1), max_size=9))
        columns = draw(
            st.lists(st.sampled_from(sorted(SPECS[type_])), unique=True) if SPECS[type_] else st.just([])
        )
        found.append(RowRequest(type_, tuple(columns), torch.tensor(sorted(ids), dtype=torch.int64)))
    return found


@given(asked=requests())
def test_what_is_written_is_read(asked: list[RowRequest]) -> None:
    found = read(written(asked, SPECS), SPECS, HELD)
    wanted = [request for request in asked if request.ids.numel()]
    assert [(r.type_, r.columns, r.ids.tolist()) for r in found] == [
        (r.type_, r.columns, r.ids.tolist()) for r in wanted
    ]


@given(asked=requests(), data=st.data())
def test_whatever_comes_is_read_within_bounds_or_refused(
    asked: list[RowRequest], data: st.DataObject
) -> None:
    """Bytes changed, cut off and added anywhere."""
    message = bytearray(written(asked, SPECS).numpy().tobytes())
    for _ in range(data.draw(st.integers(0, 3))):
        if message:
            message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    message = message[: data.draw(st.integers(0, len(message)))] + data.draw(st.binary(max_size=48))
    given_ = torch.frombuffer(message, dtype=torch.uint8) if message else torch.empty(0, dtype=torch.uint8)
    try:
        found = read(given_, SPECS, HELD)
    except ValueError:
        return
    for request in found:
        assert set(request.columns) <= set(SPECS[request.type_])
        assert 0 <= int(request.ids.min()) <= int(request.ids.max()) < HELD[request.type_]


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values).view(torch.uint8)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (torch.zeros(9, dtype=torch.uint8), "5 rows of torch.int64 .* do not fit in the last 9 bytes"),
        (numbers(0, 1, 1), "5 rows of torch.int64 .* do not fit in the last 24 bytes"),
        (numbers(3, 1, 1, 0, 0), "type 3 of 3"),
        (numbers(-1, 1, 1, 0, 0), "type -1 of 3"),
        (numbers(1, 1, 3, 0, 0), "1 rows of 0 columns of 'item' in 3 bytes each"),
        (numbers(1, 0, 1, 0, 0), "0 rows of 0 columns"),
        (
            numbers(1, 70_001, 1, 0, 0),
            "70001 rows of 0 columns of 'item' in 1 bytes each, of 70000 rows and 1",
        ),
        (numbers(1, 1, 1, 2, 0, 0, 0), "1 rows of 2 columns"),
        (numbers(1, 1, 1, -1, 0), "1 rows of -1 columns"),
        (numbers(1, 60, 8, 1, 0, 0), "59 rows of torch.int64 .* do not fit in the last 0 bytes"),
        (numbers(1, 1, 1, 1, 0, 1), r"columns \[1\] of 'item', which has 1"),
        (numbers(0, 1, 1, 2, 0, 1, 1), r"columns \[1, 1\] of 'user', which has 2"),
        (numbers(1, 1, 1, 0, 70_000), "row id 70000 of 'item' is out of range: there are 70000 rows"),
        (numbers(1, 1, 1, 0, -4), "row id -4 of 'item'"),
        (numbers(1, 2, 8, 0, 5, -6), "row id -1 of 'item'"),
        (numbers(1, 3, 8, 0, 9, (1 << 63) - 1, 5), "row id .* of 'item'"),
    ],
)
def test_what_cannot_be_is_said(message: torch.Tensor, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read(message, SPECS, HELD)


@pytest.mark.parametrize(
    ("step", "bytes_each"), [(1, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4), (1 << 32, 8)]
)
def test_ids_take_as_few_bytes_as_their_differences(step: int, bytes_each: int) -> None:
    """At the boundary of every width."""
    ids = torch.arange(0, 200 * step, step)
    message = written([RowRequest("user", ("x",), ids)], SPECS)
    assert message.numel() == 8 * 6 + -(-199 * bytes_each // 8) * 8
    (found,) = read(message, SPECS, HELD)
    assert torch.equal(found.ids, ids)


def test_no_request_of_everything_is_too_large() -> None:
    held = {"user": 50, "item": 0, LIKES: 1}
    everything = [RowRequest("user", (name,), torch.arange(50)) for name in SPECS["user"]] + [
        RowRequest(LIKES, (), torch.arange(1))
    ]
    assert written(everything, SPECS).numel() <= largest(SPECS, held)


CPU = torch.device("cpu")
FIXED_WIRE_SPECS = {
    "n": {
        "x": ColumnSpec("float32", (3,)),
        "half": ColumnSpec("bfloat16", (2, 2)),
        "flag": ColumnSpec("bool", ()),
        "none": ColumnSpec("float32", (0,)),
    },
    "m": {"y": ColumnSpec("int64", ())},
}
GROUPS = (
    RowGroup("n", ("x", "half", "flag", "none"), 5, torch.int32),
    RowGroup("m", ("y",), 1, torch.int64),
    RowGroup("n", ("flag",), 3, torch.int32),
)


@pytest.mark.parametrize("wire", Wire)
def test_places_do_not_overlap_and_are_aligned(wire: Wire) -> None:
    form = FixedWire(GROUPS, FIXED_WIRE_SPECS, wire, 3)
    requests, answers = form.requests(CPU), form.answers(CPU)
    assert requests.shape == (3, form.request_bytes)
    assert answers.shape == (3, form.answer_bytes)
    assert form.request_bytes % 8 == form.answer_bytes % 8 == 0
    places = [form.request_header(requests), *form.ids(requests)]
    rows = [place for of in form.rows(answers) for of_column in of.values() for place in of_column]
    for views in (places, [form.answer_header(answers), *rows]):
        for number, view in enumerate(views):
            view.fill_(number % 2 if view.dtype == torch.bool else number)
        for number, view in enumerate(views):
            assert bool((view == (number % 2 if view.dtype == torch.bool else number)).all())
    assert [tuple(place.shape) for place in form.ids(requests)] == [(3, 5), (3, 1), (3, 3)]
    assert form.request_header(requests).shape == (3, MARK_NUMBERS + 1 + 3)
    found = form.rows(answers)
    assert tuple(found[0]["half"][0].shape) == (3, 5, 2, 2)
    assert tuple(found[0]["none"][-1].shape) == (3, 5, 0)
    assert len(found[0]["x"]) == (2 if wire is Wire.INT8 else 1)


def test_a_mark_is_in_each_header() -> None:
    form = FixedWire(GROUPS, FIXED_WIRE_SPECS, Wire.STORED, 2)
    header = form.request_header(form.requests(CPU))
    form.write_mark(header, [1 << 40, 7, 0])
    assert header[:, :MARK_NUMBERS].tolist() == [[1 << 40, 7, 0]] * 2
