"""Tables appended to an imported graph: a new snapshot with the bits of an import of all rows."""

from __future__ import annotations

import pickle
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import khop
from data.tables.shop import TYPE, at, events, spec, users
from khop import append, compact, import_tables, open_folder, open_graph, open_ids
from khop.graph.folder import GraphFolder, import_record, refuse_damage
from khop.graph.snapshots import only_writer, snapshots_of
from khop.graph.verify import verify_folder
from support.commands import PROGRAM

BUYS, BACK = ("user", "buys", "item"), ("item", "bought-by", "user")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    import_tables(spec(), tmp_path / "shop")
    return tmp_path / "shop"


def new_users(*names: str) -> pa.Table:
    return pa.table({"user_id": list(names), "age": [30.0 + len(name) for name in names]})


def new_events(*rows: tuple[str, str, int]) -> pa.Table:
    bought = list(zip(*rows, strict=True))
    times = pa.array([at(day) for day in bought[2]], TYPE)
    return pa.table({"user_id": bought[0], "item_id": bought[1], "ts": times})


def day(*rows: tuple[str, str, int], names: tuple[str, ...] = ("u8", "u9")) -> dict[str, Any]:
    edges = {"rows": new_events(*rows), "source": "user_id", "destination": "item_id"}
    nodes = {"user": {"rows": new_users(*names), "id": "user_id"}, "item": {}}
    return {"nodes": nodes, "edges": {"user buys item": edges}}


def whole(out: Path, *rows: tuple[str, str, int], names: tuple[str, ...] = ("u8", "u9")) -> Path:
    """Import the shop with later rows at the end of its tables."""
    bought = new_events(*rows)
    bought = bought.append_column("kind", pa.array(["buy"] * len(bought))).select(events().column_names)
    tables = {
        "nodes.user.rows": pa.concat_tables([users(), new_users(*names)]),
        "edges.user buys item.rows": pa.concat_tables([events(), bought]),
    }
    import_tables(spec(**tables), out)
    return out


LATER = ("u8", "b", 29), ("u1", "b", 3), ("u9", "d", 28), ("u8", "a", 27)


def test_a_snapshot_is_the_graph_that_all_rows_give(shop: Path, tmp_path: Path) -> None:
    """Rows after `val` change no statistics, so a rebuild has the encoders of the graph: every bit is equal."""
    before = open_folder(shop).fingerprint
    done = append(shop, day(*LATER))
    rebuilt = whole(tmp_path / "whole", *LATER)
    assert open_folder(shop).manifest == open_folder(rebuilt).manifest
    assert open_folder(shop).fingerprint == open_folder(rebuilt).fingerprint != before
    assert (done.nodes, done.edges) == ({"user": 2}, {"user buys item": 4, "item bought-by user": 4})
    assert done.path == shop / "snapshots" / done.snapshot
    assert str(done) == f"snapshot {done.snapshot}: +2 user, +4 user buys item, +4 item bought-by user"
    assert verify_folder(shop) == []


def test_appends_follow_each_other(shop: Path, tmp_path: Path) -> None:
    """Edges of the second day name nodes of the first."""
    append(shop, day(*LATER[:2], names=("u8",)))
    append(shop, day(*LATER[2:], ("u8", "c", 28), names=("u9",)))
    rebuilt = whole(tmp_path / "whole", *LATER, ("u8", "c", 28))
    assert open_folder(shop).fingerprint == open_folder(rebuilt).fingerprint
    assert [one.nodes for one in snapshots_of(shop)] == [{}, {"user": 1}, {"user": 1}]


@pytest.mark.core(1)
@pytest.mark.parametrize("rule", [khop.Uniform(), khop.Temporal("time")], ids=str)
def test_batches_of_a_snapshot_are_those_of_a_rebuild(shop: Path, tmp_path: Path, rule: khop.Rule) -> None:
    append(shop, day(*LATER))
    rebuilt = whole(tmp_path / "whole", *LATER)
    assert list(batches(shop, rule)) == list(batches(rebuilt, rule))


