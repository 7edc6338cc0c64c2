"""Graphs, tables, results and runs in an object store, through a real S3 server and the command."""

from __future__ import annotations

import gc
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

import khop
from cli.conftest import Ran
from data.formats.layouts import arxiv, links
from khop.cli.stores import published, publishing
from khop.graph.folder import open_folder
from khop.graph.remote import (
    Location,
    StoreError,
    _index_of,
    matches,
    publish,
    publish_files,
    refuse_existing_in_store,
    staged,
    target,
    writing,
)
from khop.training.replace_folder import push_folder
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


def inodes(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_ino for p in folder.rglob("*") if p.is_file()}


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_graph_is_staged_once_and_again_where_it_changed(bucket: Bucket, graph: Path) -> None:
    bucket.upload(graph, "staged/g")
    opened = khop.open_graph("s3://data/staged/g")
    mirror = Location.of("s3://data/staged/g").mirror
    assert opened.schema == khop.open_graph(graph).schema
    assert content(mirror) == content(graph)
    before = inodes(mirror)
    seen: list[str] = []
    assert staged("s3://data/staged/g/", lambda what, done, total: seen.append(what)) == mirror
    assert inodes(mirror) == before  # a download replaces the file
    assert seen  # progress
    (mirror / "derived.npy").write_bytes(b"made from the old files")
    bucket.upload(write_learnable_graph(graph.parent / "other", nodes=620), "staged/g")
    staged("s3://data/staged/g")
    assert content(mirror) == content(graph.parent / "other")


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


