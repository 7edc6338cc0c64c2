"""Grouping of ids by owner, and placement of the owners' responses in the requested order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import khop._core as _core
from khop.draw import Frontier, Neighbors, Positives
from khop.kernels.csc import check_ids
from khop.kernels.memory import pooled

Drawn = tuple[Tensor, Tensor, Tensor | None]  # offsets, int64 (rows + 1); nodes, int32 or int64; edges, int64


@dataclass(frozen=True, eq=False)
class ByOwner:
    """Rows grouped by owner. Rows of the same owner keep their order."""

    counts: tuple[int, ...]  # rows of each owner
    order: Tensor | None  # int64 (rows): row positions in order of owner; None: already in this order

    @classmethod
    def of(cls, ids: Tensor, bounds: Sequence[int]) -> ByOwner:
        """Group ids by owner. `bounds` ascend: the first id of each owner, then the end of the last range."""
        return cls((ids.numel(),), None) if len(bounds) == 2 else cls(*owner_order(ids, bounds))

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """Split rows of shape (rows, ...) into the rows of each owner."""
        return (rows if self.order is None else rows[self.order]).split_with_sizes(self.counts)

    def frontiers(self, frontier: Frontier) -> list[Frontier]:
        """Split a frontier into the frontier of each owner."""
        fields = {name: self.split(values) for name, values in frontier.fields.items()}
        return [
            Frontier(nodes, **{name: of_owners[owner] for name, of_owners in fields.items()})
            for owner, nodes in enumerate(self.split(frontier.nodes))
        ]

    def positives(self, positives: Positives) -> list[Positives]:
        """Split links into the links of each owner; the rows are the sources."""
        nothing = [None] * len(self.counts)
        until = nothing if positives.until is None else self.split(positives.until)
        rows = zip(self.split(positives.sources), self.split(positives.positions), until, strict=True)
        return [Positives(*of_owner, positives.time_column) for of_owner in rows]

    def joined(self, answers: Sequence[Tensor]) -> Tensor:
        """Join the answers of all owners, one row per requested row (rows, ...), in the original order."""
        if len(answers) == 1:
            return answers[0]
        # Write directly to pooled memory: page faults of new memory cost more than the gather.
        out = pooled((sum(self.counts), *answers[0].shape[1:]), answers[0].dtype)
        if self.order is None:
            return torch.cat(list(answers), out=out)
        for places, rows in zip(self.order.split_with_sizes(self.counts), answers, strict=True):
            out.index_copy_(0, places, rows)
        return out

    def neighbors(self, answers: Sequence[Neighbors]) -> Neighbors:
        """Join the neighbors drawn by each owner, as if a single owner had drawn all of them."""
        if len(answers) == 1:
            return answers[0]
        joined = join_drawn([(drawn.offsets, drawn.nodes, drawn.edges) for drawn in answers], self.order)
        words = [(of.offsets, of.weights.view(torch.int32), None) for of in answers if of.weights is not None]
        times = [(of.offsets, of.times, None) for of in answers if of.times is not None]
        weights = join_drawn(words, self.order)[1].view(torch.float32) if words else None
        return Neighbors(*joined, weights, join_drawn(times, self.order)[1] if times else None)


def first_outside(ids: Tensor, bounds: Sequence[int]) -> int:
    """Return the position of the first id outside `bounds`, or -1."""
    if not ids.numel():
        return -1
    low, high = (int(end) for end in ids.aminmax())
    if bounds[0] <= low and high < bounds[-1]:
        return -1
    return int(((ids < bounds[0]) | (ids >= bounds[-1])).int().argmax())


def owner_order(ids: Tensor, bounds: Sequence[int]) -> tuple[tuple[int, ...], Tensor | None]:
    """Return the number of `ids` of each owner, and the rows ordered by owner; None if already ordered.

    Owner q has the ids from bounds[q] up to bounds[q + 1]; `bounds` ascend, and every id has an owner.
    """
    if ids.device.type != "cpu":
        return owner_order_reference(ids, bounds)
    counts, order = _core.owner_order(ids.long().contiguous(), torch.tensor(bounds))
    return tuple(counts.tolist()), order


def owner_order_reference(ids: Tensor, bounds: Sequence[int]) -> tuple[tuple[int, ...], Tensor | None]:
    """The same as `owner_order` in plain torch, on any device."""
    inner = torch.tensor(bounds[1:-1], dtype=torch.int64, device=ids.device)
    owners = torch.searchsorted(inner, ids.long(), right=True)
    counts = tuple(torch.bincount(owners, minlength=len(bounds) - 1).tolist())
    order = owners.argsort(stable=True)
    return counts, None if bool((owners.diff() >= 0).all()) else order


def join_drawn(drawn: Sequence[Drawn], order: Tensor | None) -> Drawn:
    """Join the owners' draws, one piece per owner, into one draw of all rows. `order` is from `owner_order`.

    Nodes are 64-bit if those of any owner are. Edges are present if every owner has them.
    """
    if drawn[0][1].device.type != "cpu":
        return join_drawn_reference(drawn, order)
    is_wide = any(nodes.dtype == torch.int64 for _, nodes, _ in drawn)
    count = sum(nodes.numel() for _, nodes, _ in drawn)
    nodes = pooled((count,), torch.int64 if is_wide else torch.int32)
    offsets, edges = _core.join_drawn(
        [
            (offsets.contiguous(), of_owner.contiguous(), None if edges is None else edges.contiguous())
            for offsets, of_owner, edges in drawn
        ],
        order,
        nodes,
    )
    return offsets, nodes, edges


def join_drawn_reference(drawn: Sequence[Drawn], order: Tensor | None) -> Drawn:
    """The same as `join_drawn` in plain torch, on any device."""
    degrees = torch.cat([offsets.diff() for offsets, _, _ in drawn])
    nodes = torch.cat([nodes for _, nodes, _ in drawn])
    has_edges = all(edges is not None for _, _, edges in drawn)
    edges = torch.cat([edges for _, _, edges in drawn if edges is not None]) if has_edges else None
    starts = degrees.cumsum(0) - degrees
    if order is not None:
        places = torch.empty_like(order)
        places[order] = torch.arange(order.numel(), device=order.device)
        starts, degrees = starts[places], degrees[places]
    offsets = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    wanted = torch.repeat_interleave(starts - offsets[:-1], degrees) + torch.arange(
        nodes.numel(), device=nodes.device
    )
    return offsets, nodes[wanted], None if edges is None else edges[wanted]


def remote_rows(
    ids: Tensor, first: int, end: int, *, slots: Tensor | None = None, kept: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the position of each row of `ids` (int64, nonnegative), and the ids of the rows to request.

    Rows of ids in [first, end) are local. Of the others, `kept` rows are cached, each at its slot in
    `slots`; -1: not cached. The ids to request ascend without duplicates. Positions count the local, then
    the cached, then the requested rows.
    """
    if ids.device.type != "cpu":
        return remote_rows_reference(ids, first, end, slots=slots, kept=kept)
    return _core.remote_rows(ids.contiguous(), first, end, slots, kept)


