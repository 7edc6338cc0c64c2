"""Feature rows partitioned across GPU memory, exchanged without host synchronization.

A batch needs two collectives between GPUs: ids, and rows. All messages have the same size, so sizes are not
exchanged, and the host does not read a tensor before the batch is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from zlib import crc32

import torch
from torch import Tensor

from khop.distributed.exchange.peers import MARK_NUMBERS, Message, Peers, naming, narrowest, sent_to_all
from khop.distributed.exchange.row_wire import (
    FixedWire,
    RowGroup,
    Wire,
    is_rounded,
    received_rows,
    rounded,
    sent_rows,
    wire_fields,
)
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.processes.group import Group
from khop.graph.features.store import Rows
from khop.graph.features.table import column_of, read_rows, scales_of
from khop.graph.store import CscGraph
from khop.kernels.gather import GatheredColumn, gather_columns, widened
from khop.kernels.memory import padded_pitch
from khop.kernels.owners import PeerSlots, peer_slots
from khop.loading.columns import ColumnChoice, Names
from khop.loading.device.device_memory import (
    OUT_OF_MEMORY,
    DeviceMemory,
    MachineRanks,
    PinningRefused,
)
from khop.loading.device.device_placement import DevicePlacement
from khop.loading.device.memory_plan import FreeMemory, MemoryPlan, StoreSizes, WorkSizes, plans
from khop.loading.device.placed_stores import Conditions, PlacedStores, placed_stores, store_sizes
from khop.loading.source import SECONDS, Drawn
from khop.sampling.on_device.capacities import room
from khop.schema import NodeType, Specs

ASKING = Message("asking for rows on devices", "id")
ANSWERING = Message("getting rows on devices", "row")


@dataclass(frozen=True)
class Asked:
    """Rows of one group of a batch: ids on the device, duplicates included."""

    ids: Tensor  # int64 (n)
    as_float32: frozenset[str] = frozenset()  # columns to widen


@dataclass(frozen=True, eq=False)
class RankRows:
    """Node columns with this rank's rows in device-accessible memory."""

    columns: Mapping[NodeType, Mapping[str, Tensor]]  # (rows of this rank, *shape), at any pitch
    features: PartitionedFeatures  # these and all other columns, on the host
    device: torch.device
    pinned: frozenset[str] = frozenset()  # the columns in pinned host memory

    @property
    def rank(self) -> int:
        """This rank."""
        return self.features.owners.own

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.features.owners.count

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column."""
        return self.features.specs

    @property
    def wire(self) -> Wire:
        """The format in which rows are sent."""
        return self.features.wire

    @cached_property
    def bounds(self) -> dict[NodeType, Tensor]:
        """Bounds on the device by type, int64 (ranks + 1): rank q is asked for ids from bounds[q] on."""
        features = self.features
        return {
            t: torch.tensor(features.owners.bounds(features.offsets[t]), device=self.device)
            for t in self.columns
        }

    @cached_property
    def firsts(self) -> dict[NodeType, Tensor]:
        """First id that each rank stores, on the device by type, int64 (ranks)."""
        return {
            t: torch.tensor([first for first, _ in self.spans(t)], device=self.device) for t in self.columns
        }

    @cached_property
    def scales(self) -> dict[tuple[NodeType, str], Tensor | None]:
        """The scales of quantized columns, on the device."""
        return {
            (t, name): scales_of(self.specs[t][name], self.device)
            for t, of_type in self.columns.items()
            for name in of_type
        }

    def spans(self, node_type: NodeType) -> list[tuple[int, int]]:
        """Return the ids that each rank stores: the first, and the one after the last."""
        features = self.features
        return [features.owners.span(features.offsets[node_type], rank) for rank in range(self.world_size)]

    def id_dtype(self, node_type: NodeType) -> torch.dtype:
        """Return the dtype of ids in messages, the same on all ranks."""
        return narrowest(max(end - first for first, end in self.spans(node_type)))

    def slots(self, node_type: NodeType, ids: Tensor, capacity: int) -> PeerSlots:
        """Return the positions of rows by id in messages with `capacity` ids for each rank."""
        return peer_slots(ids, self.bounds[node_type], self.firsts[node_type], self.rank, capacity)

    def stored(self, node_type: NodeType, name: str, rows: Tensor) -> Tensor:
        """Gather rows of this rank by position, as stored; int64 (n), in range if this rank has rows."""
        table = self.columns[node_type][name]
        if not table.shape[0]:
            return rows.new_zeros((rows.numel(), *table.shape[1:]), dtype=table.dtype)
        what = f"column {name!r} of {node_type!r}: row"
        return gather_columns([GatheredColumn(table, what, is_pinned=name in self.pinned)], rows)[0]


@dataclass(frozen=True, eq=False)
class Swapped:
    """A batch's rows, issued to the current stream, and the status that shows if they are valid."""

    rows: list[dict[str, Tensor]]  # by group, as returned by a gather
    status: Tensor  # int64 (ranks, n) on the device; see `SwapStatus`