def test_an_interrupted_download_continues_on_a_disk_with_space_for_the_rest(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = np.random.default_rng(0).bytes(30 << 20)
    bucket.write("rest.npy", whole)

    def stop(what: str, done: int, total: int) -> None:
        if done >= 16 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        staged("s3://data/rest.npy", stop)
    mirror = Location.of("s3://data/rest.npy").mirror
    (part,) = mirror.parent.glob(".*.part")
    before = part.with_name(".rest.npy.0123456789ab.part")  # of an earlier version
    before.write_bytes(bytes(1 << 20))
    free = shutil.disk_usage(mirror.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free._replace(free=20 << 20))
    assert staged("s3://data/rest.npy").read_bytes() == whole
    assert not before.exists()


def test_a_folder_that_is_not_whole_is_not_used(bucket: Bucket, graph: Path) -> None:
    bucket.upload(graph, "torn/g")
    array = next(name for name in bucket.names("torn/g") if name.endswith("indices.npy"))
    damaged = bytearray((graph / array).read_bytes())
    damaged[-1] ^= 1
    bucket.write(f"torn/g/{array}", bytes(damaged))
    with pytest.raises(ValueError, match=f"{array}: digest differs from graph.json"):
        khop.open_graph("s3://data/torn/g")
    mirror = Location.of("s3://data/torn/g").mirror
    assert not mirror.exists()
    bucket.upload(graph, "torn/g")
    assert khop.open_graph("s3://data/torn/g").num_nodes
    bucket.remove("torn/g/graph.json")
    with pytest.raises(ValueError, match="neither a file, nor a graph folder"):
        khop.open_graph("s3://data/torn/g")


def test_checkpoints_change_in_the_store_together(bucket: Bucket) -> None:
    run = target("s3://data/runs/by-hand")
    (run / "checkpoints/last").mkdir(parents=True)
    (run / "config.toml").write_text("graph = 'g'\n")
    for state in ("one", "two"):
        for name in ("model.safetensors", "state.json"):
            (run / "checkpoints/last" / name).write_text(f"{state} {name}")
        publish(run)
        index = json.loads(bucket.read("runs/by-hand/checkpoints.json"))
        folder = index["checkpoints/last"]
        assert bucket.names(f"runs/by-hand/{folder}") == ["model.safetensors", "state.json"]
        assert (
            bucket.read(f"runs/by-hand/{folder}/model.safetensors") == f"{state} model.safetensors".encode()
        )
    assert len([n for n in bucket.names("runs/by-hand") if n.endswith("state.json")]) == 1  # old one removed
    # An upload that is killed before the index leaves the old checkpoint in use.
    bucket.write("runs/by-hand/checkpoints/at-0123456789abcdef/state.json", b"three")
    before = content(run)
    for path in sorted(run.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert content(staged("s3://data/runs/by-hand")) == before


OUTSIDE = "checkpoints/../../../../../../../outside"


@pytest.mark.parametrize(
    "index", [{OUTSIDE: "checkpoints/at-0123456789abcdef"}, {"/tmp/outside": "/tmp/at-0123456789abcdef"},
              {"checkpoints/.ssh": "checkpoints/at-0123456789abcdef"}, {"checkpoints/last": "checkpoints"},
              {"checkpoints/last": 1}, ["checkpoints/last"], "not JSON"],
)  # fmt: skip
@pytest.mark.parametrize("opened", [staged, target])
def test_an_index_that_names_other_folders_is_refused(
    bucket: Bucket, tmp_path: Path, opened: Callable[[str], Path], index: object
) -> None:
    bucket.write("runs/forged/config.toml", b"graph = 'g'\n")
    bucket.write("runs/forged/checkpoints/at-0123456789abcdef/state.json", b"written outside")
    content = index if isinstance(index, str) else json.dumps(index)
    bucket.write("runs/forged/checkpoints.json", content.encode())
    with pytest.raises(StoreError, match=r"^s3://data/runs/forged: checkpoints.json is not what khop writes"):
        opened("s3://data/runs/forged")
    assert not [path for path in tmp_path.rglob("*") if path.name in ("outside", "state.json")]


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
@pytest.mark.parametrize("procs", [1, 2])
def test_a_run_has_the_losses_of_a_local_one_and_resumes_on_another_machine_after_a_kill(
    bucket: Bucket, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, procs: int
) -> None:
    """Losses are those of one process on local folders; after a kill, the bits are those of the same run."""
    bucket.upload(graph, "graphs/g")
    text = RUN.replace("EPOCHS", "4").replace("hidden = 8", "hidden = 8, dropout = 0.0")
    text = f'precision = "float64"\n{text}'
    Path("run.toml").write_text(text)
    Path("local.toml").write_text(text.replace("s3://data/graphs/g", str(graph)))
    several = () if procs == 1 else ("--procs", str(procs), "--oversubscribe")

    def started(*words: str) -> subprocess.Popen[bytes]:
        words = (sys.executable, "-m", "khop", "train", *words)
        with Path("log").open("ab") as log:
            return subprocess.Popen(words, env={**ENVIRONMENT, **os.environ}, stdout=log, stderr=log)

    def finished(*words: str) -> None:
        assert started(*words).wait(600) == 0, Path("log").read_text()

    def lines(run: Path) -> list[tuple[int, int, float]]:
        found = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
        return [(line["epoch"], line["step"], line["loss"]) for line in found]

    runs = f"s3://data/runs-{procs}"
    finished("local.toml", "--out", "local")
    finished("run.toml", "--out", f"{runs}/whole", *several)
    killed = started("run.toml", "--out", f"{runs}/killed", *several)
    wait_until(lambda: "checkpoints.json" in bucket.names(f"runs-{procs}/killed"))
    for pid in (killed.pid, *children(killed.pid)):
        os.kill(pid, signal.SIGKILL)
    killed.wait()
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "another machine"))
    finished("--resume", f"{runs}/killed", *several)
    whole, resumed = (staged(f"{runs}/{name}") for name in ("whole", "killed"))
    assert lines(resumed) == lines(whole)
    last = "checkpoints/last/model.safetensors"
    assert (resumed / last).read_bytes() == (whole / last).read_bytes()
    for found, expected in zip(lines(whole), lines(Path("local")), strict=True):
        assert found == pytest.approx(expected, rel=1e-9)


def test_a_run_that_is_written_here_is_not_staged_over(bucket: Bucket) -> None:
    run = target("s3://data/runs/live")
    run.mkdir()
    (run / "config.toml").write_text("graph = 'g'\n")
    publish(run)
    with writing(run):
        (run / "metrics.jsonl").write_text("{}\n")
        assert staged("s3://data/runs/live") == run
        assert (run / "metrics.jsonl").exists()
    bucket.write("runs/live/config.toml", b"graph = 'changed'\n")
    moved_by(lambda: staged("s3://data/runs/live"))
    assert [path.name for path in run.iterdir()] == ["config.toml"]  # as in the store


def test_a_result_that_cannot_be_uploaded_is_kept(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    path = target("s3://data/out/kept.parquet")
    path.write_bytes(b"rows")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"cannot be reached .*The result is in kept.parquet$"):
        publish_files([path])
    assert Path("kept.parquet").read_bytes() == b"rows"