def remote_rows_reference(
    ids: Tensor, first: int, end: int, *, slots: Tensor | None = None, kept: int = 0
) -> tuple[Tensor, Tensor]:
    """The same as `remote_rows` in plain torch, on any device."""
    slots = torch.full_like(ids, -1) if slots is None else slots
    is_here = (ids >= first) & (ids < end)
    is_asked = ~is_here & (slots < 0)
    asked, number = torch.unique(ids[is_asked], return_inverse=True)
    places = torch.where(is_here, ids - first, slots + end - first)
    places[is_asked] = number + end - first + kept
    return places, asked


@dataclass(frozen=True, eq=False)
class PeerSlots:
    """Ids sorted into slots by owner, and the position of each row. All tensors are on the ids' device."""

    asked: Tensor  # int64 (owners, capacity): distinct ids ascending, counted from the owner's first; then 0
    counts: Tensor  # int64 (owners): distinct ids of each owner, with or without a slot; 0 for this rank
    is_own: Tensor  # bool (ids): this rank stores the row
    places: Tensor  # int64 (ids): local rows: their position; others: slot owner * capacity + number


def peer_slots(ids: Tensor, bounds: Tensor, firsts: Tensor, own: int, capacity: int) -> PeerSlots:
    """Assign the distinct ids of each owner except this rank to its `capacity` slots, in ascending order.

    `ids` are int64 (n). `bounds` are int64 (owners + 1), on the device: owner q has the ids from bounds[q] up
    to bounds[q + 1]. `firsts` are int64 (owners), the first id that each owner stores. Ids beyond the
    capacity get the last slot; a count then exceeds the capacity. Does not synchronize with the device.
    """
    sorted_ids, order = ids.sort()
    is_first = torch.ones_like(sorted_ids)
    is_first[1:] = sorted_ids[1:] != sorted_ids[:-1]
    numbers = is_first.cumsum(0)  # from 1, over the distinct ids of all owners
    before = torch.cat([numbers.new_zeros(1), numbers])[torch.searchsorted(sorted_ids, bounds)]
    owners = torch.searchsorted(bounds[1:-1].contiguous(), sorted_ids, right=True)
    within = numbers - 1 - before[owners]
    is_own = owners == own
    room = firsts.numel() * capacity
    slots = torch.where(is_own | (within >= capacity), room, owners * capacity + within)
    asked = torch.zeros(room + 1, dtype=torch.int64, device=ids.device)
    asked.scatter_(0, slots, sorted_ids - firsts[owners])
    counts = before.diff()
    counts[own] = 0
    places = torch.where(is_own, sorted_ids - firsts[own], slots.clamp(max=room - 1))
    return PeerSlots(
        asked[:room].view(-1, capacity),
        counts,
        torch.empty_like(is_own).scatter_(0, order, is_own),
        torch.empty_like(places).scatter_(0, order, places),
    )


