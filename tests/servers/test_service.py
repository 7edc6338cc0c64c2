"""A service answers what it can, refuses the rest by a code, and does no work for what it refuses."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

import khop
from khop.api.serve import ServedGraph
from khop.draw import mix64
from khop.features.store import Rows
from khop.loading.columns import ColumnChoice
from khop.sampling.sampler import Seeds
from khop.sampling.seeds import StepShare
from khop.servers.description import read_description
from khop.servers.errors import (
    Cancelled,
    InvalidRequest,
    ServerError,
    TooLarge,
    UnknownSettings,
    WrongGraph,
    WrongVersion,
)
from khop.servers.frame import Tensors, whole
from khop.servers.graph import RemoteFeatures, RemoteView
from khop.servers.request_wire import written_query
from khop.servers.service import Service
from khop.servers.settings import Settings
from khop.servers.source import described_sampler
from support.in_process import InProcess
from support.small_typed_folders import BUYS, LIKE

KEY = khop.DrawKey(5)
SPLIT = {
    "by": "random", "edge_types": [list(BUYS)],
    "val": 0.2, "test": 30, "disjoint_share": 0.0, "negatives": 1, "label": None,
    "time": None, "seed": 3,
}  # fmt: skip


@pytest.fixture
def service(plain_graph: khop.Graph) -> Service:
    return Service(ServedGraph.of(plain_graph))


def settings(graph: khop.Graph, fanouts: list[int] = [3, 2]) -> Settings:  # noqa: B006
    sampler = khop.NeighborSampler(graph, fanouts)
    columns = khop.Loader(sampler, torch.arange(2), 2, columns=["x"]).columns
    assert graph.folder is not None
    return Settings(graph.folder.fingerprint, (), described_sampler(sampler), columns)


def seeds(*nodes: int) -> Seeds:
    ids = torch.tensor(nodes)
    return Seeds({"item": ids}, {"item": torch.arange(len(nodes))})


def query(given: Settings, of: Seeds, *, with_settings: bool = True) -> bytes:
    return written_query(given, of, KEY, 1, 7, with_settings=with_settings)


def refused(service: Service, request: bytes) -> ServerError:
    with pytest.raises(ServerError) as caught:
        list(service.accept(request).run())
    return caught.value


def test_a_batch_is_made_of_known_settings(plain_graph: khop.Graph, service: Service) -> None:
    given = settings(plain_graph)
    assert isinstance(refused(service, query(given, seeds(1), with_settings=False)), UnknownSettings)
    job = service.accept(query(given, seeds(1, 2)))
    size = sum(len(piece) for piece in job.run())
    assert job.stage == "batch of epoch 1, step 7"
    assert job.most_bytes is not None
    assert size > 0
    list(service.accept(query(given, seeds(1), with_settings=False)).run())
    assert service.counters()["batches"] == 2
    assert service.counters()["refused, unknown-settings"] == 1


def test_only_some_settings_are_kept(plain_graph: khop.Graph, service: Service) -> None:
    for fanout in range(1, 80):
        service.accept(query(settings(plain_graph, [fanout]), seeds(1)))
    list(service.accept(query(settings(plain_graph, [79]), seeds(1), with_settings=False)).run())
    old = query(settings(plain_graph, [1]), seeds(1), with_settings=False)
    assert isinstance(refused(service, old), UnknownSettings)


def test_another_graph_or_version_is_refused(plain_graph: khop.Graph, service: Service) -> None:
    given = settings(plain_graph)
    other = refused(service, query(replace(given, fingerprint="f" * 64), seeds(1)))
    assert isinstance(other, WrongGraph)
    assert "ffffffffffff..." in str(other)
    drawn_otherwise = replace(given)
    drawn_otherwise.__dict__["document"] = {**given.document, "randomness": 2}
    assert isinstance(refused(service, query(drawn_otherwise, seeds(1))), WrongVersion)


def test_settings_must_have_the_hash_that_names_them(plain_graph: khop.Graph, service: Service) -> None:
    """Else one client could change the settings of another."""
    given = settings(plain_graph)
    given.__dict__["digest"] = settings(plain_graph, [9]).digest
    assert "their hash is" in str(refused(service, query(given, seeds(1))))


@pytest.mark.parametrize(
    ("of", "sentence"),
    [
        (seeds(600), "600"),
        (Seeds({"user": torch.arange(2)}, {"user": torch.arange(2)}), "'user'"),
        (Seeds({"item": torch.arange(2)}, {"item": torch.arange(3)}), "positions: are not one for each"),
        (Seeds({"item": torch.zeros(2)}, {"item": torch.arange(2)}), "must be int64"),
        (replace(seeds(1), times={"item": torch.arange(1)}), "seeds have times"),
    ],
)
def test_wrong_seeds_are_refused(plain_graph: khop.Graph, service: Service, of: Seeds, sentence: str) -> None:
    error = refused(service, query(settings(plain_graph), of))
    assert isinstance(error, InvalidRequest)
    assert sentence in str(error)


def test_a_batch_that_could_be_too_large_is_refused_before_any_work(plain_graph: khop.Graph) -> None:
    service = Service(ServedGraph.of(plain_graph), max_batch_bytes=20_000)
    with pytest.raises(
        TooLarge, match=r"could have [\d,]+ bytes, and this server makes batches of at most 20,000"
    ):
        service.accept(query(settings(plain_graph, [30, 30]), seeds(*range(500))))
    list(service.accept(query(settings(plain_graph, [2]), seeds(1, 2))).run())
    assert service.counters()["refused, too-large"] == 1
    assert service.counters()["batches"] == 1


@pytest.mark.parametrize("view", [(), ({"only": [list(LIKE)]},)], ids=["whole", "only"])
def test_threads_that_bring_the_same_settings_share_them(
    typed_graph: khop.Graph, view: tuple[object, ...]
) -> None:
    assert typed_graph.folder is not None
    sampler = khop.NeighborSampler(typed_graph.only([LIKE]) if view else typed_graph, [3])
    fingerprint = typed_graph.folder.fingerprint
    given = Settings(fingerprint, view, described_sampler(sampler), ColumnChoice())
    service, begin = Service(ServedGraph.of(typed_graph)), threading.Barrier(8)

    def answer(_: int) -> bytes:
        begin.wait(60)
        _, *pieces = service.accept(query(given, seeds(*range(20)))).run()
        return b"".join(map(bytes, pieces))

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(answer, range(8)))) == 1
    assert service.counters()["settings"] == 1
    assert service.counters()["views_made"] == len(view)
    assert service.counters()["batches"] == 8


def test_rows_obey_the_limit_of_batches(plain_graph: khop.Graph) -> None:
    width = 4 * int(plain_graph.columns["item"]["x"].shape[1])
    exchange = InProcess([Service(ServedGraph.of(plain_graph), max_batch_bytes=20 * width)])
    view = RemoteView(exchange, read_description(exchange.describe(), "a test"))
    ids = torch.arange(75)
    rows = Rows(ids, ("x",))
    found = RemoteFeatures(view.description.schema.columns, view).gather({"item": rows})["item"]["x"]
    assert torch.equal(found, plain_graph.columns["item"]["x"][ids])
    assert len(exchange.asked) > 3
    fields = {"view": [], "type": "item", "columns": ["x"], "float32": [], "ids": 0}
    request = whole({"kind": "rows", "graph": view.fingerprint, **fields}, [torch.arange(21)])
    error = refused(exchange.services[0], request)
    assert isinstance(error, TooLarge)
    assert "request fewer rows at a time, or start the servers with a larger --max-batch-bytes" in str(error)


def test_a_split_of_links_is_made_by_the_job_and_not_before(
    typed_graph: khop.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def split(*arguments: Any, **keywords: Any) -> khop.LinkSplit:  # noqa: ANN401
        made.append(arguments[1])
        return khop.split_links(*arguments, **keywords)

    monkeypatch.setattr("khop.api.serve.split_links", split)
    view = {"split_links": SPLIT, "part": "train"}
    sampler = khop.LinkSampler(typed_graph, [2], negatives=khop.UniformNegatives(1))
    assert typed_graph.folder is not None
    given = Settings(
        typed_graph.folder.fingerprint, (view,), described_sampler(sampler), ColumnChoice(),
        {"view": [view], "part": "train"},
    )  # fmt: skip
    share = StepShare(torch.arange(4), 0, torch.arange(4), KEY)
    service = Service(ServedGraph.of(typed_graph), max_batch_bytes=20_000)
    job = service.accept(query(given, Seeds({}, {}, listed=share)))
    assert made == []  # it may take minutes, and only a job sends heartbeats
    list(job.run())
    assert len(made) == 1
    many = StepShare(torch.zeros(900, dtype=torch.int64), 0, torch.arange(900), KEY)
    for fresh in (service, Service(ServedGraph.of(typed_graph), max_batch_bytes=20_000)):
        assert isinstance(refused(fresh, query(given, Seeds({}, {}, listed=many))), TooLarge)


def test_a_request_that_is_no_longer_wanted_is_dropped(plain_graph: khop.Graph, service: Service) -> None:
    job = service.accept(query(settings(plain_graph), seeds(1)))
    with pytest.raises(Cancelled, match="batch of epoch 1, step 7"):
        job.run(lambda: True)
    assert "batches" not in service.counters()


def test_unknown_kinds_and_lists_are_refused(plain_graph: khop.Graph, service: Service) -> None:
    assert plain_graph.folder is not None
    graph = {"graph": plain_graph.folder.fingerprint}

    def ask(fields: dict[str, object]) -> str:
        return str(refused(service, whole({**fields, **graph}, [])))

    assert (
        "request of kind 'shell': this server answers batch, list, ids, links, in-degrees, labels, rows"
        in ask({"kind": "shell"})
    )
    assert "no split 'nope'" in ask({"kind": "list", "list": {"split": "nope", "types": ["item"]}})
    tensors = Tensors()
    fields = {"kind": "rows", "view": [], "type": "item", "columns": ["x"], "float32": [], **graph}
    request = whole({**fields, "ids": tensors(torch.tensor([600]))}, tensors.all)
    assert "rows 600 to 600: there are 600" in str(refused(service, request))


def damaged(message: bytes, number: int) -> bytes:
    word = mix64(number)
    at = (word >> 32) % len(message)
    return message[:at] + bytes([word & 0xFF]) + message[at + word % 3 :]


def fuzz(graph: khop.Graph, service: Service, numbers: range) -> None:
    """Send damaged requests: each is answered, or refused by an error that a request may give."""
    message = query(settings(graph), seeds(*range(20)))
    codes, mistakes = set(), list[str]()
    for number in numbers:
        try:
            list(service.accept(damaged(message, number)).run())
        except ServerError as error:
            codes.add(error.code)
            mistakes += [str(error)] * ("Error on the server" in str(error))
    assert not mistakes
    assert codes <= {"invalid", "wrong-version", "wrong-graph", "unknown-settings"}
    assert "invalid" in codes


def test_a_damaged_request_is_refused_or_answered(plain_graph: khop.Graph, service: Service) -> None:
    fuzz(plain_graph, service, range(600))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_damaged_requests(plain_graph: khop.Graph, service: Service) -> None:
    fuzz(plain_graph, service, range(600, 40_000))
