"""Numbering of the nodes of one type in a batch on a GPU, hop by hop, and the counts that the host reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from khop.kernels.triton.hash_table import (
    PairTable,
    TreeLevel,
    TreeRows,
    Trees,
    assign_pairs,
    check_pairs,
    claim,
    free_keys,
    num_places,
)
from khop.kernels.triton.node_table import Level, Numbering, assign, count_firsts, mark, num_blocks
from khop.kernels.triton.rows import Marks

_WIDTH = 4  # int32 numbers per cell: 16 bytes, so that kernels are compiled for one alignment


@dataclass(frozen=True)
class Cell:
    """A count on the device, and its place among all."""

    value: Tensor  # int32 (1)
    number: int


@dataclass(frozen=True)
class Counts:
    """The counts of one batch on the host."""

    overflowed: int  # the stamp of the last batch that exceeded a capacity
    values: list[int]

    def __getitem__(self, cell: Cell) -> int:
        return self.values[cell.number]


class Cells:
    """Counts on one device, 0 at first, and the stamp of the last batch that exceeded a capacity."""

    def __init__(self, most: int, device: torch.device) -> None:
        self.values = torch.zeros(most + 1, _WIDTH, dtype=torch.int32, device=device)
        self.overflow = self.values[0].view(torch.int64)[:1]  # int64 (1)
        self._taken = 0

    def take(self) -> Cell:
        """Return a cell that is not in use."""
        self._taken += 1
        return Cell(self.values[self._taken, :1], self._taken)


def counts_of(values: Tensor) -> Counts:
    """Return the counts in `Cells.values` or in a copy of them: one read."""
    first = [cell[0] for cell in values.tolist()]
    return Counts(first[0], first)  # stamps fit the lower half of `overflow`


@dataclass(frozen=True)
class FrontierRows:
    """Nodes to expand."""

    nodes: Tensor  # int64 (capacity), of which the first `count` are in use
    count: Cell
    trees: TreeRows | None = None  # of disjoint trees

    def first(self, capacity: int) -> FrontierRows:
        """Return room for the first rows only."""
        trees = None if self.trees is None else _prefix(self.trees, capacity)
        return FrontierRows(self.nodes[:capacity], self.count, trees)


@dataclass(frozen=True)
class SlotKeys:
    """The drawn nodes of one type and hop: an id per slot, and the index of the table for it."""

    ids: Tensor  # int32 or int64 (slots), -1: empty
    keys: Tensor  # the ids, or places of pairs
    firsts: Tensor  # int32 (blocks of slots)


class DenseTable:
    """Memory for the numbering of one node type: an entry for every node.

    Batches that are made one after another share it.
    """

    def __init__(self, num_nodes: int, device: torch.device) -> None:
        self._entries = torch.zeros(num_nodes, dtype=torch.int64, device=device)

    def clear(self) -> None:
        """Remove all entries: needed before stamps start again."""
        self._entries.zero_()

    def numbers(self, stamp: Tensor, overflow: Tensor, base: int, trees: Trees | None) -> _DenseNumbers:
        """Return the numbering of one batch; `base` exceeds its local ids."""
        return _DenseNumbers(Numbering(self._entries, stamp, overflow, base))


class TreeTable:
    """Memory for the numbering of one node type in disjoint trees: a table of pairs of a tree and a node."""

    def __init__(self, num_nodes: int, most_pairs: int, num_trees: int, device: torch.device) -> None:
        check_pairs(num_trees, num_nodes)
        places = num_places(most_pairs)
        self._num_nodes = num_nodes
        self._entries = torch.zeros(places, dtype=torch.int64, device=device)
        self._keys = free_keys(places, device)

    def clear(self) -> None:
        """Remove all entries: needed before stamps start again."""
        self._entries.zero_()

    def numbers(self, stamp: Tensor, overflow: Tensor, base: int, trees: Trees | None) -> _TreeNumbers:
        """Return the numbering of one batch; `base` exceeds its local ids."""
        assert trees is not None
        numbering = Numbering(self._entries, stamp, overflow, base)
        return _TreeNumbers(PairTable(self._keys, self._num_nodes, numbering), trees)


class Branches:
    """Trees of a rule with paths: one for each seed and, behind them, one for each slot of a draw.

    A pair of such a tree and a node is then a drawn edge, so that each drawn edge has a row.
    """

    def __init__(self, seeds: Trees, slots: int) -> None:
        count = seeds.positions.numel()
        empty = seeds.positions.new_zeros(3, count + slots)
        self._seeds = seeds
        self._taken = count
        self.of_tree = Trees(empty[0], empty[1])
        self.roots = empty[2]  # int64 (trees), the number of each tree's seed
        self.roots[:count] = torch.arange(count, device=empty.device)

    def start(self) -> None:
        """Copy the positions and limits of the seeds."""
        count, until = self._seeds.positions.numel(), self.of_tree.until
        assert until is not None
        assert self._seeds.until is not None  # rules with paths read limits
        self.of_tree.positions[:count] = self._seeds.positions
        until[:count] = self._seeds.until

    def take(self, slots: int, times: Tensor | None) -> Fork:
        """Return the trees of the slots of a draw; `times` are those of all edges of its type."""
        first, self._taken = self._taken, self._taken + slots
        numbers = torch.arange(first, self._taken, device=self.roots.device)
        return Fork(self, numbers, slice(first, self._taken), times)


@dataclass(frozen=True)
class Fork:
    """Trees of the slots of a draw."""

    branches: Branches
    numbers: Tensor  # int64 (slots)
    span: slice
    times: Tensor | None  # int64 (edges of the type); None: edges have no time

    def trees(self, parents: Tensor, edges: Tensor) -> Tensor:
        """Write the trees of drawn edges, int64 (slots); `parents` are those of their rows. Nothing waits."""
        of_tree, roots = self.branches.of_tree, self.branches.roots
        assert of_tree.until is not None
        until = of_tree.until[parents]
        if self.times is not None:
            until = self.times[edges.clamp(0, self.times.numel() - 1)]
        of_tree.positions[self.span] = of_tree.positions[parents]
        of_tree.until[self.span] = until
        roots[self.span] = roots[parents]
        return self.numbers


class _DenseNumbers:
    """Nodes of one type, each once in a batch."""

    def __init__(self, numbering: Numbering) -> None:
        self.numbering = numbering

    def start(self) -> None:
        """Do nothing: stamps tell the entries of batches apart."""

    def slots(self, ids: Tensor) -> SlotKeys:
        """Return the slots of a hop: the ids are the keys."""
        self.numbering.check_slots(ids.numel())
        return SlotKeys(ids, ids, _firsts(ids))

    def plant(self, slots: SlotKeys, trees: Tensor | None) -> None:
        """Mark seeds."""
        mark(self.numbering, slots.ids)

    def marks(self, first_slot: int) -> Marks | None:
        """Return marks: a draw marks its nodes in the same launch."""
        return self.numbering.marks(first_slot)

    def reach(self, slots: SlotKeys, first_slot: int, count: int, trees: Tensor | None) -> None:
        """Do nothing: the draw has marked its nodes."""

    def tree_rows(self, capacity: int) -> TreeRows | None:
        """Return None: there are no trees."""
        return None

    def assign(self, slots: SlotKeys, level: Level, rows: TreeRows | None, fresh: TreeRows | None) -> None:
        """Number the marked nodes that are new."""
        count_firsts(self.numbering, slots.keys, slots.firsts)
        assign(self.numbering, slots.keys, slots.firsts, level)


class _TreeNumbers:
    """Pairs of a tree and a node, each once in a batch."""

    def __init__(self, pairs: PairTable, trees: Trees) -> None:
        self.numbering = pairs.numbering
        self._pairs = pairs
        self._trees = trees

    def start(self) -> None:
        """Free all places."""
        self._pairs.clear()

    def slots(self, ids: Tensor) -> SlotKeys:
        """Return the slots of a hop, with tensors for the places of pairs."""
        self.numbering.check_slots(ids.numel())
        return SlotKeys(ids, torch.full(ids.shape, -1, device=ids.device), _firsts(ids))

    def plant(self, slots: SlotKeys, trees: Tensor | None) -> None:
        """Mark seeds, each in its tree."""
        assert trees is not None
        claim(self._pairs, slots.ids, trees, slots.keys)

    def marks(self, first_slot: int) -> Marks | None:
        """Return None: a pair has no place before the draw."""
        return None

    def reach(self, slots: SlotKeys, first_slot: int, count: int, trees: Tensor | None) -> None:
        """Mark the nodes of a draw, each in its row's tree."""
        assert trees is not None
        section = slice(first_slot, first_slot + count)
        claim(self._pairs, slots.ids[section], trees, slots.keys[section], first_slot)

    def tree_rows(self, capacity: int) -> TreeRows | None:
        """Return tensors for the trees of nodes."""
        timed = self._trees.until is not None
        columns = torch.zeros(2 + timed, capacity, dtype=torch.int64, device=self._trees.positions.device)
        return TreeRows(columns[0], columns[1], columns[2] if timed else None)

    def assign(self, slots: SlotKeys, level: Level, rows: TreeRows | None, fresh: TreeRows | None) -> None:
        """Number the marked pairs that are new."""
        assert rows is not None
        count_firsts(self.numbering, slots.keys, slots.firsts)
        assign_pairs(self._pairs, slots.keys, slots.firsts, TreeLevel(level, rows, fresh, self._trees))


