"""A run's table `gpu` decides where its graph is placed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from pydantic import BaseModel

import khop
import support.triton_rows  # noqa: F401 # corrects Triton's interpreter
from khop import Graph, LinkSplit, Loader, Sampler, open_folder, partition_graph
from khop.components import ANY_NAMED
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.processes.group import ALONE, Group
from khop.graph.features.row_cache import DiskTable
from khop.graph.folder import GraphFolder
from khop.graph.partitions.local_partitions import LocalPartitionFeatures, is_on_disk
from khop.inference.chunks import Progress, unwatched
from khop.inference.rows_on_device import RowsOnDevice
from khop.kernels.choice import Engine, forcing
from khop.loading.device.device_placement import StorePlace
from khop.loading.device.memory_plan import GIB, FreeMemory
from khop.run.build import prepare, resolve
from khop.run.check import checked
from khop.run.contexts import LinkSettings, TaskContext
from khop.run.memory import work_sizes
from khop.run.read import RawRun
from khop.run.tasks.baselines import own_features
from khop.run.tasks.edge_run_task import SplitEdges
from khop.run.tasks.link_run_task import LinkTask
from khop.sampling.links.link_split import LinkColumns
from khop.training.step_clock import Unwatched
from support.delaying_streams import PromptStreams
from support.host_as_device import HostAsDevice
from support.small_typed_folders import write_typed_graph
from support.typed_shop import bits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graph") / "g")


@dataclass(frozen=True)
class Drawing:
    """A loader of which only the sampler is asked for."""

    graph_sampler: Sampler


@dataclass(frozen=True, eq=False)
class Scored:
    """A task over links that makes its sampler by its context."""

    context: TaskContext
    split: LinkSplit
    model: torch.nn.Module
    kind: str
    task = khop.LinkPrediction("bce")
    splits = ("val",)
    node_types = ("user", "item")

    @property
    def whole(self) -> Graph:
        return self.context.graph

    def loader(self) -> Loader:
        if self.kind == "own sampler":
            return cast("Loader", Drawing(khop.LinkSampler(self.split.train, [4, 3])))
        graph = self.context.graph if self.kind == "whole graph" else self.split.train
        links = LinkSettings(khop.UniformNegatives(1), khop.Exclude.EDGE)
        sampler = replace(self.context, graph=graph).sampler(links=links)
        return self.context.links_loader(sampler, self.split.train_links, self.model)

    def scores(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> dict[str, float]:
        return dict.fromkeys(splits, 0.5)


class Scores:
    """A task of one's own over links."""

    class Options(BaseModel):
        split_by: str = "split by itself"

    @staticmethod
    def build(options: Options, context: TaskContext) -> Scored:
        if options.split_by == "split by khop":
            split = SplitEdges.of(context, LinkColumns(1)).split
        else:
            split = khop.split_links(context.graph, "user buys item")
        return Scored(context, split, torch.nn.Linear(3, 1), options.split_by)


def own_links(folder: Path, kind: str, gpu: dict[str, str]) -> RawRun:
    task = {"kind": f"{__name__}:Scores", "target": "user buys item", "split_by": kind}
    if kind == "no target":
        del task["target"]
    return replace(raw(folder, gpu, task=task), permission=ANY_NAMED)


@pytest.fixture(autouse=True)
def _host_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.api.open_graph.memory_of", lambda device: HostAsDevice())
    monkeypatch.setattr("khop.api.open_graph.why_no_batches", lambda device: None)
    monkeypatch.setattr("khop.run.build._check_device", lambda device, raw: None)


def raw(folder: Path, gpu: dict[str, str], **values: object) -> RawRun:
    written = {
        "graph": str(folder),
        "device": "cuda",
        "task": {"target": "user", "label": "age"},
        "model": {"embedding": 8, "hidden": 16},
        "sampler": {"fanouts": [4, 3]},
        "gpu": gpu,
        **values,
    }
    return RawRun(written, "run.toml")


