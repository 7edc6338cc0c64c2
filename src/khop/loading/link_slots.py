"""The links of a batch with static shapes: their rows on the device, and a weight for each loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from khop.batch import LinkRows
from khop.schema import EdgeType

LinksByType = Mapping[EdgeType, LinkRows]


class LinkSlots:
    """Buffers of the links of one batch. Links behind the last one have row 0 and weigh 0.

    `like` are links of an ordinary batch: batches have the same fields and as many negatives per link.
    """

    def __init__(self, capacities: Mapping[EdgeType, int], like: LinksByType, device: torch.device) -> None:
        self._capacities = {t: capacities[t] for t in like}
        is_cpu = device.type == "cpu"

        def pinned(tensor: Tensor) -> Tensor:
            return tensor if is_cpu else tensor.pin_memory()

        def zeros(tensor: Tensor) -> Tensor:
            return torch.zeros_like(tensor, device=device)

        self._host = {t: padded_links(rows, capacities[t]) for t, rows in like.items()}
        self._host = {t: rows.map(pinned) for t, rows in self._host.items()}
        self.rows = {t: rows.map(zeros) for t, rows in self._host.items()}
        count = sum(rows.source.numel() for rows in self.rows.values())
        self._host_weights = pinned(torch.zeros(count, dtype=torch.float64))
        self.weights = zeros(self._host_weights)  # float64 (pairs of all types)

    def fits(self, links: LinksByType) -> bool:
        """Return True if there is a place for every link."""
        return all(rows.num_links <= self._capacities[t] for t, rows in links.items())

    def write(self, links: LinksByType, weight: float) -> None:
        """Copy the links of a batch to the device, behind the work of the current stream.

        Each loss weighs `weight`. The copy before this one must have ended: it reads the same memory.
        """
        weights = []
        for edge_type, capacity in self._capacities.items():
            rows = links[edge_type]
            _copy(padded_links(rows, capacity), self._host[edge_type], self.rows[edge_type])
            each = torch.full(rows.source.shape, weight, dtype=torch.float64)
            weights.append(_of_pairs(each, rows, capacity))
        torch.cat(weights, out=self._host_weights)
        self.weights.copy_(self._host_weights, non_blocking=True)


def padded_links(rows: LinkRows, capacity: int) -> LinkRows:
    """Return links with room for `capacity` of them, in the order of `LinkRows`; the others have zeros."""

    def of_links(values: Tensor | None) -> Tensor | None:
        return None if values is None else _padded(values, capacity)

    def of_pairs(values: Tensor | None) -> Tensor | None:
        return None if values is None else _of_pairs(values, rows, capacity)

    return LinkRows(
        _of_pairs(rows.source, rows, capacity),
        _of_pairs(rows.destination, rows, capacity),
        _padded(rows.positions, capacity),
        of_pairs(rows.labels),
        of_links(rows.negatives),
        rows.pairs_per_link,
        of_links(rows.source_negatives),
        of_pairs(rows.relations),
        of_links(rows.times),
    )


def _of_pairs(values: Tensor, rows: LinkRows, capacity: int) -> Tensor:
    """Pad values of pairs: those of the links, then those of the negatives of each link."""
    links, per_link = rows.num_links, rows.pairs_per_link - 1
    of_negatives = _padded(values[links:], capacity * per_link)
    return torch.cat([_padded(values[:links], capacity), of_negatives])


def _padded(values: Tensor, count: int) -> Tensor:
    padded = values.new_zeros(count, *values.shape[1:])
    padded[: values.shape[0]] = values
    return padded


def _copy(links: LinkRows, host: LinkRows, device: LinkRows) -> None:
    """Copy the tensors of links to pinned memory, and from there to the device."""
    for name, values in vars(links).items():
        if isinstance(values, Tensor):
            getattr(host, name).copy_(values)
            getattr(device, name).copy_(getattr(host, name), non_blocking=True)
