"""Requests and answers of fixed size have a place for each id and row, and no two share bytes."""

from __future__ import annotations

import pytest
import torch

from khop.exchange.fixed_wire import FixedWire, RowGroup
from khop.exchange.peers import MARK_NUMBERS
from khop.exchange.row_wire import Wire
from khop.schema import ColumnSpec

CPU = torch.device("cpu")
SPECS = {
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
    form = FixedWire(GROUPS, SPECS, wire, 3)
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
    form = FixedWire(GROUPS, SPECS, Wire.STORED, 2)
    header = form.request_header(form.requests(CPU))
    form.write_mark(header, [1 << 40, 7, 0])
    assert header[:, :MARK_NUMBERS].tolist() == [[1 << 40, 7, 0]] * 2
