"""Rows of all nodes go into files: exact, with their ids, whole or not at all, and never computed twice."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch_geometric.data import HeteroData

import khop
from khop import EdgeTable, Graph, NodeTable, infer, layerwise_inference, open_graph, write_graph
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.rule import Hop
from khop.graph.store import GraphStore, GraphStoreBase
from khop.models import SAGE, LinkPredictor
from support.small_folders import write_learnable_graph

BUYS = ("user", "buys", "item")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Users, items and tags; items have ids from before they were renumbered, tags reach users alone."""
    random = torch.Generator().manual_seed(4)
    items = NodeTable(
        columns={
            "x": torch.randn(50, 4, generator=random),
            "y": torch.arange(50) % 3,
            "original_id": torch.randperm(50, generator=random),
        },
        num_classes={"y": 3},
    )
    users = NodeTable(columns={"x": torch.randn(30, 6, generator=random)})
    tags = NodeTable(columns={"x": torch.randn(5, 2, generator=random)})

    def edges(sources: int, destinations: int, count: int) -> EdgeTable:
        ends = (torch.randint(n, (count,), generator=random) for n in (sources, destinations))
        return EdgeTable(*ends)

    path = tmp_path_factory.mktemp("graphs") / "shop"
    tables = {BUYS: edges(30, 50, 200), ("tag", "on", "user"): edges(5, 30, 40)}
    return open_graph(write_graph(path, {"user": users, "item": items, "tag": tags}, tables))


@pytest.fixture
def model(graph: Graph) -> SAGE:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return SAGE.for_graph(graph, hidden=8, layers=2, dropout=0.5, norm="layer")


def test_outputs_are_those_of_inference_in_memory_and_come_from_the_embeddings(
    graph: Graph, model: SAGE, tmp_path: Path
) -> None:
    infer(model, graph, tmp_path / "o.npy", node_types="item", values="outputs", chunk_size=7)
    files = infer(model, graph, tmp_path / "e.npy", node_types=["item"], chunk_size=7)
    outputs = torch.from_numpy(np.load(tmp_path / "o.npy"))
    assert torch.equal(outputs, layerwise_inference(model, graph, graph.features, "item", chunk_size=7))
    embeddings = torch.from_numpy(np.load(files["item"]))
    assert embeddings.shape == (50, 8)
    torch.testing.assert_close(model.head("item", embeddings).detach(), outputs)
    assert np.array_equal(np.load(tmp_path / "e.ids.npy"), np.arange(50))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"o.npy", "o.ids.npy", "e.npy", "e.ids.npy"}


@pytest.mark.core(1)
@pytest.mark.parametrize("nodes", [None, torch.tensor([7, 3, 49, 3]), torch.empty(0, dtype=torch.int64)])
def test_parquet_has_rows_with_ids_and_original_ids(
    graph: Graph, model: SAGE, tmp_path: Path, nodes: torch.Tensor | None
) -> None:
    infer(model, graph, tmp_path / "a.npy", node_types="item", nodes=nodes, chunk_size=3)
    infer(model, graph, tmp_path / "a.parquet", node_types="item", nodes=nodes, chunk_size=3)
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    expected = torch.arange(50) if nodes is None else nodes
    assert table["node"].to_pylist() == expected.tolist() == np.load(tmp_path / "a.ids.npy").tolist()
    assert table["original_id"].to_pylist() == graph.columns["item"]["original_id"][expected].tolist()
    rows = np.array(table["embedding"].to_pylist(), dtype=np.float32).reshape(-1, 8)
    assert np.array_equal(rows, np.load(tmp_path / "a.npy"))


@pytest.mark.parametrize("values", ["embeddings", "outputs"])
def test_rows_of_bfloat16_are_written_as_float32(
    graph: Graph, model: SAGE, tmp_path: Path, values: Literal["embeddings", "outputs"]
) -> None:
    """NumPy and Parquet have no bfloat16; the numbers are equal."""
    half = deepcopy(model).bfloat16()
    for name in ("a.npy", "a.parquet"):
        infer(half, graph, tmp_path / name, node_types="item", values=values)
    rows = np.load(tmp_path / "a.npy")
    assert rows.dtype == np.float32
    if values == "outputs":
        expected = layerwise_inference(half, graph, graph.features, "item")
        assert expected.dtype == torch.bfloat16
        assert torch.equal(torch.from_numpy(rows).bfloat16(), expected)
    column = pyarrow.parquet.read_table(tmp_path / "a.parquet")[values.removesuffix("s")]
    assert np.array_equal(np.array(column.to_pylist(), np.float32), rows)


