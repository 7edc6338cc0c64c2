"""Embedding tables with a row per node, in which only the rows that a batch reads have gradients.

Rows of sharded tables are exchanged between ranks by collective functions: `bounds` are the first row of each
rank, and the end of the last. Only requested rows are sent, except by functions with "whole" in their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, distributed, nn

from khop.distributed.processes.group import Group, placed, this_group
from khop.kernels.segment import segment_sum


def row_bounds(group: Group, count: int) -> list[int]:
    """Return the first row of each rank in a table of `count` rows, and the end of the last."""
    return [-(-count * rank // group.world_size) for rank in range(group.world_size + 1)]


def gathered_from_all(group: Group, ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """All-gather ids (n) and values (n, ...), in rank order."""
    counts = group.gather(torch.tensor([ids.numel()])).flatten().tolist()

    def joined(tensor: Tensor) -> Tensor:
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: tensor.shape[0]] = tensor
        return torch.cat([rows[:count] for rows, count in zip(group.gather(padded), counts, strict=True)])

    return joined(ids), joined(values)


def sent_to_owners(group: Group, bounds: Sequence[int], ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Send ids and values to the ranks that store these rows; return the received ones in rank order.

    `ids` ascend.
    """
    sent, received = _splits(group, bounds, ids)
    return _exchanged(ids, sent, received), _exchanged(values, sent, received)


def asked_of_owners(group: Group, bounds: Sequence[int], held: Tensor, ids: Tensor) -> Tensor:
    """Fetch rows (ids, ...) from the ranks that store them, in the order of the ids, which may repeat."""
    wanted, order = ids.sort()
    sent, received = _splits(group, bounds, wanted)
    asked = _exchanged(wanted, sent, received) - bounds[group.rank]
    rows = _exchanged(held.index_select(0, asked), received, sent)
    return torch.empty_like(rows).index_copy_(0, order, rows)


def whole_table(group: Group, bounds: Sequence[int], held: Tensor) -> Tensor:
    """Return all rows, on every rank, in main memory."""
    out = torch.empty(bounds[-1], *held.shape[1:], dtype=held.dtype)
    pieces = [out[first:last] for first, last in pairwise(bounds)]
    pieces[group.rank].copy_(held)
    group.share_rows(pieces, range(group.world_size))
    return out


def whole_table_on_rank_0(group: Group, bounds: Sequence[int], held: Tensor) -> Tensor:
    """Return all rows, in main memory, on rank 0; no rows on other ranks."""
    to_rank_0 = [held.shape[0], *[0] * (group.world_size - 1)]
    counts = [last - first for first, last in pairwise(bounds)]
    return _exchanged(held, to_rank_0, counts if group.rank == 0 else [0] * len(counts)).cpu()


def _splits(group: Group, bounds: Sequence[int], ids: Tensor) -> tuple[list[int], list[int]]:
    """Return the number of ascending ids stored by each rank, and the number that each rank requests."""
    ends = torch.searchsorted(ids, torch.tensor(bounds, device=ids.device))
    of_ranks = group.gather(ends.diff().cpu())
    return of_ranks[group.rank].tolist(), of_ranks[:, group.rank].tolist()


