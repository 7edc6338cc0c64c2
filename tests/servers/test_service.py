"""A service answers what it can, refuses the rest by a code, and does no work for what it refuses.

No batch is larger than its limit, which is known before any work.

Settings are prepared once, over the part of the graph that they name.
"""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

import khop
from khop.api.serve import ServedGraph
from khop.batch import num_bytes
from khop.draw import DrawKey, mix64
from khop.graph.features.store import Rows
from khop.loading.columns import ColumnChoice
from khop.loading.source import BatchRequest
from khop.sampling.links.link_split import LinkColumns, Shares
from khop.sampling.seeds import Seeds, StepShare
from khop.servers.errors import (
    Cancelled,
    InvalidRequest,
    ServerError,
    TooLarge,
    UnknownSettings,
    WrongGraph,
    WrongVersion,
)
from khop.servers.graph import RemoteFeatures, RemoteView, described_sampler, read_description
from khop.servers.messages import (
    BatchOf,
    EdgesBefore,
    LinksOfPart,
    ListOf,
    ListOfSeeds,
    NodesOfSplit,
    Only,
    RowsOf,
    SourceSettings,
    SplitArguments,
    SplitPart,
    View,
    request,
)
from khop.servers.registry import BUILTIN
from khop.servers.service import NegativesPerLink, Prepared, Service, label_bytes, most_bytes, seed_counts
from support.batch_kinds import PLAIN, TYPED
from support.in_process import InProcess
from support.small_typed_folders import BUYS, LIKE

KEY = khop.DrawKey(5)
SPLIT = SplitArguments((BUYS,), Shares(0.2, 30), LinkColumns(), 3)


@pytest.fixture
def service(plain_graph: khop.Graph) -> Service:
    return Service(ServedGraph.of(plain_graph))


def settings(graph: khop.Graph, fanouts: list[int] = [3, 2]) -> SourceSettings:  # noqa: B006
    sampler = khop.NeighborSampler(graph, fanouts)
    columns = khop.Loader(sampler, torch.arange(2), 2, columns=["x"]).columns
    assert graph.folder is not None
    return SourceSettings(graph.folder.fingerprint, (), described_sampler(sampler), columns)


def seeds(*nodes: int) -> Seeds:
    ids = torch.tensor(nodes)
    return Seeds({"item": ids}, {"item": torch.arange(len(nodes))})


def query(given: SourceSettings, of: Seeds, *, with_settings: bool = True) -> bytes:
    return request("batch", given.graph, BatchOf.of(given, of, KEY, 1, 7, with_settings=with_settings))


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
    other = refused(service, query(replace(given, graph="f" * 64), seeds(1)))
    assert isinstance(other, WrongGraph)
    assert "ffffffffffff..." in str(other)
    drawn_otherwise = replace(given, randomness=2)
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
        (Seeds({"item": torch.zeros(2)}, {"item": torch.arange(2)}), "must be torch.int64"),
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
        TooLarge, match=r"could have [\d,]+ bytes, but this server makes batches of at most 20,000"
    ):
        service.accept(query(settings(plain_graph, [30, 30]), seeds(*range(500))))
    list(service.accept(query(settings(plain_graph, [2]), seeds(1, 2))).run())
    assert service.counters()["refused, too-large"] == 1
    assert service.counters()["batches"] == 1