def batches(folder: Path, rule: khop.Rule) -> Iterator[list[object]]:
    """Yield the drawn edges of all batches by node and position, and the features of their nodes."""
    graph = open_graph(folder)
    seeds = {"user": torch.arange(graph.num_nodes("user"))}
    times = (
        {"user": torch.full((graph.num_nodes("user"),), 2**62)} if isinstance(rule, khop.Temporal) else None
    )
    sampler = khop.NeighborSampler(graph, [2, 2], rule=rule, edge_ids=True)
    columns = {"user": ["x"], "item": ["x"]}
    loader = khop.Loader(
        sampler, seeds, 2, shuffle=True, seed=3, columns=columns, seed_times=times, threads=1
    )
    for batch in loader.epoch(0):
        edges = [
            {
                t: (one.indptr.tolist(), one.indices.tolist(), one.edge_ids.tolist())
                for t, one in found.items()
            }
            for found in (block.adjacencies for block in batch.sample.blocks)
        ]
        x = {t: columns["x"].tolist() for t, columns in batch.columns.items()}
        yield [edges, {t: nodes.tolist() for t, nodes in batch.sample.nodes.items()}, x]


def test_an_open_graph_keeps_its_snapshot(shop: Path) -> None:
    """In this process, and in those that it is sent to."""
    graph, folder = open_graph(shop), open_folder(shop)
    append(shop, day(*LATER))
    append(shop, day(("u7", "a", 29), names=("u7",)))
    for one in (graph, pickle.loads(pickle.dumps(graph))):
        assert (one.num_nodes("user"), one.num_edges(BUYS)) == (3, 7)
        assert one.columns["user"]["x"].shape == (3, 1)
    assert pickle.loads(pickle.dumps(folder)).fingerprint == folder.fingerprint
    assert pickle.loads(pickle.dumps(graph.topology)).num_edges(BUYS) == 7
    assert open_graph(shop).num_nodes("user") == 6
    assert open_graph(shop / "snapshots" / folder.fingerprint[:16]).num_nodes("user") == 3


def test_ids_of_all_rows_are_found(shop: Path) -> None:
    append(shop, day(*LATER))
    ids = open_ids(shop, "user")
    assert ids.rows(["u1", "u8", "u9", "zz"]).tolist() == [0, 3, 4, -1]
    assert ids.ids([2, 4]) == ["u3", "u9"]


def labeled(tmp_path: Path) -> Path:
    changes = {"nodes.item.label": "category", "nodes.item.split": {"ratio": [1.0, 0.0, 0.0]}}
    import_tables(spec(**changes), tmp_path / "labeled")
    return tmp_path / "labeled"


def more_items(**columns: list[Any]) -> dict[str, Any]:
    base = {"item_id": ["n", "m"], "price": [2.0, 3.0], "title": ["red hat", ""], "brand": ["x", "y"]}
    return {"nodes": {"item": {"rows": pa.table({**base, **columns}), "id": "item_id"}}}


def test_new_nodes_are_in_no_split_unless_asked(tmp_path: Path) -> None:
    shop = labeled(tmp_path)
    before = open_folder(shop).split("train")["item"].tolist()
    append(shop, more_items())
    assert open_folder(shop).split("train")["item"].tolist() == before
    assert open_folder(shop).columns()["item"]["label"].tolist()[-2:] == [-1, -1]
    values = more_items(item_id=["o", "p"], category=["hat", "unheard"])
    values["nodes"]["item"]["label"] = "category"
    append(shop, values, split="train")
    assert open_folder(shop).split("train")["item"].tolist() == [*before, 6], "7 has an unknown label"
    assert verify_folder(shop) == []
    with pytest.raises(ValueError, match=r"split 'other': .* has \['train'\]; give one of them"):
        append(shop, more_items(), split="other")


def test_damage_of_the_graph_is_not_copied(shop: Path) -> None:
    file = shop / "edges" / "__".join(BUYS) / "columns" / "time.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"time.npy: checksum differs from graph.json"):
        append(shop, day(*LATER))
    assert snapshots_of(shop) == ()


