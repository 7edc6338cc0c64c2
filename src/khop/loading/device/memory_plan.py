"""Arithmetic of a placement: the stores of a graph within the free memory of a GPU and its host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from khop.loading.device.device_placement import DevicePlacement, StorePlace

GIB = 1 << 30
STAMP_BYTES = 8  # per node: the table in which a batch's nodes are numbered on the GPU
SLOT_BYTES = 4  # per row of a cached column: its slot
_STEPS = (
    StorePlace.DEVICE,
    StorePlace.SHARDED,
    StorePlace.PINNED,
)  # where the plan tries a store before the CPU reads it


@dataclass(frozen=True)
class FreeMemory:
    """Free bytes of a card (or of its MIG instance) and of the host (or of its control group)."""

    bytes_on_device: int
    host_bytes: int
    device_total: int = 0
    host_total: int = 0

    @property
    def device_room(self) -> int:
        """Bytes to plan with on the card: a reserve of 0.5 GiB, or 5 % of the card, stays free."""
        return max(0, self.bytes_on_device - max(GIB // 2, self.device_total // 20))

    @property
    def host_room(self) -> int:
        """Bytes to plan with on the host: a reserve of 1 GiB, or 10 % of the memory, stays free."""
        return max(0, self.host_bytes - max(GIB, self.host_total // 10))


@dataclass(frozen=True)
class StoreSizes:
    """Bytes of a graph's stores, as they are when placed."""

    topology: int  # offsets, sources, original ids, sums, times
    columns: Mapping[str, int]  # by column name, over all node types, with the padding of rows
    rows: Mapping[str, int]  # by column name: rows over all node types
    num_nodes: int  # of all types
    unread: StorePlace = StorePlace.HOST  # where a column stays that the CPU reads: HOST, or MAPPED
    on_disk: frozenset[str] = frozenset()  # columns that stay on disk instead, because memory has no room
    shards: int = 1  # ranks of the machine that divide a sharded store
    of_edges: int = 0  # of the topology, bytes that ranks divide: arrays with an entry per edge

    def steps(self) -> tuple[StorePlace, ...]:
        """Return the places that a plan tries for a store, in this order, before the CPU reads it."""
        return tuple(place for place in _STEPS if self.shards > 1 or place is not StorePlace.SHARDED)

    def unread_place(self, column: str) -> StorePlace:
        """Return the place of a column that the CPU reads."""
        return StorePlace.DISK if column in self.on_disk else self.unread


