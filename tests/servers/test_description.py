"""A client knows types, columns, counts and splits of a graph on servers, and nothing else.

Memory of tensors counts once, wherever it is referred to.

Values are made once while they are used.

Lists that servers hold: equal to those of the graph, with digests, and refused where they do not fit.

Requests for ids that do not fit the graph or the limit of the server are refused with a sentence.

Servers that were started with the same graph have equal views, splits and links.

Arguments of splits travel as plain values.
"""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import sparse
from torch import Tensor

import khop
import khop.servers.description as lists
from khop.api.serve import ServedGraph
from khop.graph.folder import TimeCutOffs
from khop.graph.store import csc_graph_from_edges
from khop.sampling.links.link_split import LinkColumns, Shares
from khop.sampling.seeds import NodeSeeds
from khop.servers.description import (
    ByColumn,
    KeptValues,
    Served,
    SplitArguments,
    SplitMethod,
    link_list,
    read_description,
    seed_list,
    tensor_bytes,
)
from khop.servers.errors import InvalidRequest, TooLarge, WrongVersion
from khop.servers.frame import Document, Frame, whole, written
from khop.servers.service import Service
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


SPLIT = {
    "by": "random", "edge_types": [list(BUYS)],
    "val": 0.2, "test": 30, "disjoint_share": 0.0, "negatives": 1, "label": None,
    "time": None, "seed": 3,
}  # fmt: skip


def reference(**fields: object) -> Document:
    return Document(fields, "list")


def test_a_split_is_a_list_of_seeds(typed_graph: khop.Graph) -> None:
    served = ServedGraph.of(typed_graph)
    found = seed_list(served, reference(split="train", types=["user", "item"], times=None))
    expected = NodeSeeds({t: torch.as_tensor(ids) for t, ids in served.splits["train"].items()})
    assert_same(found.digest(), expected.digest())
    assert found.counts == expected.counts


def test_times_of_a_column_are_part_of_the_list(typed_graph: khop.Graph) -> None:
    served = ServedGraph.of(typed_graph)
    plain, timed = (
        seed_list(served, reference(split="val", types=["user"], times=times)) for times in (None, "age")
    )
    assert plain.digest() != timed.digest()


