"""A run over servers gives the losses, scores and files of a local run, by an option."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

import pyarrow.parquet

from khop.api.partition import partition_graph
from khop.api.serve import service_of
from khop.cli.main import run
from khop.errors import Unsupported
from khop.run.build import prepare
from khop.run.check import checked
from khop.run.parts import GraphOnServers, graph_on_servers
from khop.run.read import RawRun
from khop.servers.access import Address, ServerSecurity, Token
from khop.servers.flight_server import served
from khop.servers.request_handler import Incoming, QueueLimits, RequestHandler, ResponseStream
from support.commands import infer_here, records, train_here
from support.dated_shop import write_dated_shop
from support.named_shop import CLASSES, write_named_shop
from support.small_folders import write_learnable_graph
from support.small_typed_folders import write_typed_graph

SMALL = (
    "--fanouts",
    "3,2",
    "--hidden",
    "8",
    "--epochs",
    "2",
    "--batch-size",
    "100",
    "--compute-threads",
    "1",
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_learnable_graph(tmp_path_factory.mktemp("served") / "words")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("served") / "shop")


@pytest.fixture
def serving() -> Iterator[object]:
    """Start servers of a folder; return their addresses, separated by commas."""
    started = []

    def start(folder: Path, count: int = 2) -> str:
        for _ in range(count):
            handler = RequestHandler(service_of(folder), QueueLimits(at_once=2))
            started.append(served(handler, Address("127.0.0.1", 0), ServerSecurity()))
        return ",".join(f"127.0.0.1:{server.port}" for server in started)

    yield start
    for server in started:
        server.shutdown()


def raw(**values: object) -> RawRun:
    return RawRun({"sampler": {"fanouts": [2]}, **values}, "run.toml")


def test_a_run_has_the_losses_scores_and_files_of_a_local_one(
    graph: Path, tmp_path: Path, serving: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    addresses = serving(graph)  # type: ignore[operator]
    train_here("--graph", str(graph), *SMALL, "--out", "local")
    train_here("--graph", "words", "--servers", addresses, *SMALL, "--out", "remote")
    assert [r["loss"] for r in records("remote", "steps")] == [r["loss"] for r in records("local", "steps")]
    found, expected = (
        [{k: v for k, v in r.items() if k != "traffic"} for r in records(name)]
        for name in ("remote", "local")
    )
    assert found == expected
    check_traffic("remote", servers={0, 1}, retries=False)
    infer_here("local", "--out", "local.npy")
    infer_here("remote", "--out", "remote.npy")  # by the servers of the run
    assert np.array_equal(np.load("local.npy"), np.load("remote.npy"))


def check_traffic(folder: str, servers: set[int], *, retries: bool) -> None:
    """Check that each step has the server that made its batch, the retries, the bytes and the wait."""
    steps = [json.loads(line) for line in Path(folder, "steps.jsonl").read_text().splitlines()]
    traffic = [step["traffic"] for step in steps]
    assert {of_rank for each in traffic for of_rank in each["server"]} == servers
    assert (sum(sum(each["server_retries"]) for each in traffic) > 0) == retries
    assert all(size > 100 * 4 * 4 for each in traffic for size in each["server_bytes"])
    assert all(0 < wait < 60 for step in steps for wait in step["seconds"]["exchanging"])
    (_, second) = map(json.loads, Path(folder, "metrics.jsonl").read_text().splitlines())
    assert second["traffic"]["server_bytes"] == sum(
        sum(step["traffic"]["server_bytes"]) for step in steps if step["epoch"] == 1
    )


class LeavesEarly(RequestHandler):
    """Makes two batches, and then leaves the rest to other servers."""

    def answer(
        self, request: Incoming, token: Token, client: str, stream: ResponseStream, beat_s: float
    ) -> None:
        if int(str(self.status().get("service_batches", 0))) >= 2:
            self.drain(0)
        super().answer(request, token, client, stream, beat_s)


@pytest.mark.long
def test_requests_to_a_server_that_leaves_are_counted_as_retries(
    graph: Path, tmp_path: Path, serving: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    leaving = served(LeavesEarly(service_of(graph), QueueLimits()), Address("127.0.0.1", 0), ServerSecurity())
    try:
        addresses = f"127.0.0.1:{leaving.port},{serving(graph, 1)}"  # type: ignore[operator]
        small = (*SMALL, "--batch-size", "20")  # 18 steps: it leaves before evaluation
        train_here("--graph", "words", "--servers", addresses, *small, "--out", "remote")
    finally:
        leaving.shutdown()
    check_traffic("remote", servers={0, 1}, retries=True)


@pytest.mark.long
def test_a_local_run_is_evaluated_on_servers_and_resumed_there(
    graph: Path,
    tmp_path: Path,
    serving: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    addresses = serving(graph)  # type: ignore[operator]
    train_here("--graph", str(graph), *SMALL, "--out", "local")
    train_here("--graph", str(graph), *SMALL, "--epochs", "1", "--out", "both")
    train_here("--resume", "both", "--epochs", "2", "--servers", addresses)
    assert [r["loss"] for r in records("both", "steps")] == [r["loss"] for r in records("local", "steps")]
    scores = []
    for options in ((), ("--servers", addresses)):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            run(("evaluate", "local", "--json", *options))
        scores.append({k: v for k, v in json.loads(capsys.readouterr().out).items() if k != "seconds"})
    assert scores[0] == scores[1]


@pytest.mark.long
def test_links_of_a_run_are_split_on_the_servers(
    shop: Path, tmp_path: Path, serving: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    addresses = serving(shop)  # type: ignore[operator]
    options = (
        *(
            "--task",
            "link-prediction",
            "--target",
            "user buys item",
            "--embedding",
            "4",
            "--eval-negatives",
            "5",
        ),
        *SMALL,
    )
    train_here("--graph", str(shop), *options, "--out", "local")
    train_here("--graph", "shop", "--servers", addresses, *options, "--out", "remote")
    assert [r["loss"] for r in records("remote", "steps")] == [r["loss"] for r in records("local", "steps")]
    last = [records(name)[-1] for name in ("remote", "local")]
    assert {**last[0], "traffic": 0} == {**last[1], "traffic": 0}
    assert last[0]["test_popularity_mrr"] > 0


def test_servers_of_another_graph_are_refused_by_name(graph: Path, tmp_path: Path, serving: object) -> None:
    addresses = serving(graph, 1)  # type: ignore[operator]
    given = raw(graph="shop", servers={"addresses": [addresses]})
    with pytest.raises(ValueError, match="graph is 'shop': the servers have 'words'; give --graph words"):
        prepare(given, tmp_path)


BY_LINKS = ("--task", "link-prediction", "--target", "user buys item", "--embedding", "4")


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        ("--task", "node-classification", "--target", "user"),
        (*BY_LINKS, "--link-split", "time", "--eval-negatives", "3"),
        (*BY_LINKS, "--link-split", "column", "--eval-negatives", "3"),
    ],
    ids=["nodes", "links by time", "links by column"],
)
def test_a_run_on_a_graph_that_is_split_by_time_equals_a_local_one(
    tmp_path: Path, serving: object, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    shop = write_dated_shop(tmp_path / "shop")
    addresses = serving(shop)  # type: ignore[operator]
    train_here("--graph", str(shop), *options, *SMALL, "--out", "local")
    train_here("--graph", "shop", "--servers", addresses, *options, *SMALL, "--out", "remote")
    losses = [[r["loss"] for r in records(name, "steps")] for name in ("remote", "local")]
    assert losses[0] == losses[1]
    assert len(losses[0]) >= 2
    last = [records(name)[-1] for name in ("remote", "local")]
    assert {**last[0], "traffic": 0} == {**last[1], "traffic": 0}


NODES_OF_SHOP = ("--task", "node-classification", "--target", "item", "--label", "label")
NUMBERS_OF_SHOP = ("--task", "node-regression", "--target", "user", "--label", "label")
FILES = {  # rows of one type, in order and of a split, and of both ends of links; predictions
    "nodes": (NODES_OF_SHOP, [("--node-type", "item"), ("--node-type", "item", "--split", "test")]),
    "numbers": (NUMBERS_OF_SHOP, [("--node-type", "user", "--values", "outputs")]),
    "links": ((*BY_LINKS, "--eval-negatives", "3"), [()]),
}


@pytest.mark.long
@pytest.mark.parametrize("partitioned", [False, True], ids=["whole", "partitioned"])
@pytest.mark.parametrize("kind", FILES)
def test_files_of_servers_have_the_users_names_and_the_bytes_of_local_ones(
    tmp_path: Path, serving: object, monkeypatch: pytest.MonkeyPatch, kind: str, *, partitioned: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    shop, (options, files) = write_named_shop(tmp_path / "shop"), FILES[kind]
    if partitioned:
        partition_graph(shop, tmp_path / "shop-2", 2, method="random")
        shop = tmp_path / "shop-2"
    far = ("--servers", serving(shop))  # type: ignore[operator]
    train_here("--graph", str(shop), *options, *SMALL, "--epochs", "1", "--out", "run")
    for number, chosen in enumerate(files):
        for home, servers in (("here", ()), ("far", far)):
            Path(home).mkdir(exist_ok=True)
            infer_here("run", "--out", f"{home}/{number}.parquet", *chosen, *servers)
    for home, servers in (("here", ()), ("far", far)):
        with pytest.raises(SystemExit) as left:
            run(("evaluate", "run", "--split", "all", "--predictions", f"{home}/p.parquet", *servers))
        assert not left.value.code
    names = sorted(path.name for path in Path("here").iterdir())
    assert names == sorted(path.name for path in Path("far").iterdir())
    for name in names:
        assert Path("far", name).read_bytes() == Path("here", name).read_bytes(), name
    (first, *_), predicted = names, pyarrow.parquet.read_table("far/p.parquet")
    columns = pyarrow.parquet.read_table(f"far/{first}").column_names
    assert ("id" in columns, "original_id" in columns) == (True, partitioned)
    ends = {"links": ["source_id", "destination_id"]}.get(kind, ["id"])
    assert set(ends) <= set(predicted.column_names)
    if kind == "nodes":
        assert set(predicted["prediction"].to_pylist()) <= set(CLASSES)
        assert ("original_id" in predicted.column_names) == partitioned
    if kind == "numbers":
        assert set(predicted["unit"].to_pylist()) == {"EUR"}


def test_stores_on_a_gpu_are_refused(graph: Path, serving: object) -> None:
    addresses = serving(graph, 1)  # type: ignore[operator]
    given = raw(graph="words", servers={"addresses": [addresses]}, gpu={"topology": "device"})
    with pytest.raises(ValueError, match="the graph is on servers, which send batches; leave them out"):
        graph_on_servers(checked(given), given)


def test_a_graph_on_servers_is_seen_as_a_folder_is(graph: Path, serving: object) -> None:
    addresses = serving(graph, 1)  # type: ignore[operator]
    given = raw(graph="words", servers={"addresses": [addresses]})
    found = graph_on_servers(checked(given), given)
    assert isinstance(found, GraphOnServers)
    assert found.split_names == ("train", "val", "test")
    assert list(found.split("val")) == ["item"]
    assert found.split("val")["item"].numel() == 120
    assert (found.num_nodes("item"), found.original_ids("item")) == (600, None)
    with pytest.raises(Unsupported, match="gather rows from"):
        found.columns()
