"""Stores of a graph that GPU kernels read, and columns of a graph folder mapped, in memory or on disk."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from khop.graph.features.row_cache import DiskTable
from khop.graph.features.store import FeatureStore
from khop.graph.features.table import FeatureTable
from khop.graph.folder import GraphFolder, copied_columns, disk_columns, feature_columns
from khop.graph.needs import ArrayStore
from khop.graph.store import CscGraph, stored_graph, with_stored_indices
from khop.kernels.gather import Shards
from khop.kernels.memory import padded_pitch
from khop.loading.device.device_memory import (
    OUT_OF_MEMORY,
    DeviceMemory,
    MachineRanks,
    PinningRefused,
    SharedPins,
    shared_pins,
)
from khop.loading.device.device_placement import DevicePlacement, StorePlace
from khop.loading.device.memory_plan import FreeMemory, MemoryPlan, StoreSizes, WorkSizes, gigabytes, plans
from khop.schema import EdgeType, NodeType, Schema

Columns = Mapping[NodeType | EdgeType, Mapping[str, Tensor]]
NodeColumns = Mapping[NodeType, Mapping[str, Tensor]]
PlacedColumns = Mapping[NodeType, Mapping[str, Tensor | Shards]]

_ARRAY_BYTES = 8  # per edge: a running sum, or a time


@dataclass(frozen=True)
class Conditions:
    """Conditions of a placement other than the request and the graph."""

    work: WorkSizes = WorkSizes()
    arrays_of_rule: int = 0  # per edge: sums, and times
    no_kernels: str | None = None  # the reason why kernels cannot make the batches
    is_mapped: bool = False  # the columns are files
    on_disk: frozenset[str] = frozenset()  # columns that memory has no room for


@dataclass(frozen=True, eq=False)
class PlacedStores:
    """Copies of edges and columns for the kernels of a device. The other stores stay with the graph."""

    plan: MemoryPlan
    device: torch.device
    edges: CscGraph | None  # None: the CPU draws
    columns: PlacedColumns  # columns of nodes that kernels read, with rows at padded pitch
    line: str  # the plan, and why it was chosen

    @classmethod
    def none(cls, request: DevicePlacement, work: WorkSizes, device: torch.device) -> PlacedStores:
        """Return no copies: the CPU draws and gathers for the device."""
        plan = MemoryPlan(request, StoreSizes(0, {}, {}, 0), work, StorePlace.HOST, {})
        return cls(plan, device, None, {}, f"{request.device}: the CPU samples and gathers")

    @classmethod
    def on_cpu(cls, request: DevicePlacement, work: WorkSizes, columns: Collection[str]) -> PlacedStores:
        """Return no copies either: the CPU reads columns from where a request keeps them.

        ValueError for memory that only a GPU reads.
        """
        request.check_names(dict.fromkeys(columns))
        places = {name: place for name in columns if (place := request.place_of(name)) is not None}
        if request.is_explicit or request.caches:
            raise ValueError(
                f"device {request.device!r}: only a GPU reads device and pinned memory and its caches; give "
                'columns="host", "mapped" or "disk", or the device "cuda"'
            )
        plan = MemoryPlan(request, StoreSizes(0, {}, {}, 0), work, StorePlace.HOST, places)
        named = ", ".join(f"{name} {place}" for name, place in places.items())
        return cls(plan, torch.device("cpu"), None, {}, f"cpu: columns {named}; as requested")

    def features(self, schema: Schema) -> FeatureTable:
        """Return the columns of nodes that kernels read, with their scales on the device."""
        columns = cast("Columns", self.columns)  # shards have the attributes of a tensor that a gather reads
        return replace(FeatureTable.of(schema, columns), pinned=self.plan.pinned_columns)

    def reads(self, column: str) -> bool:
        """Return True if kernels of the device read a column of nodes."""
        return self.plan.columns.get(column, StorePlace.HOST).is_read_by_gpu


def placed_stores(
    edges: CscGraph,
    columns: Columns,
    request: DevicePlacement,
    memory: DeviceMemory,
    conditions: Conditions,
    machine: MachineRanks | None = None,
) -> PlacedStores:
    """Copy stores to where a request or its plan keeps them, and say in one line what was chosen and why.

    With `machine`, its ranks share pinned copies and divide sharded stores, and the call is collective. If
    an allocation fails, the next plan is tried. ValueError if a requested store fits nowhere, if kernels
    cannot run on the device, or if an array is damaged.
    """
    of_nodes: NodeColumns = {t: columns[t] for t in edges.schema.node_types if t in columns}
    _check(request, of_nodes, conditions)
    sizes, free = store_sizes(edges, of_nodes, conditions), memory.free()
    why = _reason(request, conditions)
    if machine is not None and conditions.no_kernels is None:
        sizes, free = replace(sizes, shards=_shards(request, memory, machine)), _least_free(free, machine)
    for plan in plans(
        request, sizes, conditions.work, free, only_requested=conditions.no_kernels is not None
    ):
        pins = stored = None  # of the plan before, whose blocks are freed first
        try:
            pins = _sharing(plan, edges, of_nodes, memory, machine, free.host_room)
            stored = _stored(plan, edges, of_nodes, pins, machine)
        except (OUT_OF_MEMORY, PinningRefused) as error:  # not kept: it holds what was allocated so far
            why = f"a larger placement failed: {str(error).splitlines()[0]}"
        if machine is not None and not machine.all_say(int(stored is not None)) and stored is not None:
            stored, why = None, "a larger placement failed on another rank of this machine"
        if stored is not None and machine is not None and sizes.shards > 1:
            stored = _connected(stored, edges, memory, machine)
            why = why if stored is not None else "a GPU cannot open the memory of another"
        if stored is not None:
            return replace(stored, line=plan.line(free, why))
    raise ValueError(
        f"{request.device}: the requested stores could not be allocated; {why}. Give topology or columns a "
        'smaller placement: "pinned", "host", or "mapped" for a column'
    )


def store_sizes(edges: CscGraph, columns: NodeColumns, conditions: Conditions) -> StoreSizes:
    """Return the bytes of a graph's stores, as they are when placed."""
    of_edges = sum(csc.indices.nbytes for csc in edges.edges.values())
    of_edges += conditions.arrays_of_rule * _ARRAY_BYTES * sum(csc.num_edges for csc in edges.edges.values())
    of_nodes = sum(csc.indptr.nbytes for csc in edges.edges.values())
    of_nodes += sum(ids.nbytes for ids in edges.originals.values())
    num_bytes: dict[str, int] = {}
    rows: dict[str, int] = {}
    for of_type in columns.values():
        for name, column in of_type.items():
            width = column.shape[1:].numel()
            row_bytes = padded_pitch(width, column.dtype) * column.element_size()
            num_bytes[name] = num_bytes.get(name, 0) + column.shape[0] * row_bytes
            rows[name] = rows.get(name, 0) + column.shape[0]
    unread = StorePlace.MAPPED if conditions.is_mapped else StorePlace.HOST
    return StoreSizes(
        of_nodes + of_edges,
        num_bytes,
        rows,
        sum(edges.counts.values()),
        unread,
        conditions.on_disk,
        of_edges=of_edges,
    )


