"""`Graph.on`: a graph whose stores are placed for a GPU gives the batches of the CPU."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import khop
import support.triton_rows  # noqa: F401 # corrects Triton's interpreter
from khop.api.open_graph import placed_on
from khop.graph.features.row_cache import DiskTable
from khop.graph.features.table import DiskPiece
from khop.graph.partitions.local_partitions import LocalPartitionFeatures
from khop.kernels.choice import Engine, forcing
from khop.loading.device.device_placement import DevicePlacement, StorePlace
from khop.loading.device.memory_plan import WorkSizes
from support.delaying_streams import PromptStreams
from support.host_as_device import HostAsDevice
from support.small_typed_folders import write_typed_graph
from support.typed_shop import bits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graph") / "g", renumbered=True)


@pytest.fixture(autouse=True)
def _host_as_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU with the memory of the host, whose kernels are the references."""
    monkeypatch.setattr("khop.api.open_graph.memory_of", lambda device: HostAsDevice())
    monkeypatch.setattr("khop.api.open_graph.why_no_batches", lambda device: None)
    monkeypatch.setattr("khop.api.loader.streams_of", lambda device: PromptStreams())
    with forcing(Engine.TORCH):
        yield


def loader(graph: khop.Graph, device: str | None = None) -> khop.Loader:
    sampler = khop.NeighborSampler(graph, [3, 2])
    seeds = {"user": torch.arange(0, 300, 7), "item": torch.arange(20)}
    return khop.Loader(sampler, seeds, 25, columns=["x"], seed_columns=["age"], shuffle=True, device=device)


def batches(graph: khop.Graph) -> list[object]:
    return [bits(batch) for batch in loader(graph).epoch(0)]


@pytest.mark.core(1)
@pytest.mark.parametrize("columns", list(StorePlace))
@pytest.mark.parametrize("cache", [0, "2kB", "30%"])
def test_columns_of_any_placement_are_those_of_the_cpu(folder: Path, columns: str, cache: int | str) -> None:
    graph = khop.open_graph(folder)
    placed = graph.on("cuda", topology="host", columns=columns, cache=cache)
    assert batches(placed) == batches(graph)


@pytest.mark.core(1)
@pytest.mark.parametrize("place", ["device", "pinned"])
@pytest.mark.parametrize("other", ["host", "disk"])
def test_a_column_that_the_gpu_reads_is_complete_beside_a_cached_one(
    folder: Path, place: str, other: str
) -> None:
    """Its rows are those of all nodes, the cached column's at first those that are not in the cache."""
    graph = khop.open_graph(folder)

    def all_columns(graph: khop.Graph) -> khop.Loader:
        return khop.Loader(khop.NeighborSampler(graph, [3, 2]), {"user": range(60)}, 20, columns=["age", "x"])

    expected = [bits(batch) for batch in all_columns(graph)]
    places = {"x": place, "age": other}
    placed = all_columns(graph.on("cuda", topology="host", columns=places, cache={"age": "50%"}))
    assert [bits(batch) for batch in placed] == expected
    if other == "disk":
        on_disk = all_columns(graph.on("cuda", topology="host", columns=places))
        on_disk.cache_features(0, "visits", device_cache_bytes="2kB")
        assert on_disk._local.on_device is not None
        assert [bits(batch) for batch in on_disk] == expected


@pytest.mark.core(1)
@pytest.mark.parametrize(("topology", "columns"), [("device", "mapped"), ("pinned", "device")])
def test_batches_of_any_topology_are_those_of_the_cpu(folder: Path, topology: str, columns: str) -> None:
    graph = khop.open_graph(folder)
    placed = graph.on("cuda", topology=topology, columns=columns)
    assert bits(loader(placed).batch(0, 1)) == bits(loader(graph).batch(0, 1))


@pytest.mark.core(1)
def test_a_cache_of_host_columns_is_read_when_the_gpu_samples(folder: Path) -> None:
    graph = khop.open_graph(folder)
    placed = loader(graph.on("cuda", topology="device", columns="host", cache="30%"))
    assert placed._on_device is not None
    batch = placed.batch(0, 1)
    assert bits(batch) == bits(loader(graph).batch(0, 1))
    assert 0 < batch.traffic["device_cache_rows"] < batch.traffic["needed_rows"]