def test_deleted_nodes_leave_the_graph_that_the_other_rows_give(shop: Path, tmp_path: Path) -> None:
    append(shop, day(*LATER))
    whole_before = open_folder(shop).path
    done = append(shop, delete={"user": ["u8", "u2"]})
    assert (done.nodes, done.edges) == ({"user": -2}, {"user buys item": -4, "item bought-by user": -4})
    left, gone = open_folder(shop), {"u8", "u2"}
    assert open_ids(shop, "user").ids([0, 1, 2]) == ["u1", "u3", "u9"]
    assert open_ids(shop, "user").rows(["u8"]).tolist() == [-1]
    assert verify_folder(shop) == []
    keep = [name not in gone for name in (*users()["user_id"].to_pylist(), "u8", "u9")]
    x = open_folder(whole_before).columns()["user"]["x"]
    assert left.columns()["user"]["x"].equal(x[torch.tensor(keep)])
    pairs = left.csc(BUYS)
    assert sorted(zip(pairs.indices.tolist(), pairs.destinations().tolist(), strict=True)) == [
        (0, 0), (0, 1), (0, 1), (0, 2), (1, 1), (1, 3), (2, 3),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no user has the id 'zz'; 1 of 3 ids are unknown"):
        append(shop, delete={"user": ["u1", "u8", "zz"]})


def test_a_deletion_that_is_run_again_says_so(shop: Path) -> None:
    """After a kill nobody knows whether the ids were deleted: the same call does the rest."""
    first = append(shop, delete={"user": ["u2"]})
    again = append(shop, delete={"user": ["u2"]})
    assert (again.nodes, again.snapshot) == ({}, first.snapshot)
    assert again.notes == ("nothing to do: all ids are already deleted",)
    rest = append(shop, delete={"user": ["u3", "u2"]})
    assert (rest.nodes, rest.notes) == ({"user": -1}, ("user: 1 of 2 ids are already deleted",))
    assert open_ids(shop, "user").ids([0]) == ["u1"]


def test_compact_erases_what_was_deleted(shop: Path) -> None:
    append(shop, delete={"user": ["u2"]})
    fingerprint = open_folder(shop).fingerprint
    assert any(b"u2" in file.read_bytes() for file in shop.rglob("bytes.npy"))
    assert compact(shop) == shop
    assert not any(b"u2" in file.read_bytes() for file in shop.rglob("bytes.npy"))
    assert not (shop / "snapshots").exists()
    assert not (shop / "snapshots.json").exists(), "no table was appended"
    assert snapshots_of(shop) == ()
    assert (open_folder(shop).path, open_folder(shop).fingerprint) == (shop, fingerprint)
    assert verify_folder(shop) == []
    assert sorted(path.name for path in shop.parent.iterdir()) == ["shop"]
    assert compact(shop) == shop, "once more: nothing to do"
    append(shop, day(*LATER))
    assert open_folder(shop).num_nodes("user") == 4


def test_one_process_appends_at_a_time(shop: Path) -> None:
    with (
        only_writer(shop),
        pytest.raises(ValueError, match="another process is appending to it; wait until it ends"),
    ):
        append(shop, day(*LATER))


def test_folders_that_cannot_be_appended_to(shop: Path, tmp_path: Path) -> None:
    khop.partition_graph(shop, tmp_path / "parts", 2)
    with pytest.raises(ValueError, match="partitioned graph; append to the graph before partitioning"):
        append(tmp_path / "parts", day(*LATER))
    done = append(shop, day(*LATER))
    with pytest.raises(ValueError, match=f"is a snapshot of {shop}; append to {shop}"):
        append(done.path, day(*LATER))
    values = day(*LATER)
    values["edges"]["user buys item"]["duplicates"] = "last"
    with pytest.raises(ValueError, match="append keeps the edges of the graph unchanged"):
        append(shop, values)
    with pytest.raises(ValueError, match="give a spec of new rows, or the ids of nodes to delete"):
        append(shop)


@pytest.mark.long
def test_snapshots_are_partitioned_and_saved_as_any_graph(shop: Path, tmp_path: Path) -> None:
    append(shop, day(*LATER))
    khop.partition_graph(shop, tmp_path / "parts", 2)
    assert khop.open_graph(tmp_path / "parts").num_edges(BUYS) == 11
    saved = open_graph(shop).save(tmp_path / "saved")
    assert open_ids(saved, "user").rows(["u9"]).tolist() == [4]


def test_tables_are_appended_once_also_after_compact_and_delete(shop: Path, tmp_path: Path) -> None:
    written_day(tmp_path)
    first = append(shop, tmp_path / "day.toml")
    edges = open_folder(shop).num_edges(BUYS)
    for change in (
        lambda: compact(shop),
        lambda: append(shop, delete={"item": ["c"]}),
        lambda: compact(shop),
    ):
        change()
        now = open_folder(shop).fingerprint
        again = append(shop, tmp_path / "day.toml")
        assert (again.nodes, again.edges, again.snapshot) == ({}, {}, first.snapshot)
        assert again.notes == ("nothing to do: the same spec and files have already been appended",)
        assert open_folder(shop).fingerprint == now
        assert verify_folder(shop) == []
    assert open_folder(shop).num_edges(BUYS) < edges


@pytest.mark.core(1)
@pytest.mark.parametrize("is_compacted", [False, True])
def test_tables_with_deleted_nodes_are_appended_again(shop: Path, tmp_path: Path, is_compacted: bool) -> None:
    """Their nodes come back with their edges; edges that the graph has are not doubled."""
    written_day(tmp_path)
    append(shop, tmp_path / "day.toml")
    append(shop, delete={"user": ["u8"]})
    compact(shop) if is_compacted else None
    with pytest.raises(
        ValueError, match=r"nodes were deleted since \(1 of 2 user\); the others are still in"
    ):
        append(shop, tmp_path / "day.toml")
    append(shop, day(("u7", "a", 29), names=("u7",)))
    append(shop, delete={"user": ["u9", "u2"]})
    compact(shop) if is_compacted else None
    done = append(shop, tmp_path / "day.toml")
    assert done.nodes == {"user": 2}
    assert done.edges == {"user buys item": 3, "item bought-by user": 3}, "u1 has bought b on day 3 already"
    left_out = "1 edges between nodes of the graph omitted, as the same tables were appended before"
    assert f"user buys item: {left_out}" in done.notes
    assert open_ids(shop, "user").ids(range(5)) == ["u1", "u3", "u7", "u8", "u9"]
    csc = open_folder(shop).csc(BUYS)
    pairs = list(zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True))
    assert pairs.count((0, 1)) == 2, "the first import has the link once, and the table once"
    assert [pair for pair in sorted(pairs) if pair[0] > 2] == [(3, 0), (3, 1), (4, 3)]
    assert verify_folder(shop) == []
    again = append(shop, tmp_path / "day.toml")
    assert (again.nodes, again.snapshot) == ({}, done.snapshot)