def _sharing(
    plan: MemoryPlan,
    edges: CscGraph,
    columns: NodeColumns,
    memory: DeviceMemory,
    machine: MachineRanks | None,
    host_room: int,
) -> DeviceMemory:
    """Return the memory for a plan's copies: with pinned copies shared by the ranks of a machine, if any.

    Ranks that cannot share divide the memory of the host. PinningRefused if it is too little.
    """
    if machine is None:
        return memory
    num_stores = 2 * len(edges.edges) + len(edges.originals) + sum(map(len, columns.values()))
    shared = shared_pins(memory, plan.pinned_bytes, num_stores, machine)
    if shared is None and plan.pinned_bytes > host_room // machine.count:
        raise PinningRefused(
            f"{gigabytes(plan.pinned_bytes)} of pinned stores on each of {machine.count} ranks, which cannot "
            f"share memory: {gigabytes(host_room)} are free on the host after the reserve"
        )
    return shared or memory


def _stored(
    plan: MemoryPlan,
    edges: CscGraph,
    columns: NodeColumns,
    memory: DeviceMemory,
    machine: MachineRanks | None,
) -> PlacedStores:
    """Copy the stores of a plan, and of sharded ones the rows and edges of this rank."""
    on_device = None
    if plan.topology is StorePlace.SHARDED:
        whole = partial(memory.stored, place=StorePlace.DEVICE)
        on_device = stored_graph(
            edges, ArrayStore(whole, lambda array: memory.stored_rows(*_part(array, plan.topology, machine)))
        )
    elif plan.topology.is_read_by_gpu:
        whole = partial(memory.stored, place=plan.topology)
        on_device = stored_graph(edges, ArrayStore(whole, whole))
    copies: dict[NodeType, dict[str, Tensor | Shards]] = {
        node_type: {
            name: memory.stored_rows(*_part(column, plan.columns[name], machine))
            for name, column in of_type.items()
            if plan.columns[name].is_read_by_gpu
        }
        for node_type, of_type in columns.items()
    }
    if isinstance(memory, SharedPins):
        memory.close()  # arrays of rules are stored when a rank first needs them
    return PlacedStores(plan, memory.device, on_device, copies, line="")


