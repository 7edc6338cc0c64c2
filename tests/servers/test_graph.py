"""A graph on servers has counts and splits here, and says where the rest is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
import khop.servers.lists as lists
from khop.features.store import Rows
from khop.sampling.listed import ListedNodes, ids_here
from khop.servers.errors import InvalidAnswer
from khop.servers.frame import Tensors, whole
from khop.servers.graph import RemoteView
from khop.servers.served import Answered
from khop.servers.transport import CallContext
from support.in_process import connected, exchange_with
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


@pytest.mark.parametrize("ids", [torch.arange(49), torch.rand(50)], ids=["fewer", "no ids"])
def test_an_answer_without_the_requested_ids_is_refused(
    typed_graph: khop.Graph, monkeypatch: pytest.MonkeyPatch, ids: torch.Tensor
) -> None:
    def other(*_: object) -> Answered:
        tensors = Tensors()
        return {"ids": tensors(ids)}, tensors

    monkeypatch.setitem(lists._ANSWERS, "ids", other)
    with pytest.raises(
        InvalidAnswer, match=rf"answer: has {ids.dtype} of shape \({ids.numel()},\), asked were 50"
    ):
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
    request = whole(
        {
            "kind": "list",
            "graph": typed_graph.folder.fingerprint,
            "list": {"split": "val", "types": ["user"], "times": None},
        },
        [],
    )
    with pytest.raises(InvalidAnswer, match="is not about list of this graph"):
        other.ask(
            CallContext("list"), request, lambda pieces: servers.read(pieces, "list", lambda frame: frame)
        )
