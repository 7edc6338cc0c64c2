"""What ranks do with rows that they hold in parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypeVar

import torch
from hypothesis import settings
from torch import Tensor, distributed

from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.row_wire import Wire
from khop.distributed.owners import PartitionOwners, RankOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.processes.group import Group, this_group
from khop.graph.features.row_cache import RowCache
from khop.graph.features.store import CachePlan, Rows
from khop.graph.features.table import DiskPiece
from khop.graph.inputs import quantize
from khop.kernels.gather import RowFile
from khop.schema import ColumnSpec, Schema
from khop.testing.feature_store import PROMISES, Columns
from support.covered import covered

Told = TypeVar("Told")
# By number of processes: ranks that keep the promises, and parts.
RANKS_AND_PARTS = {2: ((2, 5),), 4: ((1, 3), (2, 2), (3, 2), (4, 4))}
NODES = 20_000
X = torch.arange(NODES * 100.0).view(NODES, 100).sin()


def store_of(
    columns: Columns,
    holders: PartitionOwners,
    lanes: Lanes,
    wire: Wire = Wire.STORED,
    place: Path | None = None,
) -> PartitionedFeatures:
    """Each rank has the rows of its parts, and no others."""
    offsets, pieces = {}, {}
    for type_, of_type in columns.items():
        count = next(iter(of_type.values())).shape[0]
        offsets[type_] = [count * part // holders.parts for part in range(holders.parts + 1)]
        first, end = holders.held(offsets[type_], holders.rank)
        middle = (first + end) // 2
        halves = {name: (column[first:middle], column[middle:end]) for name, column in of_type.items()}
        pieces[type_] = halves if place is None else {n: _on_disk(of, place) for n, of in halves.items()}
    specs = {
        type_: {
            name: ColumnSpec(str(column.dtype).removeprefix("torch."), tuple(column.shape[1:]))
            for name, column in of_type.items()
        }
        for type_, of_type in columns.items()
    }
    return PartitionedFeatures(pieces, specs, offsets, RankOwners(holders, lanes), wire=wire)


def _on_disk(rows: tuple[Tensor, ...], place: Path) -> tuple[DiskPiece, ...]:
    """Each piece in a file of its own, which is gone when it is open."""
    pieces = []
    for piece in rows:
        with NamedTemporaryFile(dir=place) as file:
            file.write(piece.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            file.flush()
            shape = tuple(piece.shape[1:])
            pieces.append(DiskPiece(RowFile.open(Path(file.name), 0, piece.shape[0], shape, piece.dtype)))
    return tuple(pieces)


def kept_promises(group: Group, parts: int, place: Path | None = None) -> list[str]:
    """Those of the contract, by ranks that check them side by side."""
    lanes, holders = Lanes(group), PartitionOwners(parts, group.rank, group.world_size)
    for promise in PROMISES:
        promise(lambda columns: store_of(columns, holders, lanes, place=place))
    return [promise.__name__ for promise in PROMISES]


def of_the_first(count: int, what: Callable[[Group], Told]) -> Told | None:
    """What each of the first so many ranks says, in a group of their own with one set of lanes."""
    group, told = this_group(), None
    if group.rank < count:
        told = what(replace(group, world_size=count, before_leaving=[]))
    elif count > 1:
        distributed.new_group(list(range(count)), backend="gloo")  # torch wants all ranks to know of it
    group.barrier()
    return told


def own_wants(rank: int) -> Tensor:
    """Other rows on each rank, some twice."""
    ids = (torch.arange(3000) * 7919 + rank * 13) % NODES
    return torch.cat([ids, ids[:50]])


def bytes_of_a_gather(group: Group) -> dict[str, float]:
    """What a gather of large rows sends, and what it cannot do without."""
    lanes, holders = Lanes(group), PartitionOwners(4, group.rank, group.world_size)
    store = store_of({"n": {"x": X, "y": torch.arange(NODES)}}, holders, lanes)
    ids = own_wants(group.rank)
    rows = store.gather({"n": Rows(ids, ("x", "y"), {"y": 20})})["n"]
    assert torch.equal(rows["x"], X[ids])
    assert rows["y"].tolist() == ids[:20].tolist()
    first, end = holders.held(store.offsets["n"], group.rank)
    remote = torch.unique(ids[(ids < first) | (ids >= end)]).numel()
    return {**lanes.peers.counts, "distinct remote rows": remote}


def with_host_cache(group: Group) -> dict[str, float]:
    """A gather of which every other row of another rank is kept here."""
    lanes, holders = Lanes(group), PartitionOwners(4, group.rank, group.world_size)
    store = store_of({"n": {"x": X}}, holders, lanes)
    first, end = holders.held(store.offsets["n"], group.rank)
    kept = torch.arange(0, NODES, 2)
    kept = kept[(kept < first) | (kept >= end)]
    schema = Schema(("n",), (), columns=store.specs)
    plan = CachePlan({"n": kept}, {"n": ("x",)}, {"n": NODES}, calls=2)
    store = replace(store, kept=RowCache.filled(plan, store, schema))
    lanes.peers.begin(0, 0, lambda: False)
    ids = own_wants(group.rank)
    assert torch.equal(store.gather({"n": Rows(ids, ("x",))})["n"]["x"], X[ids])
    return dict(lanes.peers.counts)


def with_cache_of_own_rows(group: Group, place: Path) -> dict[str, int]:
    """A gather from the disks of ranks, of which every other row of any rank is kept here."""
    lanes, holders = Lanes(group), PartitionOwners(4, group.rank, group.world_size)
    store = store_of({"n": {"x": X}}, holders, lanes, place=place)
    assert store.resident_rows("n") == range(0)
    plan = CachePlan({"n": torch.arange(0, NODES, 2)}, {"n": ("x",)}, {"n": NODES}, calls=2)
    cached = store.cached(plan)
    ids = own_wants(group.rank)
    assert torch.equal(cached.gather({"n": Rows(ids, ("x",))})["n"]["x"], X[ids])
    own = [piece.kept.shape[0] for piece in cached.pieces["n"]["x"]]
    return {"own": sum(own), "others": cached.kept.rows.columns["n"]["x"].shape[0]}


def rounded_rows(group: Group) -> dict[str, list[list[float]]]:
    """The same rows, wherever they lie, of rows that travel in fewer bits."""
    lanes, holders = Lanes(group), PartitionOwners(4, group.rank, group.world_size)
    ids = torch.arange(0, NODES, 997)
    found = {}
    for wire in (Wire.FLOAT16, Wire.INT8):
        store = store_of({"n": {"x": X, "at": X[:, 0].clone()}}, holders, lanes, wire)
        rows = store.gather({"n": Rows(ids, ("x", "at"))})["n"]
        assert torch.equal(rows["at"], X[ids, 0])  # a single number is no feature
        assert rows["x"].dtype == torch.float32
        assert float((rows["x"] - X[ids]).abs().max()) <= (
            0.0005 if wire is Wire.FLOAT16 else 0.5 / 127 + 1e-6
        )
        found[wire.value] = rows["x"][:, :3].tolist()
    return found


def widened_rows(group: Group) -> None:
    """Rows of few bits travel as they are and come as float32, times their scales."""
    quantized = quantize(X[:, :3])
    lanes, holders = Lanes(group), PartitionOwners(4, group.rank, group.world_size)
    store = store_of({"n": {"x": quantized.values}}, holders, lanes)
    scales = quantized.scales
    spec = ColumnSpec("int8", (3,), scales=tuple(scales.tolist()))
    store = replace(store, column_specs={"n": {"x": spec}})
    ids = own_wants(group.rank)
    rows = store.gather({"n": Rows(ids, ("x",), as_float32=frozenset({"x"}))})["n"]["x"]
    assert torch.equal(rows, quantized.values[ids].float() * scales)


@covered
def features(rank: int, device: torch.device, out: str) -> None:
    """Everything above, over some of two or four ranks."""
    procs = this_group().world_size
    settings.register_profile("ranks", max_examples=procs, derandomize=True, database=None, deadline=None)
    settings.load_profile("ranks")
    told: dict[str, object] = {}
    for count, parts in RANKS_AND_PARTS[procs]:
        told[f"{count} ranks, {parts} parts"] = of_the_first(count, partial(kept_promises, parts=parts))
    told["bytes"] = of_the_first(procs, bytes_of_a_gather)
    told["kept"] = of_the_first(procs, with_host_cache)
    told["on disk"] = of_the_first(2, partial(kept_promises, parts=3, place=Path(out)))
    told["kept of all"] = of_the_first(2, partial(with_cache_of_own_rows, place=Path(out)))
    told["rounded"] = of_the_first(2, rounded_rows)
    of_the_first(2, widened_rows)
    Path(out, f"{rank}.json").write_text(json.dumps(told))