def _exchanged(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    mine = placed(rows).contiguous()
    out = mine.new_empty(sum(received), *rows.shape[1:])
    distributed.all_to_all_single(out, mine, received, sent)
    return out.to(rows.device)


# Training of embeddings: as any parameter; only the rows that a batch reads; the same, sharded over ranks.
EmbeddingUpdate = Literal["dense", "sparse", "sharded"]
_DRAWN_ROWS = 1 << 14  # initial rows drawn per chunk


class NodeEmbedding(nn.Module):
    """Embedding table of nodes with gradients only for the rows that a batch reads, for `khop.RowAdam`.

    `weight` has the rows of this rank. Autograd does not write to it, so DistributedDataParallel and other
    optimizers leave it unchanged. The state dict has the whole table for any number of ranks; for a sharded
    table, get it inside `with khop.models.gathered(model)`. Training gives the same result for both updates
    and any number of ranks.

    Args:
        count: Number of nodes.
        width: Width of an embedding.
        update: "sparse" (default): each rank stores all rows, and ranks exchange the gradients of the rows
            that they read. "sharded": each rank stores a range of the rows and requests the others from
            their owners. Calling a sharded table is collective, even without ids.
        numbers: Node numbers before renumbering, int64 (count), from 0, so that initial rows do not depend
            on it; default None: not renumbered.
    Raises:
        ValueError: `count` is negative, `width` is below 1, or `update` is invalid.
    Example:
        >>> table = khop.models.NodeEmbedding(count=100, width=8)
        >>> optimizer = khop.RowAdam(torch.nn.ModuleDict({"user": table}), lr=0.01)
        >>> table(torch.tensor([3, 7, 3])).sum().backward()
        >>> optimizer.step()
    """

    weight: Tensor  # (rows of this rank, width)

    def __init__(
        self, count: int, width: int, update: EmbeddingUpdate = "sparse", numbers: Tensor | None = None
    ) -> None:
        super().__init__()
        if count < 0 or width < 1:
            raise ValueError(
                f"embeddings ({count}, {width}): the count must be at least 0, the width at least 1"
            )
        if update not in ("sparse", "sharded"):
            raise ValueError(f"embedding update {update!r}: must be 'sparse' or 'sharded'")
        group = this_group()
        self.count = count
        self.width = width
        self.is_sharded = update == "sharded" and group.world_size > 1
        self.bounds = row_bounds(group, count) if self.is_sharded else [0, count]
        self.first = self.bounds[group.rank] if self.is_sharded else 0
        last = self.bounds[group.rank + 1] if self.is_sharded else count
        rows = first_rows(count, width, self.first, last, numbers)
        if self.is_sharded:
            self.weight = rows  # not a parameter, which DistributedDataParallel would overwrite with rank 0's
        else:
            self.register_parameter("weight", nn.Parameter(rows, requires_grad=False))
        self._shown: Tensor | None = None
        self._read: list[tuple[Tensor, Tensor]] = []  # ids, gradients of backward passes since the last step

    def forward(self, ids: Tensor) -> Tensor:
        """Read rows of the table.

        Args:
            ids: Nodes, int64 (n); may repeat.
        Returns:
            Rows in the order of the ids, (n, width).
        """
        if self._shown is not None:
            rows = self._shown.index_select(0, ids.to(self._shown.device)).to(self.weight.device)
        elif self.is_sharded:
            rows = asked_of_owners(self.group(), self.bounds, self.weight, ids)
        else:
            rows = self.weight.detach().index_select(0, ids)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            rows.register_post_accumulate_grad_hook(partial(self._note, ids))
        return rows

    def take_gradients(self) -> tuple[Tensor, Tensor]:
        """Return ascending ids and gradients of the rows that this rank has read since the last call."""
        nothing = self.weight.new_zeros(0, dtype=torch.int64), self.weight.new_zeros(0, self.width)
        ids, gradients = zip(nothing, *self._read, strict=True)
        self._read = []
        return summed(torch.cat(ids), torch.cat(gradients))

    def held(self, table: Tensor) -> Tensor:
        """Return this rank's rows of a whole table (count, ...), such as a checkpoint's."""
        return table[self.first : self.first + self.weight.shape[0]]

    def on_rank_0(self, held: Tensor) -> Tensor:
        """Join the rows of all ranks, shaped as `weight`, into one table on rank 0. Collective."""
        return whole_table_on_rank_0(self.group(), self.bounds, held)

    def group(self) -> Group:
        """Return the ranks that share the table; ValueError if it was made for another number of ranks."""
        group = this_group()
        if self.is_sharded and group.world_size != len(self.bounds) - 1:
            raise ValueError(
                f"embeddings for {len(self.bounds) - 1} ranks are used on {group.world_size}: make the model "
                "inside khop.launch, and load a checkpoint into it"
            )
        return group

    def _note(self, ids: Tensor, rows: Tensor) -> None:
        assert rows.grad is not None
        self._read.append((ids, rows.grad))
        rows.grad = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NodeEmbedding:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.is_sharded:
            self.weight.data = fn(self.weight.data)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self.is_sharded:
            return
        if self._shown is None:
            raise ValueError(
                f"{prefix}weight: its rows are sharded over {len(self.bounds) - 1} ranks; get the state dict "
                "inside `with khop.models.gathered(model):`, on every rank"
            )
        destination[f"{prefix}weight"] = self._shown

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        name = f"{prefix}weight"
        if not self.is_sharded:
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )
        elif name not in state_dict:
            missing_keys.append(name)
        elif state_dict[name].shape != (self.count, self.width):
            error_msgs.append(f"{name} is {tuple(state_dict[name].shape)}, not {(self.count, self.width)}")
        else:
            self.weight.copy_(self.held(state_dict[name]))


