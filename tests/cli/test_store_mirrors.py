"""Mirrors of a store's files: staged, uploaded, and results that are kept if the store refuses.

Each test runs on a folder of this machine, and in `make test-all` on a real S3 server.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import khop
from cli.conftest import Ran
from khop.cli.stores import published, publishing
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
from support.object_store import Bucket, FolderBucket, s3_server
from support.small_folders import write_learnable_graph

Command = Callable[..., Ran]
AnyBucket = Bucket | FolderBucket


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """A server with a bucket, for all tests of a file."""
    with s3_server() as environment:
        Bucket(environment)
        yield environment


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.long)])
def bucket(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Bucket | FolderBucket:
    """A bucket, in the environment of a machine with an empty cache."""
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    if request.param == "folder":
        return FolderBucket(tmp_path_factory.mktemp("store"), monkeypatch)
    server = request.getfixturevalue("server")
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    return Bucket(server)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph folder."""
    return write_learnable_graph(tmp_path_factory.mktemp("graphs") / "g")


def inodes(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_ino for p in folder.rglob("*") if p.is_file()}


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_graph_is_staged_once_and_again_where_it_changed(bucket: AnyBucket, graph: Path) -> None:
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


def test_an_interrupted_download_continues_on_a_disk_with_space_for_the_rest(
    bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
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
    other = part.with_name(".rest.npy.gz.0123456789ab.part")  # of another file
    for path in (before, other):
        path.write_bytes(bytes(1 << 20))
    free = shutil.disk_usage(mirror.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free._replace(free=20 << 20))
    assert staged("s3://data/rest.npy").read_bytes() == whole
    assert (before.exists(), other.exists()) == (False, True)
    other.unlink()


def test_a_folder_that_is_not_whole_is_not_used(bucket: AnyBucket, graph: Path) -> None:
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


def test_checkpoints_change_in_the_store_together(bucket: AnyBucket) -> None:
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
    bucket: AnyBucket, tmp_path: Path, opened: Callable[[str], Path], index: object
) -> None:
    bucket.write("runs/forged/config.toml", b"graph = 'g'\n")
    bucket.write("runs/forged/checkpoints/at-0123456789abcdef/state.json", b"written outside")
    content = index if isinstance(index, str) else json.dumps(index)
    bucket.write("runs/forged/checkpoints.json", content.encode())
    with pytest.raises(StoreError, match=r"^s3://data/runs/forged: checkpoints.json is not what khop writes"):
        opened("s3://data/runs/forged")
    assert not [path for path in tmp_path.rglob("*") if path.name in ("outside", "state.json")]


def test_a_run_that_is_written_here_is_not_staged_over(bucket: AnyBucket) -> None:
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


def test_a_result_that_cannot_be_uploaded_is_kept(bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    path = target("s3://data/out/kept.parquet")
    path.write_bytes(b"rows")
    bucket.disconnect(monkeypatch)
    with pytest.raises(StoreError, match=r"cannot be reached .*The result is in kept.parquet$"):
        publish_files([path])
    assert Path("kept.parquet").read_bytes() == b"rows"


def test_problems_of_a_store_are_one_sentence(bucket: AnyBucket, khop_command: Command) -> None:
    for words, says in {
        ("info", "s3://nowhere/g"): "khop: s3://nowhere/g: there is no bucket 'nowhere'; make it, or correct",
        ("info", "s3://data/none"): "khop: s3://data/none: nothing is there; correct the path",
        ("train", "run.toml", "--out", "s3://nowhere/run"): "khop: s3://nowhere/run: there is no bucket",
    }.items():
        ran = khop_command(*words)
        assert ran.code == 2
        assert ran.stderr.startswith(says)
        assert ran.stderr.count("\n") == 1


def test_an_upload_that_stops_leaves_no_file(bucket: AnyBucket, tmp_path: Path) -> None:
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


def test_a_file_that_was_not_uploaded_is_moved_away(bucket: AnyBucket) -> None:
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
    bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    opened: Callable[[str], Path], states: list[str],
) -> None:  # fmt: skip
    name = f"runs/left-{len(states)}-{opened.__name__}"
    run = written_run(f"s3://data/{name}", *states)
    there = content(run)
    with monkeypatch.context() as unreachable:
        bucket.disconnect(unreachable)
        with pytest.raises(StoreError, match="cannot be reached"):
            publish(run)
    with pytest.warns(UserWarning, match=f"^s3://data/{name}: results .* are uploaded now$"):
        assert opened(f"s3://data/{name}") == run
    assert content(run) == there
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "another machine"))
    assert content(staged(f"s3://data/{name}")) == there


def test_a_graph_that_another_machine_has_written_is_not_overwritten(
    bucket: AnyBucket, graph: Path, tmp_path: Path
) -> None:
    ours = target("s3://data/written/g")
    shutil.copytree(graph, ours)
    bucket.upload(write_learnable_graph(tmp_path / "other", nodes=620), "written/g")
    with pytest.raises(StoreError, match="another machine has written a graph there; it is not overwritten"):
        publish(ours)
    assert bucket.read("written/g/graph.json") == (tmp_path / "other/graph.json").read_bytes()


