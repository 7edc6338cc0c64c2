"""Hops and negatives between ranks come as they were sent; what cannot be is an error, never a crash."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.distributed.exchange.draw_wire import MOST_PADDED, HopWire, NegativeWire
from khop.distributed.exchange.peers import as_bytes
from khop.draw import DrawKey, Frontier, Neighbors, Positives, UniformNegatives
from khop.graph.rule import Hop
from khop.kernels.draw_negatives import NothingLeft
from khop.sampling.rules.temporal import Temporal
from khop.sampling.rules.uniform import Uniform
from khop.schema import EdgeType
from khop.testing.graph_store import rows_of

A, B = ("user", "a", "item"), ("item", "b", "item")
NODES, EDGES = {"user": 50, "item": 40}, {A: 900, B: 1 << 40}
SPANS = {"item": (10, 40)}
KEY = DrawKey(7)
DEGREES = st.lists(st.integers(0, 3), max_size=6)


def wire(
    fanout: int = 3, *, edge_ids: bool = True, nodes: dict[str, int] | None = None, key: int = 7
) -> HopWire:
    frontier = {"item": Frontier(torch.tensor([10]), torch.tensor([5]), torch.tensor([0]))}
    hop = Hop(1, {A: fanout, B: 2}, Temporal("time", inner=Uniform()), edge_ids)
    return HopWire.of(frontier, hop, DrawKey(key), nodes or NODES, EDGES)


def neighbors(degrees: list[int], sources: int, edges: int, *, edge_ids: bool) -> Neighbors:
    offsets = torch.tensor([0, *degrees]).cumsum(0)
    numbers = torch.arange(int(offsets[-1]))
    return Neighbors(offsets, (numbers * 7 % sources).int(), numbers * 13 % edges if edge_ids else None)


def answer(hop: HopWire, drawn: dict[EdgeType, Neighbors]) -> Tensor:
    message = torch.full((hop.size_of(drawn),), 77, dtype=torch.uint8)  # as if it had been used before
    hop.write(drawn, message)
    return message


@given(ids=st.lists(st.integers(10, 39), max_size=9))
def test_a_question_is_read_as_it_was_asked(ids: list[int]) -> None:
    nodes = torch.tensor(ids, dtype=torch.int64)
    asked = Frontier(nodes, nodes * 1000, nodes + 1)
    found = wire().frontier(wire().request({"item": asked}, SPANS), SPANS)["item"]
    assert found.until is not None
    assert found.tree is not None
    assert torch.equal(found.nodes, nodes)
    assert torch.equal(found.until, nodes * 1000)
    assert torch.equal(found.tree, nodes + 1)


@given(degrees=DEGREES, fanout=st.sampled_from([3, -1, MOST_PADDED + 1]), edge_ids=st.booleans())
def test_an_answer_is_read_as_it_was_given(degrees: list[int], fanout: int, edge_ids: bool) -> None:
    fewer = [min(degree, 2) for degree in degrees]
    drawn = {
        A: neighbors(degrees, 50, 900, edge_ids=edge_ids),
        B: neighbors(fewer, 40, 1 << 40, edge_ids=edge_ids),
    }
    hop, rows = wire(fanout, edge_ids=edge_ids), {"item": len(degrees)}
    message = answer(hop, drawn)
    assert hop.is_bounded == (fanout == 3)
    assert not hop.is_bounded or message.numel() == hop.size(rows)
    found = hop.neighbors(message, rows)
    assert list(found) == [A, B]
    for edge_type, of_type in drawn.items():
        assert rows_of(found[edge_type]) == rows_of(of_type)
        assert (found[edge_type].edges is None) == (not edge_ids)
        if of_type.edges is not None:
            assert torch.equal(found[edge_type].edges, of_type.edges)


def test_degrees_whose_sum_overflows_are_refused() -> None:
    """16 rows of 2^60 edges would add up to 2^64, which is 0 in 64 bits."""
    degrees = torch.tensor([1 << 60] * 16)
    hop, none = wire(-1, edge_ids=False), torch.zeros(0, dtype=torch.int32)
    with pytest.raises(ValueError, match=rf"degree of .* {1 << 60}, must be in \[0, 257\)"):
        hop.neighbors(as_bytes([degrees, none, degrees, none]), {"item": 16})


def test_ids_travel_in_64_bits_where_32_are_too_few() -> None:
    last = 1 << 31
    for count, width in ((last, 4), (last + 1, 8)):
        nodes = torch.tensor([count - 1])
        hop = wire(1, edge_ids=False, nodes={"user": count, "item": count})
        drawn = {t: Neighbors(torch.tensor([0, 1]), nodes) for t in (A, B)}
        message = answer(hop, drawn)
        assert message.numel() == hop.size({"item": 1}) == 16 + 8 + 2 * width
        assert hop.neighbors(message, {"item": 1})[A].nodes.tolist() == [count - 1]


def test_a_question_drawn_with_another_key_is_refused() -> None:
    message = wire().request({"item": Frontier(*[torch.tensor([10])] * 3)}, SPANS)
    with pytest.raises(ValueError, match="another hop, or for another key"):
        wire(key=8).frontier(message, SPANS)


@given(data=st.data())
def test_bytes_that_are_no_question_or_answer_are_refused_or_harmless(data: st.DataObject) -> None:
    question = wire().request({"item": Frontier(*[torch.tensor([10, 12, 30])] * 3)}, SPANS)
    degrees = [3, 0, 2]
    drawn = {A: neighbors(degrees, 50, 900, edge_ids=True), B: neighbors([2, 1, 0], 40, 99, edge_ids=True)}
    for message, read in (
        (question, lambda bytes_: wire().frontier(bytes_, SPANS)),
        (answer(wire(), drawn), lambda bytes_: wire().neighbors(bytes_, {"item": 3})),
        (answer(wire(-1), drawn), lambda bytes_: wire(-1).neighbors(bytes_, {"item": 3})),
    ):
        damaged = message.clone()
        for _ in range(data.draw(st.integers(1, 4))):
            damaged[data.draw(st.integers(0, message.numel() - 1))] = data.draw(st.integers(0, 255))
        cut = damaged[: 8 * data.draw(st.integers(0, message.numel() // 8))]
        for bytes_ in (damaged, cut, torch.cat([damaged, torch.zeros(8, dtype=torch.uint8)])):
            try:
                found = read(bytes_)
            except ValueError:
                continue
            for of_type in found.values():
                ids, limit = of_type.nodes, 50 if isinstance(of_type, Neighbors) else 40
                assert not ids.numel() or 0 <= int(ids.min()) <= int(ids.max()) < limit


def test_negatives_are_read_as_they_were_sent() -> None:
    sources = torch.tensor([3, 4, 9])
    asked = Positives(sources, sources * 5, sources * 7, "time")
    negatives = NegativeWire.of(A, UniformNegatives(2, exact=True), asked, KEY, 40)
    found = negatives.positives(negatives.request(asked, (3, 10)), (3, 10))
    assert found.time_column == "time"
    assert found.until is not None
    assert [of.tolist() for of in (found.sources, found.positions, found.until)] == [
        [3, 4, 9], [15, 20, 45], [21, 28, 63]
    ]  # fmt: skip
    drawn = torch.tensor([[0, 1], [2, 3], [39, 0]])
    message = negatives.answer(drawn, 3)
    assert message.numel() == negatives.size(3)
    back = negatives.drawn(message, 3)
    assert isinstance(back, torch.Tensor)
    assert torch.equal(back, drawn)
    assert negatives.drawn(negatives.answer(NothingLeft(2), 3), 3) == NothingLeft(2)


@given(data=st.data())
def test_bytes_that_are_no_negatives_are_refused_or_harmless(data: st.DataObject) -> None:
    asked = Positives(torch.tensor([3, 4]), torch.tensor([0, 1]))
    negatives = NegativeWire.of(A, UniformNegatives(2, exact=True), asked, KEY, 40)
    for message, read in (
        (negatives.request(asked, (3, 10)), lambda bytes_: negatives.positives(bytes_, (3, 10)).sources - 3),
        (negatives.answer(torch.tensor([[0, 1], [2, 3]]), 2), lambda bytes_: negatives.drawn(bytes_, 2)),
    ):
        damaged = message.clone()
        damaged[data.draw(st.integers(0, message.numel() - 1))] = data.draw(st.integers(0, 255))
        for bytes_ in (damaged, damaged[: 8 * data.draw(st.integers(0, message.numel() // 8))]):
            try:
                found = read(bytes_)
            except ValueError:
                continue
            assert isinstance(found, NothingLeft) or 0 <= int(found.min()) <= int(found.max()) < 40