@dataclass(frozen=True, eq=False)
class RowSwap:
    """The exchange of one batch, in a format shared by all ranks."""

    rows: RankRows
    format: FixedWire

    def issue(self, peers: Peers, marks: tuple[list[int], list[int]], asked: Sequence[Asked]) -> Swapped:
        """Exchange a batch's rows in the current stream. Collective; the host does not wait.

        `asked` has the ids of each group of the format. `marks` are for ids and rows.
        """
        rows, form = self.rows, self.format
        slots = [
            rows.slots(group.type_, of.ids, group.capacity)
            for group, of in zip(form.groups, asked, strict=True)
        ]
        given, found = form.requests(rows.device), form.requests(rows.device)
        self._write_requests(given, slots, marks[0])
        peers.swap(found, given, ASKING)
        answers, received = form.answers(rows.device), form.answers(rows.device)
        outside = self._write_answers(answers, found, marks[1])
        peers.swap(received, answers, ANSWERING)
        headers = form.request_header(found), form.answer_header(received), outside[:, None]
        status = torch.cat([*headers, form.request_header(given)], dim=1)
        of_groups = zip(form.rows(received), slots, asked, range(len(slots)), strict=True)
        return Swapped([self._rows(*of_group) for of_group in of_groups], status)

    def _write_requests(self, requests: Tensor, slots: Sequence[PeerSlots], mark: list[int]) -> None:
        header = self.format.request_header(requests)
        self.format.write_mark(header, mark)
        capacities = [group.capacity for group in self.format.groups]
        exceeded = [(of.counts > most).any() for of, most in zip(slots, capacities, strict=True)]
        header[:, MARK_NUMBERS] = torch.stack(exceeded).any()  # all ranks learn of it, not only one owner
        header[:, MARK_NUMBERS + 1 :] = torch.stack([of.counts for of in slots], dim=1)
        for place, of in zip(self.format.ids(requests), slots, strict=True):
            place.copy_(of.asked)

    def _write_answers(self, answers: Tensor, requests: Tensor, mark: list[int]) -> Tensor:
        """Write the rows that each rank requests; return the numbers of invalid ids, int64 (ranks)."""
        self.format.write_mark(self.format.answer_header(answers), mark)
        outside = torch.zeros(self.rows.world_size, dtype=torch.int64, device=answers.device)
        of_groups = zip(self.format.groups, self.format.ids(requests), self.format.rows(answers), strict=True)
        for group, ids, places in of_groups:
            first, end = self.rows.spans(group.type_)[self.rows.rank]
            wide = ids.long()
            clamped = wide.clamp(0, max(0, end - first - 1))
            outside += (wide != clamped).sum(1)
            for name in group.columns:
                spec = self.rows.specs[group.type_][name]
                stored = self.rows.stored(group.type_, name, clamped.flatten())
                for place, sent in zip(places[name], sent_rows(stored, spec, self.rows.wire), strict=True):
                    place.copy_(sent.unflatten(0, place.shape[:2]))
        return outside

    def _rows(
        self, received: Mapping[str, Sequence[Tensor]], slots: PeerSlots, asked: Asked, number: int
    ) -> dict[str, Tensor]:
        """Merge local and remote rows, in the order of the ids."""
        group = self.format.groups[number]
        own = slots.places.where(slots.is_own, 0)
        remote = slots.places.where(~slots.is_own, 0)
        at = torch.div(remote, group.capacity, rounding_mode="floor"), remote % group.capacity
        found = {}
        for name in group.columns:
            spec, wire = self.rows.specs[group.type_][name], self.rows.wire
            here = self.rows.stored(group.type_, name, own)
            here = rounded(here, spec, wire) if is_rounded(spec, wire) else here
            there = received_rows([sent[at] for sent in received[name]], spec, wire)
            is_own = slots.is_own.view(-1, *[1] * len(spec.shape))
            wanted = Rows(asked.ids, (name,), as_float32=asked.as_float32)
            scales = self.rows.scales[group.type_, name]
            column = column_of(self.rows.columns[group.type_][name], group.type_, name, wanted, scales)
            found[name] = widened(column, torch.where(is_own, here, there))
        return found


