"""A graph larger than memory trains, also from file systems that take no announcements."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import khop
from khop.graph.features.row_cache import DiskTable
from khop.graph.features.store import Rows
from khop.loading.device.placed_stores import folder_features
from support.memory_limit import memory_limit, python_in

pytestmark = pytest.mark.long
MIB = 1 << 20
LIMIT = 400 * MIB
NODES, WIDTH = 2_000_000, 128  # a column of 512 MB
BATCHES = """
import hashlib, sys, torch, khop
torch.set_num_threads(1)
graph = khop.open_graph(sys.argv[1])
stores = [graph.features, *getattr(graph.features, "pieces", {"node": {"x": ()}})["node"]["x"]]
print("disk" if {type(each).__name__ for each in stores} & {"DiskTable", "DiskPiece"} else "mapped")
seeds = torch.arange(0, 1_000_000, 1_000)
loader = khop.Loader(khop.NeighborSampler(graph, [5, 5]), seeds, 100, columns=["x"])
digest = hashlib.sha256()
for batch in loader:
    digest.update(batch["x"].numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("large") / "g"
    random = np.random.default_rng(0)
    x = np.lib.format.open_memmap(path.with_name("x.npy"), "w+", np.int16, (NODES, WIDTH))
    for first in range(0, NODES, 100_000):
        x[first : first + 100_000] = random.integers(0, 15_000, (100_000, WIDTH), np.int16)
    ends = random.integers(NODES, size=(2, 10 * NODES), dtype=np.int32)
    nodes = khop.NodeTable(columns={"x": torch.from_numpy(x).view(torch.float16)})
    khop.write_graph(path, {"node": nodes}, {"node to node": khop.EdgeTable(ends[0], ends[1])})
    path.with_name("x.npy").unlink()
    yield path
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("partitioned", [False, True], ids=["whole", "partitioned"])
def test_a_group_with_less_memory_than_the_columns_reads_them_from_disk(
    folder: Path, partitioned: bool
) -> None:
    graph = folder
    if partitioned:
        graph = folder.with_name("parts")
        khop.partition_graph(folder, graph, 2, method="range")
    with memory_limit(LIMIT) as group:
        if group is None:
            pytest.skip("control groups cannot be made here; run as root where they can be written")
        limited = python_in(group, BATCHES, graph).split()
    mapped, digest = python_in(None, BATCHES, graph).split()
    assert (mapped, limited) == ("mapped", ["disk", digest])


def same_rows(folder: Path, other: Path) -> bool:
    """Return whether another path of the folder has the same rows, which are read by threads."""
    disk, mapped = folder_features(khop.open_folder(other), room_bytes=0), khop.open_graph(folder).features
    assert isinstance(disk, DiskTable)
    assert not disk.files["node"]["x"].can_prefetch
    ids = torch.randint(NODES, (20_000,), generator=torch.Generator().manual_seed(0))
    rows = {"node": Rows(ids, ("x",))}
    return torch.equal(disk.gather(rows)["node"]["x"], mapped.gather(rows)["node"]["x"])


def test_an_overlay_is_read_by_threads(folder: Path, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("upper", "work", "merged")]
    for place in places:
        place.mkdir()
    options = f"lowerdir={folder.parent},upperdir={places[0]},workdir={places[1]}"
    mounted = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, places[2]],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"overlay cannot be mounted here: {mounted.stderr.strip()}")
    try:
        assert same_rows(folder, places[2] / folder.name)
    finally:
        subprocess.run(["umount", "--lazy", places[2]], check=True)


def test_fuse_is_read_by_threads(folder: Path, tmp_path: Path) -> None:
    if shutil.which("bindfs") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("bindfs is not installed, or there is no /dev/fuse; make test-all installs bindfs")
    mounted = subprocess.run(["bindfs", folder.parent, tmp_path], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"FUSE cannot be mounted here: {mounted.stderr.strip()}")
    try:
        deadline = time.monotonic() + 10
        while not (tmp_path / folder.name).is_dir() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert same_rows(folder, tmp_path / folder.name)
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


ROWS, NUMBERS = 115_000, 1_000  # a column of 460 MB
TRAINING = """
import contextlib, sys, threading
from khop.cli.start import run
from khop.kernels.memory import own_memory_bytes
most, done = [0], threading.Event()
def watch():
    while not done.wait(0.005):
        most[0] = max(most[0], own_memory_bytes())
threading.Thread(target=watch, daemon=True).start()
code = 0
try:
    run(["train", "--graph", *sys.argv[1:]])
except SystemExit as end:
    code = end.code
done.set()
print("ended", code or 0, most[0])
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("wide") / "g"
    random = np.random.default_rng(0)
    x = np.lib.format.open_memmap(path.with_name("x.npy"), "w+", np.float32, (ROWS, NUMBERS))
    for first in range(0, ROWS, 5_000):
        x[first : first + 5_000] = random.random((5_000, NUMBERS), np.float32)
    split = random.permutation(ROWS)
    nodes = khop.NodeTable(
        columns={"x": torch.from_numpy(x), "y": torch.from_numpy(random.integers(10, size=ROWS))},
        splits={"train": split[:8_000], "val": split[8_000:9_000], "test": split[9_000:10_000]},
        num_classes={"y": 10},
    )
    ends = random.integers(ROWS, size=(2, 10 * ROWS), dtype=np.int32)
    khop.write_graph(path, {"node": nodes}, {"node to node": khop.EdgeTable(ends[0], ends[1])})
    path.with_name("x.npy").unlink()
    yield path
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("features", ["auto", "mapped", "disk"])
def test_training_is_refused_below_its_need_and_trains_within_1_2_times_the_need(
    wide: Path, tmp_path: Path, features: str
) -> None:
    options = [wide, "--fanouts", "10,5", "--epochs", 1, "--features", features]
    with memory_limit(LIMIT) as group:
        if group is None:
            pytest.skip("control groups cannot be made here; run as root where they can be written")
        refused = python_in(group, f"import sys; sys.stderr = sys.stdout\n{TRAINING}", *options)
    assert "ended 2 " in refused
    words = re.search(r"the run needs at least ([0-9.]+) (MB|GB) of memory", refused)
    assert words is not None, refused
    least = float(words[1]) * (1e6 if words[2] == "MB" else 1e9)
    with memory_limit(int(1.2 * least)) as group:
        trained = python_in(group, TRAINING, *options, "--out", tmp_path / "out")
    needs = re.search(r"the run\s+needs\s+([0-9.]+)\s+(MB|GB)", trained)
    assert needs is not None, trained
    _, code, most = trained.split()[-3:]
    assert code == "0", trained
    assert int(most) <= 1.2 * least
