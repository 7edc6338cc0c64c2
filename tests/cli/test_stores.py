"""Graphs, tables, results and runs in an object store, through a real S3 server and the command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from cli.conftest import Ran
from cli.test_store_mirrors import content, written_run
from data.formats.layouts import arxiv, links
from khop.graph.folder import open_folder
from khop.graph.remote import (
    Location,
    StoreError,
    publish,
    staged,
    target,
    writing,
)
from run.test_relbench_tasks import LIMITS, write_database
from support.commands import ENVIRONMENT, children, train_here
from support.gate import wait_until
from support.object_store import REFUSED, SECRET, Bucket, Reply, between, s3_server
from support.small_folders import write_learnable_graph
from support.small_link_folders import write_shop

Command = Callable[..., Ran]
IMPORTER = """
from dataclasses import dataclass

import torch
import khop


@dataclass(frozen=True)
class Options:
    twice: bool = False
    '''Write twice as many items'''


@dataclass(frozen=True)
class WithFlag:
    options: Options
    name = "flag"
    Options = Options

    @classmethod
    def build(cls, options, context):
        return cls(options)

    def write(self, out, notice=None):
        count = 4 if self.options.twice else 2
        khop.write_graph(out, {"item": khop.NodeTable(count)}, {})
        return f"{count} items"
"""
SPEC = """
[nodes.user]
files = ["s3://data/tables/users-*.csv"]
id = "id"
columns = { x = "number" }
label = "label"
split = { ratio = [0.6, 0.2, 0.2] }
[edges."user knows user"]
files = ["s3://data/tables/edges.csv"]
source = "src"
destination = "dst"
"""
RUN = """
graph = "s3://data/graphs/g"
device = "cpu"
compute_threads = 1
threads = 1
sampler = { fanouts = [4, 3] }
model = { hidden = 8 }
training = { epochs = EPOCHS, batch_size = 32 }
checkpoint = { steps = 1 }
"""


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """A server with a bucket, for all tests of the file."""
    with s3_server() as environment:
        Bucket(environment)
        yield environment


@pytest.fixture
def bucket(server: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """The bucket, in the environment of a machine with an empty cache."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Bucket(server)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph folder."""
    return write_learnable_graph(tmp_path_factory.mktemp("graphs") / "g")


def test_an_interrupted_download_continues(bucket: Bucket, tmp_path: Path) -> None:
    whole = np.random.default_rng(0).bytes(30 << 20)
    bucket.write("large.npy", whole)
    code = (
        "import os, sys\nfrom khop.graph.remote import staged\n"
        "def stop(what, done, total):\n"
        "    if done >= 8 << 20: os.kill(os.getpid(), 9)\n"
        "staged('s3://data/large.npy', stop)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], env={**ENVIRONMENT, **os.environ}, check=False)
    assert killed.returncode == -signal.SIGKILL
    mirror = Location.of("s3://data/large.npy").mirror
    assert not mirror.exists()
    (part,) = mirror.parent.glob(".*.part")
    first = part.stat().st_size
    assert first > 0
    begun: list[int] = []
    assert staged("s3://data/large.npy", lambda what, done, total: begun.append(done)).read_bytes() == whole
    assert begun[0] == min(first, 8 << 20)  # the bytes that are there count before those that are fetched
    assert not part.exists()


def test_a_name_of_a_store_does_not_leave_the_cache(
    server: dict[str, str], bucket: Bucket, tmp_path: Path
) -> None:
    bucket.write("forged-name/graph.json", b"{}")
    url = f"{server['AWS_ENDPOINT_URL']}/data/forged-name/{tmp_path}/outside"  # a name that begins with "/"
    urllib.request.urlopen(urllib.request.Request(url, data=b"written outside", method="PUT")).close()
    assert sorted(content(staged("s3://data/forged-name"))) == ["graph.json"]
    assert not (tmp_path / "outside").exists()


def test_checkpoints_that_change_while_they_are_listed_are_listed_again(
    server: dict[str, str], bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, name, asked = "s3://data/runs/replaced", "runs/replaced/checkpoints.json", count(1)
    run = written_run(url, "first")
    publish(run)
    longer = json.dumps(json.loads(bucket.read(name)), indent=8).encode()

    def answer(method: str, path: str, forward: Callable[[], Reply]) -> Reply:
        if method == "GET" and path.endswith("checkpoints.json") and next(asked) == 1:
            bucket.write(name, longer)  # the reader knows the size of the shorter one
        return forward()

    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "another machine"))
    with between(server, answer) as address, monkeypatch.context() as through:
        through.setenv("AWS_ENDPOINT_URL", address)
        assert content(staged(url)) == content(run)
    assert next(asked) > 2


