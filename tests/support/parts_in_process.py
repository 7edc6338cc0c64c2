"""Servers of the parts of a graph in this process: each asks the others, and bytes travel between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import khop
from khop.api.serve import graph_on, part_service
from khop.graph.partitions.book import read_book
from khop.graph.partitions.parts_folder import open_parts
from khop.servers.parts.exchange import OwnerAddresses
from khop.servers.service import Service
from support.in_process import InProcess


def part_services(path: Path, cache_bytes: int = 0) -> list[Service]:
    """Return a service for each part of a partitioned graph."""
    parts = read_book(path).num_parts
    owners = OwnerAddresses((("127.0.0.1:7311",),) * parts)
    exchanges = [InProcess([]) for _ in range(parts)]
    services = [
        part_service(
            open_parts(path, [part]),
            {number: exchange for number, exchange in enumerate(exchanges) if number != part},
            owners,
            cache_bytes=cache_bytes,
        )
        for part in range(parts)
    ]
    for exchange, service in zip(exchanges, services, strict=True):
        exchange.services = [service]
    return services


def connected_to_parts(path: Path) -> khop.Graph:
    """Return the graph as a client of servers of its parts has it."""
    return connected_to(part_services(path))


def connected_to(services: Sequence[Service]) -> khop.Graph:
    """Return the graph as a client of some servers of parts has it."""
    return graph_on(InProcess(services))
