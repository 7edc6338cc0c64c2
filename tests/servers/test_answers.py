"""A client knows types, columns, counts and splits of a graph on servers, and nothing else.

Memory of tensors counts once, wherever it is referred to.

Values are made once while they are used.

Lists that servers hold: equal to those of the graph, with digests, and refused where they do not fit.

Requests for ids that do not fit the graph or the limit of the server are refused with a sentence.

Servers that were started with the same graph have equal views, splits and links.
"""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from scipy import sparse
from torch import Tensor

import khop
import khop.servers.answers as lists
from khop.api.serve import ServedGraph
from khop.graph.store import csc_graph_from_edges
from khop.sampling.links.link_split import LinkColumns, Shares
from khop.sampling.seeds import NodeSeeds
from khop.servers.answers import link_list, seed_list
from khop.servers.errors import InvalidRequest, TooLarge, WrongVersion
from khop.servers.graph import read_description
from khop.servers.messages import (
    LabelsOf,
    LinksOfPart,
    NodeIdsOf,
    NodeList,
    NodesOfSplit,
    NodeSpan,
    Only,
    RowsOf,
    SomeNodes,
    SplitArguments,
    SplitPart,
    request,
)
from khop.servers.service import Service
from khop.servers.views import KeptValues, Served, tensor_bytes
from support.named_shop import write_named_shop
from support.same_samples import assert_same
from support.small_typed_folders import BUYS, LIKE


def test_a_description_comes_back_as_the_graph_is(typed_graph: khop.Graph) -> None:
    found = read_description(Service(ServedGraph.of(typed_graph)).description(), "server")
    assert typed_graph.folder is not None
    assert found.schema == typed_graph.schema
    assert list(found.schema.columns) == list(typed_graph.schema.columns)
    assert found.fingerprint == typed_graph.folder.fingerprint
    assert found.nodes == {t: typed_graph.num_nodes(t) for t in typed_graph.schema.node_types}
    assert found.edges == {t: typed_graph.num_edges(t) for t in typed_graph.schema.edge_types}
    assert found.splits == {
        name: {t: ids.numel() for t, ids in typed_graph.split(name).items()}
        for name in typed_graph.split_names
    }
    assert found.renumbered == ()


def test_a_sparse_column_is_known_with_its_width(tmp_path: Path) -> None:
    words = sparse.random(5, 60, 0.05, format="csr", random_state=1)
    ring = khop.EdgeTable(torch.arange(5), torch.arange(5).roll(1))
    folder = khop.write_graph(
        tmp_path / "g", {"n": khop.NodeTable(5, {"x": words})}, {("n", "to", "n"): ring}
    )
    graph = khop.open_graph(folder)
    found = read_description(Service(ServedGraph.of(graph)).description(), "server")
    assert found.schema == graph.schema
    assert found.schema.column("n", "x").width == 60


@pytest.mark.parametrize("name", ["wire", "randomness"])
def test_another_version_is_refused_when_a_client_connects(typed_graph: khop.Graph, name: str) -> None:
    given = json.loads(Service(ServedGraph.of(typed_graph)).description())
    given[name] += 1
    with pytest.raises(WrongVersion, match=f"server has version {given[name]} of {name}"):
        read_description(json.dumps(given).encode(), "server")


def total(value: object, *before: object) -> int:
    seen = set[int]()
    known = {address for each in before for address in tensor_bytes(each, seen)}
    return sum(size for address, size in tensor_bytes(value, seen).items() if address not in known)


def test_a_view_of_a_tensor_is_the_memory_of_the_tensor() -> None:
    tensor = torch.zeros(1000, dtype=torch.int64)
    assert total([tensor, tensor[3:5], {"a": tensor.view(10, 100)}]) == 8000
    assert total(tensor[3:5], tensor) == 0
    assert total(partial(print, tensor, sep=torch.zeros(3, dtype=torch.int8))) == 8003