def test_the_command_works_on_a_store(
    bucket: Bucket, khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    for part in range(2):
        rows = [f"u{i},{rng.random():.3f},{'ab'[i % 2]}" for i in range(part * 50, part * 50 + 50)]
        bucket.write(f"tables/users-{part}.csv", "\n".join(["id,x,label", *rows]).encode())
    edges = [f"u{a},u{b}" for a, b in rng.integers(0, 100, (600, 2))]
    bucket.write("tables/edges.csv", "\n".join(["src,dst", *edges]).encode())
    Path("spec.toml").write_text(SPEC)
    imported = khop_command("import", "spec.toml", "s3://data/graphs/g")
    assert imported.code == 0, imported.stderr
    assert "s3://data/graphs/g: 100 user; 600 user knows user" in imported.stdout
    assert "graph.json" in bucket.names("graphs/g")
    again = khop_command("import", "spec.toml", "s3://data/graphs/g")
    assert again.code == 2
    assert again.stderr.startswith("khop: s3://data/graphs/g: exists already")

    Path("run.toml").write_text(RUN.replace("EPOCHS", "2"))
    trained = khop_command("train", "run.toml", "--out", "s3://data/runs/a", "--json")
    assert trained.code == 0, trained.stderr
    assert json.loads(trained.stdout)["run"] == "s3://data/runs/a"
    assert {"config.toml", "metrics.jsonl", "checkpoints.json", "curve.png"} <= set(bucket.names("runs/a"))
    config = bucket.read("runs/a/config.toml").decode()
    assert 'graph = "s3://data/graphs/g"' in config
    assert str(tmp_path) not in config

    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "another machine"))
    inferred = khop_command("infer", "s3://data/runs/a", "--out", "s3://data/out/rows.npy")
    assert inferred.code == 0, inferred.stderr
    assert bucket.names("out") == ["rows.ids.npy", "rows.npy"]
    again = khop_command("infer", "s3://data/runs/a", "--out", "s3://data/out/rows.npy")
    assert again.code == 2
    assert again.stderr.startswith("khop: s3://data/out/rows.npy: exists already")
    scored = khop_command("evaluate", "s3://data/runs/a", "--predictions", "s3://data/out/test.parquet")
    assert scored.code == 0, scored.stderr
    bucket.write("later/users.csv", b"id,x\nnew1,0.5\nnew2,0.1\n")
    bucket.write("later/edges.csv", b"src,dst\nu1,new1\nu2,new2\n")
    later = SPEC.replace("tables/users-*", "later/users").replace("tables", "later")
    lines = [line for line in later.splitlines() if not line.startswith(("label", "split"))]
    Path("later.toml").write_text("\n".join(lines))
    made = khop_command("import", "later.toml", "later", "--encoders", "s3://data/runs/a")
    assert made.code == 0, made.stderr
    predicted = khop_command(
        "predict", "s3://data/runs/a", "--graph", "later", "--out", "s3://data/out/new.parquet"
    )
    assert predicted.code == 0, predicted.stderr
    assert pq.read_table(staged("s3://data/out/new.parquet")).num_rows == 2
    assert open_folder(staged("s3://data/graphs/g")).schema.node_types == ("user",)


def test_profiles_and_recommendations_are_uploaded(
    bucket: Bucket, khop_command: Command, tmp_path: Path
) -> None:
    shop = write_shop(tmp_path / "shop", users=30, items=20)
    small = ("--fanouts", "2", "--layers", "1", "--hidden", "4", "--batch-size", "64", "--device", "cpu")
    task = ("--task", "link-prediction", "--target", "user buys item", "--eval-negatives", "2")
    words = ("--graph", str(shop), *small, *task)
    profiled = khop_command("profile", *words, "--steps", "1", "--out", "s3://data/out/profile", "--json")
    assert profiled.code == 0, profiled.stderr
    assert json.loads(profiled.stdout)["profile"] == "s3://data/out/profile"
    assert {"trace.json", "timeline.png", "config.toml"} <= set(bucket.names("out/profile"))
    train_here(*words, "--epochs", "1", "--out", "run")
    made = khop_command("recommend", "run", "-k", "3", "--out", "s3://data/out/recommended.parquet")
    assert made.code == 0, made.stderr
    assert pq.read_table(staged("s3://data/out/recommended.parquet")).num_rows == 90


