"""A graph on servers has counts and splits here, and says where the rest is.

Ids, class names and units of a graph on servers: those of its folder, in bounded and checked answers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import khop
import khop.servers.answers as lists
from khop.api.open_graph import names_of
from khop.api.partition import partition_graph
from khop.api.serve import ServedGraph
from khop.graph.features.store import Rows
from khop.graph.node_ids import Names
from khop.kernels.id_table import Keys, StringKeys
from khop.sampling.seeds import ListedNodes, ids_here
from khop.servers.access import CallContext
from khop.servers.errors import InvalidAnswer, InvalidRequest
from khop.servers.graph import RemoteView
from khop.servers.messages import (
    IdsAnswer,
    ListAnswer,
    ListOf,
    NodeIdsAnswer,
    NodesOfSplit,
    NumberIdsAnswer,
    TextIdsAnswer,
    request,
)
from khop.servers.service import Service
from support.in_process import InProcess, connected, exchange_with
from support.named_shop import CLASSES, user_ids, write_named_shop
from support.parts_in_process import connected_to_parts
from support.small_typed_folders import BUYS, LIKE, write_typed_graph


def test_counts_and_types_are_those_of_the_graph(typed_graph: khop.Graph) -> None:
    graph = connected(typed_graph)
    assert graph.schema == typed_graph.schema
    assert graph.num_nodes("user") == 300
    assert graph.num_edges(BUYS) == 3000
    assert graph.only([LIKE]).schema == typed_graph.only([LIKE]).schema
    with pytest.raises(ValueError, match="no node type 'nope'"):
        graph.num_nodes("nope")


def test_ids_of_a_split_can_be_fetched(typed_graph: khop.Graph) -> None:
    listed = connected(typed_graph).split("val")["user"]
    assert isinstance(listed, ListedNodes)
    assert len(listed) == 50
    assert torch.equal(ids_here(listed), ids_here(typed_graph.split("val")["user"]))


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [(torch.arange(49), "has 49 ids, asked were 50"), (torch.rand(50), "must be torch.int64 (n)")],
    ids=["fewer", "no ids"],
)
def test_an_answer_without_the_requested_ids_is_refused(
    typed_graph: khop.Graph, monkeypatch: pytest.MonkeyPatch, ids: torch.Tensor, sentence: str
) -> None:
    monkeypatch.setitem(lists.ANSWERS, "ids", lambda *_: IdsAnswer(ids))
    with pytest.raises(InvalidAnswer, match=re.escape(sentence)):
        ids_here(connected(typed_graph).split("val")["user"])


def test_original_ids_are_fetched(tmp_path: Path) -> None:
    here = khop.open_graph(write_typed_graph(tmp_path / "graph", renumbered=True))
    graph = connected(here)
    assert graph.original_ids("item") is None
    originals, expected = graph.original_ids("user"), here.original_ids("user")
    assert originals is not None
    assert expected is not None
    assert torch.equal(originals, expected)
    found = graph.features.gather({"user": Rows(torch.tensor([3, 0]), ("original_id",))})
    assert found["user"]["original_id"].numel() == 2


def test_an_answer_about_another_graph_is_refused(plain_graph: khop.Graph, typed_graph: khop.Graph) -> None:
    servers = connected(plain_graph).servers
    assert isinstance(servers, RemoteView)
    other = exchange_with(typed_graph)
    assert typed_graph.folder is not None
    message = request("list", typed_graph.folder.fingerprint, ListOf(NodesOfSplit("val", ("user",))))
    with pytest.raises(InvalidAnswer, match="is not about list of this graph"):
        other.ask(CallContext("list"), message, lambda pieces: servers.read(pieces, "list", ListAnswer))


NODES = torch.tensor([89, 3, 3, 0, 41])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_named_shop(tmp_path_factory.mktemp("named") / "shop")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Path:
    path = tmp_path_factory.mktemp("named") / "parts"
    partition_graph(shop, path, 3, method="random")
    return path


def plain(keys: Keys) -> list[Any]:
    return keys.strings() if isinstance(keys, StringKeys) else keys.tolist()


def served(shop: Path, max_batch_bytes: int | None = None) -> tuple[khop.Graph, InProcess]:
    from khop.api.serve import graph_on

    exchange = InProcess([Service(ServedGraph.of(khop.open_graph(shop)), max_batch_bytes=max_batch_bytes)])
    return graph_on(exchange), exchange


def check(found: Names, expected: Names, counts: dict[str, int]) -> None:
    """Compare the names of all nodes, and of some in any order."""
    assert found.ids.keys() == expected.ids.keys() == {"user", "item"}
    assert found.original_ids.keys() == expected.original_ids.keys()
    for one, other in ((found.ids, expected.ids), (found.original_ids, expected.original_ids)):
        for node_type, ids in other.items():
            assert one[node_type].kind == ids.kind
            for nodes in (torch.arange(counts[node_type]), NODES % counts[node_type], NODES[:0]):
                assert plain(one[node_type].at(nodes)) == plain(ids.at(nodes))
    for node_type in ("user", "item"):
        labels = {name: expected.labels[node_type].get(name) for name in ("classes", "unit")}
        assert {name: found.labels[node_type].get(name) for name in labels} == labels


def test_names_are_those_of_the_folder(shop: Path) -> None:
    graph = khop.open_graph(shop)
    found = names_of(connected(graph, servers=2))
    check(found, names_of(graph), {"user": 90, "item": 60})
    assert plain(found.ids["user"].at(torch.arange(90))) == user_ids(90)
    assert found.labels["item"]["classes"] == CLASSES
    assert "tag" not in found.labels
    assert not found.original_ids


def test_names_of_servers_of_parts_are_those_of_all_parts(parts: Path) -> None:
    expected = names_of(khop.open_graph(parts))
    found = names_of(connected_to_parts(parts))
    check(found, expected, {"user": 90, "item": 60})
    assert found.original_ids.keys() == {"user", "item"}


@pytest.mark.parametrize("limit", [100, 333, 1 << 20])
def test_ids_come_in_as_many_answers_as_their_bytes_need(shop: Path, limit: int) -> None:
    graph, exchange = served(shop, max_batch_bytes=limit)
    exchange.asked.clear()
    nodes = torch.arange(90).flip(0)
    assert plain(names_of(graph).ids["user"].at(nodes)) == user_ids(90)[::-1]
    size = sum(8 + len(id_.encode()) for id_ in user_ids(90))
    assert len(exchange.asked) >= size / limit
    assert (len(exchange.asked) == 1) == (limit == 1 << 20)


def test_a_request_names_as_many_nodes_as_are_allowed(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("answers", "graph"):
        monkeypatch.setattr(f"khop.servers.{module}.MOST_IDS", 20)
    graph, exchange = served(shop)
    exchange.asked.clear()
    assert plain(names_of(graph).ids["item"].at(torch.arange(60))) == [7 * node - 100 for node in range(60)]
    assert len(exchange.asked) == 3
    monkeypatch.setattr("khop.servers.graph.MOST_IDS", 21)
    with pytest.raises(InvalidRequest, match="21 nodes are requested at once; request at most 20"):
        names_of(graph).ids["item"].at(torch.arange(60))


def strings(offsets: list[int], text: bytes) -> NodeIdsAnswer:
    octets = torch.tensor(list(text), dtype=torch.uint8)
    return NodeIdsAnswer(TextIdsAnswer(torch.tensor(offsets, dtype=torch.int64), octets))


@pytest.mark.parametrize(
    ("offsets", "text", "sentence"),
    [
        ([0, 3, 2, 4], b"abcd", "do not rise from 0 to 4"),
        ([0, 1, 3], b"abcd", "do not rise from 0 to 4"),
        ([1, 4], b"abcd", "do not rise from 0 to 4"),
        ([0, 1, 2], "ü".encode(), "an id begins within a character"),
        ([0, 2], b"\xff\xfe", "can't decode byte 0xff"),
        ([0], b"", "has 0 ids for 5 nodes"),
        ([0, 0, 0, 0, 0, 0, 0], b"", "has 6 ids for 5 nodes"),
        ([], b"", "do not rise"),
    ],
)
def test_an_answer_that_is_no_text_is_refused(
    shop: Path, monkeypatch: pytest.MonkeyPatch, offsets: list[int], text: bytes, sentence: str
) -> None:
    graph, _ = served(shop)
    monkeypatch.setitem(lists.ANSWERS, "node-ids", lambda *_: strings(offsets, text))
    with pytest.raises(InvalidAnswer, match=re.escape(sentence)):
        names_of(graph).ids["user"].at(NODES)


def test_an_answer_of_other_numbers_is_refused(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = served(shop)

    answer = NodeIdsAnswer(NumberIdsAnswer(torch.rand(5)))
    monkeypatch.setitem(lists.ANSWERS, "node-ids", lambda *_: answer)
    with pytest.raises(InvalidAnswer, match=r"must be torch\.int64"):
        names_of(graph).ids["item"].at(NODES)


def test_the_memory_of_an_answer_does_not_depend_on_the_number_of_nodes(tmp_path: Path) -> None:
    """Ids of 200,000 nodes take answers of 64 KiB if servers send no more at once."""
    count = 200_000
    edges = {("item", "next", "item"): khop.EdgeTable(torch.arange(9), torch.arange(9))}
    table = khop.NodeTable(ids=[f"item {n}" for n in range(count)])
    graph, exchange = served(khop.write_graph(tmp_path / "many", {"item": table}, edges), 1 << 16)
    sizes = []
    service = exchange.services[0]
    original = lists.node_ids_answer

    def noted(*arguments: Any) -> Any:  # noqa: ANN401
        found = original(*arguments)
        sizes.append(found.keys.offsets.nbytes + found.keys.text.nbytes)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(lists.ANSWERS, "node-ids", noted)
        found = names_of(graph).ids["item"].at(torch.arange(count))
    assert isinstance(found, StringKeys)
    assert found.strings()[-1] == f"item {count - 1}"
    assert max(sizes) <= (1 << 16) + 8
    assert service.counters()["node-ids"] == len(sizes) > 40
    assert np.diff(found.offsets).sum() == len(found.data)
