"""Exchanges of rows between devices, by ranks that have the memory of the host as their device."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from random import Random
from threading import Lock
from unittest.mock import patch

import torch
from torch import Tensor

import khop
import support.triton_rows  # noqa: F401 # corrects Triton's interpreter
from khop.api.split_links import edges_before
from khop.batch import Batch
from khop.distributed.device_lane_source import DeviceLaneSource
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Message, Peers
from khop.distributed.exchange.row_wire import FixedWire, RowGroup, Wire
from khop.distributed.owners import PartitionOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.processes.group import Group, this_group
from khop.distributed.rank_rows import ANSWERING, ASKING, Asked, RankRows, RowSwap, SwapStatus
from khop.graph.features.store import Rows
from khop.kernels.choice import Engine, forcing
from khop.loading.device.device_placement import StorePlace
from khop.loading.device.memory_plan import GIB, FreeMemory
from khop.run.build import prepare
from khop.run.read import RawRun
from khop.run.tasks.link_run_task import LinkTask
from khop.training.gradients import BucketAverage
from processes.feature_ranks import of_the_first, store_of
from support import triton_interpreter
from support.covered import covered
from support.delaying_streams import PromptStreams
from support.host_as_device import HostAsDevice
from support.host_reads import counting
from support.small_typed_folders import BUYS
from support.typed_shop import bits

CPU = torch.device("cpu")
PARTS = {2: (2, 5), 4: (2, 4)}  # by number of ranks
COUNT = 90
COLUMNS = {
    "n": {
        "x": torch.arange(COUNT * 4.0).view(COUNT, 4).sin(),
        "wide": torch.arange(COUNT * 6).view(COUNT, 2, 3).double().cos(),
        "half": torch.arange(COUNT * 8.0).view(COUNT, 8).sin().bfloat16(),
        "label": torch.arange(COUNT),
        "flag": torch.arange(COUNT) % 3 == 0,
    },
    "m": {"y": torch.arange(7, dtype=torch.int32)},
}
NAMES = tuple(COLUMNS["n"])


def rows_of(group: Group, parts: int) -> RankRows:
    """The rows of this rank, and its store of all rows over the host."""
    features: PartitionedFeatures = store_of(
        COLUMNS, PartitionOwners(parts, group.rank, group.world_size), Lanes(group)
    )
    own = {
        t: {name: column[slice(*_held(features, t))] for name, column in of_type.items()}
        for t, of_type in COLUMNS.items()
    }
    return RankRows(own, features, CPU)


def _held(features: PartitionedFeatures, type_: str) -> tuple[int, int]:
    rows = features.local_rows(type_)
    return rows.start, rows.stop


def format_of(rows: RankRows, capacities: Sequence[int]) -> FixedWire:
    groups = (("n", NAMES), ("m", ("y",)), ("n", ("label",)))
    return FixedWire(
        tuple(
            RowGroup(t, names, capacity, rows.id_dtype(t))
            for (t, names), capacity in zip(groups, capacities, strict=True)
        ),
        rows.specs,
        rows.wire,
        rows.world_size,
    )


@dataclass(frozen=True)
class Found:
    """An exchange that has been made."""

    rows: list[dict[str, Tensor]]
    status: SwapStatus


def swapped(rows: RankRows, ids: Sequence[Tensor], capacities: Sequence[int], step: int = 0) -> Found:
    peers = rows.features.owners.lanes.peers
    marks = marks_of(peers, step)
    asked = [Asked(of, frozenset({"half"})) for of in ids]
    found = RowSwap(rows, format_of(rows, capacities)).issue(peers, marks, asked)
    return Found(found.rows, SwapStatus.of(peers, marks, found.status))


def marks_of(peers: Peers, step: int) -> tuple[list[int], list[int]]:
    return peers.mark(ASKING, 0, step), peers.mark(ANSWERING, 0, step)


def wanted_by(rank: int, turn: int) -> list[Tensor]:
    """Other ids on each rank, some twice; rank 1 wants none in the second turn, and none of a type ever."""
    random = torch.Generator().manual_seed(10 * turn + rank)
    count = 0 if (rank, turn) == (1, 1) else 40
    some = torch.randint(COUNT, (count,), generator=random)
    return [some, torch.randint(7, (0 if rank == 1 else 5,), generator=random), some[:10]]


def equals_the_host(group: Group, parts: int) -> list[object]:
    """Turns with other rows than the store over the host gives."""
    wrong: list[object] = []
    one_wire = rows_of(group, parts)
    for wire in Wire:
        rows = replace(one_wire, features=replace(one_wire.features, wire=wire))
        for turn in range(3):
            ids = wanted_by(group.rank, turn)
            found = swapped(rows, ids, (COUNT, 7, 10), turn)
            expected = [
                rows.features.gather({t: Rows(of, names, as_float32=frozenset({"half"}))})[t]
                for t, names, of in zip("nmn", (NAMES, ("y",), ("label",)), ids, strict=True)
            ]
            for one, other in zip(found.rows, expected, strict=True):
                same = [(n, one[n].dtype, one[n].shape) == (n, other[n].dtype, other[n].shape) for n in other]
                if not all(same) or not all(torch.equal(one[name], other[name]) for name in other):
                    wrong.append((wire, turn))
            requested = [
                torch.unique(of[~torch.isin(of, torch.arange(*_held(rows.features, t)))]).numel()
                for t, of in zip("nmn", ids, strict=True)
            ]
            if found.status != SwapStatus(False, tuple(requested)):
                wrong.append(("status", wire, turn, found.status))
    return wrong


def reads_of_an_exchange(group: Group) -> dict[str, int]:
    """Reads of the host from the ids on the device to the rows there, which kernels gather.

    The references of gathers check ids, and kernels do not.
    """
    rows, ids = rows_of(group, 4), wanted_by(group.rank, 0)
    peers = rows.features.owners.lanes.peers
    swap, marks = RowSwap(rows, format_of(rows, (COUNT, 7, 10))), marks_of(peers, 0)
    assert rows.bounds
    assert rows.firsts
    assert rows.scales
    with forcing(Engine.TRITON), counting() as reads:
        found = swap.issue(peers, marks, [Asked(of, frozenset({"half"})) for of in ids])
    assert all(torch.equal(found.rows[0][name], COLUMNS["n"][name][ids[0]]) for name in ("x", "flag"))
    return dict(reads)


def too_many_on_one(group: Group) -> list[bool]:
    """The flag of three exchanges; in the second, rank 1 alone asks one rank for more than there is room."""
    rows, flags = rows_of(group, group.world_size), []
    for turn in range(3):
        count = 3 if turn == 1 and group.rank == 1 else 2
        first = 0 if group.rank else COUNT // group.world_size
        ids = torch.arange(first, first + count)
        found = swapped(rows, [ids, torch.arange(2), ids], (2, 7, 10), turn)
        flags.append(found.status.overflowed)
        expected = COLUMNS["n"]["label"][ids]
        assert torch.equal(found.rows[0]["label"], expected) == (not found.status.overflowed or count == 2)
    return flags


def errors(group: Group) -> list[str]:
    """Errors of rank 0 about another step, and about an id of a row that it does not store."""
    rows, said = rows_of(group, group.world_size), []
    ids = wanted_by(group.rank, 0)
    for kind in ("step", "id"):
        step = 7 if (kind, group.rank) == ("step", 1) else 0
        if (kind, group.rank) == ("id", 1):
            ids = [torch.tensor([COUNT + 5]), *ids[1:]]
            # Rank 0 is asked for ids that it does not have.
            rows.__dict__["bounds"] = {**rows.bounds, "n": torch.tensor([0, 10 * COUNT, 10 * COUNT])}
        try:
            swapped(rows, ids, (COUNT, 7, 10), step)
        except ValueError as error:
            said.append(str(error))
        else:
            said.append("")
    return said


@covered
def exchanges(rank: int, device: torch.device, out: str) -> None:
    """Everything above, over some of two or four ranks."""
    told: dict[str, object] = {}
    ranks = this_group().world_size
    with forcing(Engine.TORCH):
        for parts in PARTS[ranks]:
            told[f"{parts} parts"] = of_the_first(
                ranks, lambda group, parts=parts: equals_the_host(group, parts)
            )
        told["1 rank"] = of_the_first(1, lambda group: equals_the_host(group, 3))
        told["reads"] = of_the_first(ranks, reads_of_an_exchange)
        told["overflow"] = of_the_first(ranks, too_many_on_one)
        told["errors"] = of_the_first(2, errors)
    Path(out, f"{rank}.json").write_text(json.dumps(told, default=str))


@contextmanager
def host_as_gpu() -> Iterator[None]:
    """A GPU with the memory of the host, and references for kernels."""
    with (
        patch("khop.api.open_graph.memory_of", lambda device: HostAsDevice()),
        patch("khop.api.open_graph.why_no_batches", lambda device: None),
        patch("khop.api.loader.streams_of", lambda device: PromptStreams()),
        forcing(Engine.TORCH),
    ):
        yield


def loader_of(graph: khop.Graph, prefetch: int = 4) -> khop.Loader:
    sampler = khop.NeighborSampler(graph, [3, 2])
    seeds = {"user": torch.arange(0, 300, 7), "item": torch.arange(20)}
    return khop.Loader(
        sampler,
        seeds,
        25,
        columns=["x"],
        seed_columns=["age", "x"],
        shuffle=True,
        prefetch=prefetch,
        threads=1,
    )


def source_of(loader: khop.Loader) -> DeviceLaneSource:
    source = loader._batches.source
    assert isinstance(source, DeviceLaneSource)
    return source


def traffic_of(batch: Batch) -> dict[str, float]:
    return {name: count for name, count in batch.traffic.items() if name != "seconds"}


def same_batches(path: str, placement: str, columns: dict[str, str] | str) -> dict[str, object]:
    """Differences of batches with rows on devices from batches over the host, and the traffic of both."""
    plain = khop.open_graph(path, placement=placement)
    graph = khop.open_graph(path, placement=placement).on("cuda", topology="host", columns=columns)
    expected = [bits(batch) for batch in loader_of(plain).epoch(0)]
    wrong: list[object] = []
    loader = loader_of(graph)
    found = list(loader.epoch(0))
    wrong += [step for step, batch in enumerate(found) if bits(batch) != expected[step]]
    for prefetch in (1, 2, 3):
        few = loader_of(graph, prefetch)
        wrong += [(prefetch, s) for s, batch in enumerate(few.epoch(0)) if bits(batch) != expected[s]]
    for step, _ in enumerate(loader.epoch(0)):  # left early, with a loop and a batch within
        if step == 1:
            inner = [bits(batch) for batch in loader.epoch(0)]
            wrong += ["inner"] * (inner != expected)
            wrong += ["one"] * (bits(loader.batch(0, 2)) != expected[2])
            break
    wrong += ["after"] * ([bits(batch) for batch in loader.epoch(0)] != expected)
    loader.cache_features(0, device_cache_bytes="2kB")
    cached = list(loader.epoch(0))
    wrong += [("cached", s) for s, batch in enumerate(cached) if bits(batch) != expected[s]]
    return {
        "wrong": wrong,
        "placement": graph.placement,
        "repeats": source_of(loader).repeats,
        "traffic": [traffic_of(batch) for batch in found],
        "cached": [traffic_of(batch) for batch in cached],
        "host": [traffic_of(batch) for batch in loader_of(plain).epoch(0)],
    }


def with_repeats(path: str, topology: str = "host") -> dict[str, object]:
    """Batches of which some exceed the messages, on some rank."""
    expected = [bits(batch) for batch in loader_of(khop.open_graph(path)).epoch(0)]
    graph = khop.open_graph(path).on("cuda", topology=topology, columns="device")
    with patch("khop.distributed.rank_rows.room", lambda counts: int(0.7 * max(counts))):
        loader = loader_of(graph)
    loader.cache_features(0, device_cache_bytes=600)
    with patch("khop.distributed.rank_rows.room", lambda counts: int(0.7 * max(counts))):
        source_of(loader).prepare()
    found = list(loader.epoch(0))
    return {
        "wrong": [step for step, batch in enumerate(found) if bits(batch) != expected[step]],
        "repeats": source_of(loader).repeats,
        "steps": len(found),
        "traffic": [traffic_of(batch) for batch in found],
    }


def placed_run(path: str, task: dict[str, str]) -> dict[str, object]:
    """The placement of a run of the command, and the columns with rows on the device."""
    written = {
        "graph": path,
        "device": "cuda",
        "task": task,
        "model": {"embedding": 8, "hidden": 16},
        "sampler": {"fanouts": [4, 3]},
        "gpu": {"features": "device", "cache": "20%"},
    }
    with (
        patch("khop.run.build._check_device", lambda device, raw: None),
        patch.object(torch.nn.Module, "to", lambda self, *_: self),
    ):
        run = prepare(RawRun(written, "run.toml"), Path(path).parent)
    rows = run.graph.rank_rows
    placement = run.graph.placement
    if isinstance(run.run_task, LinkTask):
        train = run.run_task.split.train
        rows, placement = train.rank_rows, train.placement
        assert run.graph.rank_rows is None
        assert train.stores is not None
        assert train.stores.edges is not None
    assert rows is not None
    columns = {t: sorted(of_type) for t, of_type in rows.columns.items()}
    return {"placement": placement, "columns": columns}


class OneOrder:
    """A device that refuses a collective which ranks launch in another order."""

    def __init__(self, group: Group) -> None:
        assert group.store is not None
        self._rank, self._store, self._lock, self._random = (
            group.rank,
            group.store,
            Lock(),
            Random(group.rank),
        )
        self._numbers = count()
        self.launched: list[str] = []

    def launch(self, name: str) -> None:
        """Compare the next collective of this rank with that of the others, some time later."""
        time.sleep(self._random.random() * 0.01)
        with self._lock:
            number = next(self._numbers)
            first = self._store.compare_set(f"order/{number}", "", name).decode()
            assert name == first, f"rank {self._rank} launches {name} as number {number}, another {first}"
            self.launched.append(name)


def order_of_collectives(path: str) -> list[str]:
    """Collectives of a loop over exchanged rows that averages gradients, in the order of all ranks."""
    group = this_group()
    device, swap, all_reduce = OneOrder(group), Peers.swap, torch.distributed.all_reduce

    def swapping(peers: Peers, found: Tensor, given: Tensor, message: Message) -> None:
        device.launch(message.stage)
        swap(peers, found, given, message)

    def averaging(gradients: Tensor, async_op: bool) -> torch.distributed.Work:
        device.launch("averaging gradients")
        work: torch.distributed.Work = all_reduce(gradients, async_op=async_op)
        return work

    gradients = BucketAverage(group, [torch.full((3,), group.rank + 1.0)])
    graph = khop.open_graph(path)
    with patch.object(Peers, "swap", swapping), patch("torch.distributed.all_reduce", averaging):
        for topology, epochs in (("host", 3), ("device", 1)):  # drawn in lanes, and by kernels
            loader = loader_of(graph.on("cuda", topology=topology, columns="device", check="none"))
            for _ in range(epochs):
                for _ in loader:
                    gradients.average()
    return device.launched


@covered
def loaders(rank: int, device: torch.device, path: str, out: str) -> None:
    """Everything above."""
    told: dict[str, object] = {}
    asked: list[tuple[str, dict[str, str] | str]] = [
        ("features", "device"),
        ("features", {"x": "pinned", "age": "host"}),
    ]
    with host_as_gpu():
        for placement, columns in (*asked, ("all", "device")):
            told[f"{placement} {columns}"] = same_batches(path, placement, columns)
        told["order"] = order_of_collectives(path)
        told["repeats"] = with_repeats(path)
        told["run"] = placed_run(path, {"target": "user", "label": "age"})
        told["link run"] = placed_run(path, {"kind": "link-prediction", "target": "user buys item"})
    this_group().barrier()
    Path(out, f"{rank}.json").write_text(json.dumps(told, default=str))


def drawn_batches(graph: khop.Graph) -> list[object]:
    """The batches of an epoch, one alone after a loop that was left early, and some with cached rows."""
    loader = loader_of(graph)
    found = [bits(batch) for batch in loader.epoch(0)]
    for step, _ in enumerate(loader.epoch(1)):
        if step == 0:
            break
    found.append(bits(loader.batch(0, 2)))
    if graph.features.is_collective:
        loader.cache_features(0, device_cache_bytes="2kB")
    return found + [bits(batch) for batch in loader.epoch(1)]


def made_by(loader: khop.Loader) -> str:
    """The source of a loader's batches, and of its draws."""
    source = loader._batches.source
    is_exchanged = isinstance(source, DeviceLaneSource)
    return (
        f"{type(source).__name__}, {type(source._draws).__name__}" if is_exchanged else type(source).__name__
    )