def test_a_type_that_is_no_target_has_the_last_rows_that_the_model_gives_it(
    graph: Graph, model: SAGE, tmp_path: Path
) -> None:
    infer(model, graph, tmp_path / "u.npy", node_types="user")
    first = SAGE(model.sizes, 8, 2, norm="layer")
    first.load_state_dict(model.state_dict())
    sample = khop.NeighborSampler(graph, [-1]).sample(
        khop.Seeds({"user": torch.arange(30)}, {"user": torch.arange(30)}), khop.DrawKey(0)
    )
    columns = {t: {"x": graph.columns[t]["x"][ids]} for t, ids in sample.nodes.items()}
    batch = khop.Batch(sample, {}, columns, {}, 0, 0, 30)
    expected = first.eval().layer(0, first.encode(batch), batch.blocks[0])["user"]
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "u.npy")), expected.detach())


def test_a_model_of_links_gives_what_its_decoder_takes_a_file_for_each_node_type(
    graph: Graph, tmp_path: Path
) -> None:
    encoder = SAGE.for_graph(graph, hidden=8, layers=1, target=["user", "item"], outputs=5)
    model = LinkPredictor.of(encoder, [BUYS], "dot", 5)
    files = infer(model, graph, tmp_path / "e.npy", node_types=["user", "item"])
    assert files == {"user": tmp_path / "e.user.npy", "item": tmp_path / "e.item.npy"}
    rows = khop.node_rows(encoder, graph, graph.features, ["user", "item"])
    for node_type, file in files.items():
        assert torch.equal(torch.from_numpy(np.load(file)), rows[node_type])


def stopped_after(calls: int) -> Callable[[int, int], None]:
    """A progress that is interrupted by Ctrl-C."""
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == calls:
            raise KeyboardInterrupt

    return progress