def test_a_cache_of_the_loader_keeps_that_of_the_graph(folder: Path) -> None:
    graph = khop.open_graph(folder)
    places = {"x": "disk", "age": "disk"}
    cached = loader(graph.on("cuda", topology="host", columns=places, cache={"x": "1kB"}))
    before = cached._local.on_device
    assert before is not None
    cached.cache_features("3kB", "visits")
    assert cached._local.on_device is before
    features = cached._local.features
    assert isinstance(features, DiskTable)
    assert features.cache is not None
    for node_type in before.slots.keys() & features.cache.slots.keys():
        nodes = torch.arange(graph.num_nodes(node_type))
        in_both = (before.find(node_type, nodes) >= 0) & (features.cache.find(node_type, nodes) >= 0)
        assert not in_both.any()
    assert [bits(batch) for batch in cached.epoch(0)] == batches(graph)
    cached.cache_features(0, "visits", device_cache_bytes="1kB")
    assert cached._local.on_device is not None
    assert before.num_bytes < cached._local.on_device.num_bytes <= before.num_bytes + 1000


def test_kernels_do_not_draw_for_a_sampler_of_other_edges(folder: Path) -> None:
    """As of training edges, with the columns of the whole graph."""
    graph = khop.open_graph(folder)
    few = graph.keeping({("item", "bought", "user"): [torch.arange(0, 3000, 3)]})
    sampler, seeds = khop.NeighborSampler(few, [3, 2]), {"user": range(40)}
    expected = bits(khop.Loader(sampler, seeds, 40, graph=graph, columns=["x"]).batch(0, 0))
    placed = graph.on("cuda", columns="device")
    with pytest.warns(UserWarning, match="sampled on the CPU.* the sampler's graph has other edges"):
        loader = khop.Loader(sampler, seeds, 40, graph=placed, columns=["x"])
    assert bits(loader.batch(0, 0)) == expected
    with pytest.raises(ValueError, match=r"place it, too, with Graph\.on"):
        khop.Loader(sampler, seeds, 40, graph=graph.on("cuda", topology="device"), columns=["x"])


@pytest.mark.long
def test_links_on_a_gpu_are_those_of_the_cpu(folder: Path) -> None:
    graph = khop.open_graph(folder)
    edges = torch.stack(
        [graph.csc("user buys item").indices.long(), graph.csc("user buys item").destinations()]
    )
    links = khop.Links({"user buys item": edges[:, :200]})

    def batch(graph: khop.Graph) -> object:
        negatives = khop.UniformNegatives(2, exact=True)
        sampler = khop.LinkSampler(graph, [3, 2], negatives=negatives, exclude="edge+reverse")
        return bits(khop.Loader(sampler, links, 50, columns=["x"], shuffle=True, seed=4).batch(0, 2))

    assert batch(graph.on("cuda", topology="device", columns="device")) == batch(graph)


@pytest.mark.long
def test_without_a_request_all_goes_on_the_card(folder: Path) -> None:
    graph = khop.open_graph(folder)
    placed = graph.on()
    assert placed.stores is not None
    assert placed.placement.startswith("cuda: topology device, columns ")
    assert placed.placement.endswith("as much on the card as fits")
    assert bits(loader(placed).batch(0, 1)) == bits(loader(graph).batch(0, 1))
    assert graph.placement == "cpu: all stores are read by the CPU"