def test_links_of_a_split_are_those_of_split_links(typed_graph: khop.Graph) -> None:
    served = ServedGraph.of(typed_graph)
    expected = khop.split_links(typed_graph, BUYS, 0.2, 30, seed=3)
    for part, links in (("train", expected.train_links), ("test", expected.test_links)):
        found = link_list(served, reference(view=[{"split_links": SPLIT, "part": "val"}], part=part))
        assert found.digest() == links.digest()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"split": "nope", "types": ["user"]}, "no split 'nope'; there are ['train', 'val', 'test']"),
        ({"split": "val", "types": ["tag"]}, "has nodes of ['user'], none of 'tag'"),
        ({"split": "val", "types": ["user"], "times": "nope"}, "'nope'"),
        ({"view": [], "part": "train"}, "links of part 'train': the view has those of []"),
        (
            {"view": [{"split_links": SPLIT, "part": "nope"}], "part": "val"},
            "must be one of ['train', 'val', 'test']",
        ),
    ],
)
def test_a_list_that_there_is_not_is_named(
    typed_graph: khop.Graph, fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        seed_list(ServedGraph.of(typed_graph), reference(**fields))


def test_rows_that_are_too_many_at_once_are_refused_before_they_are_read(
    typed_graph: khop.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"view": [], "type": "user", "columns": ["x"], "float32": [], "ids": 0}
    width = 4 * typed_graph.columns["user"]["x"].shape[1]
    frame = Frame(reference(**fields), (torch.zeros(10, dtype=torch.int64),), 0)
    monkeypatch.setattr(lists, "MOST_ROWS_BYTES", 10 * width)
    lists.answered(ServedGraph.of(typed_graph), lists.ROWS, frame)
    monkeypatch.setattr(lists, "MOST_ROWS_BYTES", 10 * width - 1)
    with pytest.raises(TooLarge, match=f"rows of x: {10 * width} bytes are requested at once"):
        lists.answered(ServedGraph.of(typed_graph), lists.ROWS, frame)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_named_shop(tmp_path_factory.mktemp("named") / "shop")


def asked(shop: Path, fields: dict[str, object], max_batch_bytes: int | None = None) -> bytes:
    """Return the answer to a request."""
    service = Service(ServedGraph.of(khop.open_graph(shop)), max_batch_bytes=max_batch_bytes)
    graph = {"graph": service._served.fingerprint, "kind": "node-ids"}
    request = whole({**graph, **fields}, [torch.tensor([3, -1]), torch.rand(2)])
    return b"".join(map(bytes, service.accept(request).run()))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"type": "tag", "first": 0, "end": 1}, "ids of 'tag': the graph stores those of ['user', 'item']"),
        ({"type": "user", "first": 80, "end": 91}, "nodes 80 to 90: there are 90"),
        ({"type": "user", "first": 5, "end": 4}, "a whole number from 5"),
        ({"type": "user", "nodes": 0}, "nodes -1 to 3: there are 90"),
        ({"type": "user", "nodes": 1}, "must be int64"),
        ({"type": ["user", "buys", "item"], "first": 0, "end": 1}, "not text"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(shop: Path, fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(sentence)):
        asked(shop, fields)


def test_an_answer_has_as_many_ids_as_the_limit_allows_and_at_least_one(shop: Path) -> None:
    """The id of node 0 is empty, and takes the 8 bytes of its place; that of node 1 is longer."""
    fields: dict[str, object] = {"type": "user", "first": 0, "end": 2}
    assert b'["int64",[2]],["uint8",[0]]' in asked(shop, fields, 9)
    assert b'["int64",[3]]' in asked(shop, fields, 1000)
    with pytest.raises(TooLarge, match="the id of node 1 of 'user' has more than the 9 bytes"):
        asked(shop, {"type": "user", "first": 1, "end": 2}, 9)


def test_labels_that_no_import_recorded_are_refused(shop: Path) -> None:
    with pytest.raises(InvalidRequest, match=re.escape("labels of 'tag': the import recorded those of")):
        asked(shop, {"kind": "labels", "type": "tag"})


SERVED_SPLIT = {
    "by": "random", "edge_types": [list(BUYS)],
    "val": 0.2, "test": 0.1, "disjoint_share": 0.0, "negatives": 1, "label": None,
    "time": None, "seed": 3,
}  # fmt: skip


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
    first.viewed(Document([{"only": [list(LIKE)]}], "view"))  # a view that the other server never makes
    steps = [{"split_links": SERVED_SPLIT, "part": "train"}]
    one, other = (served.viewed(Document(steps, "view")) for served in (first, second))
    assert one.links.keys() == other.links.keys() == {"train", "val", "test"}
    for part, links in one.links.items():
        assert links.digest() == other.links[part].digest()
    for edge_type in first.whole.graph.schema.edge_types:
        assert one.graph.num_edges(edge_type) == other.graph.num_edges(edge_type)
    assert one.graph.num_edges(BUYS) < first.whole.graph.num_edges(BUYS)


METHODS = [Shares(0.1, 30, 0.5), TimeCutOffs(-(1 << 63), (1 << 63) - 1), ByColumn()]


def document(plain: object) -> Document:
    return Document(json.loads(written(plain)), "split")


@pytest.mark.parametrize("method", METHODS)
def test_arguments_come_back_equal(typed_graph: khop.Graph, method: SplitMethod) -> None:
    given = SplitArguments((BUYS,), method, LinkColumns(3, "weight", "time"), (1 << 64) - 1)
    found = SplitArguments.read(document(given.plain), typed_graph.schema)
    assert found == given
    assert written(found.plain) == written(given.plain)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"by": "size"}, "split.by: is 'size', and must be one of"),
        ({"by": "time", "val": 0.5}, "not a whole number"),
        ({"by": "column", "edge_types": []}, "edge_types: is empty; name at least one edge type"),
        ({"by": "time", "val": 1 << 63}, "not a whole number"),
        ({"edge_types": ["user"]}, "is no edge type"),
        ({"time": "nope"}, "nope"),
    ],
)
def test_arguments_that_do_not_fit_are_sentences(
    typed_graph: khop.Graph, change: dict[str, Any], sentence: str
) -> None:
    plain = SplitArguments((BUYS,), Shares(1, 1), LinkColumns(), 1).plain
    with pytest.raises(ValueError, match=sentence):
        SplitArguments.read(document({**plain, **change}), typed_graph.schema)