def sharded_rows(model: nn.Module) -> dict[str, NodeEmbedding]:
    """Find the tables of a model that are sharded over several ranks, by the name of their weight."""
    tables = {f"{name}.weight": m for name, m in model.named_modules() if isinstance(m, NodeEmbedding)}
    return {name: table for name, table in tables.items() if table.is_sharded}


@contextmanager
def shown(model: nn.Module, what: Callable[[NodeEmbedding], Tensor]) -> Iterator[None]:
    """Replace sharded tables by the result of `what` inside the block, for reads and in the state dict."""
    before = [(table, table._shown) for table in sharded_rows(model).values()]
    try:
        for table, _ in before:
            table._shown = what(table)
        yield
    finally:
        for table, shown_before in before:
            table._shown = shown_before


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Copy sharded embeddings to every rank inside a `with` block.

    Inside the block, calling the model is not collective, and its state dict is complete. Entering the block
    is collective: every rank gets the whole tables in host memory. Models without sharded embeddings are not
    changed.

    Args:
        model: Model with `khop.models.NodeEmbedding` tables.
    Example:
        >>> model = torch.nn.ModuleDict({"user": khop.models.NodeEmbedding(100, 8, update="sharded")})
        >>> with khop.models.gathered(model):
        ...     state = model.state_dict()
    """
    with shown(model, lambda table: whole_table(table.group(), table.bounds, table.weight)):
        yield


def first_rows(count: int, width: int, first: int, last: int, numbers: Tensor | None = None) -> Tensor:
    """Initialize rows `first` to `last` with the values of a draw of the whole table.

    The table has `count` rows, drawn from torch's generator. The norm of a row is 1, not each of its values,
    because many rows are summed. With `numbers`, row i is drawn as row `numbers[i]`.
    """
    out = torch.empty(last - first, width)
    order = torch.arange(last - first)
    ascending = order + first
    if numbers is not None:
        ascending, order = numbers[first:last].sort()
    for start in range(0, count, _DRAWN_ROWS):
        drawn = torch.empty(min(_DRAWN_ROWS, count - start), width)
        nn.init.normal_(drawn, std=width**-0.5)
        bounds = torch.tensor([start, start + drawn.shape[0]])
        begin, end = torch.searchsorted(ascending, bounds).tolist()
        out[order[begin:end]] = drawn[ascending[begin:end] - start]
    return out


def summed(ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return each id once, ascending, with the sum of its values, added in order."""
    ordered, order = ids.sort(stable=True)
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    starts = is_new.nonzero().squeeze(1)
    indptr = torch.nn.functional.pad(starts, (0, 1), value=ordered.numel())
    return ordered[starts], segment_sum(values, indptr, order)