def test_without_proven_kernels_the_cpu_makes_the_batches(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "kernels do not give the CPU's bits on this card (gathers: gather: 1 of 9 numbers differ)"
    monkeypatch.setattr("khop.api.open_graph.why_no_batches", lambda device: reason)
    graph = khop.open_graph(folder)
    placed = graph.on()
    assert placed.stores is not None
    assert placed.stores.edges is None
    assert placed.placement.endswith(f"; the CPU draws and gathers: {reason}")
    assert batches(placed) == batches(graph)
    with pytest.raises(ValueError, match="cuda: kernels cannot make the batches: kernels do not give"):
        graph.on(topology="device")


def test_work_without_batches_leaves_stores_that_are_not_requested(folder: Path) -> None:
    request, why = DevicePlacement.of(columns={"x": "device"}), "the GPU only makes batches for training"
    graph = khop.open_graph(folder)
    placed = placed_on(graph, DevicePlacement.of(), WorkSizes(), why)
    assert placed.stores is not None
    assert placed.stores.edges is None
    assert placed.placement.endswith(f"; the CPU draws and gathers: {why}")
    requested = placed_on(graph, request, WorkSizes(), why)
    assert requested.stores is not None
    assert requested.stores.reads("x")


def test_a_sampler_without_kernels_is_left_to_the_cpu(folder: Path) -> None:
    graph = khop.open_graph(folder)

    def batch(graph: khop.Graph) -> object:
        sampler = khop.ShadowSampler(graph, [3, 2], layers=2)
        seeds = {"user": torch.arange(20)}
        return bits(khop.Loader(sampler, seeds, 5, columns=["x"]).batch(0, 1))

    with pytest.warns(UserWarning, match=r"batches are sampled on the CPU, not on the GPU: .*topology=.host"):
        found = batch(graph.on())
    assert found == batch(graph)
    with pytest.raises(ValueError, match=r"topology=.host"):
        batch(graph.on(topology="device"))


def test_a_warning_about_the_cpu_names_the_line_that_made_the_loader(folder: Path) -> None:
    graph = khop.open_graph(folder).on("cuda", columns={"x": "disk"})
    sampler = khop.ShadowSampler(graph, [3, 2], layers=2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = khop.Loader(sampler, {"user": torch.arange(20)}, 5, columns=["x"])
        loader.cache_features("3kB", "counts")
    assert [warning.filename for warning in said] == [__file__]  # a cache does not repeat it


def test_a_cache_of_rows_on_disk_keeps_the_kernels_of_a_loader(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = khop.open_graph(folder)
    cached = loader(graph.on("cuda", topology="device", columns={"x": "disk"}))
    before = cached._on_device
    assert before is not None
    monkeypatch.delattr("khop.sampling.on_device.batch_plan.BatchPlan.__init__")  # tables are not allocated
    monkeypatch.delattr("khop.loading.device.device_source.measured_capacities")  # nor batches measured
    cached.cache_features("3kB", "visits")
    assert cached._batches.source is cached._on_device is not before
    assert bits(cached.batch(0, 1)) == bits(loader(graph).batch(0, 1))
    features = cached._on_device._host.features
    assert isinstance(features, DiskTable)
    assert features.cache is not None


def test_a_placed_graph_pickles_as_the_graph_and_the_request(folder: Path) -> None:
    placed = khop.open_graph(folder).on("cuda", columns={"x": "pinned"}, cache={"x": "4kB"}, reserve="1GB")
    content = pickle.dumps(placed)
    assert len(content) < 2000
    again = pickle.loads(content)
    assert again.stores is not placed.stores
    assert again.placement == placed.placement
    assert again.stores.plan.work.total == 10**9


def test_a_partitioned_graph_in_one_process_is_placed_like_any_other(folder: Path, tmp_path: Path) -> None:
    khop.partition_graph(folder, tmp_path / "parts", parts=2)
    graph = khop.open_graph(tmp_path / "parts")
    expected = batches(graph)
    planned = graph.on("cuda")
    assert "topology device" in planned.placement
    assert bits(loader(planned).batch(0, 2)) == expected[2]
    placed = graph.on("cuda", topology="host", columns={"x": "pinned", "age": "disk"}, cache={"x": "2kB"})
    assert "topology host, columns x pinned, 0.00 MB of x cached" in placed.placement
    assert batches(placed) == expected
    again = pickle.loads(pickle.dumps(placed))
    assert (again.placement, batches(again)) == (placed.placement, expected)
    with patch("khop.api.open_graph.why_no_batches", side_effect=[None]):  # kernels are compared once
        on_gpu = graph.on("cuda", topology="device", columns="device")
    assert bits(loader(on_gpu).batch(0, 1)) == expected[1]
    with pytest.raises(
        ValueError, match=r"cache of 'x': the CPU reads this column.*'x': \"pinned\"} as well"
    ):
        graph.on("cuda", topology="device", columns={"age": "device"}, cache={"x": "2kB"})
    with pytest.raises(ValueError, match=r"no node type has a column 'z'"):
        graph.on("cuda", columns={"z": "device"})
    with pytest.raises(ValueError, match=r"device 'cpu': only a GPU reads device and pinned memory"):
        graph.on("cpu", columns={"x": "device"})


@pytest.mark.long
@pytest.mark.parametrize("place", ["host", "mapped", "disk"])
def test_columns_of_a_partitioned_graph_are_placed_too(folder: Path, tmp_path: Path, place: str) -> None:
    khop.partition_graph(folder, tmp_path / "parts", parts=2)
    graph = khop.open_graph(tmp_path / "parts")
    placed = graph.on("cpu", columns={"x": place})
    assert placed.placement == f"cpu: columns x {place}; as requested"
    assert batches(placed) == batches(graph)
    again = pickle.loads(pickle.dumps(placed))
    assert isinstance(again.features, LocalPartitionFeatures)
    pieces = again.features.pieces["user"]["x"]
    assert [isinstance(piece, DiskPiece) for piece in pieces] == [place == "disk"] * 2
    few = graph.only(["user buys item"])
    assert batches(few.on("cpu", columns={"x": place})) == batches(few)


@pytest.mark.long
@pytest.mark.parametrize("by", ["visits", "counts"])
def test_a_cache_of_rows_of_parts_on_disk_changes_no_batch(folder: Path, tmp_path: Path, by: str) -> None:
    khop.partition_graph(folder, tmp_path / "parts", parts=2)
    graph = khop.open_graph(tmp_path / "parts")
    cached = loader(graph.on("cpu", columns={"x": "disk"}))
    cached.cache_features("3kB", by)
    assert [bits(batch) for batch in cached.epoch(0)] == batches(graph)
    features = cached._local.features
    assert isinstance(features, LocalPartitionFeatures)
    kept = [piece.kept for piece in features.pieces["user"]["x"] if isinstance(piece, DiskPiece)]
    assert 0 < sum(rows.nbytes for rows in kept if rows is not None) <= 3000


def test_a_loader_on_another_device_is_refused(folder: Path) -> None:
    placed = khop.open_graph(folder).on("cuda")
    with pytest.raises(ValueError, match="device 'meta': the graph is placed on cpu; leave device out"):
        loader(placed, device="meta")


def test_columns_on_the_host_are_no_longer_mapped(folder: Path) -> None:
    placed = khop.open_graph(folder).on("cuda", columns={"x": "host"})
    features, before = placed.features, khop.open_graph(folder).features
    assert features.columns["user"]["x"].data_ptr() != before.columns["user"]["x"].data_ptr()


@pytest.mark.core(1)
@pytest.mark.parametrize("place", ["host", "mapped", "disk"])
def test_columns_for_the_cpu_are_placed_without_a_gpu(folder: Path, place: str) -> None:
    graph = khop.open_graph(folder)
    placed = graph.on("cpu", columns={"x": place})
    assert placed.placement == f"cpu: columns x {place}; as requested"
    assert batches(placed) == batches(graph)
    again = pickle.loads(pickle.dumps(placed))
    assert again.placement == placed.placement
    assert isinstance(again.features, DiskTable) == (place == "disk")


def test_memory_that_only_a_gpu_reads_is_refused_on_a_cpu(folder: Path) -> None:
    graph = khop.open_graph(folder)
    for request in ({"columns": "pinned"}, {"columns": "disk", "cache": "1MB"}):
        with pytest.raises(ValueError, match=r"device 'cpu': only a GPU reads .*; give columns=.host"):
            graph.on("cpu", **request)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="columns: no node type has a column 'z'"):
        graph.on("cpu", columns={"z": "disk"})
    in_memory = graph.only(["user buys item"])
    with pytest.raises(ValueError, match="columns on device 'cpu': the graph is in memory, not in a folder"):
        in_memory.on("cpu", columns="disk")


@pytest.mark.long
@pytest.mark.parametrize("by", ["visits", "counts"])
def test_a_cache_of_rows_on_disk_changes_no_batch(folder: Path, by: str) -> None:
    graph = khop.open_graph(folder)
    cached = loader(graph.on("cpu", columns={"x": "disk"}))
    cached.cache_features("3kB", by)
    assert [bits(batch) for batch in cached.epoch(0)] == batches(graph)
    features = cached._local.features
    assert isinstance(features, DiskTable)
    assert features.cache is not None
    assert 0 < features.cache.num_bytes <= 3000