@pytest.mark.long
@pytest.mark.parametrize("procs", [1, 2, 4])
def test_a_run_has_the_losses_of_a_local_one_and_resumes_on_another_machine_after_a_kill(
    bucket: Bucket, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, procs: int
) -> None:
    """Losses are those of one process on local folders; after a kill, the bits are those of the same run."""
    bucket.upload(graph, "graphs/g")
    text = RUN.replace("EPOCHS", "4").replace("hidden = 8", "hidden = 8, dropout = 0.0")
    text = f'precision = "float64"\n{text}'
    bucket.write(f"specs/{procs}.toml", text.encode())
    Path("local.toml").write_text(text.replace("s3://data/graphs/g", str(graph)))
    several = () if procs == 1 else ("--procs", str(procs), "--oversubscribe")

    def started(*words: str) -> subprocess.Popen[bytes]:
        words = (sys.executable, "-m", "khop", *words)
        with Path("log").open("ab") as log:
            return subprocess.Popen(words, env={**ENVIRONMENT, **os.environ}, stdout=log, stderr=log)

    def finished(*words: str) -> None:
        assert started(*words).wait(600) == 0, Path("log").read_text()

    def lines(run: Path) -> list[tuple[int, int, float]]:
        found = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
        return [(line["epoch"], line["step"], line["loss"]) for line in found]

    runs, file = f"s3://data/runs-{procs}", f"s3://data/specs/{procs}.toml"
    finished("train", "local.toml", "--out", "local")
    finished("infer", "local", "--out", "local.npy")
    finished("train", file, "--out", f"{runs}/whole", *several)
    killed = started("train", file, "--out", f"{runs}/killed", *several)
    wait_until(lambda: "checkpoints.json" in bucket.names(f"runs-{procs}/killed"))
    for pid in (killed.pid, *children(killed.pid)):
        os.kill(pid, signal.SIGKILL)
    killed.wait()
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "another machine"))
    finished("train", "--resume", f"{runs}/killed", *several)
    whole, resumed = (staged(f"{runs}/{name}") for name in ("whole", "killed"))
    assert lines(resumed) == lines(whole)
    last = "checkpoints/last/model.safetensors"
    assert (resumed / last).read_bytes() == (whole / last).read_bytes()
    for found, expected in zip(lines(whole), lines(Path("local")), strict=True):
        assert found == pytest.approx(expected, rel=1e-9)
    finished("infer", f"{runs}/killed", "--out", f"{runs}/rows.npy", *several)
    rows, expected = np.load(staged(f"{runs}/rows.npy")), np.load("local.npy")
    np.testing.assert_allclose(rows, expected, rtol=1e-9, atol=1e-9)