_BLOCK = 128  # ids per first slot; offsets within a block are below it
_NONE = 255


@dataclass(frozen=True, eq=False)
class IdSlots:
    """Slots 0, 1, 2, ... of ascending ids in [0, count). Threads may share it.

    A lookup reads one byte and one integer per id. The table takes one byte for every id in [0, count), and
    eight for every 128 of them.
    """

    places: Tensor  # uint8 (count): the slot of an id within its block
    first_slots: Tensor  # int64 (blocks)

    @classmethod
    def of(cls, ids: Tensor, count: int) -> IdSlots:
        """Build the slots of `ids`, int64, ascending and distinct; ValueError for ids outside [0, count)."""
        check_ids(ids, count, "kept")
        if bool((ids.diff() <= 0).any()):
            raise ValueError("kept ids must be ascending and distinct; pass ids.unique()")
        blocks = ids // _BLOCK
        per_block = torch.bincount(blocks, minlength=-(-count // _BLOCK))
        first_slots = per_block.cumsum(0) - per_block
        places = torch.full((count,), _NONE, dtype=torch.uint8)
        places[ids] = (torch.arange(ids.numel()) - first_slots[blocks]).to(torch.uint8)
        return cls(places, first_slots)

    @staticmethod
    def bytes_for(count: int) -> int:
        """Return the bytes of memory for slots of any ids in [0, count)."""
        return count + 8 * -(-count // _BLOCK)

    def find(self, ids: Tensor) -> Tensor:
        """Return int64 (n): the slot of each id of [0, count), or -1."""
        check_ids(ids, self.places.numel(), "wanted")
        return self.found(ids)

    def to(self, device: torch.device) -> IdSlots:
        """Return the slots in memory of a device."""
        return IdSlots(self.places.to(device), self.first_slots.to(device))

    def found(self, ids: Tensor) -> Tensor:
        """Return the same as `find` for valid ids. On a device, the host does not wait."""
        places = self.places[ids]
        slots = self.first_slots[ids.div(_BLOCK, rounding_mode="floor")] + places
        return slots.masked_fill_(places == _NONE, -1)