@pytest.mark.parametrize("view", [(), (Only((LIKE,)),)], ids=["whole", "only"])
def test_threads_that_bring_the_same_settings_share_them(
    typed_graph: khop.Graph, view: tuple[object, ...]
) -> None:
    assert typed_graph.folder is not None
    sampler = khop.NeighborSampler(typed_graph.only([LIKE]) if view else typed_graph, [3])
    fingerprint = typed_graph.folder.fingerprint
    given = SourceSettings(fingerprint, view, described_sampler(sampler), ColumnChoice())
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
    message = request("rows", view.fingerprint, RowsOf((), "item", ("x",), (), torch.arange(21)))
    error = refused(exchange.services[0], message)
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
    view = (SplitPart(SPLIT, "train"),)
    sampler = khop.LinkSampler(typed_graph, [2], negatives=khop.UniformNegatives(1))
    assert typed_graph.folder is not None
    given = SourceSettings(
        typed_graph.folder.fingerprint, view, described_sampler(sampler), ColumnChoice(),
        LinksOfPart(view, "train"),
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

    def ask(kind: str, asked: object) -> str:
        assert plain_graph.folder is not None
        return str(refused(service, request(kind, plain_graph.folder.fingerprint, asked)))

    nope = ListOf(NodesOfSplit("nope", ("item",)))
    assert (
        "request of kind 'shell': this server answers batch, list, ids, links, in-degrees, labels, rows"
        in ask("shell", nope)
    )
    assert "no split 'nope'" in ask("list", nope)
    rows = RowsOf((), "item", ("x",), (), torch.tensor([600]))
    assert "rows 600 to 600: there are 600" in ask("rows", rows)


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


@pytest.mark.core(6)
@pytest.mark.parametrize("kind", [*PLAIN, *TYPED], ids=lambda kind: kind.__name__)
def test_no_batch_is_larger_than_its_limit(
    plain_graph: khop.Graph, typed_graph: khop.Graph, kind: object
) -> None:
    loader = kind(plain_graph if kind in PLAIN else typed_graph)  # type: ignore[operator]
    source, order = loader._batches.source, loader._order
    negatives = NegativesPerLink.of(loader.graph_sampler)
    for step in range(order.num_steps):
        seeds = order.share(0, step)
        drawn = source.make(BatchRequest.of(seeds, khop.DrawKey(step)))
        limit = most_bytes(
            loader.graph_sampler,
            loader.columns,
            seed_counts(seeds, negatives),
            label_bytes(seeds, negatives),
            seeds.nodes,
        )
        assert limit is not None
        assert num_bytes(drawn) <= limit


def test_limits_of_shared_nodes_end_at_the_graph(plain_graph: khop.Graph) -> None:
    def limit(fanouts: list[int]) -> int:
        sampler = khop.NeighborSampler(plain_graph, fanouts)
        found = most_bytes(sampler, khop.Loader(sampler, torch.arange(2), 2).columns, {"item": 100})
        assert found is not None
        return found

    edges, nodes = 4 * 4091, 600 * 8
    assert limit([-1]) <= edges + nodes + 8 * 101 + 100 * 48
    assert limit([1000, 1000]) > limit([10, 10]) > limit([10])


def test_all_neighbors_of_known_seeds_are_counted(plain_graph: khop.Graph) -> None:
    sampler = khop.NeighborSampler(plain_graph, [-1])
    columns = khop.Loader(sampler, torch.arange(2), 2).columns
    one = most_bytes(sampler, columns, {"item": 1}, nodes={"item": torch.tensor([5])})
    degree = int(plain_graph.csc("item like item").indptr.diff()[5])
    assert one == 4 * degree + 8 * 2 + 8 * (1 + degree) + 48
    unknown = {"item": torch.tensor([5, -1, 600])}  # the draw refuses these ids
    assert most_bytes(sampler, columns, {"item": 1}, nodes=unknown) == one


def test_a_sampler_of_your_own_has_no_limit(plain_graph: khop.Graph) -> None:
    class Own(khop.SamplerBase):
        def sample(self, seeds: khop.Seeds, key: khop.DrawKey) -> khop.Sample:
            raise AssertionError

    loader = khop.Loader(khop.NeighborSampler(plain_graph, [1]), torch.arange(2), 2)
    assert most_bytes(Own(plain_graph), loader.columns, {"item": 1}) is None


def prepared(graph: khop.Graph, *, seeds: ListOfSeeds | None = None, view: View = ()) -> Prepared:
    sampler = khop.NeighborSampler(graph.only([LIKE]) if view else graph, [3])
    columns = khop.Loader(sampler, {"item": torch.arange(2)}, 2, columns={"item": ["price"]}).columns
    settings = SourceSettings("f" * 64, view, described_sampler(sampler), columns, seeds)
    return Prepared.of(ServedGraph.of(graph), BUILTIN, settings)


def numbers(*order: int) -> khop.Seeds:
    share = StepShare(torch.tensor(order), 0, torch.arange(len(order)), DrawKey(1))
    return khop.Seeds({}, {}, listed=share)


def test_a_source_is_made_once(typed_graph: khop.Graph) -> None:
    found = prepared(typed_graph)
    assert found.source() is found.source()
    assert found.source().sampler.graph is typed_graph


def test_a_view_leaves_edge_types_out(typed_graph: khop.Graph) -> None:
    found = prepared(typed_graph, view=(Only((LIKE,)),))
    assert found.sampler.graph.schema.edge_types == (LIKE,)
    assert found.source().sampler.graph.schema.edge_types == (LIKE,)


def test_a_source_ends_with_its_view_and_is_made_again(typed_graph: khop.Graph) -> None:
    """Else settings would hold the memory of views that the server has dropped."""
    found = prepared(typed_graph, view=(EdgesBefore(50), Only((LIKE,))))
    held = weakref.ref(found.source().sampler.graph)
    assert found.source().sampler.graph is held()
    views = found.served.views
    views._most_bytes = 0
    found.served.viewed((EdgesBefore(20),))
    gc.collect()
    assert views.counts()["views_dropped"] == 2
    assert held() is None
    assert found.source().sampler.graph.schema.edge_types == (LIKE,)


def test_threads_share_settings_of_a_view(typed_graph: khop.Graph) -> None:
    found, begin = prepared(typed_graph, view=(Only((LIKE,)),)), threading.Barrier(8)

    def source(_: int) -> object:
        begin.wait(60)
        return found.source()

    with ThreadPoolExecutor(8) as threads:
        first, *others = threads.map(source, range(8))
    assert all(other is first for other in others)


def test_seeds_by_number_are_looked_up(typed_graph: khop.Graph) -> None:
    found = prepared(typed_graph, seeds=NodesOfSplit("train", ("item",)))
    seeds = found.seeds(numbers(2, 0))
    assert seeds.nodes["item"].tolist() == [6, 0]  # the split has every third item
    assert found.listed_counts(numbers(2, 0)) == {"item": 2}


def test_negatives_of_listed_links_are_counted(typed_graph: khop.Graph) -> None:
    """Otherwise a batch could be larger than the limit that is checked before it is made."""
    split = SplitArguments((LIKE,), Shares(0.2, 0.1, 0.0), LinkColumns(7), 3)
    view = (Only((LIKE,)), SplitPart(split, "val"))
    found = prepared(typed_graph, seeds=LinksOfPart(view, "val"), view=view)
    assert found.listed_counts(numbers(2, 0)) == {"item": 2 * (2 + 7)}


def test_numbers_outside_the_list_are_refused(typed_graph: khop.Graph) -> None:
    found = prepared(typed_graph, seeds=NodesOfSplit("train", ("item",)))
    with pytest.raises(ValueError, match="seeds 0 to 67: the list has 67"):
        found.seeds(numbers(0, 67))
    with pytest.raises(ValueError, match="the settings name no list"):
        prepared(typed_graph).seeds(numbers(0))
