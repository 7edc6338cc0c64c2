"""Input of a batch on a GPU: key, stamp, seeds and excluded edges, copied at once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from khop.draw import DrawKey
from khop.kernels.philox import signed
from khop.kernels.triton.exclude_edges import NO_PAIR, ExcludedPairs, pairs_of
from khop.kernels.triton.hash_table import Trees
from khop.sampling.seeds import Seeds
from khop.schema import EdgeType, NodeType

Excluded = Mapping[EdgeType, Tensor]  # int64 (2, pairs), ends of edges that carry no message
PairsByType = Mapping[EdgeType, tuple[int, int]]  # the most pairs, and the number of source nodes
_ALIGNED = 2  # int64 numbers: fields begin at multiples of 16 bytes
EMPTY = -1


class Inputs:
    """Key, stamp, the seeds of each type in slots, and pairs of ends of excluded edges."""

    def __init__(
        self,
        most: Mapping[NodeType, int],
        pairs: PairsByType,
        device: torch.device,
        *,
        trees: bool,
        times: bool,
    ) -> None:
        sizes = [1, 1, *(most_pairs for most_pairs, _ in pairs.values()), *most.values()]
        if trees:
            total = sum(most.values())
            sizes += [*most.values(), total] + [total] * times
        starts = _starts(sizes)
        self._host = torch.zeros(starts[-1], dtype=torch.int64, pin_memory=device.type != "cpu")
        self._device = torch.full((starts[-1],), EMPTY, dtype=torch.int64, device=device)
        self._device[: starts[2]] = 0  # no seeds, and a stamp before all others
        self._host_fields = _fields(self._host, starts, sizes)
        self._most = dict(most)
        of_device = iter(_fields(self._device, starts, sizes))
        self._pairs = dict(pairs)
        self.key, self.stamp = next(of_device), next(of_device)  # int64 (1)
        self.excluded = {t: ExcludedPairs(next(of_device), count) for t, (_, count) in pairs.items()}
        self.seeds: dict[NodeType, Tensor] = {t: next(of_device) for t in most}  # int64 (most)
        self.seed_trees: dict[NodeType, Tensor] = {}  # int64 (most), the number of each seed's tree
        self.trees: Trees | None = None
        if trees:
            self.seed_trees = {t: next(of_device) for t in most}
            self.trees = Trees(next(of_device), next(of_device) if times else None)

    def fits(self, seeds: Seeds, excluded: Excluded = MappingProxyType({})) -> bool:
        """Return True if there is a slot for every seed and every excluded edge."""
        return all(ids.numel() <= self._most.get(t, 0) for t, ids in seeds.nodes.items()) and all(
            ends.shape[1] <= self._pairs.get(t, (0, 0))[0] for t, ends in excluded.items()
        )

    def write(
        self, seeds: Seeds, key: DrawKey, stamp: int, excluded: Excluded = MappingProxyType({})
    ) -> None:
        """Copy a batch's input to the device, behind the work of the current stream.

        The copy before this one must have ended: it reads the same memory.
        """
        fields = iter(self._host_fields)
        next(fields).fill_(signed(key.value))
        next(fields).fill_(stamp)
        for edge_type, (_, num_sources) in self._pairs.items():
            ends = excluded.get(edge_type)
            _fill(next(fields), [] if ends is None else [pairs_of(ends, num_sources)], NO_PAIR)
        for node_type in self._most:
            _fill(next(fields), [seeds.nodes[node_type]] if node_type in seeds.nodes else [])
        if self.trees is not None:
            numbers, planted = {}, 0
            for node_type, ids in seeds.nodes.items():
                numbers[node_type] = torch.arange(planted, planted + ids.numel())
                planted += ids.numel()
            for node_type in self._most:
                _fill(next(fields), [numbers[node_type]] if node_type in numbers else [])
            _fill(next(fields), list(seeds.positions.values()))
            if self.trees.until is not None:
                _fill(next(fields), list((seeds.times or {}).values()))
        self._device.copy_(self._host, non_blocking=True)


def _starts(sizes: list[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + (size + _ALIGNED - 1) // _ALIGNED * _ALIGNED)
    return starts


def _fields(whole: Tensor, starts: list[int], sizes: list[int]) -> list[Tensor]:
    return [whole[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def _fill(field: Tensor, parts: list[Tensor], behind: int = EMPTY) -> None:
    at = 0
    for part in parts:
        field[at : at + part.numel()] = part
        at += part.numel()
    field[at:] = behind