@dataclass(frozen=True)
class SwapStatus:
    """Host-side status of a row exchange."""

    overflowed: bool  # on some rank: all ranks repeat the exchange
    requested: tuple[int, ...]  # distinct ids requested by this rank, by group

    @classmethod
    def of(cls, peers: Peers, marks: tuple[list[int], list[int]], status: Tensor) -> SwapStatus:
        """Check the messages of all ranks; ValueError names the sender of a wrong message or invalid id."""
        overflowed, numbers = False, status.tolist()
        width = (len(numbers[0]) - MARK_NUMBERS - 1) // 2  # of the header of a request
        for rank, found in enumerate(numbers):
            peers.check_mark(rank, ASKING, marks[0], found[:MARK_NUMBERS])
            peers.check_mark(rank, ANSWERING, marks[1], found[width : width + MARK_NUMBERS])
            if found[width + MARK_NUMBERS]:
                raise peers.wrong(rank, ASKING, "an id of a row that this rank does not store")
            overflowed |= found[MARK_NUMBERS] != 0
        own = [found[width + 2 * MARK_NUMBERS + 2 :] for found in numbers]
        return cls(overflowed, tuple(map(sum, zip(*own, strict=True))))


_UNTESTED = "exchanges between GPUs are untested"


def placed_rank_rows(
    features: PartitionedFeatures,
    request: DevicePlacement,
    memory: DeviceMemory,
    work: WorkSizes,
    edges: CscGraph | None = None,
    machine: MachineRanks | None = None,
) -> tuple[RankRows, PlacedStores]:
    """Copy this rank's rows of the requested node columns, and the edges; also return the plan.

    `edges` are the whole topology; None leaves it to the CPU. They are placed after the columns, as by
    `placed_stores`. ValueError if the requested stores do not fit, or if none of the node types has a
    requested column.
    """
    free = memory.free()
    sizes = _with_edges(_sizes(features), edges, 1 if machine is None else machine.count)
    plan = next(plans(request, sizes, work, free, only_requested=True))
    try:
        columns = _stored(features, plan, memory)
    except (OUT_OF_MEMORY, PinningRefused) as error:
        raise ValueError(
            f"{request.device}: rows of this rank could not be placed: {str(error).splitlines()[0]}. Give "
            'columns a smaller placement: "pinned", "host", or "mapped"'
        ) from error
    why = f"as requested; {_UNTESTED}"
    return _beside_edges(RankRows(columns, features, memory.device), plan, memory, edges, machine, free, why)


def planned_rank_rows(
    features: PartitionedFeatures,
    request: DevicePlacement,
    memory: DeviceMemory,
    work: WorkSizes,
    edges: CscGraph,
    machine: MachineRanks | None,
    group: Group,
) -> tuple[RankRows, PlacedStores] | None:
    """Copy the edges and this rank's rows of node columns to the GPUs, as far as all ranks have room.

    Collective: the ranks have one plan, for the largest of their parts and the least of their free memory.
    None if no column fits on all of them.
    """
    sizes, free = _of_all_ranks(_with_edges(_sizes(features), edges, 1), memory.free(), group)
    for plan in plans(request, sizes, work, free, only_requested=False):
        if not any(place.is_read_by_gpu for place in plan.columns.values()):
            break
        columns = None
        with suppress(OUT_OF_MEMORY, PinningRefused):
            columns = _stored(features, plan, memory)
        is_stored = group.gather(torch.tensor([columns is not None]))
        if columns is not None and bool(is_stored.all()):
            why = f"as much on the cards as fits; {_UNTESTED}"
            rows = RankRows(columns, features, memory.device)
            return _beside_edges(rows, plan, memory, edges, machine, free, why)
    return None


def _with_edges(sizes: StoreSizes, edges: CscGraph | None, shards: int) -> StoreSizes:
    """Return the sizes of columns together with those of the whole topology, which `shards` ranks divide."""
    if edges is None:
        return sizes
    whole = store_sizes(edges, {}, Conditions())
    return replace(
        sizes,
        topology=whole.topology,
        of_edges=whole.of_edges,
        num_nodes=whole.num_nodes,
        shards=shards,
    )