def test_refused_credentials_are_not_printed(khop_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(INITIAL_NO_AUTH_ACTION_COUNT="0") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        ran = khop_command("info", "s3://data/graphs/g")
        assert ran.code == 2
        assert ran.stderr.startswith(
            "khop: s3://data/graphs/g: the store refuses access (ACCESS_DENIED); set"
        )
        assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in ran.stderr
        assert SECRET not in ran.stderr
        assert environment["AWS_ACCESS_KEY_ID"] not in ran.stderr


STAGE = """
import sys, pathlib, khop.graph.remote as r
def notice(what, done, total):
    if what.startswith("waiting for the process that reads"): pathlib.Path("waiting").touch()
r.staged(sys.argv[1], notice)
"""


@pytest.mark.parametrize("machines", [1, 2])
def test_processes_that_open_a_graph_at_once_stage_it_once_per_machine(
    server: dict[str, str], bucket: Bucket, graph: Path, tmp_path: Path, machines: int
) -> None:
    url, reads = f"s3://data/at-once-{machines}/g", list[str]()
    bucket.upload(graph, f"at-once-{machines}/g")

    def answer(method: str, path: str, forward: Callable[[], Reply]) -> Reply:
        if method == "GET" and path.endswith("indices.npy"):
            reads.append(path)
            wait_until(lambda: len(reads) == 2 if machines == 2 else Path("waiting").exists())
        return forward()

    caches = [tmp_path / f"machine-{number % machines}" for number in range(2)]
    with between(server, answer) as address:
        running = [
            subprocess.Popen(
                [sys.executable, "-c", STAGE, url],
                env={**ENVIRONMENT, **os.environ, "AWS_ENDPOINT_URL": address, "KHOP_CACHE": str(cache)},
            )
            for cache in caches
        ]
        assert [process.wait(300) for process in running] == [0, 0]
    assert len(reads) == machines
    mirror = Location.of(url).mirror.relative_to(tmp_path / "cache")
    assert all(content(cache / mirror) == content(graph) for cache in caches)


@pytest.mark.parametrize("number", [1, 3, "graph.json"])
def test_of_two_machines_that_write_one_graph_one_is_told_or_the_later_one_replaces_it(
    server: dict[str, str], bucket: Bucket, graph: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, number: int | str,
) -> None:  # fmt: skip
    """The other machine uploads its graph between two requests of this one."""
    url, puts = f"s3://data/two-writers-{number}/g", count(1)
    ours, others = target(url), tmp_path / "machine" / Location.of(url).mirror.relative_to(tmp_path / "cache")
    shutil.copytree(graph, ours)
    write_learnable_graph(others, nodes=620)
    environment = {**ENVIRONMENT, **os.environ, "KHOP_CACHE": str(tmp_path / "machine")}

    def answer(method: str, path: str, forward: Callable[[], Reply]) -> Reply:
        if method == "PUT" and (path.endswith(str(number)) or next(puts) == number):
            subprocess.run([sys.executable, "-c", PUBLISH, str(others)], env=environment, check=True)
        return forward()

    expected, said = content(ours), ""
    with between(server, answer) as address, monkeypatch.context() as through:
        through.setenv("AWS_ENDPOINT_URL", address)
        try:
            publish(ours)
        except StoreError as error:
            said = str(error)
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "reader"))
    if not said:
        assert content(staged(url)) == expected
        return
    assert said.startswith(f"{url}: another machine writes the same folder, and ")
    with pytest.raises(ValueError, match=r"digest differs from graph\.json"):
        staged(url)


PUBLISH = "import sys, pathlib, khop.graph.remote as r\nr.publish(pathlib.Path(sys.argv[1]))"


def stopped_upload(server: dict[str, str], run: Path, how: str, number: int) -> bool:
    """Publish a run, but stop the upload at a request that changes the store; return True if it has fewer."""
    requests, stops, processes = count(1), list[str](), list[subprocess.Popen[bytes]]()

    def answer(method: str, path: str, forward: Callable[[], Reply]) -> Reply:
        if method in ("GET", "HEAD") or next(requests) != number:
            return forward()
        stops.append(path)
        if how != "refused":
            forward()
        for process in processes:
            process.kill()
        return REFUSED

    with pytest.MonkeyPatch.context() as changed, between(server, answer) as address:
        changed.setenv("AWS_ENDPOINT_URL", address)
        if how == "killed":
            words = [sys.executable, "-c", PUBLISH, str(run)]
            processes.append(subprocess.Popen(words, env={**ENVIRONMENT, **os.environ}))
            processes[0].wait()
        else:
            with suppress(StoreError):
                publish(run)  # it goes on if a file that is not needed any more cannot be removed
    return not stops


@pytest.mark.long
@pytest.mark.parametrize("states", [["first"], ["first", "second", "third"]])
@pytest.mark.parametrize("how", ["refused", "answer lost", "killed"])
def test_an_upload_that_stops_at_any_request_is_finished_by_the_next_command(
    bucket: Bucket, server: dict[str, str], tmp_path: Path, how: str, states: list[str]
) -> None:
    is_whole, numbers = False, count(1)
    while not is_whole:
        number = next(numbers)
        name = f"runs/stops-{how.split()[-1]}-{len(states)}-{number}"
        run = written_run(f"s3://data/{name}", *states)
        there = content(run)
        is_whole = stopped_upload(server, run, how, number)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".* are in ")
            warnings.filterwarnings("ignore", message=".* are uploaded now")
            staged(f"s3://data/{name}")
        assert content(run) == there, number
        with pytest.MonkeyPatch.context() as changed:
            changed.setenv("KHOP_CACHE", str(tmp_path / f"another machine {number}"))
            assert content(staged(f"s3://data/{name}")) == there, number
    assert number > 10


