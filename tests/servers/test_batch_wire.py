"""A batch of every kind arrives as it was sent; a changed message is refused or gives a sound batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

import khop
from khop.draw import mix64
from khop.loading.columns import ColumnChoice
from khop.loading.source import BatchRequest, Drawn
from khop.servers.batch_wire import BatchCheck, sent_batch
from khop.servers.codec import Frame, Outgoing, parsed, received
from khop.servers.messages import CODEC
from support.batch_kinds import PLAIN, TYPED
from support.same_samples import assert_same

Kind = Callable[[khop.Graph], khop.Loader]
LIMIT = 1 << 30


def expected(graph: khop.Graph, columns: ColumnChoice) -> BatchCheck:
    return BatchCheck(graph.schema, {t: graph.num_nodes(t) for t in graph.schema.node_types}, columns)


def drawn_batches(loader: khop.Loader) -> Iterator[Drawn]:
    """The batches of an epoch as a source makes them."""
    source, order = loader._batches.source, loader._order
    for step in range(order.num_steps):
        key = khop.DrawKey(mix64(step))
        yield source.make(BatchRequest.of(order.share(0, step), key, 0, step))


def sent(drawn: Drawn, origin: float = 0.0) -> list[bytes]:
    message = Outgoing(CODEC, sent_batch(drawn, origin), {})
    return [message.header, *map(bytes, message.pieces())]


def read(message: list[bytes], fits: BatchCheck, origin: float = 0.0) -> Drawn:
    return of_frame(received(message, LIMIT, "answer"), fits, origin)


def of_frame(frame: Frame, fits: BatchCheck, origin: float = 0.0) -> Drawn:
    return fits.checked(frame.body(CODEC, Drawn), origin)


def check_round_trip(graph: khop.Graph, kind: Kind) -> None:
    loader = kind(graph)
    for drawn in drawn_batches(loader):
        found = read(sent(drawn), expected(graph, loader.columns))
        assert_same(found, drawn)


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_a_plain_batch_arrives_as_it_was_sent(plain_graph: khop.Graph, kind: Kind) -> None:
    check_round_trip(plain_graph, kind)


@pytest.mark.core(4)
@pytest.mark.parametrize("kind", TYPED, ids=lambda kind: kind.__name__)
def test_a_typed_batch_arrives_as_it_was_sent(typed_graph: khop.Graph, kind: Kind) -> None:
    check_round_trip(typed_graph, kind)


def test_loss_weights_and_traffic_arrive(plain_graph: khop.Graph) -> None:
    loader = PLAIN[0](plain_graph)
    drawn = next(drawn_batches(loader))
    weights = khop.LossWeights({"item": torch.rand(32).double()}, 7.5)
    given = replace(
        drawn, sample=replace(drawn.sample, loss_weights=weights), traffic={"requested_rows": 3.0}
    )
    assert_same(read(sent(given), expected(plain_graph, loader.columns)), given)


def test_spans_are_moved_to_the_clock_of_the_client(plain_graph: khop.Graph) -> None:
    loader = PLAIN[0](plain_graph)
    drawn = next(drawn_batches(loader))
    message = sent(drawn, drawn.spans[0].begun)
    found = read(message, expected(plain_graph, loader.columns), 1000.0)
    assert found.spans[0].begun == 1000.0
    assert [span.seconds for span in found.spans] == pytest.approx([span.seconds for span in drawn.spans])


def with_edges(drawn: Drawn, **fields: object) -> Drawn:
    block = drawn.sample.blocks[0]
    edges = {t: replace(a, **fields) for t, a in block.adjacencies.items()}  # type: ignore[arg-type]
    blocks = (replace(block, adjacencies=edges), *drawn.sample.blocks[1:])
    return replace(drawn, sample=replace(drawn.sample, blocks=blocks))


def first(drawn: Drawn) -> khop.Adjacency:
    return drawn.sample.blocks[0].adjacency


def other_node(drawn: Drawn) -> Drawn:
    ids = torch.cat([torch.tensor([600]), drawn.sample.nodes["item"][1:]])
    return replace(drawn, sample=replace(drawn.sample, nodes={"item": ids}))


def wide_column(drawn: Drawn) -> Drawn:
    columns = {**drawn.columns["item"], "x": drawn.columns["item"]["x"].double()}
    return replace(drawn, columns={"item": columns})


def with_sample(drawn: Drawn, **fields: object) -> Drawn:
    return replace(drawn, sample=replace(drawn.sample, **fields))  # type: ignore[arg-type]


def trees(drawn: Drawn) -> torch.Tensor:
    return torch.zeros(drawn.sample.nodes["item"].numel(), dtype=torch.int64)


def weighted(drawn: Drawn, weights: torch.Tensor, type_: khop.Type = "item") -> Drawn:
    return with_sample(drawn, loss_weights=khop.LossWeights({type_: weights}, 1.0))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (other_node, "id 600 at position 0: must be in [0, 600)"),
        (wide_column, "and must be torch.float32"),
        (lambda d: replace(d, columns={"item": {}}), "requested were ['x', 'category']"),
        (lambda d: replace(d, columns={}), "requested were those of ['item']"),
        (lambda d: with_edges(d, indices=first(d).indices + first(d).num_src), "source id"),
        (lambda d: with_edges(d, indptr=first(d).indptr + 1), "it must begin with 0, never fall"),
        (lambda d: with_edges(d, edge_ids=first(d).indices), "must be torch.int64"),
        (lambda d: with_edges(d, num_src=first(d).num_src - 1), "rows in a block of"),
        (lambda d: replace(d, seed_nodes={"item": d.seed_nodes["item"][1:]}), "have another number of rows"),
        (lambda d: replace(d, seed_nodes={}), "seeds of [], rows of ['item']"),
        (lambda d: with_sample(d, trees={"item": trees(d)[1:]}), "trees of {'item': "),
        (lambda d: with_sample(d, trees={}), "trees of {} nodes"),
        (lambda d: with_sample(d, trees={"item": trees(d).int()}), "must be torch.int64"),
        (lambda d: with_sample(d, trees={"item": trees(d) + 32}), "tree of 'item' id 32"),
        (lambda d: with_sample(d, trees={"item": trees(d) - 1}), "tree of 'item' id -1"),
        (lambda d: weighted(d, torch.ones(31)), "weights of 'item' are torch.float32 (31,), and must be"),
        (lambda d: weighted(d, torch.ones(32, dtype=torch.int64)), "are torch.int64 (32,)"),
        (lambda d: weighted(d, torch.ones(32), "other"), "weights of 'other' are"),
    ],
)
def test_contents_that_do_not_fit_the_graph_are_refused(
    plain_graph: khop.Graph, change: Callable[[Drawn], Drawn], sentence: str
) -> None:
    loader = PLAIN[0](plain_graph)
    drawn = change(next(drawn_batches(loader)))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read(sent(drawn), expected(plain_graph, loader.columns))


def damaged(message: bytes, number: int) -> bytes:
    """Return the message with one byte changed, left out or doubled, or with its end cut off."""
    word = mix64(number)
    at, kind, value = (word >> 32) % len(message), word % 8, word >> 8 & 0xFF
    if kind == 0:
        return message[:at]
    if kind == 1:
        return message[:at] + message[at + 1 :]
    if kind == 2:
        return message[:at] + message[at:][: value + 1] + message[at:]
    return message[:at] + bytes([value]) + message[at + 1 :]


def damaged_pieces(head: bytes, body: bytes, number: int) -> list[bytes]:
    """Return the message in pieces of any size: one is damaged, lost or doubled, or two are swapped."""
    word = mix64(number)
    cuts = sorted((word >> 8 * place) % (len(body) + 1) for place in range(2, 6))
    found = [head, *(body[i:j] for i, j in zip([0, *cuts], [*cuts, len(body)], strict=True))]
    one, other, how = word % len(found), (word >> 8) % len(found), (word >> 60) % 4
    if how == 0:
        del found[one]
    elif how == 1:
        found.insert(one, found[other])
    elif how == 2:
        found[one], found[other] = found[other], found[one]
    elif found[one]:
        found[one] = damaged(found[one], number)
    return found


def frame_of_damaged(head: bytes, body: bytes, number: int) -> Frame:
    """Read a damaged message: its header, any byte of it, or its pieces, in turn.

    Most of a message are tensors, so a third of the damage is in the header.
    """
    if number % 3 == 0:
        return parsed(damaged(head, number) + body, LIMIT, "answer")
    if number % 3 == 1:
        return parsed(damaged(head + body, number), LIMIT, "answer")
    return received(damaged_pieces(head, body, number), LIMIT, "answer")


def fuzz(graph: khop.Graph, kind: Kind, numbers: range) -> int:
    """Read damaged messages: each is refused by a ValueError, or gives a batch that can be used."""
    loader = kind(graph)
    fits = expected(graph, loader.columns)
    drawn = replace(next(drawn_batches(loader)), spans=())  # times would differ from run to run
    head, *rest = sent(drawn)
    body = b"".join(rest)
    refused = 0
    for number in numbers:
        try:
            frame = frame_of_damaged(head, body, number)
            found = of_frame(frame, fits)
        except ValueError:
            refused += 1
            continue
        sample = found.sample
        if sample.trees is not None:
            seeds = sum(rows.numel() for rows in sample.seed_index.values())
            for node_type, numbers in sample.trees.items():
                assert numbers.shape == sample.nodes[node_type].shape
                assert ((numbers >= 0) & (numbers < seeds)).all()
        for block in sample.blocks:
            for edges in block.adjacencies.values():
                assert edges.edge_index.shape[1] == edges.indices.numel()
    return refused


@pytest.mark.core(2)
@pytest.mark.parametrize("kind", [PLAIN[1], TYPED[0], TYPED[2], TYPED[6]], ids=lambda kind: kind.__name__)
def test_a_damaged_message_is_refused_or_gives_a_sound_batch(
    plain_graph: khop.Graph, typed_graph: khop.Graph, kind: Kind
) -> None:
    graph = plain_graph if kind in PLAIN else typed_graph
    assert fuzz(graph, kind, range(400)) > 100


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [*PLAIN, *TYPED], ids=lambda kind: kind.__name__)
def test_many_damaged_messages(plain_graph: khop.Graph, typed_graph: khop.Graph, kind: Kind) -> None:
    graph = plain_graph if kind in PLAIN else typed_graph
    assert fuzz(graph, kind, range(400, 8000)) > 1000