def _part(column: Tensor, place: StorePlace, machine: MachineRanks | None) -> tuple[Tensor, StorePlace]:
    """Return the rows of a column, or entries of an array, that this rank stores, and where."""
    if place is not StorePlace.SHARDED or machine is None:
        return column, StorePlace.DEVICE if place is StorePlace.SHARDED else place
    each = -(-column.shape[0] // machine.count)
    return column[machine.rank * each : machine.rank * each + each], StorePlace.DEVICE


def _shards(request: DevicePlacement, memory: DeviceMemory, machine: MachineRanks) -> int:
    """Return the number of ranks that can divide a store: 1 if a GPU of the machine cannot read another."""
    if memory.reaches(machine):
        return machine.count
    asked = ["topology"] if request.topology is StorePlace.SHARDED else []
    asked += ["columns"] if StorePlace.SHARDED in request.columns.values() else []
    if asked:
        raise ValueError(
            f'{request.device}: {" and ".join(asked)} "sharded": the GPUs of this machine cannot read each '
            'other, or each rank sees one GPU alone; give "device" or "pinned", or start the ranks by '
            "khop train --procs"
        )
    return 1


def _least_free(free: FreeMemory, machine: MachineRanks) -> FreeMemory:
    """Return the least free memory of the ranks of a machine, so that all have the same plan. Collective."""
    found = [json.loads(text) for text in machine.texts(json.dumps(astuple(free)))]
    return FreeMemory(*map(min, zip(*found, strict=True)))


def _connected(
    stores: PlacedStores, edges: CscGraph, memory: DeviceMemory, machine: MachineRanks
) -> PlacedStores | None:
    """Open the rows and edges of other ranks in sharded stores. Collective. None if a rank cannot."""
    counts, plan = edges.counts, stores.plan
    rows = {
        (t, name): (cast("Tensor", table), counts[t])
        for t, of_type in stores.columns.items()
        for name, table in of_type.items()
        if plan.columns[name] is StorePlace.SHARDED
    }
    indices = {}
    if stores.edges is not None and plan.topology is StorePlace.SHARDED:
        indices = {t: (csc.indices, edges.csc(t).num_edges) for t, csc in stores.edges.edges.items()}
    if not rows and not indices:
        return stores
    found = _shards_of(memory, machine, [*rows.values(), *indices.values()])
    if found is None:
        return None
    tables = dict(zip([*rows, *indices], found, strict=True))
    columns = {
        t: {name: tables.get((t, name), table) for name, table in of_type.items()}
        for t, of_type in stores.columns.items()
    }
    if stores.edges is None or not indices:
        return replace(stores, columns=columns)
    divided = {t: cast("Tensor", tables[t]) for t in indices}  # as columns: see `PlacedStores.features`
    array_store = ArrayStore(
        partial(memory.stored, place=StorePlace.DEVICE), partial(_divided, memory, machine)
    )
    return replace(
        stores, columns=columns, edges=with_stored_indices(edges, stores.edges, divided, array_store)
    )


def _divided(memory: DeviceMemory, machine: MachineRanks, array: Tensor) -> Tensor:
    """Divide an array of edges among the ranks of a machine. Collective; an error is raised on all ranks."""
    own, why = None, "a GPU cannot open the memory of another, or ranks need other arrays"
    try:
        own = memory.stored_rows(*_part(array, StorePlace.SHARDED, machine))
    except OUT_OF_MEMORY as error:
        why = str(error).splitlines()[0]
    found = _shards_of(memory, machine, None if own is None else [(own, array.shape[0])])
    if found is None:
        raise ValueError(
            f"{memory.device}: an array of {array.shape[0]:,} edges could not be divided among the GPUs of "
            f'this machine: {why}. Give topology "pinned" or "host"'
        )
    return cast("Tensor", found[0])


def _shards_of(
    memory: DeviceMemory, machine: MachineRanks, parts: Sequence[tuple[Tensor, int]] | None
) -> list[Shards] | None:
    """Open the parts that other ranks have of some tables. Collective. None on all ranks if one cannot.

    `parts` are this rank's rows of each table, and the number of rows of the table; None if it has none.
    """
    said, found = "", None
    with suppress(RuntimeError):
        if parts is not None:
            counts = [count for _, count in parts]
            exported = [memory.exported(own) if own.shape[0] else "" for own, _ in parts]
            said = json.dumps([counts, exported])
    texts = machine.texts(said)
    if parts is not None and all(texts):
        told = [json.loads(text) for text in texts]
        if all(counts == told[0][0] for counts, _ in told):
            with suppress(RuntimeError):
                of_parts = zip(parts, zip(*(exported for _, exported in told), strict=True), strict=True)
                found = [_opened(memory, machine.rank, *part, each) for part, each in of_parts]
    return found if machine.all_say(int(found is not None)) and found is not None else None


def _opened(memory: DeviceMemory, rank: int, own: Tensor, count: int, texts: Sequence[str]) -> Shards:
    """Return a table of `count` rows: those of this rank, and those that other ranks have exported."""
    shape, each = own.shape[1:], -(-count // len(texts))
    strides = (padded_pitch(shape.numel(), own.dtype), *own.stride()[1:])
    tables = []
    for number, text in enumerate(texts):
        rows = max(0, min(each, count - number * each))
        like = torch.empty_strided((rows, *shape), strides, dtype=own.dtype, device="meta")
        tables.append(own if number == rank else memory.opened(text, like) if rows else own[:0])
    return Shards.of(tables, memory.device)


def _check(request: DevicePlacement, columns: NodeColumns, conditions: Conditions) -> None:
    if request.is_explicit and conditions.no_kernels is not None:
        raise ValueError(
            f"{request.device}: kernels cannot make the batches: {conditions.no_kernels}; or leave the "
            'stores to the CPU: topology="host", columns="host"'
        )
    names = {name for of_type in columns.values() for name in of_type}
    files = (StorePlace.MAPPED, StorePlace.DISK)
    asked = [name for name in sorted(names) if request.place_of(name) in files]
    if asked and not conditions.is_mapped:
        raise ValueError(
            f'column {asked[0]!r} "{request.place_of(asked[0])}": the graph is in memory, not in a folder; '
            'give "host", or save the graph and open its folder'
        )


def _reason(request: DevicePlacement, conditions: Conditions) -> str:
    if request.is_explicit:
        return "as requested"
    if conditions.no_kernels is not None:
        return f"the CPU draws and gathers: {conditions.no_kernels}"
    return "as much on the card as fits"


def folder_features(
    folder: GraphFolder, places: Mapping[str, StorePlace] | None = None, room_bytes: int | None = None
) -> FeatureStore:
    """Return the columns of a folder, each where `places` says by its name.

    Other columns are mapped if the folder fits in `room_bytes`, by default three quarters of the free memory.
    Otherwise the largest ones are read from disk. HOST copies columns of nodes into memory.
    """
    columns = copied_columns(feature_columns(folder, room_bytes), places or {})
    table = FeatureTable.of(folder.schema, columns)
    on_disk = {t: files for t, files in disk_columns(folder, places, room_bytes).items() if files}
    return DiskTable(table, on_disk) if on_disk else table