def test_a_handle_from_before_a_compact_says_so(shop: Path, tmp_path: Path) -> None:
    """Of the graph before an append, of the newest snapshot, and of one that was erased."""
    handles = [open_folder(shop)]
    graph = open_graph(shop)
    for name in ("u8", "u9"):
        append(shop, day((name, "a", 29), names=(name,)))
        handles.append(open_folder(shop))
    sent = [pickle.dumps(one) for one in handles]
    whole_graph = open_graph(shop)
    compact(shop)
    for handle in handles:
        for use in (GraphFolder.columns, refuse_damage, import_record):
            with pytest.raises(ValueError, match="shop: was compacted after .* open it again"):
                use(handle)
    with pytest.raises(ValueError, match="was compacted .* open it again"):
        whole_graph.save(tmp_path / "saved")
    with pytest.raises(ValueError, match="was compacted .* open it again"):
        graph.save(tmp_path / "saved")
    for opened in (graph, whole_graph):  # exact negatives need an array that was not derived yet
        negatives = khop.UniformNegatives(1, exact=True)
        sampler = khop.LinkSampler(opened, [2], negatives=negatives)
        with pytest.raises(ValueError, match="shop: was compacted after .* open it again"):
            khop.Loader(sampler, khop.Links({BUYS: [[0], [0]]}), 1).batch(0, 0)
    for one in sent[:2]:
        with pytest.raises(ValueError, match="was compacted or written again .* open it again"):
            pickle.loads(one)
    assert pickle.loads(sent[2]).num_nodes("user") == 5, "the newest snapshot is the graph now"
    assert verify_folder(shop) == []
    assert [path.name for path in shop.iterdir() if path.name == "snapshots"] == []