def test_problems_of_a_store_are_one_sentence(bucket: Bucket, khop_command: Command) -> None:
    for words, says in {
        ("info", "s3://nowhere/g"): "khop: s3://nowhere/g: there is no bucket 'nowhere'; make it, or correct",
        ("info", "s3://data/none"): "khop: s3://data/none: nothing is there; correct the path",
        ("train", "run.toml", "--out", "s3://nowhere/run"): "khop: s3://nowhere/run: there is no bucket",
    }.items():
        ran = khop_command(*words)
        assert ran.code == 2
        assert ran.stderr.startswith(says)
        assert ran.stderr.count("\n") == 1


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


def test_an_upload_that_stops_leaves_no_file(bucket: Bucket, tmp_path: Path) -> None:
    source = tmp_path / "large.npy"
    source.write_bytes(bytes(20 << 20))

    def stop(size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), source.open("rb") as file:
        Location.of("s3://data/stopped/large.npy").opened().write("", file, stop)
    gc.collect()  # pyarrow writes the bytes so far when it frees the stream
    assert bucket.names("stopped") == []


def moved_by(action: Callable[[], object]) -> Path:
    """Call something, which warns that it moved results away, and return their new path."""
    with pytest.warns(UserWarning, match="results that an earlier command did not upload are in ") as warned:
        action()
    return Path(str(warned[0].message).rpartition(" are in ")[2])


def test_a_file_that_was_not_uploaded_is_moved_away(bucket: Bucket) -> None:
    url = "s3://data/killed/rows.npy"
    target(url).write_bytes(b"left")
    assert moved_by(lambda: target(url)).read_bytes() == b"left"
    assert not target(url).exists()
    target(url).write_bytes(b"left again")
    bucket.write("killed/rows.npy", b"of another machine")
    assert moved_by(lambda: staged(url)).read_bytes() == b"left again"
    assert staged(url).read_bytes() == b"of another machine"


def written_run(url: str, *states: str) -> Path:
    """Write the files of a run with a checkpoint and the one before; all but the last are published."""
    run = target(url)
    run.mkdir()
    (run / "config.toml").write_text("graph = 'g'\n")
    for state in states:
        (run / "metrics.jsonl").write_text(state)
        files = {name: f"{state} {name}".encode() for name in ("model.safetensors", "state.json")}
        push_folder(run / "checkpoints/last", files, keep=2)
        if state != states[-1]:
            publish(run)
    return run


@pytest.mark.parametrize("states", [["first"], ["first", "second"]])
@pytest.mark.parametrize("opened", [staged, target])
def test_checkpoints_that_were_not_uploaded_are_uploaded_by_the_next_command(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    opened: Callable[[str], Path], states: list[str],
) -> None:  # fmt: skip
    name = f"runs/left-{len(states)}-{opened.__name__}"
    run = written_run(f"s3://data/{name}", *states)
    there = content(run)
    with monkeypatch.context() as unreachable:
        unreachable.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(StoreError, match="cannot be reached"):
            publish(run)
    with pytest.warns(UserWarning, match=f"^s3://data/{name}: results .* are uploaded now$"):
        assert opened(f"s3://data/{name}") == run
    assert content(run) == there
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "another machine"))
    assert content(staged(f"s3://data/{name}")) == there


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


def test_a_graph_that_another_machine_has_written_is_not_overwritten(
    bucket: Bucket, graph: Path, tmp_path: Path
) -> None:
    ours = target("s3://data/written/g")
    shutil.copytree(graph, ours)
    bucket.upload(write_learnable_graph(tmp_path / "other", nodes=620), "written/g")
    with pytest.raises(StoreError, match="another machine has written a graph there; it is not overwritten"):
        publish(ours)
    assert bucket.read("written/g/graph.json") == (tmp_path / "other/graph.json").read_bytes()