def drawn_on_devices(path: str, placement: str, topology: str) -> dict[str, object]:
    """Differences of batches that kernels draw from those of the CPU, and where they are made."""
    plain = khop.open_graph(path, placement=placement)
    graph = plain.on("cuda", topology=topology, columns="device")
    expected, found = drawn_batches(plain), drawn_batches(graph)
    loader = loader_of(graph)
    return {
        "wrong": [step for step, both in enumerate(zip(found, expected, strict=True)) if both[0] != both[1]],
        "made": made_by(loader),
        "placement": graph.placement,
        "traffic": [traffic_of(batch) for batch in loader.epoch(0)],
        "host": [traffic_of(batch) for batch in loader_of(plain).epoch(0)],
    }


def first_drawn_batches(path: str) -> dict[str, object]:
    """Differences of two batches that kernels draw from those of the CPU, and the traffic of both.

    Nothing is requested.
    """
    plain = khop.open_graph(path)
    graph = plain.on("cuda", check="none")
    loader = loader_of(graph)
    with closing(loader.epoch(0)) as ours, closing(loader_of(plain).epoch(0)) as theirs:
        both = list(islice(zip(ours, theirs, strict=True), 2))
    return {
        "wrong": [step for step, (a, b) in enumerate(both) if bits(a) != bits(b)],
        "made": made_by(loader),
        "placement": graph.placement,
        "traffic": [traffic_of(batch) for batch, _ in both],
        "host": [traffic_of(batch) for _, batch in both],
    }