APPEND = """
import sys, khop
from pathlib import Path
from khop.data.tables import append as module
from khop.graph import snapshots
stop = sys.argv[1]
def die(name, where):
    whole = getattr(where, name)
    def killed(*arguments, **named):
        if stop == f"before {name}":
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
        found = whole(*arguments, **named)
        if stop == f"after {name}":
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    setattr(where, name, killed)
for name in ("run_import", "added_rows", "write_manifest", "publish_snapshot"):
    die(name, module)
die("_link_base", snapshots)
die("flush", snapshots)
print(khop.append("shop", Path("day.toml")))
"""
STAGES = [
    f"{when} {name}"
    for name in ("run_import", "added_rows", "write_manifest", "_link_base", "flush", "publish_snapshot")
    for when in ("before", "after")
]


def written_day(folder: Path) -> None:
    pyarrow.csv.write_csv(new_users("u8", "u9"), folder / "users.csv")
    pa.parquet.write_table(new_events(*LATER), folder / "events.parquet")
    (folder / "day.toml").write_text(
        '[nodes.user]\nfiles = ["users.csv"]\nid = "user_id"\n[nodes.item]\n'
        '[edges."user buys item"]\nfiles = ["events.parquet"]\nsource = "user_id"\n'
        'destination = "item_id"\n'
    )


def appending(folder: Path, stop: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, APPEND, stop], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.parametrize("stop", STAGES)
def test_an_append_that_was_killed_goes_on(shop: Path, tmp_path: Path, stop: str) -> None:
    """The graph is the old one or the new one at every moment, and the next append completes it, once."""
    written_day(tmp_path)
    before = open_folder(shop).fingerprint
    assert appending(tmp_path, stop).returncode == -signal.SIGKILL
    between = open_folder(shop).fingerprint
    assert verify_folder(shop) == []
    done = appending(tmp_path, "never")
    assert done.returncode == 0, done.stderr
    rebuilt = open_folder(whole(tmp_path / "whole", *LATER)).fingerprint
    assert between == (rebuilt if stop == "after publish_snapshot" else before)
    assert open_folder(shop).fingerprint == rebuilt
    is_done = stop == "after publish_snapshot"
    assert ("the same spec and files have already been appended" in done.stdout) == is_done


@pytest.mark.long
def test_readers_see_whole_snapshots_while_one_is_written(shop: Path) -> None:
    """A thread opens and reads the graph all the time that rows are appended and deleted."""
    seen, problems, ended = set(), list[str](), threading.Event()

    def read() -> None:
        while not ended.is_set():
            try:
                graph = open_graph(shop)
                counts = graph.num_nodes("user"), graph.num_edges(BUYS), graph.columns["user"]["x"].shape[0]
                csc = graph.csc(BUYS)
                csc.check()
                assert counts[0] == counts[2]
                seen.add(counts[:2])
            except Exception as error:
                problems.append(repr(error))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(5):
            append(shop, day((f"n{number}", "a", 29), names=(f"n{number}",)))
        append(shop, delete={"user": ["n0"]})
    finally:
        ended.set()
        reader.join()
    assert problems == []
    assert {(3, 7), (8, 12), (7, 11)} >= seen - {(3 + n, 7 + n) for n in range(6)}
    assert len(seen) > 1