@pytest.mark.core(1)
@pytest.mark.parametrize("calls", [1, 5, 8, 9, 13])  # chunks: 5 of items, 3 of users, then 5 of items
@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_stopped_inference_continues_with_the_next_chunk_to_the_same_bytes(
    graph: Graph, model: SAGE, tmp_path: Path, calls: int, ending: str
) -> None:
    def run(name: str, progress: Callable[[int, int], None]) -> bytes:
        files = infer(model, graph, tmp_path / name, node_types="item", chunk_size=10, progress=progress)
        return files["item"].read_bytes()

    expected = run(f"whole{ending}", lambda done, total: None)
    with pytest.raises(KeyboardInterrupt):
        run(f"parts{ending}", stopped_after(calls))
    assert not (tmp_path / f"parts{ending}").exists()
    assert (tmp_path / f"parts{ending}.unfinished").is_dir()
    seen: list[tuple[int, int]] = []
    assert run(f"parts{ending}", lambda *at: seen.append(at)) == expected
    assert seen[-1] == (130, 130)
    assert len(seen) <= 13 - calls + 2  # one word for each stage that was whole
    assert not (tmp_path / f"parts{ending}.unfinished").exists()


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
@pytest.mark.parametrize("files", [1, 2, 3])
def test_an_attempt_that_ends_between_two_of_its_files_is_continued(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, files: int
) -> None:
    encoder = SAGE.for_graph(graph, hidden=8, layers=1, target=["user", "item"], outputs=5)
    model = LinkPredictor.of(encoder, [BUYS], "dot", 5)

    def run(name: str) -> list[bytes]:
        infer(model, graph, tmp_path / f"{name}{ending}", node_types=["user", "item"])
        return [path.read_bytes() for path in sorted(tmp_path.glob(f"{name}.*"))]

    expected, rename, there = run("whole"), Path.rename, list[Path]()

    def some_renames(self: Path, target: Path) -> Path:
        if target.suffix == ending and target.name.startswith("parts"):
            if len(there) == min(files, len(expected) - 1):
                raise KeyboardInterrupt
            there.append(target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", some_renames)
    with pytest.raises(KeyboardInterrupt):
        run("parts")
    monkeypatch.undo()
    assert all(path.exists() for path in there)
    assert run("parts") == expected
    with pytest.raises(ValueError, match="exists already"):
        run("parts")


def test_work_of_another_model_graph_or_choice_is_refused(graph: Graph, model: SAGE, tmp_path: Path) -> None:
    out = tmp_path / "e.npy"
    with pytest.raises(KeyboardInterrupt):
        infer(model, graph, out, node_types="item", chunk_size=10, progress=stopped_after(6))
    other = SAGE.for_graph(graph, hidden=8, layers=2)
    with pytest.raises(ValueError, match=r"e.npy.unfinished: was started with another model \("):
        infer(other, graph, out, node_types="item", chunk_size=10)
    with pytest.raises(ValueError, match=r"started with another chunk size \(10, now 9\)"):
        infer(model, graph, out, node_types="item", chunk_size=9)
    with pytest.raises(ValueError, match=r"another choice of values \(embeddings of item, now outputs"):
        infer(model, graph, out, node_types="item", chunk_size=10, values="outputs")
    without_folder = Graph(graph.topology, graph.features)
    with pytest.raises(ValueError, match=r"another graph \("):
        infer(model, without_folder, out, node_types="item", chunk_size=10)
    infer(model, graph, out, node_types="item", chunk_size=10)


def test_a_graph_in_memory_will_do(graph: Graph, model: SAGE, tmp_path: Path) -> None:
    infer(model, Graph(graph.topology, graph.features), tmp_path / "e.npy", node_types="item")
    infer(model, graph, tmp_path / "f.npy", node_types="item")
    assert (tmp_path / "e.npy").read_bytes() == (tmp_path / "f.npy").read_bytes()


def in_memory(graph: Graph, *, scale: float = 1.0, shift: int = 0) -> Graph:
    """A copy of the graph that has no folder, or a similar graph."""
    data = HeteroData()
    for node_type, columns in graph.columns.items():
        if isinstance(node_type, str):
            data[node_type].x = columns["x"] * (scale if node_type == "user" else 1)
    for edge_type in graph.schema.edge_types:
        csc = graph.csc(edge_type)
        sources = (csc.indices.long() + shift) % graph.num_nodes(edge_type[0])
        data[edge_type].edge_index = torch.stack([sources, csc.destinations()])
    return khop.graph_from_pyg(data)


def test_work_on_a_graph_in_memory_continues_if_its_content_is_equal(
    graph: Graph, model: SAGE, tmp_path: Path
) -> None:
    there = in_memory(graph)
    expected = layerwise_inference(model, there, there.features, "item")
    out = tmp_path / "o.npy"
    settings = {"node_types": "item", "values": "outputs", "chunk_size": 10}
    with pytest.raises(KeyboardInterrupt):
        infer(model, in_memory(graph), out, progress=stopped_after(6), **settings)
    for other in (in_memory(graph, scale=100.0), in_memory(graph, shift=1)):
        with pytest.raises(ValueError, match=r"was started with another graph \("):
            infer(model, other, out, **settings)
    infer(model, in_memory(graph), out, **settings)
    torch.testing.assert_close(torch.from_numpy(np.load(out)), expected)


class WithoutEdges(GraphStoreBase):
    """A store of another graph that samples, and gives its edges to nobody."""

    def __init__(self, inner: GraphStore) -> None:
        self.inner, self.schema = inner, inner.schema

    def num_nodes(self, node_type: str) -> int:
        return self.inner.num_nodes(node_type)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        return self.inner.sample_hop(frontier, hop, key)


def test_a_store_that_does_not_give_its_edges_is_inferred_and_never_continued(
    graph: Graph, model: SAGE, tmp_path: Path
) -> None:
    there, out = Graph(WithoutEdges(graph.topology), graph.features), tmp_path / "o.npy"
    with pytest.raises(KeyboardInterrupt):
        infer(model, there, out, node_types="item", values="outputs", progress=stopped_after(2))
    with pytest.raises(ValueError, match=r"was started with another graph \("):
        infer(model, there, out, node_types="item", values="outputs")
    found = infer(model, there, tmp_path / "other.npy", node_types="item", values="outputs")["item"]
    wanted = layerwise_inference(model, graph, graph.features, "item")
    torch.testing.assert_close(torch.from_numpy(np.load(found)), wanted)


def test_message_graphs_of_a_link_split_are_told_apart(graph: Graph, tmp_path: Path) -> None:
    def split() -> khop.LinkSplit:
        return khop.split_links(graph, BUYS, val=0.2, test=0.2)

    model = SAGE.for_graph(split().val, hidden=8, layers=1, target="item", outputs=5)
    with pytest.raises(KeyboardInterrupt):
        infer(
            model,
            split().val,
            tmp_path / "e.npy",
            node_types="item",
            chunk_size=5,
            progress=stopped_after(4),
        )
    with pytest.raises(ValueError, match=r"was started with another graph \("):
        infer(model, split().test, tmp_path / "e.npy", node_types="item", chunk_size=5)
    infer(model, split().val, tmp_path / "e.npy", node_types="item", chunk_size=5)


def test_models_with_equal_weights_are_told_apart(graph: Graph, tmp_path: Path) -> None:
    def model(**options: object) -> SAGE:
        made = SAGE.for_graph(graph, hidden=8, layers=2, target="item", outputs=5, **options)
        made.load_state_dict(first.state_dict() if options else made.state_dict())
        return made

    first = SAGE.for_graph(graph, hidden=8, layers=2, target="item", outputs=5)
    with pytest.raises(KeyboardInterrupt):
        infer(first, graph, tmp_path / "e.npy", node_types="item", chunk_size=5, progress=stopped_after(9))
    with pytest.raises(ValueError, match=r"was started with another model \("):
        infer(model(residual="add"), graph, tmp_path / "e.npy", node_types="item", chunk_size=5)
    infer(model(residual="none"), graph, tmp_path / "e.npy", node_types="item", chunk_size=5)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"out": "e.txt"}, r"e.txt: give a name that ends in .npy or .parquet"),
        ({"out": "there/e.npy"}, r"there/e.npy: there is no folder .*there"),
        (
            {"node_types": "itme"},
            r"node type 'itme': not in the graph; it has user, item, tag",
        ),
        ({"node_types": None}, "infer without node_types"),
        (
            {"node_types": "tag"},
            r"node type 'tag': the model computes no outputs for it; its targets are item",
        ),
        ({"node_types": ["item", "user"]}, r"different numbers of layers, .*infer one type at a time"),
        (
            {"node_types": ["item", "user"], "nodes": torch.tensor([1])},
            "item, user: ids need a single node type",
        ),
        ({"nodes": torch.tensor([50])}, r"seeds of 'item'.*50"),
        ({"values": "logits"}, "values 'logits': must be one of embeddings, outputs"),
        ({"chunk_size": 0}, "chunk_size 0: must be a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_is_named_before_anything_is_written(
    graph: Graph, model: SAGE, tmp_path: Path, given: dict[str, object], problem: str
) -> None:
    asked = {"out": "e.npy", "node_types": "item", **given}
    out = tmp_path / str(asked.pop("out"))
    with pytest.raises(ValueError, match=problem):
        infer(model, graph, out, **asked)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["e.npy", "e.ids.npy"])