def test_a_run_is_uploaded_when_it_fails(
    bucket: Bucket, graph: Path, khop_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("run.toml").write_text(RUN.replace("s3://data/graphs/g", str(graph)).replace("EPOCHS", "3"))
    url = "s3://data/runs/failed"
    failed = khop_command("train", "run.toml", "--out", url, "--learning-rate", "1e38")
    assert failed.code != 0
    there = content(Location.of(url).mirror)
    assert "steps.jsonl" in there
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "another machine"))
    assert content(staged(url)) == there


def test_operands_of_import_are_told_from_values_of_options(
    bucket: Bucket, khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = "\n".join(["id,x", *(f"u{i},{i * 3}" for i in range(20))])
    edges = "\n".join(["src,dst", *(f"u{i},u{(i * 7 + 1) % 20}" for i in range(20))])
    bucket.write("operands/users.csv", users.encode())
    bucket.write("operands/edges.csv", edges.encode())
    names = ["s3://data/operands/users.csv", "s3://data/operands/edges.csv"]
    guessed = khop_command("import", "--guess", *names)
    assert guessed.code == 0, guessed.stderr
    assert [f'files = ["{name}"]' in guessed.stdout for name in names] == [True, True]
    # Files of a spec in a store are relative to it.
    bucket.write("operands/spec.toml", guessed.stdout.replace("s3://data/operands/", "").encode())
    spec = "s3://data/operands/spec.toml"
    above = guessed.stdout.replace("s3://data/", "../")
    bucket.write("specs/above.toml", above.encode())
    imported = khop_command("import", "s3://data/specs/above.toml", "above")
    assert imported.code == 0, imported.stderr
    shutil.rmtree(tmp_path / "cache")
    imported = khop_command("import", "--threads", "1", spec, "s3://data/graphs/an operand")
    assert imported.code == 0, imported.stderr
    assert "Show it: khop info 's3://data/graphs/an operand'" in imported.stdout
    Path("edges.txt").write_text("0 1\n1 2\n")
    imported = khop_command("import", "--undirected", "edges.txt", "s3://data/graphs/undirected")
    assert imported.code == 0, imported.stderr
    assert "graph.json" in bucket.names("graphs/undirected")
    # An importer may have flags too, also before a file in a store that names it.
    Path("with_flag.py").write_text(IMPORTER)
    monkeypatch.syspath_prepend(str(tmp_path))
    bucket.write("operands/own.toml", b'kind = "with_flag:WithFlag"\n')
    for at, source in enumerate(("with_flag:WithFlag", "s3://data/operands/own.toml")):
        imported = khop_command("import", "--twice", source, f"s3://data/graphs/flag-{at}")
        assert imported.code == 0, imported.stderr
        assert "4 item" in imported.stdout
        assert "graph.json" in bucket.names(f"graphs/flag-{at}")
    for words, says in (
        (["s3://data/none.csv", "s3://data/graphs/none"], "khop: s3://data/none.csv: no such file; give"),
        (["nothere.toml", "s3://data/graphs/none"], "khop: nothere.toml: no such file; give"),
        (["data/nothere.csv", "s3://data/graphs/none"], "khop: data/nothere.csv: no such file; give"),
        (["nokind:thing", "s3://data/graphs/none"], "khop: import of 'nokind:thing': there is no module"),
        (["--guess", names[0], "s3://data/none.csv"], "s3://data/none.csv: nothing is there; correct"),
        (["--wrong", spec, "s3://data/graphs/none"], "No such option: --wrong"),
    ):
        refused = khop_command("import", *words)
        assert refused.code == 2
        assert says in refused.stderr
    for words in (["init"], ["info"], ["info", "--json"], ["verify"], ["verify", "--json"]):
        shown = khop_command(*words, "s3://data/graphs/an operand")
        assert "s3://data/graphs/an operand" in shown.stdout
        assert str(tmp_path / "cache") not in shown.stdout


def test_folders_next_to_an_imported_graph_are_uploaded_with_it(
    bucket: Bucket, khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {
        "train": {"edge": np.array([[0, 1], [1, 2]] * 8)},
        "valid": {"edge": np.array([[3, 4]]), "edge_neg": np.array([[0, 4]])},
        "test": {"edge": np.array([[2, 4]]), "edge_neg": np.array([[1, 4]])},
    }
    extra = {"weight": np.ones(16, np.int64), "year": np.full(16, 2001)}
    links(arxiv(tmp_path, "collab"), "time", {
        split: {**arrays, **{name: of[: len(arrays["edge"])] for name, of in extra.items()}}
        for split, arrays in parts.items()
    })  # fmt: skip
    written_run("s3://data/sets/collab-run", "first")
    url, words = "s3://data/sets/collab", ("import", "ogb:ogbl-collab", "--root", str(tmp_path))
    imported = khop_command(*words, url)
    assert imported.code == 0, imported.stderr
    assert f"published negatives: {url}-negatives; " in imported.stdout
    assert bucket.names("sets/collab-negatives") == ["test.parquet", "val.parquet"]
    assert bucket.names("sets/collab-run") == []  # a run that another process writes
    there = {name: bucket.names(f"sets/{name}") for name in ("collab", "collab-negatives")}
    for folder, names in there.items():
        for name in names:
            bucket.remove(f"sets/{folder}/{name}")
    imported = khop_command(*words, url)
    assert imported.code == 0, imported.stderr
    assert {name: bucket.names(f"sets/{name}") for name in there} == there
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "another machine"))
    proposed = khop_command("init", url)
    assert f'val_negatives = "{url}-negatives/val.parquet"' in proposed.stdout, proposed.stderr
    for name in bucket.names("sets/collab"):
        bucket.remove(f"sets/collab/{name}")
    again = khop_command(*words, url)
    assert again.code == 2
    assert again.stderr.startswith(f"khop: {url}-negatives: the folder is not empty; remove it")