def unequal_cards(path: str) -> list[str]:
    """Where a graph is without a request: rank 0 has no memory, then a card with room for the
    model alone, then no kernels."""
    said = []
    for memory, reason in (
        (HostAsDevice({StorePlace.DEVICE: 0, StorePlace.PINNED: 0}), None),
        (HostAsDevice({}, FreeMemory(5 * GIB // 2, 1 << 40)), None),
        (HostAsDevice(), "no compiler"),
    ):
        given = (memory, reason) if this_group().rank == 0 else (HostAsDevice(), None)
        with (
            patch("khop.api.open_graph.memory_of", lambda _, given=given: given[0]),
            patch("khop.api.open_graph.why_no_batches", lambda _, given=given: given[1]),
        ):
            said.append(khop.open_graph(path).on("cuda", check="none").placement)
    return said


def first_batch(graph: khop.Graph, rule: khop.Uniform | khop.Weighted | khop.Temporal) -> object:
    users = torch.arange(0, 300, 9)
    times = 5000 + users if isinstance(rule, khop.Temporal) else None
    hops = [{("item", "bought", "user"): 3, "*": 0}, {("user", "buys", "item"): 2, "*": 0}]
    sampler = khop.NeighborSampler(graph, hops, rule=rule)
    loader = khop.Loader(sampler, {"user": users}, 34, columns=["x"], seed_times=times, threads=1)
    return bits(loader.batch(0, 0))


def with_edge_columns(path: str) -> dict[str, object]:
    """Batches with edge columns, which the CPU draws and gathers, though the edges are on the device."""
    graph = khop.open_graph(path)

    def made(graph: khop.Graph) -> khop.Loader:
        sampler = khop.NeighborSampler(graph, [3, 2], edge_ids=True)
        columns = {"user": ["x"], BUYS: ["weight"]}
        return khop.Loader(sampler, {"user": torch.arange(0, 300, 9)}, 20, columns=columns, threads=1)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = made(graph.on("cuda", topology="auto", columns="device"))
        loader.cache_features(0, device_cache_bytes="2kB")  # does not warn again
    wrong = [bits(batch) for batch in loader.epoch(0)] != [bits(batch) for batch in made(graph).epoch(0)]
    return {
        "wrong": ["batches"] * wrong,
        "edges": loader._graph.stores is not None and loader._graph.stores.edges is not None,
        "source": made_by(loader),
        "said": [str(each.message) for each in said],
        "where": [Path(each.filename).name for each in said],
    }


def other_draws(path: str) -> dict[str, object]:
    """Batches drawn by weight and by time, and a loader with a column that the CPU gathers."""
    graph = khop.open_graph(path)
    placed = graph.on("cuda", topology="device", columns="device", check="none")
    wrong: list[str] = []
    for rule in (khop.Weighted("weight"), khop.Temporal("time")):
        found, expected = (first_batch(each, rule) for each in (placed, graph))
        wrong += [str(rule)] * (found != expected)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        mixed = loader_of(graph.on("cuda", columns={"x": "device"}))
    return {"wrong": wrong, "mixed": made_by(mixed), "said": [str(each.message) for each in said]}


def parts_of_the_edges(path: str) -> dict[str, object]:
    """Batches of links over training edges, and over the edges before a time, of kernels and of the CPU."""
    graph = khop.open_graph(path)
    split, before = khop.split_links(graph, "user buys item"), edges_before(graph, 5000)

    def of_links(train: khop.Graph) -> khop.Loader:
        negatives = khop.UniformNegatives(1)
        sampler = khop.LinkSampler(train, [2], negatives=negatives, exclude="edge+reverse")
        return khop.Loader(sampler, split.train_links, 16, columns=["x"], shuffle=True, threads=1)

    def of_edges(edges: khop.Graph) -> khop.Loader:
        sampler = khop.NeighborSampler(edges, [3, 2], edge_ids=True)
        columns = {"user": ["x"], BUYS: ["weight"]}
        return khop.Loader(sampler, {"user": torch.arange(0, 300, 9)}, 20, columns=columns, threads=1)

    wrong: list[str] = []
    made: dict[str, str] = {}
    for name, edges, make, columns in (
        ("links", split.train, of_links, "auto"),
        ("times", before, loader_of, "auto"),
        ("columns of edges", before, of_edges, "device"),
    ):
        placed = edges.on("cuda", columns=columns, check="none")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the CPU gathers columns of edges, and draws for them
            loader = make(placed)
        wrong += [name] * (bits(loader.batch(0, 0)) != bits(make(edges).batch(0, 0)))
        made[name] = made_by(loader)
    return {"wrong": wrong, "made": made}


@covered
def draws(rank: int, device: torch.device, path: str, out: str) -> None:
    """Batches that kernels draw on devices of ranks with the whole topology each."""
    triton_interpreter.correct()
    told: dict[str, object] = {}
    with host_as_gpu():
        for placement, topology in (("features", "device"), ("features", "auto"), ("whole", "pinned")):
            told[f"{placement} {topology}"] = drawn_on_devices(path, placement, topology)
        if this_group().world_size > 1:
            told["repeats"] = with_repeats(path, "device")
            told["others"] = other_draws(path)
    this_group().barrier()
    Path(out, f"{rank}.json").write_text(json.dumps(told, default=str))


@covered
def few_draws(rank: int, device: torch.device, path: str, out: str) -> None:
    """Batches that kernels draw on two ranks, and batches that the CPU draws for its columns of edges."""
    triton_interpreter.correct()
    with host_as_gpu():
        told = {"columns of edges": with_edge_columns(path), "drawn": first_drawn_batches(path)}
    this_group().barrier()
    Path(out, f"{rank}.json").write_text(json.dumps(told, default=str))


@covered
def draws_of_parts(rank: int, device: torch.device, path: str, out: str) -> None:
    """Batches that kernels draw on two ranks from parts of the edges, and plans for unequal cards."""
    triton_interpreter.correct()
    with host_as_gpu():
        told = {"parts": parts_of_the_edges(path), "unequal": unequal_cards(path)}
    this_group().barrier()
    Path(out, f"{rank}.json").write_text(json.dumps(told))