def test_a_file_that_is_there_is_not_written_over(
    graph: Graph, model: SAGE, tmp_path: Path, file: str
) -> None:
    (tmp_path / file).write_text("mine")
    with pytest.raises(ValueError, match=f"{file}: exists already; remove it or choose another name"):
        infer(model, graph, tmp_path / "e.npy", node_types="item")
    assert (tmp_path / file).read_text() == "mine"


def test_missing_disk_space_is_reported_before_the_start(
    graph: Graph, model: SAGE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2000))
    with pytest.raises(OSError, match=r"e.npy: needs up to 4.54 kB on the disk of .*, and 2 kB is free"):
        infer(model, graph, tmp_path / "e.npy", node_types="item")
    assert list(tmp_path.iterdir()) == []


# Prints the most anonymous memory that inference added, in MiB. Rows of a layer take 61.
PEAK = """
import sys, threading, torch, khop
from khop.loading.ordered_map import InFlight

def anonymous():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(fields["RssAnon"].split()[0]) / 1024

torch.set_num_threads(1)
graph = khop.open_graph(sys.argv[1])
model = khop.models.SAGE.for_graph(graph, hidden=256, layers=3)
peak, done = [], threading.Event()
def watch():
    while not done.wait(0.002):
        peak.append(anonymous())
before = anonymous()
thread = threading.Thread(target=watch); thread.start()
khop.infer(model, graph, sys.argv[2], chunk_size=1024, in_flight=InFlight(1, 2))
done.set(); thread.join()
print(max(peak) - before)
"""


@pytest.mark.long
def test_memory_is_bounded_by_chunks_and_not_by_the_graph(tmp_path: Path) -> None:
    nodes, out = 60_000, tmp_path / "e.npy"
    folder = write_learnable_graph(tmp_path / "toy", nodes, degree=1)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder), str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert np.load(out, mmap_mode="r").shape == (nodes, 256)
    assert float(done.stdout) < 30  # half of one layer's rows
