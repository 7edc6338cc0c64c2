"""Batches of servers of parts have the bits of the local loader over all parts, for every kind of batch.

Answers to other servers: by tokens of servers alone, about the own part, and from no damaged message.

Nodes that exist before a time, by the edges of all parts.

Views of a part, each made once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import khop
from khop.api.split_links import edges_before, split_links_by_column, split_links_by_time, time_cut_offs
from khop.distributed.link_split import HeldEdges, nodes_existing
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.draw import DrawKey, Frontier
from khop.graph.folder import TimeCutOffs
from khop.graph.rule import Hop
from khop.sampling.links.link_split import LinkColumns, Shares, nodes_with_edges_before
from khop.sampling.rules.uniform import Uniform
from khop.servers.access import Role, Token
from khop.servers.codec import received
from khop.servers.errors import InvalidRequest, NotAllowed, ServerError, WrongGraph
from khop.servers.messages import (
    CODEC,
    EdgesOf,
    LinkCountsOf,
    NodeDegreesOf,
    OctetsAnswer,
    Only,
    PartDegreesOf,
    PartRowsOf,
    SplitArguments,
    SplitCountsOf,
    SplitPart,
    request,
)
from khop.servers.parts.served import PartViews
from khop.servers.request_handler import QueueLimits, RequestHandler
from khop.servers.service import Service
from support.batch_kinds import PLAIN, TYPED, loaders_of_split
from support.byte_service import SentBytes, arrived
from support.dated_shop import BUYS as DATED_BUYS
from support.dated_shop import CUT_OFFS, DATED, Loaders, write_dated_shop
from support.parts_in_process import connected_to_parts, part_services
from support.same_samples import assert_same, assert_same_batches
from support.small_typed_folders import BUYS, LIKE

Kind = Callable[[khop.Graph], khop.Loader]


def check_equal(path: Path, kind: Kind) -> None:
    local, remote = kind(khop.open_graph(path)), kind(connected_to_parts(path))
    assert len(remote) == len(local)
    for found, expected in zip(remote.epoch(1), local.epoch(1), strict=True):
        assert_same_batches(found, expected)
    assert remote.state_dict() == local.state_dict()


@pytest.mark.core(1)
@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_plain_batches_equal_local_ones(plain_parts: Path, kind: Kind) -> None:
    check_equal(plain_parts, kind)


@pytest.mark.core(1)
@pytest.mark.parametrize("kind", TYPED, ids=lambda kind: kind.__name__)
def test_typed_batches_equal_local_ones(typed_parts: Path, kind: Kind) -> None:
    check_equal(typed_parts, kind)


@pytest.mark.core(1)
def test_split_links_are_the_same_over_parts(typed_parts: Path) -> None:
    for remote, local in zip(
        loaders_of_split(connected_to_parts(typed_parts)),
        loaders_of_split(khop.open_graph(typed_parts)),
        strict=True,
    ):
        for found, expected in zip(remote, local, strict=True):
            assert_same_batches(found, expected)
        assert remote.state_dict() == local.state_dict()


@pytest.mark.long
@pytest.mark.parametrize("kind", DATED, ids=lambda kind: kind.__name__)
def test_splits_by_time_and_by_column_are_the_same_over_parts(dated_parts: Path, kind: Loaders) -> None:
    remote = connected_to_parts(dated_parts)
    assert time_cut_offs(remote) == CUT_OFFS
    for found, expected in zip(kind(remote), kind(khop.open_graph(dated_parts)), strict=True):
        assert len(found) == len(expected) > 0
        for one, other in zip(found, expected, strict=True):
            assert_same_batches(one, other)
        assert found.state_dict() == expected.state_dict()


def test_negatives_by_relation_are_refused_over_parts(typed_parts: Path) -> None:
    """Exact ones need all edges of a source, which only a server of the whole graph has."""
    remote, sentence = connected_to_parts(typed_parts), r"by relation 'time': .* serve the whole graph, or"
    with pytest.raises(InvalidRequest, match=sentence):
        khop.split_links(remote, BUYS, negatives=2, relation="time")
    split = khop.split_links(remote, BUYS, negatives=0, relation="time")
    drawn = khop.LinkSampler(split.train, [3], negatives=khop.UniformNegatives(exact=True), relation="time")
    with pytest.raises(InvalidRequest, match=sentence):
        next(iter(khop.Loader(drawn, split.train_links, 64)))


@pytest.mark.core(1)
@pytest.mark.parametrize("cut_offs", [TimeCutOffs(-5, 80), TimeCutOffs(60, 200)])
def test_an_empty_part_of_a_split_is_the_sentence_of_the_local_split(
    dated_parts: Path, cut_offs: TimeCutOffs
) -> None:
    said = []
    for graph in (connected_to_parts(dated_parts), khop.open_graph(dated_parts)):
        with pytest.raises(ValueError, match="change the split, or import more") as caught:
            split_links_by_time(graph, DATED_BUYS, cut_offs)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_reverse_type_without_the_column_of_a_split_is_refused_over_parts(tmp_path: Path) -> None:
    """A part has the links to its items and the reverse edges to its users: none can match them."""
    buys, back = ("user", "buys", "item"), ("item", "bought-by", "user")
    users, items = torch.arange(12), torch.arange(12) // 2
    edges = {
        buys: khop.EdgeTable(users, items, {"split": torch.arange(12) % 3}, reverse_of=back),
        back: khop.EdgeTable(items, users),
    }
    khop.write_graph(tmp_path / "whole", {"user": khop.NodeTable(12), "item": khop.NodeTable(6)}, edges)
    khop.partition_graph(tmp_path / "whole", tmp_path / "parts", 2)
    with pytest.raises(
        ValueError, match=r"by the column 'split', which their reverse type .* lacks: .*; give"
    ):
        split_links_by_column(connected_to_parts(tmp_path / "parts"), buys)
    split = split_links_by_column(khop.open_graph(tmp_path / "parts"), buys)
    assert (split.train.num_edges(back), split.test.num_edges(back)) == (4, 8)


def test_parts_without_the_times_of_all_nodes_are_refused(tmp_path: Path) -> None:
    """Columns of one number per node are on all machines, others with their part alone."""
    khop.partition_graph(write_dated_shop(tmp_path / "whole", time_shape=(1,)), tmp_path / "parts", 2)
    with pytest.raises(
        ValueError, match="is split by time, and each part has the column 'time' only for its"
    ):
        part_services(tmp_path / "parts")


@pytest.mark.long
def test_negatives_by_degree_of_a_split_count_the_edges_of_all_parts(typed_parts: Path) -> None:
    """The edges that a split leaves out are in all parts, and so are the partners of a source."""

    def loader(graph: khop.Graph) -> khop.Loader:
        split = khop.split_links(graph, [BUYS, LIKE], 0.1, 0.1, label=None, seed=2)
        negatives = khop.DegreeNegatives(2, exact=True)
        sampler = khop.LinkSampler(split.train, [2], negatives=negatives, exclude="edge")
        return khop.Loader(sampler, split.train_links, 512)

    remote, local = loader(connected_to_parts(typed_parts)), loader(khop.open_graph(typed_parts))
    for found, expected in zip(remote, local, strict=True):
        assert_same_batches(found, expected)


def test_links_of_a_list_come_by_number(typed_parts: Path) -> None:
    numbers = torch.tensor([3, 0, 7, 3])
    here, there = (
        khop.split_links(graph, BUYS, 0.2, 0.1, negatives=2, label="weight").val_links
        for graph in (khop.open_graph(typed_parts), connected_to_parts(typed_parts))
    )
    assert (there.counts, there.facts) == (here.counts, here.facts)
    assert_same(there.rows(BUYS, numbers), here.rows(BUYS, numbers))


def test_fewer_edge_types_are_left_out(typed_parts: Path) -> None:
    def loader(graph: khop.Graph) -> khop.Loader:
        return khop.Loader(khop.NeighborSampler(graph.only([LIKE]), [3]), {"item": torch.arange(40)}, 16)

    remote, local = loader(connected_to_parts(typed_parts)), loader(khop.open_graph(typed_parts))
    for found, expected in zip(remote, local, strict=True):
        assert_same_batches(found, expected)


KEY = DrawKey(5)
SELLS = ("user", "sells", "item")
SPLIT = SplitArguments((BUYS,), Shares(0.2, 0.1), LinkColumns(), 4)
EMPTY = SplitPart(replace(SPLIT, edge_types=()), "val")
NODES = torch.tensor([0, 1000])


@pytest.fixture(scope="module")
def services(typed_parts: Path) -> list[Service]:
    return part_services(typed_parts)


def hop_request(service: Service, *, part: int = 0, graph: str = "", **change: object) -> bytes:
    """Return a request for a hop from items of a part."""
    shared = service._part._graph  # type: ignore[union-attr,attr-defined]
    first, end = shared.owners.span(shared.nodes.bounds["item"], part)
    frontier = {"item": Frontier(torch.arange(first, end))}
    hop = Hop(1, {BUYS: 3}, Uniform(), edge_ids=True)
    question = shared.question(frontier, hop, KEY)
    asked = shared.owners._body(question, question.request(part, frontier))
    asked = replace(asked, **change)  # type: ignore[arg-type]
    return request("hop", graph or service._served.fingerprint, asked, part=part, request=7)


def test_only_tokens_of_servers_may_ask_for_hops(services: list[Service]) -> None:
    handler, stream = RequestHandler(services[0], QueueLimits()), SentBytes()
    request = hop_request(services[0])
    for token in (Token("alice", b""), Token("none", b"")):
        with pytest.raises(NotAllowed, match='only tokens with `role = "server"`'):
            handler.answer(arrived(request), token, "a", stream, 1.0)
    assert not stream.sent
    handler.answer(arrived(request), Token("between", b"", role=Role.SERVER), "a", stream, 1.0)
    answer = received(stream.sent, 1 << 20, "answer")
    assert answer.body(CODEC, OctetsAnswer).content.numel() > 100
    assert answer.whole("request") == 7
    assert handler.drain(5)


def test_a_request_about_another_part_or_graph_is_refused(services: list[Service]) -> None:
    with pytest.raises(WrongGraph, match="the request is for part 1, but this server has part 0"):
        services[0].accept(hop_request(services[0], part=1)).run()
    with pytest.raises(WrongGraph, match="start all servers with the same graph"):
        services[0].accept(hop_request(services[0], graph="e" * 64))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"key": DrawKey(6)}, "for another hop, or for another key"),
        ({"key": DrawKey(5, 0, 1)}, "for another hop, or for another key"),  # of another step
        ({"fanouts": {("user", "sells", "item"): 3}}, "no edge type"),
        ({"rule": {"kind": "os:system", "with": {}}}, "is not registered"),
        ({"rule": 3}, "must be khop.Uniform"),
        ({"rule": {"kind": "Uniform"}}, "does not describe a value"),
        ({"sent": {"shop": ()}}, "is not a node type"),
        ({"sent": {"item": ("until",)}}, "are not among those"),
        ({"view": (Only((("user", "sells", "item"),)),)}, "no edge type"),
        ({"frontier": torch.zeros(3)}, r"must be torch\.uint8"),
    ],
)
def test_a_hop_that_does_not_fit_is_a_sentence(
    services: list[Service], change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        services[0].accept(hop_request(services[0], **change)).run()


@pytest.mark.parametrize(
    ("kind", "asked", "sentence"),
    [
        ("part degrees", PartDegreesOf((), SELLS), "no edge type"),
        ("node degrees", NodeDegreesOf((), BUYS, NODES.view(torch.uint8)), "node 1000"),
        (
            "node degrees",
            NodeDegreesOf((), BUYS, NODES.view(torch.uint8)[1:]),
            "15 bytes are not a list of nodes",
        ),
        ("part edges", EdgesOf((), SELLS, 0, 1), "no edge type"),
        ("part edges", EdgesOf((), BUYS, 0, 3), "there is no part 3"),
        ("split counts", SplitCountsOf((), SPLIT, BUYS, 5, 0, -1), "must be a multiple of 16"),
        ("split links", LinkCountsOf((EMPTY,), BUYS), "is empty"),
        ("split links", LinkCountsOf((Only((BUYS,)),), BUYS), "is not a part of a split"),
        ("part rows", PartRowsOf((), NODES.view(torch.uint8)), "do not fit in the last"),
    ],
)
def test_other_requests_that_do_not_fit_are_sentences(
    services: list[Service], kind: str, asked: object, sentence: str
) -> None:
    message = request(kind, services[0]._served.fingerprint, asked, part=0, request=7)
    with pytest.raises(InvalidRequest, match=sentence):
        services[0].accept(message).run()


def test_a_damaged_hop_is_refused_or_drawn_from_nodes_of_the_part(services: list[Service]) -> None:
    """A byte of the frontier is another node, or an error that a request may give: never anything else."""
    request, drawn = bytearray(hop_request(services[0])), random.Random(3)
    outcomes, mistakes = set(), []
    for _ in range(300):
        damaged = bytearray(request)
        for _ in range(drawn.randint(1, 3)):
            damaged[drawn.randrange(len(damaged))] = drawn.randrange(256)
        del damaged[len(damaged) - drawn.choice((0, 0, 0, 8)) :]
        try:
            list(services[0].accept(bytes(damaged)).run())
            outcomes.add("drawn")
        except ServerError as error:
            outcomes.add(error.code)
            mistakes += [str(error)] * ("Error on the server" in str(error))
    assert outcomes >= {"drawn", "invalid"}
    assert not mistakes


@pytest.fixture(scope="module")
def graphs(dated_parts: Path) -> list[PartitionedGraph]:
    return [service._served.graph for service in part_services(dated_parts)]  # type: ignore[attr-defined]


@pytest.mark.core(1)
@pytest.mark.parametrize("limit", [-1, 30, 60, 200])
def test_every_server_marks_the_nodes_that_one_process_marks(
    graphs: list[PartitionedGraph], dated_parts: Path, limit: int
) -> None:
    topology = edges_before(khop.open_graph(dated_parts), limit).in_one_piece("a test")
    for graph in graphs:
        found = nodes_existing(graph, limit)
        assert found.keys() == topology.candidates.keys() == {"user", "item"}
        assert all(torch.equal(marks, topology.candidates[t]) for t, marks in found.items())


def test_an_answer_is_about_the_edges_of_its_part_alone(graphs: list[PartitionedGraph]) -> None:
    marks = [nodes_with_edges_before(HeldEdges(graph.held), 60)["item"] for graph in graphs]
    together = torch.stack(marks)
    assert together.any(0).sum() > max(int(of_part.sum()) for of_part in marks)


@pytest.fixture(scope="module")
def views(typed_parts: Path) -> PartViews:
    views: PartViews = part_services(typed_parts)[0]._part._views  # type: ignore[union-attr,attr-defined]
    return views


def test_steps_follow_one_another(views: PartViews) -> None:
    steps = (Only((BUYS, LIKE)), SplitPart(SPLIT, "val"))
    graph = views.graph(steps)
    assert graph.schema.edge_types == (BUYS, LIKE)
    assert graph.held.thinned == {BUYS}
    assert graph is views.graph(steps)
    assert views.graph(()).held.thinned == frozenset()


def test_only_a_split_has_links(views: PartViews) -> None:
    links = views.links((SplitPart(SPLIT, "test"),))
    assert {name: dict(of.counts) for name, of in links.items()} == {
        "train": {BUYS: 2100}, "val": {BUYS: 600}, "test": {BUYS: 300},
    }  # fmt: skip
    assert views.links(()) == views.links((Only((BUYS,)),)) == {}


def test_a_step_that_does_not_fit_is_a_sentence(views: PartViews) -> None:
    with pytest.raises(ValueError, match="no edge type"):
        views.graph((Only((SELLS,)),))
    with pytest.raises(ValueError, match="part 'dev'"):
        views.graph((SplitPart(SPLIT, "dev"),))