def test_checkpoints_of_two_machines_are_both_kept(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = "s3://data/runs/both"
    there = content(written_run(url, "first", "second"))
    with monkeypatch.context() as other:
        other.setenv("KHOP_CACHE", str(tmp_path / "another machine"))
        resumed = staged(url)
        (resumed / "checkpoints/last/state.json").write_text("second, of the other machine")
        publish(resumed)
    assert content(moved_by(lambda: staged(url))) == there
    state = staged(url) / "checkpoints/last/state.json"
    assert state.read_text() == "second, of the other machine"


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


def test_a_checkpoint_with_two_names_is_uploaded(bucket: Bucket) -> None:
    run = written_run("s3://data/runs/twice", "first")
    publish(run)
    shutil.copytree(run / "checkpoints/last", run / "checkpoints/best")
    publish(run)
    there = content(run)
    assert content(staged("s3://data/runs/twice")) == there  # without a warning


def test_the_first_bytes_of_a_checkpoint_are_not_a_checkpoint(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = written_run("s3://data/runs/cut", "first")
    folder = next(iter(_index_of(run).values()))
    model = (run / "checkpoints/last/model.safetensors").read_bytes()
    bucket.write(
        f"runs/cut/{folder}/model.safetensors", model[:3]
    )  # an upload that stopped could not remove it
    publish(run)
    there = content(run)
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "another machine"))
    assert content(staged("s3://data/runs/cut")) == there


def test_a_run_that_was_removed_from_the_store_does_not_come_back(bucket: Bucket) -> None:
    run = written_run("s3://data/runs/removed", "first", "second")
    publish(run)
    for name in bucket.names("runs/removed"):
        bucket.remove(f"runs/removed/{name}")
    assert not target("s3://data/runs/removed").exists()