Numbers = _DenseNumbers | _TreeNumbers  # of the nodes of one type in one batch


class TypeNodes:
    """The nodes of one type in a batch: levels are added when the batch is planned, and filled per batch."""

    def __init__(self, numbers: Numbers, capacity: int, none: Cell, device: torch.device) -> None:
        self.numbers = numbers
        self.nodes = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._rows = numbers.tree_rows(capacity)
        self.counts: list[Cell] = []  # of nodes so far, by level
        self._fresh: list[FrontierRows] = []  # the nodes that each level added
        self._none = none

    @property
    def tree_rows(self) -> TreeRows:
        """Trees of the nodes so far, as long as `nodes`; only of disjoint trees."""
        assert self._rows is not None
        return self._rows

    def frontier(self, level: int, rows: int) -> FrontierRows:
        """Return all nodes so far as rows to expand."""
        return FrontierRows(self.nodes, self.counts[level], self._rows).first(rows)

    def fresh(self, level: int) -> FrontierRows:
        """Return the nodes that a level added as rows to expand."""
        return self._fresh[level]

    def add_level(
        self, slots: SlotKeys | None, capacity: int, fresh_capacity: int | None, cells: Cells
    ) -> Callable[[], None] | None:
        """Add a level for slots; return the function that fills it. None without slots: nothing is added."""
        before = self.counts[-1] if self.counts else self._none
        if slots is None:
            self.counts.append(before)
            self._fresh.append(FrontierRows(self.nodes[:0], self._none, None))
            return None
        count = cells.take()
        self.counts.append(count)
        if fresh_capacity is None:
            self._fresh.append(FrontierRows(self.nodes[:0], self._none, None))
            return partial(
                self.numbers.assign,
                slots,
                Level(self.nodes, before.value, count.value, capacity),
                self._rows,
                None,
            )
        fresh = FrontierRows(
            self.nodes.new_zeros(fresh_capacity), cells.take(), self.numbers.tree_rows(fresh_capacity)
        )
        self._fresh.append(fresh)
        level = Level(self.nodes, before.value, count.value, capacity, fresh.nodes, fresh.count.value)
        return partial(self.numbers.assign, slots, level, self._rows, fresh.trees)


def _firsts(ids: Tensor) -> Tensor:
    return torch.empty(num_blocks(ids.numel()), dtype=torch.int32, device=ids.device)


def _prefix(rows: TreeRows, capacity: int) -> TreeRows:
    until = None if rows.until is None else rows.until[:capacity]
    return TreeRows(rows.trees[:capacity], rows.positions[:capacity], until)
