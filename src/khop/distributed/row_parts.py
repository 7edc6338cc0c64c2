"""Columns that devices of ranks exchange: their parts, the format with room for them, and their counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import torch
from torch import Tensor

from khop.distributed.rank_rows import RankRows
from khop.exchange.fixed_wire import FixedWire, RowGroup
from khop.exchange.moved_rows import sent_to_all
from khop.exchange.peers import Message, Peers, naming
from khop.exchange.row_wire import wire_fields
from khop.loading.columns import ColumnChoice, Names
from khop.loading.source import SECONDS, Drawn
from khop.sampling.on_device.capacities import SLACK
from khop.schema import NodeType

_MEASURING = Message("measuring exchanges of rows", "id")


@dataclass(frozen=True)
class RowPart:
    """Columns of one type that batches need for the same nodes: all of them, or the seeds alone."""

    node_type: NodeType
    columns: Names
    of_seeds: bool

    def ids(self, drawn: Drawn) -> Tensor:
        """Return the ids of a batch: of seeds, or of nodes that are not cached on the device."""
        if self.of_seeds:
            return drawn.seed_nodes[self.node_type]
        nodes, cached = drawn.sample.nodes[self.node_type], drawn.cached_rows.get(self.node_type)
        return nodes if cached is None else nodes[cached.others]


def split_by_rows(choice: ColumnChoice, rows: RankRows) -> ColumnChoice:
    """Return the part of a choice that ranks have in memory of their devices."""
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
    """Yield the columns of all nodes, then columns of seeds alone."""
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
    """Join columns of several origins, in the order of their names."""
    found_by_type: dict[NodeType, dict[str, Tensor]] = {t: {} for t in names}
    for columns in found:
        for node_type, of_type in columns.items():
            found_by_type[node_type] |= of_type
    return {t: {name: found_by_type[t][name] for name in of_type} for t, of_type in names.items()}


def measured_format(
    rows: RankRows, parts: Sequence[RowPart], batches: Iterable[Drawn], peers: Peers
) -> FixedWire:
    """Return the format with room for the most rows that a rank asks another in a few batches. Collective.

    `batches` have samples and seed nodes, and the rows that are cached on the device. ValueError if a rank
    has other columns.
    """
    most = torch.zeros(len(parts), dtype=torch.int64)
    for drawn in batches:
        for number, part in enumerate(parts):
            counts = rows.slots(part.node_type, part.ids(drawn).to(rows.device), 1).counts
            most[number] = max(int(most[number]), int(counts.max()))
    digest = crc32(repr((parts, rows.wire)).encode())
    groups = [
        RowGroup(
            part.node_type, part.columns, max(1, math.ceil(SLACK * count)), rows.id_dtype(part.node_type)
        )
        for part, count in zip(parts, _most_of_ranks(peers, most, digest), strict=True)
    ]
    return FixedWire(tuple(groups), rows.specs, rows.wire, peers.world_size)


def _most_of_ranks(peers: Peers, most: Tensor, digest: int) -> list[int]:
    """Return the largest numbers of all ranks, which have the same digest of their columns."""
    found = sent_to_all(peers, torch.cat([torch.tensor([digest]), most]), _MEASURING)
    for rank, of_rank in enumerate(found):
        with naming(peers, rank, _MEASURING):
            if not of_rank.numel() or int(of_rank[0]) != digest:
                raise ValueError("columns of a batch that this rank does not have, or another format")
    largest: list[int] = torch.stack(found).amax(0)[1:].tolist()
    return largest


def row_counts(
    rows: RankRows, parts: Sequence[RowPart], drawn: Drawn, requested: Sequence[int]
) -> dict[str, float]:
    """Return the counts of rows of a batch, as `PartitionedFeatures` counts them.

    `drawn` is the batch on the host, `requested` the distinct ids that this rank has asked for, by part.
    """
    counts = dict.fromkeys(
        ("needed_rows", "remote_rows", "host_cache_rows", "requested_rows", "requested_bytes"), 0.0
    )
    counts["device_cache_rows"] = sum(of_type.rows.numel() for of_type in drawn.cached_rows.values())
    for part, count in zip(parts, requested, strict=True):
        ids = drawn.seed_nodes if part.of_seeds else drawn.sample.nodes
        first, end = rows.spans(part.node_type)[rows.rank]
        of_type = ids[part.node_type]
        counts["needed_rows"] += of_type.numel()
        counts["remote_rows"] += int(((of_type < first) | (of_type >= end)).sum())
        counts["requested_rows"] += count
        specs = rows.specs[part.node_type]
        fields = [field for name in part.columns for field in wire_fields(specs[name], rows.wire)]
        counts["requested_bytes"] += count * sum(field.row_bytes for field in fields)
    return counts


def message_counts(form: FixedWire, peers: Peers, seconds: float) -> dict[str, float]:
    """Return the counts of an exchange of fixed sizes, without the bytes that a rank sends to itself."""
    others = peers.world_size - 1
    sizes = {"id": form.request_bytes * others, "row": form.answer_bytes * others}
    found = {f"{kind}_bytes_{way}": size for kind, size in sizes.items() for way in ("sent", "received")}
    return {**found, "collectives": 2 if others else 0, SECONDS: seconds}
