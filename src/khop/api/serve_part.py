"""The service of a server that has one part of a graph."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType

from khop.graph.layout import is_partitioned
from khop.partition.book import read_book
from khop.partition.parts_folder import PartsFolder, open_parts
from khop.servers.parts.exchange import PartExchange, identity_of_owner
from khop.servers.parts.owners import Owners
from khop.servers.parts.served import ServedPart
from khop.servers.registry import BUILTIN, Registry
from khop.servers.service import Service
from khop.servers.transport import Exchange


def part_service_of(
    path: str | os.PathLike[str],
    part: int,
    owners: Owners,
    modules: Iterable[ModuleType] = (),
    max_batch_bytes: int | None = None,
    cache_bytes: int = 0,
    view_bytes: int | None = None,
) -> Service:
    """Return the service of one part of a partitioned graph; the servers in `owners` have the others.

    The rows of other parts that were used last are kept in `cache_bytes` of memory. Views of the graph take
    up to `view_bytes` (default: a quarter of the memory).
    """
    if not is_partitioned(path):
        raise ValueError(f"--part {part}: {path} is not a partitioned graph; make one by `khop partition`")
    owners.check(part, read_book(path).num_parts)
    folder = open_parts(path, range(part, part + 1))
    # Imported on use: it imports pyarrow, which is an extra.
    connected = import_module("khop.servers.flight_client").connected
    others = {
        number: connected(
            owners.parts[number],
            owners.access,
            owners.limits,
            identity_of_owner(folder.fingerprint, number),
        )
        for number in range(len(owners.parts))
        if number != part
    }
    return part_service(
        folder, others, owners, Registry.of(modules), max_batch_bytes, cache_bytes, view_bytes
    )


def part_service(
    folder: PartsFolder,
    others: Mapping[int, Exchange],
    owners: Owners,
    registry: Registry = BUILTIN,
    max_batch_bytes: int | None = None,
    cache_bytes: int = 0,
    view_bytes: int | None = None,
) -> Service:
    """Return the service of the open part of a folder; `others` are the servers of each other part."""
    exchange = PartExchange(folder.fingerprint, folder.held[0], others, owners.limits)
    served = ServedPart.of(folder, exchange, cache_bytes, view_bytes)
    return Service(served, registry, max_batch_bytes, served.answers(registry))