def test_objects_of_khop_are_followed_and_circles_end() -> None:
    ends = torch.arange(6), torch.arange(6)
    graph = csc_graph_from_edges({"a": 6}, {("a", "to", "a"): ends})
    csc = graph.csc(("a", "to", "a"))
    assert total(graph) >= csc.indptr.nbytes + csc.indices.nbytes
    assert total(graph, graph) == 0
    kept = graph.keeping({("a", "to", "a"): (torch.arange(3),)})
    assert total(kept, graph) > 0
    circle: list[object] = [ends[0]]
    circle.append(circle)
    assert total(circle) == 48


@dataclass
class Elsewhere:
    held: Tensor


def test_objects_of_others_are_not_followed() -> None:
    assert total(Elsewhere(torch.zeros(3))) == 0


def test_the_last_used_values_are_kept() -> None:
    made: list[int] = []
    kept: KeptValues[int] = KeptValues(2)
    for key in (1, 2, 1, 3, 1, 2):
        assert kept.of(key, lambda key=key: made.append(key) or -key) == -key  # type: ignore[misc]
    assert made == [1, 2, 3, 2]


def test_threads_make_a_value_once_and_another_value_meanwhile() -> None:
    made, begun, other = [], threading.Event(), threading.Event()
    kept: KeptValues[int] = KeptValues(2)

    def make() -> int:
        begun.set()
        assert other.wait(60)
        made.append(1)
        return 1

    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(kept.of, "slow", make) for _ in range(2)]
        assert begun.wait(60)
        assert kept.of("other", lambda: 2) == 2
        other.set()
        assert [each.result() for each in waiting] == [1, 1]
    assert made == [1]


def test_an_error_is_not_kept() -> None:
    kept: KeptValues[int] = KeptValues(1)

    def fail() -> int:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        kept.of("a", fail)
    assert kept.of("a", lambda: 5) == 5


SPLIT = SplitArguments((BUYS,), Shares(0.2, 30), LinkColumns(), 3)
VAL = (SplitPart(SPLIT, "val"),)


def test_a_split_is_a_list_of_seeds(typed_graph: khop.Graph) -> None:
    served = ServedGraph.of(typed_graph)
    found = seed_list(served, NodesOfSplit("train", ("user", "item")))
    expected = NodeSeeds({t: torch.as_tensor(ids) for t, ids in served.splits["train"].items()})
    assert_same(found.digest(), expected.digest())
    assert found.counts == expected.counts


def test_times_of_a_column_are_part_of_the_list(typed_graph: khop.Graph) -> None:
    served = ServedGraph.of(typed_graph)
    plain, timed = (seed_list(served, NodesOfSplit("val", ("user",), times)) for times in (None, "age"))
    assert plain.digest() != timed.digest()