def test_stores_are_where_the_run_says(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    run = prepare(raw(folder, {"topology": "pinned", "features": "device"}), tmp_path)
    stores = run.graph.stores
    assert stores is not None
    assert stores.plan.topology is StorePlace.PINNED
    assert {stores.plan.columns[name] for name in ("x", "age")} == {StorePlace.DEVICE}
    run = prepare(raw(folder, {}), tmp_path)
    assert run.graph.stores is not None
    assert run.graph.stores.plan.topology is StorePlace.DEVICE
    run = prepare(raw(folder, {"topology": "host", "features": "mapped", "cache": "20%"}), tmp_path)
    assert run.graph.stores is not None
    assert run.graph.stores.plan.topology is StorePlace.HOST
    assert list(run.graph.stores.plan.caches) == ["x"]


def test_an_error_names_the_fields(folder: Path, tmp_path: Path) -> None:
    memory = HostAsDevice(most={StorePlace.DEVICE: 10})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("khop.api.open_graph.memory_of", lambda device: memory)
        with pytest.raises(ValueError, match=r"could not be allocated.*\(run\.toml\)$"):
            prepare(raw(folder, {"topology": "device"}), tmp_path)


def test_a_placement_without_a_gpu_ends_training_and_no_evaluation(folder: Path, tmp_path: Path) -> None:
    run = prepare(raw(folder, {"topology": "host", "features": "pinned"}, device="cpu"), tmp_path)
    assert run.graph.stores is None
    with pytest.raises(ValueError, match=r"is 'pinned', device is 'cpu': .* or --features auto"):
        run.trainer(tmp_path / "out", Unwatched())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_columns_on_disk_need_no_gpu(
    folder: Path, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    run = prepare(raw(folder, {"features": "disk"}, device=device), tmp_path)
    features = run.graph.features
    assert isinstance(features, DiskTable)
    assert {name for of_type in features.files.values() for name in of_type} == {"x"}


def test_columns_of_a_partitioned_graph_are_read_from_disk(folder: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    partition_graph(folder, parts, parts=2)
    for place in ("disk", "mapped", "host"):
        run = prepare(raw(parts, {"features": place}, device="cpu"), tmp_path)
        features = run.graph.features
        assert isinstance(features, LocalPartitionFeatures)
        on_disk = {
            name
            for of_type in features.pieces.values()
            for name in of_type
            if is_on_disk({name: of_type[name]})
        }
        assert on_disk == ({"x"} if place == "disk" else set())


AS_REQUESTED = "cuda: training edges, as requested"
AS_PLANNED = "cuda: training edges, as much on the card as fits"
LINKS = {"task": {"kind": "link-prediction", "target": "user buys item"}}


@pytest.mark.parametrize(
    ("gpu", "said", "place"),
    [({"topology": "device", "features": "pinned"}, AS_REQUESTED, "pinned"), ({}, AS_PLANNED, "device")],
)
def test_edges_of_training_are_placed_for_links(
    folder: Path, tmp_path: Path, gpu: dict[str, str], said: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    run = prepare(raw(folder, gpu, **LINKS), tmp_path)
    assert run.graph.placement == said
    assert isinstance(run.run_task, LinkTask)
    split = run.run_task.split
    assert split.train.stores is not None
    assert split.train.stores.edges is not None
    for edge_type, csc in split.train.stores.edges.edges.items():
        assert torch.equal(csc.indptr, split.train.in_one_piece("a test").csc(edge_type).indptr)
    assert split.train.stores.plan.columns["x"] == place
    assert split.val is split.train  # so evaluation is on the device, too
    assert split.test.stores is None
    assert run.placement == split.train.placement


def test_evaluation_places_no_edges_that_only_training_would_need(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    run = prepare(raw(folder, {}, **LINKS), tmp_path, checkpoint=tmp_path / "none")
    assert isinstance(run.run_task, LinkTask)
    assert run.run_task.split.train.stores is None
    assert run.placement is not None
    assert run.placement.endswith("the CPU draws and gathers: the GPU only makes batches for training")


@pytest.mark.parametrize("topology", ["auto", "device"])
@pytest.mark.parametrize("place", ["disk", "host"])
def test_columns_of_training_edges_stay_where_the_cpu_reads_them_on_request(
    folder: Path, tmp_path: Path, topology: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    run = prepare(raw(folder, {"topology": topology, "features": place}, **LINKS), tmp_path)
    assert isinstance(run.run_task, LinkTask)
    train = run.run_task.split.train
    assert train.stores is not None
    assert train.stores.edges is not None
    assert not train.stores.reads("x")
    assert isinstance(run.graph.features, DiskTable) is (place == "disk")


@contextmanager
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loaders of the device of their graph, whose kernels are interpreted or references."""

    def loader(*arguments: Any, device: str, **named: Any) -> Loader:  # noqa: ANN401
        return Loader(*arguments, **named)

    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    monkeypatch.setattr("khop.run.parts.Loader", loader)
    monkeypatch.setattr("khop.api.loader.streams_of", lambda device: PromptStreams())
    with forcing(Engine.TORCH):
        yield


@pytest.mark.long
@pytest.mark.parametrize("parts", [0, 2])
def test_batches_of_links_on_the_card_are_those_of_the_cpu(
    folder: Path, tmp_path: Path, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parts:
        partition_graph(folder, tmp_path / "parts", parts=parts)
        folder = tmp_path / "parts"
    values = {**LINKS, "training": {"batch_size": 40}, "links": {"negatives_per_positive": 2}}
    with on_the_host(monkeypatch):
        on_card = prepare(raw(folder, {}, **values), tmp_path).loader()
        assert on_card._on_device is not None
        by_cpu = prepare(raw(folder, {}, device="cpu", **values), tmp_path).loader()
        assert bits(on_card.batch(0, 1)) == bits(by_cpu.batch(0, 1))


@pytest.mark.long
def test_scores_of_validation_are_computed_where_the_training_edges_are(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**LINKS, "precision": "float64"}
    made: list[object] = []
    monkeypatch.setattr(RowsOnDevice, "encoded", noting(RowsOnDevice.encoded, made))
    with on_the_host(monkeypatch):
        run = prepare(raw(folder, {}, **values), tmp_path)
        by_cpu = prepare(raw(folder, {}, device="cpu", **values), tmp_path)
        by_cpu.model.load_state_dict(run.model.state_dict())
        found, wanted = (each.scores(("val",), unwatched) for each in (run, by_cpu))
        assert found == pytest.approx(wanted, abs=1e-12)
        assert len(made) == 1
        run.scores(("test",), unwatched)
        assert len(made) == 1


def noting(function: Callable[[RowsOnDevice], Any], made: list[object]) -> Callable[[RowsOnDevice], Any]:
    def noted(rows: RowsOnDevice) -> Any:  # noqa: ANN401
        made.append(rows)
        return function(rows)

    return noted


def test_training_edges_of_ranks_with_the_whole_topology_are_on_their_cards(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here of one rank; tests/processes has the batches of several."""
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    partition_graph(folder, tmp_path / "parts", parts=2)
    opened = replace(khop.open_graph(tmp_path / "parts"), lanes=Lanes(ALONE, 1))
    monkeypatch.setattr("khop.run.build.open_graph", lambda *_, **__: opened)
    run = prepare(raw(tmp_path / "parts", {}, **LINKS), tmp_path)
    assert isinstance(run.run_task, LinkTask)
    train = run.run_task.split.train
    assert train.rank_rows is not None
    assert train.stores is not None
    assert train.stores.edges is not None
    of_training, of_all = (graph.num_edges("user buys item") for graph in (train, run.graph))
    assert train.stores.edges.num_edges(("user", "buys", "item")) == of_training < of_all
    assert run.placement == train.placement
    assert train.placement.startswith("rows of this rank on cuda: topology device, columns x device")
    by_cpu = prepare(raw(tmp_path / "parts", {"features": "host"}, **LINKS), tmp_path)
    assert by_cpu.placement == "cuda: the CPU samples and gathers"


def test_columns_of_a_partitioned_graph_are_not_joined_beyond_memory_for_training_edges(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    partition_graph(folder, tmp_path / "parts", parts=2)
    monkeypatch.setattr("khop.api.open_graph.free_memory_bytes", lambda: 1000)
    run = prepare(raw(tmp_path / "parts", {}, **LINKS), tmp_path)
    assert isinstance(run.run_task, LinkTask)
    assert run.run_task.split.train.stores is not None
    assert run.run_task.split.train.stores.edges is None
    assert run.placement is not None
    assert "are not joined in 0.00 MB" in run.placement


def test_an_error_of_training_edges_names_the_fields(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = HostAsDevice(most={StorePlace.DEVICE: 10})
    monkeypatch.setattr("khop.api.open_graph.memory_of", lambda device: memory)
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    with pytest.raises(ValueError, match=r"could not be allocated.*\(run\.toml\)$"):
        prepare(raw(folder, {"topology": "device"}, **LINKS), tmp_path)


@pytest.mark.parametrize(
    ("gpu", "problem"),
    [
        ({"topology": "device"}, r'give columns "device" or "pinned" as well'),
        ({"features": "sharded"}, r'columns "sharded": each rank of a partitioned graph has a part'),
    ],
)
def test_impossible_placements_on_partitions_are_refused_before_edges_are_split(
    folder: Path, tmp_path: Path, gpu: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph is that of several ranks, each of which has the whole topology."""
    partition_graph(folder, tmp_path / "parts", parts=2)
    opened = replace(khop.open_graph(tmp_path / "parts"), lanes=Lanes(ALONE, 1))
    monkeypatch.setattr("khop.run.build.open_graph", lambda *_, **__: opened)
    written = raw(tmp_path / "parts", gpu, task={"kind": "link-prediction", "target": "user buys item"})
    monkeypatch.setattr("khop.run.build.TaskContext", None)  # what splits edges
    with pytest.raises(ValueError, match=rf"{problem}.*\(run\.toml\)$"):
        prepare(written, tmp_path)


@pytest.mark.parametrize("gpu", [{"topology": "device", "features": "pinned"}, {}], ids=str)
def test_the_baseline_of_own_features_places_no_edges_again(
    folder: Path, tmp_path: Path, gpu: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    run = prepare(raw(folder, gpu, **LINKS), tmp_path)
    baseline = own_features(run, raw(folder, {}))
    assert isinstance(baseline.run_task, LinkTask)
    assert baseline.run_task.split.train.stores is None


@pytest.mark.parametrize("gpu", [{"topology": "device", "features": "pinned"}, {}], ids=str)
@pytest.mark.parametrize("kind", ["split by khop", "split by itself", "whole graph", "no target"])
def test_edges_of_training_are_placed_for_links_of_a_task_of_ones_own(
    folder: Path, tmp_path: Path, gpu: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    monkeypatch.setattr("khop.run.contexts.seeds_loader", lambda config, sampler, *_: Drawing(sampler))
    run = prepare(own_links(folder, kind, gpu), tmp_path)
    is_later = run.graph.placement == (AS_REQUESTED if gpu else AS_PLANNED)
    assert is_later is (kind != "no target")  # then it is a task over the nodes with labels
    assert isinstance(run.run_task, Scored)
    graphs = [Graph.of(made.graph_sampler.graph) for made in (run.loader(), run.loader())]
    assert graphs[0] is graphs[1]
    stores = graphs[0].stores
    assert stores is not None
    assert stores.edges is not None
    assert stores.reads("x")
    trained = run.run_task.split.train if kind != "whole graph" else run.graph
    assert (trained.num_edges("user buys item") < 3000) is (kind != "whole graph")
    for edge_type, csc in stores.edges.edges.items():
        assert torch.equal(csc.indptr, trained.in_one_piece("a test").csc(edge_type).indptr)


def test_a_sampler_that_the_task_makes_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    monkeypatch.setattr("khop.run.build.TrainerSettings", lambda **_: None)  # it looks for the GPU
    run = prepare(own_links(folder, "own sampler", {"topology": "device", "features": "pinned"}), tmp_path)
    with pytest.raises(ValueError, match=r"of the task run\.test_gpu:Scores draws from a graph that is not"):
        run.trainer(tmp_path / "out", Unwatched())


def test_a_batch_is_estimated_from_above(folder: Path) -> None:
    opened = open_folder(folder)
    assert isinstance(opened, GraphFolder)
    written = raw(folder, {}, training={"batch_size": 20})
    config = resolve(checked(written), opened, written)
    sizes = work_sizes(config, opened)
    # At most 20 seeds, all 300 users, 200 items; x is 3 numbers of users, and of float32.
    assert 20 * 3 * 4 < sizes.batch_bytes < 300 * 12 + 200 * 400 * 12
    assert sizes.ring_slots == config.prefetch


@pytest.mark.core(1)
@pytest.mark.parametrize(("update", "values"), [("dense", 4), ("sparse", 3), ("sharded", 3)])
def test_the_plan_counts_embeddings_with_what_trains_them(folder: Path, update: str, values: int) -> None:
    """Items and tags have no column x: 207 rows of float32, two moments, and a gradient if it is dense."""
    opened = open_folder(folder)
    assert isinstance(opened, GraphFolder)

    def model_bytes(**tables: object) -> int:
        written = raw(folder, {}, **tables)
        return work_sizes(resolve(checked(written), opened, written), opened).model_bytes

    def with_width(width: int, **tables: object) -> int:
        model = {"hidden": 16, "embedding": width, **({"embedding_update": update} if width else {})}
        return model_bytes(model=model, **tables)

    rows = 207 * 32 * 4 * values
    assert with_width(32) - with_width(0) == rows
    assert with_width(32, precision="float64") == 2 * with_width(32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("khop.run.memory.this_group", lambda: Group(0, 4))
        assert with_width(32) - with_width(0) == (rows / 4 if update == "sharded" else rows)


def test_a_placement_that_leaves_no_room_for_the_embeddings_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = HostAsDevice(said=FreeMemory(GIB // 2 + 10**7, 1 << 40))
    monkeypatch.setattr("khop.api.open_graph.memory_of", lambda device: memory)
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    written = {"task": {"target": "user", "label": "age"}, "training": {"batch_size": 20}}
    small, large = ({"embedding": width, "hidden": 16} for width in (8, 4096))  # 27 KB, and 14 MB
    prepare(raw(folder, {"topology": "device"}, model=small, **written), tmp_path)
    with pytest.raises(ValueError, match=r'topology "device": .* [GM]B are needed on cuda'):
        prepare(raw(folder, {"topology": "device"}, model=large, **written), tmp_path)