@dataclass(frozen=True)
class WorkSizes:
    """Bytes of GPU memory for everything but the stores."""

    batch_bytes: int = 0  # of one finished batch
    ring_slots: int = 0  # batches in flight
    pool_bytes: int = 0  # of captured graphs
    model_bytes: int = 0  # weights and embeddings, their gradients and the optimizer's moments

    @property
    def total(self) -> int:
        """Sum of all."""
        ring = self.batch_bytes * self.ring_slots
        return ring + self.pool_bytes + self.model_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of every store."""

    request: DevicePlacement
    sizes: StoreSizes
    work: WorkSizes
    topology: StorePlace
    columns: Mapping[str, StorePlace]

    @property
    def caches(self) -> dict[str, int]:
        """Bytes of the cache of each column that has one."""
        found = {}
        for name, place in self.columns.items():
            size = self.request.cache_of(name)
            if place is not StorePlace.DEVICE and size:
                found[name] = size.bytes_of(self.sizes.columns[name])
        return found

    @property
    def pinned_columns(self) -> frozenset[str]:
        """Columns in host memory that kernels read."""
        return frozenset(name for name, place in self.columns.items() if place is StorePlace.PINNED)

    @property
    def bytes_on_device(self) -> int:
        """Bytes that the plan takes on the card."""
        divided, is_divided = self._bytes_in(StorePlace.SHARDED), self.topology is StorePlace.SHARDED
        whole = self.sizes.topology - self.sizes.of_edges if is_divided else 0  # on every rank
        stores = self._bytes_in(StorePlace.DEVICE) + whole - (whole - divided) // self.sizes.shards
        stamps = STAMP_BYTES * self.sizes.num_nodes if self.topology.is_read_by_gpu else 0
        slots = sum(SLOT_BYTES * self.sizes.rows[name] for name in self.caches)
        return stores + stamps + slots + sum(self.caches.values()) + self.work.total

    @property
    def pinned_bytes(self) -> int:
        """Bytes of host memory that the plan pins."""
        return self._bytes_in(StorePlace.PINNED)

    def fits(self, free: FreeMemory) -> bool:
        """Return True if card and host have room for it."""
        return self.bytes_on_device <= free.device_room and self.pinned_bytes <= free.host_room

    def line(self, free: FreeMemory, why: str) -> str:
        """Return the plan and its reason in one line."""
        columns = ", ".join(f"{name} {place}" for name, place in self.columns.items()) or "none"
        caches = "".join(f", {gigabytes(size)} of {name} cached" for name, size in self.caches.items())
        return (
            f"{self.request.device}: topology {self.topology}, columns {columns}{caches}: "
            f"{gigabytes(self.bytes_on_device)} of {gigabytes(free.bytes_on_device)} free on the card, "
            f"{gigabytes(self.pinned_bytes)} of {gigabytes(free.host_bytes)} free on the host pinned; {why}"
        )

    def _bytes_in(self, memory: StorePlace) -> int:
        topology = self.sizes.topology if self.topology is memory else 0
        return topology + sum(self.sizes.columns[n] for n, place in self.columns.items() if place is memory)


def plans(
    request: DevicePlacement, sizes: StoreSizes, work: WorkSizes, free: FreeMemory, *, only_requested: bool
) -> Iterator[MemoryPlan]:
    """Yield the plans that fit, the best one first; the next one is for an allocation that fails.

    Requested stores are where they are requested. Of the others, the topology comes first, because its reads
    are small and random, then columns from small to large. Each goes to the card, else it is pinned, else the
    CPU reads it. With `only_requested`, the CPU reads all others.

    ValueError if the requested stores alone do not fit.
    """
    request.check_names(sizes.columns)
    plan = _requested(request, sizes, work)
    _check(plan, free)
    if not only_requested:
        plan = _improved(plan, free)
    yield plan
    while (smaller := _smaller(plan)) is not None:
        plan = smaller
        if plan.fits(free):
            yield plan


def _requested(request: DevicePlacement, sizes: StoreSizes, work: WorkSizes) -> MemoryPlan:
    columns = {name: request.place_of(name) or sizes.unread_place(name) for name in sizes.columns}
    return MemoryPlan(request, sizes, work, request.topology or StorePlace.HOST, columns)


def _improved(plan: MemoryPlan, free: FreeMemory) -> MemoryPlan:
    """Move planned stores to the fastest memory with room for them."""
    request, sizes = plan.request, plan.sizes
    if request.topology is None:
        plan = next(
            (better for place in sizes.steps() if (better := replace(plan, topology=place)).fits(free)),
            plan,
        )
    for name in sorted(sizes.columns, key=lambda name: (sizes.columns[name], name)):
        if request.place_of(name) is None:
            steps = [replace(plan, columns={**plan.columns, name: place}) for place in sizes.steps()]
            plan = next((better for better in steps if better.fits(free)), plan)
    return plan


def _smaller(plan: MemoryPlan) -> MemoryPlan | None:
    """Return the plan after a failed allocation; None if no planned store is left for the GPU to read.

    The largest planned store on the card is divided among the machine's cards if they reach each other, else
    pinned. Then the CPU reads the largest pinned one.
    """
    request, sizes = plan.request, plan.sizes
    stores = [(sizes.columns[n], n) for n in plan.columns if request.place_of(n) is None]
    for memory in _STEPS:
        there = [(size, name) for size, name in stores if plan.columns[name] is memory]
        if there:
            name = max(there)[1]
            after = (*sizes.steps(), sizes.unread_place(name))
            return replace(plan, columns={**plan.columns, name: after[after.index(memory) + 1]})
        if request.topology is None and plan.topology is memory:
            places = (*sizes.steps(), StorePlace.HOST)
            return replace(plan, topology=places[places.index(memory) + 1])
    return None


def _check(plan: MemoryPlan, free: FreeMemory) -> None:
    if plan.bytes_on_device > free.device_room:
        raise ValueError(
            f"{_asked(plan, StorePlace.DEVICE)}: {gigabytes(plan.bytes_on_device)} are needed on "
            f"{plan.request.device}, including batches and model, and {gigabytes(free.device_room)} are free "
            f"after the reserve; {_remedy(plan)}"
        )
    if plan.pinned_bytes > free.host_room:
        raise ValueError(
            f"{_asked(plan, StorePlace.PINNED)}: {gigabytes(plan.pinned_bytes)} are to be pinned, and "
            f"{gigabytes(free.host_room)} of host memory are free after the reserve; place the largest in "
            '"host", or "mapped" for a column'
        )


def _asked(plan: MemoryPlan, memory: StorePlace) -> str:
    """Name the requests that need memory, as users wrote them."""
    asked = [f'topology "{memory}"'] if plan.topology is memory else []
    asked += [f'column {name!r} "{memory}"' for name, place in plan.columns.items() if place is memory]
    if memory is StorePlace.DEVICE:
        asked += [f"a cache of {name!r}" for name in plan.caches]
    return ", ".join(asked) or f"device {plan.request.device!r}"


def _remedy(plan: MemoryPlan) -> str:
    """Return the next smaller request."""
    on_card = [n for n, place in plan.columns.items() if place in (StorePlace.DEVICE, StorePlace.SHARDED)]
    if on_card:
        name = max(on_card, key=lambda name: (plan.sizes.columns[name], name))
        return f'give columns={{{name!r}: "pinned"}}'
    if plan.caches:
        return "give a smaller cache"
    if plan.topology in (StorePlace.DEVICE, StorePlace.SHARDED):
        return 'give topology="pinned"'
    return "use a smaller batch or model, or another GPU"


def gigabytes(size: int) -> str:
    """Format a size for a message: "1.25 GB"; sizes below 0.1 GB in MB."""
    return f"{size / 1e9:,.2f} GB" if size >= 10**8 else f"{size / 1e6:,.2f} MB"