def test_the_task_of_an_imported_database_is_uploaded_with_it(
    bucket: Bucket, khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_database(tmp_path / "rel-own")
    limits = [word for name, value in LIMITS.items() for word in (f"--{name}", value)]
    words = ["import", "relbench:rel-own", "--root", "rel-own", *limits, "--task", "driver-dnf"]
    imported = khop_command(*words, "s3://data/sets/own")
    assert imported.code == 0, imported.stderr
    assert "khop train s3://data/sets/own-driver-dnf/run.toml" in imported.stdout
    assert "run.toml" in bucket.names("sets/own-driver-dnf")
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "another machine"))
    trained = khop_command(
        "train", "s3://data/sets/own-driver-dnf/run.toml", "--epochs", "1", "--device", "cpu", "--out", "run"
    )
    assert trained.code == 0, trained.stderr


def test_checkpoints_that_come_while_the_store_is_listed_stay(
    bucket: Bucket, server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written_run("s3://data/runs/listed", "first", "second")
    there = content(run)
    with ExitStack() as training:
        training.enter_context(writing(run))

        def answer(method: str, path: str, forward: Callable[[], Reply]) -> Reply:
            reply = forward()
            if "list-type" in path and not ended:
                ended.append(True)
                publish(run)
                training.close()
            return reply

        ended: list[bool] = []
        with between(server, answer) as address:
            monkeypatch.setenv("AWS_ENDPOINT_URL", address)
            staged("s3://data/runs/listed")
    assert ended
    assert content(run) == there


@pytest.mark.parametrize("last", ["indices.npy", "graph.json"])
def test_an_interrupted_change_of_a_graph_is_not_a_result(bucket: Bucket, graph: Path, last: str) -> None:
    bucket.upload(graph, "graphs/changing")
    mirror = staged("s3://data/graphs/changing")
    (mirror / "derived.npy").write_bytes(b"made from the files")
    bucket.upload(write_learnable_graph(graph.parent / f"changed-{last}", nodes=660), "graphs/changing")
    code = (
        "import os\nfrom pathlib import Path\nfrom khop.graph.remote import staged\n"
        "replace = Path.replace\n"
        "def killed(path, target):\n"
        "    replace(path, target)\n"
        f"    if target.name == {last!r}: os.kill(os.getpid(), 9)\n"
        "Path.replace = killed\n"
        "staged('s3://data/graphs/changing')\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], env={**ENVIRONMENT, **os.environ}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (mirror / "graph.json").exists() == (last == "graph.json")
    assert content(staged("s3://data/graphs/changing")) == content(graph.parent / f"changed-{last}")
