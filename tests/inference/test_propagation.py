"""Propagated columns are A^k x as torch_geometric's SIGN has it, for any partitions, processes, memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch_geometric.data import Data
from torch_geometric.transforms import SIGN

import khop
import khop.inference.propagation as propagation
from khop.distributed.processes.group import ALONE
from khop.graph.verify import verify_folder
from khop.inference.propagation import Norm, Propagation
from khop.inference.stages import ChunkLimits
from khop.loading.ordered_map import InFlight

EDGE = ("item", "to", "item")
ROOM = 1 << 30


def written(path: Path, edges: Tensor, x: Tensor, **further: Tensor) -> Path:
    nodes = {"item": khop.NodeTable(columns={"x": x, **further}, splits={"train": torch.arange(1)})}
    return khop.write_graph(path, nodes, {EDGE: khop.EdgeTable(edges[0], edges[1])})


def random_graph(
    count: int = 60, width: int = 40, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(count - 5, (2, 4 * count), generator=generator)  # the last nodes have no edges
    return torch.cat([ends, ends.flip(0)], 1), torch.randn(count, width, generator=generator).to(dtype)


def propagated(
    graph: Path,
    out: Path,
    columns: Sequence[str] = ("x",),
    hops: int = 3,
    norm: Norm = "mean",
    memory: int = ROOM,
) -> dict[str, Tensor]:
    plan = Propagation.of(graph, out, columns, hops, norm, memory)
    plan.run(ALONE, InFlight(2, 3))
    assert not plan.work_folder.exists()
    return dict(khop.open_graph(out).columns["item"])


def reference(edges: Tensor, x: Tensor, hops: int, norm: Norm) -> list[Tensor]:
    """A^k x with a dense matrix of float64."""
    matrix = torch.zeros(len(x), len(x), dtype=torch.float64)
    matrix.index_put_((edges[1], edges[0]), torch.ones(edges.shape[1], dtype=torch.float64), accumulate=True)
    degree = matrix.sum(1)
    if norm == "mean":
        matrix /= degree.clamp(min=1)[:, None]
    else:
        scale = torch.where(degree > 0, degree.clamp(min=1) ** -0.5, 0)
        matrix = scale[:, None] * matrix * scale
    found = [x.double()]
    for _ in range(hops):
        found.append(matrix @ found[-1])
    return found[1:]


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_symmetric_columns_are_those_of_sign(tmp_path: Path) -> None:
    edges, x = random_graph()
    found = propagated(written(tmp_path / "g", edges, x), tmp_path / "out", norm="symmetric")
    expected = SIGN(3)(Data(x=x, edge_index=edges, num_nodes=len(x)))
    for hop in (1, 2, 3):
        torch.testing.assert_close(found[f"x_{hop}"], expected[f"x{hop}"], rtol=1e-6, atol=1e-6)


@given(st.integers(0, 10**6), st.sampled_from(["mean", "symmetric"]), st.integers(1, 5), st.integers(1, 70))
def test_columns_are_powers_of_the_matrix(
    tmp_path_factory: pytest.TempPathFactory, seed: int, norm: Norm, hops: int, width: int
) -> None:
    folder = tmp_path_factory.mktemp("graph")
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 40, (1,), generator=generator))
    edges = torch.randint(
        count, (2, int(torch.randint(0, 99, (1,), generator=generator))), generator=generator
    )
    x = torch.randn(count, width, generator=generator, dtype=torch.float64)
    found = propagated(written(folder / "g", edges, x), folder / "out", hops=hops, norm=norm)
    for hop, expected in enumerate(reference(edges, x, hops, norm), 1):
        torch.testing.assert_close(found[f"x_{hop}"], expected, rtol=1e-9, atol=1e-9)


def test_the_folder_is_the_graph_with_further_columns(tmp_path: Path) -> None:
    edges, x = random_graph()
    graph = written(tmp_path / "g", edges, x, z=torch.arange(60, dtype=torch.int32))
    found = propagated(graph, tmp_path / "out", ("x", "z"), hops=1)
    assert [*found] == ["x", "z", "x_1", "z_1"]
    assert found["z_1"].shape == (60, 1)
    assert list(verify_folder(tmp_path / "out")) == []
    before, after = khop.open_graph(graph), khop.open_graph(tmp_path / "out")
    assert torch.equal(before.csc(EDGE).indices, after.csc(EDGE).indices)
    assert after.split_names == ("train",)
    files = [Path(place, "edges/item__to__item/indices.npy") for place in (graph, tmp_path / "out")]
    assert len({file.stat().st_ino for file in files if file.exists()}) <= 1


def test_blocks_are_whole_rows_or_whole_lines_as_memory_allows(tmp_path: Path) -> None:
    edges, x = random_graph(width=100)
    graph, one = written(tmp_path / "g", edges, x), 4 * 60
    for room, width in ((125, 100), (100, 100), (99, 96), (40, 32), (31, 31)):
        assert Propagation.of(graph, tmp_path / "out", ["x"], 1, "mean", room * one).widths == (width,)


def test_whole_rows_of_means_are_written_once(tmp_path: Path) -> None:
    edges, x = random_graph(width=100)
    graph = written(tmp_path / "g", edges, x)
    whole, narrow, symmetric = (
        Propagation.of(graph, tmp_path / "out", ["x"], 3, norm, room)
        for norm, room in (("mean", ROOM), ("mean", 4 * 60 * 99), ("symmetric", ROOM))
    )
    assert whole.disk_bytes == whole.result_bytes == 3 * x.nbytes
    assert narrow.disk_bytes == symmetric.disk_bytes == 2 * whole.result_bytes
    whole.run(ALONE, InFlight(2, 3))
    narrow = replace(narrow, out=tmp_path / "narrow")
    narrow.run(ALONE, InFlight(2, 3))
    for hop in (1, 2, 3):
        files = [next(out.rglob(f"x_{hop}.npy")).read_bytes() for out in (whole.out, narrow.out)]
        assert files[0] == files[1]
    assert list(verify_folder(whole.out)) == []


@pytest.mark.core(1)
@pytest.mark.parametrize("norm", ["mean", "symmetric"])
def test_parts_chunks_and_memory_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norm: Norm
) -> None:
    edges, x = random_graph()
    graph = written(tmp_path / "g", edges, x)
    whole = propagated(graph, tmp_path / "out", norm=norm)
    narrow = propagated(graph, tmp_path / "narrow", norm=norm, memory=3 * 4 * 60)  # three numbers at a time
    monkeypatch.setattr(propagation, "_LIMITS", ChunkLimits(7, 30))
    khop.partition_graph(graph, tmp_path / "parts", parts=3, method="hash")
    found = propagated(tmp_path / "parts", tmp_path / "parts-out", norm=norm)
    order = khop.open_graph(tmp_path / "parts-out").original_ids("item")
    for hop in (1, 2, 3):
        assert torch.equal(whole[f"x_{hop}"], narrow[f"x_{hop}"])
        assert torch.equal(whole[f"x_{hop}"][order], found[f"x_{hop}"])


def test_small_dtypes_and_scales_are_read_as_float32(tmp_path: Path) -> None:
    edges, x = random_graph(width=4)
    graph = written(tmp_path / "g", edges, x.bfloat16(), u=(x * 20).to(torch.uint8), h=x.half())
    found = propagated(graph, tmp_path / "out", ("x", "u", "h"), hops=1)
    for name in ("x", "u", "h"):
        assert found[f"{name}_1"].dtype == torch.float32
        expected = reference(edges, found[name].float(), 1, "mean")[0].float()
        torch.testing.assert_close(found[f"{name}_1"], expected)


def typed(path: Path) -> Path:
    nodes = {
        "paper": khop.NodeTable(columns={"x": torch.tensor([[1.0], [2.0], [4.0]])}),
        "author": khop.NodeTable(2),
    }
    edges = {
        "author writes paper": khop.EdgeTable(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 2])),
        "paper by author": khop.EdgeTable(torch.tensor([0, 0, 2]), torch.tensor([0, 1, 1])),
        "paper cites paper": khop.EdgeTable(torch.tensor([1, 2]), torch.tensor([0, 0])),
    }
    return khop.write_graph(path, nodes, edges)


def test_types_get_the_mean_over_the_edge_types_whose_sources_have_rows(tmp_path: Path) -> None:
    plan = Propagation.of(typed(tmp_path / "g"), tmp_path / "out", ["x"], 2, "mean", ROOM)
    plan.run(ALONE, InFlight())
    columns = khop.open_graph(tmp_path / "out").columns
    assert columns["author"]["x_1"].flatten().tolist() == [1.0, 2.5]  # of papers
    assert columns["paper"]["x_1"].flatten().tolist() == [3.0, 0.0, 0.0]  # of papers alone
    assert columns["paper"]["x_2"].flatten().tolist() == [(1.75 + 0) / 2, 0.0, (2.5 + 0) / 2]


@pytest.mark.long
def test_a_killed_command_continues_and_gives_the_same_bits(tmp_path: Path) -> None:
    edges, x = random_graph(20_000, 100)
    graph = written(tmp_path / "g", edges, x)
    whole = propagated(graph, tmp_path / "whole", norm="symmetric", hops=8)
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "khop",
        "graph",
        "propagate",
        graph,
        out,
        "--columns",
        "x",
        "--hops",
        "8",
    ]
    command += ["--norm", "symmetric"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    journals = out.with_name("out.unfinished") / "journals"
    while process.poll() is None and not any(file.stat().st_size for file in journals.glob("*.jsonl")):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    subprocess.run(command, check=True, capture_output=True)
    found = khop.open_graph(out).columns["item"]
    for hop in range(1, 9):
        assert torch.equal(found[f"x_{hop}"], whole[f"x_{hop}"])
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []


def test_a_stopped_call_continues_with_another_memory(tmp_path: Path) -> None:
    edges, x = random_graph()
    graph, out = written(tmp_path / "g", edges, x), tmp_path / "out"
    whole = propagated(graph, tmp_path / "whole")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    plan = Propagation.of(graph, out, ["x"], 3, "mean", 240 * 7)
    with pytest.raises(KeyboardInterrupt):
        plan.run(ALONE, InFlight(2, 3), stop)
    assert plan.work_folder.is_dir()
    with pytest.raises(ValueError, match=r"another memory \(7 numbers per node, now 6 numbers per node\)"):
        propagated(graph, out, memory=240 * 6)
    assert Propagation.of(graph, out, ["x"], 3, "mean", ROOM).widths == (7,)
    found = propagated(graph, out)
    for hop in (1, 2, 3):
        assert torch.equal(found[f"x_{hop}"], whole[f"x_{hop}"])


@pytest.mark.parametrize("source", ["parts", pytest.param("g", marks=pytest.mark.long)])
@pytest.mark.parametrize("procs", [2, pytest.param(4, marks=pytest.mark.long)])
def test_processes_share_the_work_and_change_no_bit(tmp_path: Path, procs: int, source: str) -> None:
    edges, x = random_graph(dtype=torch.float64)
    graph = written(tmp_path / "g", edges, x)
    khop.partition_graph(graph, tmp_path / "parts", parts=2, method="hash")
    alone, out = propagated(tmp_path / source, tmp_path / "alone"), tmp_path / "together"
    words = ["graph", "propagate", tmp_path / source, out, "--columns", "x", "--procs", str(procs)]
    subprocess.run([sys.executable, "-m", "khop", *words], check=True, capture_output=True)
    found = khop.open_graph(out).columns["item"]
    for hop in (1, 2, 3):
        assert torch.equal(alone[f"x_{hop}"], found[f"x_{hop}"])


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    edges, x = random_graph()
    nodes = {
        "item": khop.NodeTable(
            columns={"x": x, "y": torch.zeros(60, dtype=torch.int64)}, num_classes={"y": 2}
        )
    }
    graph = khop.write_graph(tmp_path / "g", nodes, {EDGE: khop.EdgeTable(edges[0], edges[1])})
    several = typed(tmp_path / "typed")
    for words, source, columns, norm, memory in [
        ("column 'z': no node type", graph, ["z"], "mean", ROOM),
        ("has classes", graph, ["y"], "mean", ROOM),
        ("norm symmetric", several, ["x"], "symmetric", ROOM),
        ("allow at least", graph, ["x"], "mean", 239),
        ("norm", graph, ["x"], "max", ROOM),
        ("each once", graph, ["x", "x"], "mean", ROOM),
        ("at least one column", graph, [], "mean", ROOM),
    ]:
        with pytest.raises(ValueError, match=words):
            Propagation.of(source, tmp_path / "out", columns, 2, norm, memory)
    propagated(graph, tmp_path / "once", hops=1)
    with pytest.raises(ValueError, match="have it already"):
        Propagation.of(tmp_path / "once", tmp_path / "out", ["x"], 1, "mean", ROOM)
    with pytest.raises(ValueError, match="exists already"):
        Propagation.of(graph, tmp_path / "once", ["x"], 1, "mean", ROOM)


def test_hops_that_reach_no_node_are_refused(tmp_path: Path) -> None:
    nodes = {"user": khop.NodeTable(2, {"x": torch.ones(2, 1)}), "item": khop.NodeTable(3)}
    edges = khop.EdgeTable(torch.tensor([0, 1]), torch.tensor([0, 2]))
    forward = khop.write_graph(tmp_path / "forward", nodes, {("user", "buys", "item"): edges})
    assert propagated(forward, tmp_path / "once", hops=1)["x_1"].flatten().tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match=r"hops 3: no edge type of .* nodes that have 'x_1'; give 1"):
        Propagation.of(forward, tmp_path / "out", ["x"], 3, "mean", ROOM)
    back = khop.EdgeTable(torch.tensor([0, 2]), torch.tensor([0, 1]))
    into = khop.write_graph(tmp_path / "into", nodes, {("item", "of", "user"): back})
    with pytest.raises(ValueError, match="nodes that have 'x'; add edges from them, or name another"):
        Propagation.of(into, tmp_path / "out", ["x"], 1, "mean", ROOM)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    edges, x = random_graph()
    graph = written(tmp_path / "g", edges, x)
    file = next(graph.rglob("x.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    plan = Propagation.of(graph, tmp_path / "out", ["x"], 2, "mean", ROOM)
    with pytest.raises(ValueError, match="checksum differs"):
        plan.run(ALONE, InFlight())
    assert not (tmp_path / "out").exists()


def test_a_column_frees_the_memory_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, alive = list[StorageWeakRef](), list[int]()

    def watch(table: Tensor) -> None:
        alive.append(sum(not one.expired() for one in made))
        made.append(StorageWeakRef(table.untyped_storage()))

    monkeypatch.setattr(propagation, "expect_random_access", watch)
    edges, x = random_graph(width=40)
    graph = written(tmp_path / "g", edges, x, y=x[:, :3].double(), z=x + 1)
    propagated(graph, tmp_path / "out", ("x", "y", "z"))
    assert alive == [0, 0, 0]


@pytest.mark.long
def test_memory_stays_below_the_limit(tmp_path: Path) -> None:
    edges, x = random_graph(400_000, 64)
    graph = written(tmp_path / "g", edges, x)  # a hop's rows take 102 MB
    program = (
        "import runpy, sys\n"
        "try: runpy.run_module('khop', run_name='__main__')\n"
        "finally: print(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])\n"
    )
    out, limit = tmp_path / "out", 650_000_000
    options = ["--columns", "x", "--hops", "2", "--memory", str(limit)]
    words = ["graph", "propagate", str(graph), str(out), *options]
    run = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout.split()[-1]) * 1024 <= limit