def _of_all_ranks(sizes: StoreSizes, free: FreeMemory, group: Group) -> tuple[StoreSizes, FreeMemory]:
    """Return the largest columns of a rank, and the least free memory. Collective.

    Ranks of a machine divide the memory of its host.
    """
    count = group.local_world_size
    own = replace(free, host_bytes=free.host_bytes // count, host_total=free.host_total // count)
    told = json.dumps([astuple(own), dict(sizes.columns), dict(sizes.rows)]).encode()
    frees, columns, rows = zip(*map(json.loads, group.gather_bytes(told)), strict=True)
    largest = {name: max(of_rank[name] for of_rank in columns) for name in sizes.columns}
    most = {name: max(of_rank[name] for of_rank in rows) for name in sizes.rows}
    return replace(sizes, columns=largest, rows=most), FreeMemory(*map(min, zip(*frees, strict=True)))


def _beside_edges(
    rows: RankRows,
    plan: MemoryPlan,
    memory: DeviceMemory,
    edges: CscGraph | None,
    machine: MachineRanks | None,
    free: FreeMemory,
    why: str,
) -> tuple[RankRows, PlacedStores]:
    """Place the edges after the rows of a plan, and say where all is; see `placed_rank_rows`."""
    on_device = None
    if edges is not None:  # the free memory is read again: columns of all ranks of the machine are in place
        request = replace(plan.request, columns={})
        placed = placed_stores(edges, {}, request, memory, Conditions(plan.work), machine)
        plan, on_device = replace(plan, topology=placed.plan.topology), placed.edges
    stores = PlacedStores(plan, memory.device, on_device, {}, f"rows of this rank on {plan.line(free, why)}")
    return replace(rows, pinned=plan.pinned_columns), stores


def _sizes(features: PartitionedFeatures) -> StoreSizes:
    """Return the bytes of this rank's rows, by node column."""
    num_bytes: dict[str, int] = {}
    rows: dict[str, int] = {}
    for node_type, specs in features.specs.items():
        for name, spec in specs.items() if isinstance(node_type, str) else ():
            count, dtype = len(features.local_rows(node_type)), getattr(torch, spec.dtype)
            pitch = padded_pitch(torch.Size(spec.shape).numel(), dtype)
            num_bytes[name] = num_bytes.get(name, 0) + count * pitch * dtype.itemsize
            rows[name] = rows.get(name, 0) + count
    return StoreSizes(0, num_bytes, rows, sum(len(features.local_rows(t)) for t in features.specs))


def _stored(
    features: PartitionedFeatures, plan: MemoryPlan, memory: DeviceMemory
) -> dict[NodeType, dict[str, Tensor]]:
    found: dict[NodeType, dict[str, Tensor]] = {}
    for node_type, specs in features.specs.items():
        names = (
            [name for name in specs if plan.columns[name].is_read_by_gpu]
            if isinstance(node_type, str)
            else []
        )
        for name in names:
            assert isinstance(node_type, str)
            every = Rows(torch.arange(len(features.local_rows(node_type))), (name,))
            column = read_rows(features.pieces[node_type], specs, node_type, every)[name]
            of_type = found.setdefault(node_type, {})
            of_type[name] = memory.stored_rows(column, plan.columns[name])
    return found


_MEASURING = Message("measuring exchanges of rows", "id")


@dataclass(frozen=True)
class RowPart:
    """Columns of one type that batches need for the same nodes: all of them, or only the seeds."""

    node_type: NodeType
    columns: Names
    of_seeds: bool

    def ids(self, drawn: Drawn) -> Tensor:
        """Return the ids of a batch: of its seeds, or of its nodes."""
        return (drawn.seed_nodes if self.of_seeds else drawn.sample.nodes)[self.node_type]


def split_by_rows(choice: ColumnChoice, rows: RankRows) -> ColumnChoice:
    """Return the part of a choice that is in device memory of ranks."""
    of_nodes, of_seeds = (
        {t: tuple(name for name in names if name in rows.columns.get(t, {})) for t, names in of.items()}
        for of in (choice.of_nodes, choice.of_seeds)
    )
    return ColumnChoice(
        {t: names for t, names in of_nodes.items() if names},
        {},
        {t: names for t, names in of_seeds.items() if names},
        choice.as_float32,
    )


def row_parts(choice: ColumnChoice) -> Iterator[RowPart]:
    """Yield the columns of all nodes, then columns of only the seeds."""
    for node_type, names in choice.of_nodes.items():
        yield RowPart(node_type, names, of_seeds=False)
    for node_type, names in choice.of_seeds.items():
        alone = tuple(name for name in names if name not in choice.of_nodes.get(node_type, ()))
        if alone:
            yield RowPart(node_type, alone, of_seeds=True)


def without(choice: ColumnChoice, of_device: ColumnChoice) -> ColumnChoice:
    """Return the columns of a choice that are not in another."""
    of_nodes, of_seeds = (
        {t: tuple(name for name in names if name not in without.get(t, ())) for t, names in of.items()}
        for of, without in (
            (choice.of_nodes, of_device.of_nodes),
            (choice.of_seeds, of_device.of_seeds),
        )
    )
    return replace(
        choice,
        of_nodes={t: names for t, names in of_nodes.items() if names},
        of_seeds={t: names for t, names in of_seeds.items() if names},
    )


def joined_columns(
    names: Mapping[NodeType, Names], *found: Mapping[NodeType, Mapping[str, Tensor]]
) -> dict[NodeType, dict[str, Tensor]]:
    """Merge columns of several origins, ordered by name."""
    found_by_type: dict[NodeType, dict[str, Tensor]] = {t: {} for t in names}
    for columns in found:
        for node_type, of_type in columns.items():
            found_by_type[node_type] |= of_type
    return {t: {name: found_by_type[t][name] for name in of_type} for t, of_type in names.items()}


def measured_format(
    rows: RankRows, parts: Sequence[RowPart], batches: Iterable[Sequence[Tensor]], peers: Peers
) -> FixedWire:
    """Return the format with capacity for the rows that typical batches request from a rank. Collective.

    `batches` are the ids of each part, on the device. ValueError if the columns of ranks differ.
    """
    asked: list[list[int]] = [[] for _ in parts]  # most rows requested from one other rank, by batch
    for ids in batches:
        for number, (part, of_part) in enumerate(zip(parts, ids, strict=True)):
            asked[number].append(int(rows.slots(part.node_type, of_part, 1).counts.max()))
    most = torch.tensor([max(1, room(counts or [0])) for counts in asked])
    digest = crc32(repr((parts, rows.wire)).encode())
    groups = [
        RowGroup(part.node_type, part.columns, count, rows.id_dtype(part.node_type))
        for part, count in zip(parts, _most_of_ranks(peers, most, digest), strict=True)
    ]
    return FixedWire(tuple(groups), rows.specs, rows.wire, peers.world_size)


def _most_of_ranks(peers: Peers, most: Tensor, digest: int) -> list[int]:
    """Return the maxima over all ranks; ValueError if digests of columns differ."""
    found = sent_to_all(peers, torch.cat([torch.tensor([digest]), most]), _MEASURING)
    for rank, of_rank in enumerate(found):
        with naming(peers, rank, _MEASURING):
            if not of_rank.numel() or int(of_rank[0]) != digest:
                raise ValueError("columns of a batch that this rank does not have, or another format")
    largest: list[int] = torch.stack(found).amax(0)[1:].tolist()
    return largest


def row_counts(
    rows: RankRows, parts: Sequence[RowPart], drawn: Drawn, found: Sequence[int], requested: Sequence[int]
) -> dict[str, float]:
    """Return the counts of rows of a batch, as `PartitionedFeatures` counts them.

    Except that remote rows of columns of seeds include duplicate seeds, because the host waits for nothing.
    `found` are the numbers of `remote_counts`, `requested` the distinct ids requested by this rank, by part.
    """
    *remote, cached = found
    counts = dict.fromkeys(("host_cache_rows", "requested_rows", "requested_bytes"), 0.0)
    types = {part.node_type for part in parts}
    counts["needed_rows"] = sum(drawn.sample.nodes[t].numel() for t in types)
    counts["remote_rows"], counts["device_cache_rows"] = sum(remote), cached
    for part, count in zip(parts, requested, strict=True):
        counts["requested_rows"] += count
        specs = rows.specs[part.node_type]
        fields = [field for name in part.columns for field in wire_fields(specs[name], rows.wire)]
        counts["requested_bytes"] += count * sum(field.row_bytes for field in fields)
    return counts


def remote_counts(
    rows: RankRows, parts: Sequence[RowPart], drawn: Drawn, slots: Mapping[NodeType, Tensor]
) -> Tensor:
    """Return the rows of other ranks in a batch, by part, and the cached rows: int64, on the device.

    `slots` have the slot of each node in the cache, or -1.
    """
    counts = []
    for part in parts:
        first, end = rows.spans(part.node_type)[rows.rank]
        ids = part.ids(drawn)
        counts.append(((ids < first) | (ids >= end)).sum())
    cached = sum(((of_type >= 0).sum() for of_type in slots.values()), torch.zeros_like(counts[0]))
    return torch.stack([*counts, cached])


def message_counts(form: FixedWire, peers: Peers, seconds: float) -> dict[str, float]:
    """Return the counts of a fixed-size exchange, without the bytes that a rank sends to itself."""
    others = peers.world_size - 1
    sizes = {"id": form.request_bytes * others, "row": form.answer_bytes * others}
    found = {f"{kind}_bytes_{way}": size for kind, size in sizes.items() for way in ("sent", "received")}
    return {**found, "collectives": 2 if others else 0, SECONDS: seconds}