def test_checkpoints_of_two_machines_are_both_kept(
    bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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


def test_a_checkpoint_with_two_names_is_uploaded(bucket: AnyBucket) -> None:
    run = written_run("s3://data/runs/twice", "first")
    publish(run)
    shutil.copytree(run / "checkpoints/last", run / "checkpoints/best")
    publish(run)
    there = content(run)
    assert content(staged("s3://data/runs/twice")) == there  # without a warning


def test_the_first_bytes_of_a_checkpoint_are_not_a_checkpoint(
    bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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


def test_a_run_that_was_removed_from_the_store_does_not_come_back(bucket: AnyBucket) -> None:
    run = written_run("s3://data/runs/removed", "first", "second")
    publish(run)
    for name in bucket.names("runs/removed"):
        bucket.remove(f"runs/removed/{name}")
    assert not target("s3://data/runs/removed").exists()


def test_a_graph_is_uploaded_by_the_next_command(
    bucket: AnyBucket, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = target("s3://data/graphs/left")
    shutil.copytree(graph, mirror)
    arrays = [path.relative_to(graph) for path in graph.rglob("*.npy")]
    bucket.write(f"graphs/left/{arrays[0]}", (graph / arrays[0]).read_bytes())  # Ctrl-C came then
    with pytest.warns(UserWarning, match="are uploaded now"):
        assert khop.open_graph("s3://data/graphs/left").num_nodes
    assert content(mirror) == content(graph)


def test_an_interrupted_download_is_not_a_result(bucket: AnyBucket, tmp_path: Path) -> None:
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


def test_a_run_that_cannot_be_uploaded_when_it_stops_stays_in_the_cache(
    bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written_run("s3://data/runs/stopped", "first")
    there = content(run)
    with monkeypatch.context() as unreachable:
        bucket.disconnect(unreachable)
        with pytest.raises(KeyboardInterrupt), publishing(run):
            raise KeyboardInterrupt
    said = capsys.readouterr().err
    assert said.endswith(". The run stays in the cache, and is uploaded when it is resumed\n"), said
    with pytest.warns(UserWarning, match="are uploaded now"):
        staged("s3://data/runs/stopped")
    assert content(run) == there


def test_a_run_that_cannot_be_read_when_it_stops_reports_why_it_stopped(
    bucket: AnyBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


def test_patterns_match_as_those_of_local_files(bucket: AnyBucket) -> None:
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


def test_a_file_that_changes_while_it_is_read_is_refused(bucket: AnyBucket) -> None:
    bucket.write("moving/rows.csv", bytes(20 << 20))

    def change(what: str, done: int, total: int) -> None:
        bucket.write("moving/rows.csv", b"new" * (7 << 20))

    with pytest.raises(StoreError, match=r"changed while it was read; try again$"):
        staged("s3://data/moving/rows.csv", change)
    assert staged("s3://data/moving/rows.csv").read_bytes() == b"new" * (7 << 20)


def test_a_run_has_one_writer(bucket: AnyBucket) -> None:
    run = target("s3://data/runs/one-writer")
    says = r"^s3://data/runs/one-writer: another process of this machine writes it; wait until it ends$"
    with writing(run), pytest.raises(ValueError, match=says), writing(run):
        pass
    with writing(run):
        pass


def test_removed_checkpoints_leave_no_folders(bucket: AnyBucket) -> None:
    run = target("s3://data/runs/folders")
    (run / "checkpoints/last").mkdir(parents=True)
    (run / "config.toml").write_text("graph = 'g'\n")
    for state in ("one", "two", "three"):
        (run / "checkpoints/last/state.json").write_text(state)
        publish(run)
    assert len(bucket.folders("runs/folders/checkpoints")) == 1


def test_a_folder_that_cannot_be_uploaded_is_kept(bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = target("s3://data/graphs/kept")
    folder.mkdir()
    (folder / "graph.json").write_text("{}")
    bucket.disconnect(monkeypatch)
    with pytest.raises(StoreError, match=r"cannot be reached .*The result is in kept$"):
        published(folder)
    assert Path("kept/graph.json").read_text() == "{}"


@pytest.mark.parametrize("opened", [staged, target])
def test_a_url_above_a_run_does_not_touch_it(bucket: AnyBucket, opened: Callable[[str], Path]) -> None:
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


def test_a_location_in_another_one_has_its_own_mirror(bucket: AnyBucket, graph: Path) -> None:
    bucket.upload(graph, "outer/g")
    mirror, inner = staged("s3://data/outer/g"), target("s3://data/outer/g/rows/1.csv")
    inner.write_bytes(b"not uploaded yet")
    (mirror / "derived.npy").write_bytes(b"made from the old files")
    bucket.upload(write_learnable_graph(graph.parent / "another", nodes=640), "outer/g")
    assert staged("s3://data/outer/g") == mirror
    assert content(mirror) == content(graph.parent / "another")
    assert inner.read_bytes() == b"not uploaded yet"
    assert Location.at(mirror / "graph.json") is None


def test_a_file_may_become_a_folder(bucket: AnyBucket) -> None:
    bucket.write("runs/kind", b"a file")
    assert staged("s3://data/runs/kind").read_bytes() == b"a file"
    bucket.remove("runs/kind")
    bucket.write("runs/kind/config.toml", b"")
    assert content(staged("s3://data/runs/kind")) == {"config.toml": b""}
    bucket.remove("runs/kind/config.toml")
    bucket.write("runs/kind", b"a file")
    assert staged("s3://data/runs/kind").read_bytes() == b"a file"


def test_a_new_folder_is_refused_without_a_download(bucket: AnyBucket, graph: Path) -> None:
    bucket.upload(graph, "sets/taken")
    mirror = Location.of("s3://data/sets/taken").mirror
    with pytest.raises(ValueError, match=r"^s3://data/sets/taken: the folder is not empty; remove it"):
        refuse_existing_in_store(mirror)
    assert not mirror.exists()