def test_a_graph_is_uploaded_by_the_next_command(
    bucket: Bucket, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = target("s3://data/graphs/left")
    shutil.copytree(graph, mirror)
    arrays = [path.relative_to(graph) for path in graph.rglob("*.npy")]
    bucket.write(f"graphs/left/{arrays[0]}", (graph / arrays[0]).read_bytes())  # Ctrl-C came then
    with pytest.warns(UserWarning, match="are uploaded now"):
        assert khop.open_graph("s3://data/graphs/left").num_nodes
    assert content(mirror) == content(graph)


def test_an_interrupted_download_is_not_a_result(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("runs/interrupted/config.toml", b"graph = 'g'\n")
    bucket.write("runs/interrupted/large.npy", bytes(20 << 20))
    mirror = Location.of("s3://data/runs/interrupted").mirror

    def stop(what: str, done: int, total: int) -> None:
        if (mirror / "config.toml").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        staged("s3://data/runs/interrupted", stop)
    for record in (tmp_path / "cache/stores/records").glob("*.json"):
        record.unlink()  # a kill comes before it is written
    assert sorted(content(staged("s3://data/runs/interrupted"))) == ["config.toml", "large.npy"]


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


def test_a_run_that_cannot_be_uploaded_when_it_stops_stays_in_the_cache(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written_run("s3://data/runs/stopped", "first")
    there = content(run)
    with monkeypatch.context() as unreachable:
        unreachable.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(KeyboardInterrupt), publishing(run):
            raise KeyboardInterrupt
    said = capsys.readouterr().err
    assert said.endswith(". The run stays in the cache, and is uploaded when it is resumed\n"), said
    with pytest.warns(UserWarning, match="are uploaded now"):
        staged("s3://data/runs/stopped")
    assert content(run) == there


def test_a_run_that_cannot_be_read_when_it_stops_reports_why_it_stopped(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written_run("s3://data/runs/stopped-twice", "first")
    records = tmp_path / "cache/stores/records"

    def train() -> None:
        shutil.rmtree(records)
        records.write_text("a file")  # the record cannot be written
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), publishing(run):
        train()
    assert ". The run stays in the cache, and is uploaded when it is resumed\n" in capsys.readouterr().err


def test_patterns_match_as_those_of_local_files(bucket: Bucket) -> None:
    names = ["top-0.csv", "globs/a.csv", "globs/b/c.csv", "globs/b/c/d.csv", "globs/e[1].csv", "globs/f.txt"]
    for name in names:
        bucket.write(name, name.encode())

    def found(pattern: str) -> list[str]:
        return [path.read_text() for path in matches(f"s3://data/{pattern}")]

    assert found("globs/**/*.csv") == [name for name in names if name[:5] == "globs" and name[-3:] == "csv"]
    assert found("globs/*/*.csv") == ["globs/b/c.csv"]
    assert found("globs/?.csv") == ["globs/a.csv"]
    assert found("globs/e[1].csv") == ["globs/e[1].csv"]  # its name, before its pattern
    assert found("top-*.csv") == ["top-0.csv"]
    with pytest.raises(
        ValueError, match=r"^s3://da\*/x.csv: \*, \? and \[ are for paths; give the name of the"
    ):
        matches("s3://da*/x.csv")
    with pytest.raises(ValueError, match="without options") as refused:
        matches("s3://data/a.csv?secret_key=verysecret")
    assert "verysecret" not in str(refused.value)


def test_a_file_that_changes_while_it_is_read_is_refused(bucket: Bucket) -> None:
    bucket.write("moving/rows.csv", bytes(20 << 20))

    def change(what: str, done: int, total: int) -> None:
        bucket.write("moving/rows.csv", b"new" * (7 << 20))

    with pytest.raises(StoreError, match=r"changed while it was read; try again$"):
        staged("s3://data/moving/rows.csv", change)
    assert staged("s3://data/moving/rows.csv").read_bytes() == b"new" * (7 << 20)


def test_a_run_has_one_writer(bucket: Bucket) -> None:
    run = target("s3://data/runs/one-writer")
    says = r"^s3://data/runs/one-writer: another process of this machine writes it; wait until it ends$"
    with writing(run), pytest.raises(ValueError, match=says), writing(run):
        pass
    with writing(run):
        pass


def test_removed_checkpoints_leave_no_folders(bucket: Bucket) -> None:
    run = target("s3://data/runs/folders")
    (run / "checkpoints/last").mkdir(parents=True)
    (run / "config.toml").write_text("graph = 'g'\n")
    for state in ("one", "two", "three"):
        (run / "checkpoints/last/state.json").write_text(state)
        publish(run)
    assert len(bucket.folders("runs/folders/checkpoints")) == 1


def test_a_folder_that_cannot_be_uploaded_is_kept(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = target("s3://data/graphs/kept")
    folder.mkdir()
    (folder / "graph.json").write_text("{}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"cannot be reached .*The result is in kept$"):
        published(folder)
    assert Path("kept/graph.json").read_text() == "{}"


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


@pytest.mark.parametrize("opened", [staged, target])
def test_a_url_above_a_run_does_not_touch_it(bucket: Bucket, opened: Callable[[str], Path]) -> None:
    name = f"above-{opened.__name__}"
    run = written_run(f"s3://data/{name}/run", "first")
    there = content(run)
    with writing(run), suppress(ValueError):
        opened(f"s3://data/{name}")  # nothing is there
    assert content(run) == there
    publish(run)
    with writing(run), pytest.raises(ValueError, match=r"neither a file, nor|is not empty"):
        opened(f"s3://data/{name}")
    assert content(run) == there


def test_a_location_in_another_one_has_its_own_mirror(bucket: Bucket, graph: Path) -> None:
    bucket.upload(graph, "outer/g")
    mirror, inner = staged("s3://data/outer/g"), target("s3://data/outer/g/rows/1.csv")
    inner.write_bytes(b"not uploaded yet")
    (mirror / "derived.npy").write_bytes(b"made from the old files")
    bucket.upload(write_learnable_graph(graph.parent / "another", nodes=640), "outer/g")
    assert staged("s3://data/outer/g") == mirror
    assert content(mirror) == content(graph.parent / "another")
    assert inner.read_bytes() == b"not uploaded yet"
    assert Location.at(mirror / "graph.json") is None


def test_a_file_may_become_a_folder(bucket: Bucket) -> None:
    bucket.write("runs/kind", b"a file")
    assert staged("s3://data/runs/kind").read_bytes() == b"a file"
    bucket.remove("runs/kind")
    bucket.write("runs/kind/config.toml", b"")
    assert content(staged("s3://data/runs/kind")) == {"config.toml": b""}
    bucket.remove("runs/kind/config.toml")
    bucket.write("runs/kind", b"a file")
    assert staged("s3://data/runs/kind").read_bytes() == b"a file"


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


def test_a_new_folder_is_refused_without_a_download(bucket: Bucket, graph: Path) -> None:
    bucket.upload(graph, "sets/taken")
    mirror = Location.of("s3://data/sets/taken").mirror
    with pytest.raises(ValueError, match=r"^s3://data/sets/taken: the folder is not empty; remove it"):
        refuse_existing_in_store(mirror)
    assert not mirror.exists()