def test_links_of_a_split_are_those_of_split_links(typed_graph: khop.Graph) -> None:
    served = ServedGraph.of(typed_graph)
    expected = khop.split_links(typed_graph, BUYS, 0.2, 30, seed=3)
    for part, links in (("train", expected.train_links), ("test", expected.test_links)):
        found = link_list(served, LinksOfPart(VAL, part))
        assert found.digest() == links.digest()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (NodesOfSplit("nope", ("user",)), "no split 'nope'; there are ['train', 'val', 'test']"),
        (NodesOfSplit("val", ("tag",)), "has nodes of ['user'], none of 'tag'"),
        (NodesOfSplit("val", ("user",), "nope"), "'nope'"),
        (LinksOfPart((), "train"), "links of part 'train': the view has those of []"),
        (LinksOfPart((SplitPart(SPLIT, "nope"),), "val"), "must be one of ['train', 'val', 'test']"),
    ],
)
def test_a_list_that_there_is_not_is_named(
    typed_graph: khop.Graph, asked: NodesOfSplit | LinksOfPart, sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        seed_list(ServedGraph.of(typed_graph), asked)


def test_rows_that_are_too_many_at_once_are_refused_before_they_are_read(
    typed_graph: khop.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = RowsOf((), "user", ("x",), (), torch.zeros(10, dtype=torch.int64))
    width = 4 * typed_graph.columns["user"]["x"].shape[1]
    monkeypatch.setattr(lists, "MOST_ROWS_BYTES", 10 * width)
    lists.ANSWERS["rows"](ServedGraph.of(typed_graph), asked, None)
    monkeypatch.setattr(lists, "MOST_ROWS_BYTES", 10 * width - 1)
    with pytest.raises(TooLarge, match=f"rows of x: {10 * width} bytes are requested at once"):
        lists.ANSWERS["rows"](ServedGraph.of(typed_graph), asked, None)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_named_shop(tmp_path_factory.mktemp("named") / "shop")


def answered(shop: Path, kind: str, asked: object, max_batch_bytes: int | None = None) -> bytes:
    """Return the answer to a request."""
    service = Service(ServedGraph.of(khop.open_graph(shop)), max_batch_bytes=max_batch_bytes)
    message = request(kind, service._served.fingerprint, asked)
    return b"".join(map(bytes, service.accept(message).run()))


@pytest.mark.parametrize(
    ("node_type", "nodes", "sentence"),
    [
        ("tag", NodeSpan(0, 1), "ids of 'tag': the graph stores those of ['user', 'item']"),
        ("user", NodeSpan(80, 91), "nodes 80 to 90: there are 90"),
        ("user", NodeSpan(5, 4), "ends before it starts"),
        ("user", NodeList(torch.tensor([3, -1])), "nodes -1 to 3: there are 90"),
        ("user", NodeList(torch.rand(2)), "must be torch.int64"),
        (BUYS, NodeSpan(0, 1), "not text"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(
    shop: Path, node_type: str, nodes: SomeNodes, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(sentence)):
        answered(shop, "node-ids", NodeIdsOf(node_type, nodes))


def test_an_answer_has_as_many_ids_as_the_limit_allows_and_at_least_one(shop: Path) -> None:
    """The id of node 0 is empty, and takes the 8 bytes of its place; that of node 1 is longer."""
    asked = NodeIdsOf("user", NodeSpan(0, 2))
    assert b'["int64",[2]],["uint8",[0]]' in answered(shop, "node-ids", asked, 9)
    assert b'["int64",[3]]' in answered(shop, "node-ids", asked, 1000)
    with pytest.raises(TooLarge, match="the id of node 1 of 'user' has more than the 9 bytes"):
        answered(shop, "node-ids", NodeIdsOf("user", NodeSpan(1, 2)), 9)


def test_labels_that_no_import_recorded_are_refused(shop: Path) -> None:
    with pytest.raises(InvalidRequest, match=re.escape("labels of 'tag': the import recorded only those of")):
        answered(shop, "labels", LabelsOf("tag"))


TRAIN = (SplitPart(SplitArguments((BUYS,), Shares(0.2, 0.1), LinkColumns(), 3), "train"),)


@pytest.fixture
def servers(typed_graph: khop.Graph) -> list[Served]:
    assert typed_graph.folder is not None
    return [ServedGraph.of(khop.open_graph(typed_graph.folder.path)) for _ in range(2)]


def test_servers_of_a_graph_have_its_fingerprint_and_splits(servers: list[Served]) -> None:
    first, second = servers
    assert (first.name, first.fingerprint) == (second.name, second.fingerprint)
    assert first.cut_offs == second.cut_offs
    assert first.splits.keys() == second.splits.keys() != set()
    for name, of_types in first.splits.items():
        assert of_types.keys() == second.splits[name].keys()
        assert all(torch.equal(ids, second.splits[name][t]) for t, ids in of_types.items())


def test_a_view_depends_on_the_graph_and_its_steps_alone(servers: list[Served]) -> None:
    first, second = servers
    first.viewed((Only((LIKE,)),))  # a view that the other server never makes
    one, other = (served.viewed(TRAIN) for served in (first, second))
    assert one.links.keys() == other.links.keys() == {"train", "val", "test"}
    for part, links in one.links.items():
        assert links.digest() == other.links[part].digest()
    for edge_type in first.whole.graph.schema.edge_types:
        assert one.graph.num_edges(edge_type) == other.graph.num_edges(edge_type)
    assert one.graph.num_edges(BUYS) < first.whole.graph.num_edges(BUYS)
