"""The fields of all messages between clients and servers, and between servers, as they travel."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch

import khop
from khop.api.open_graph import names_of
from khop.api.serve import ServedGraph, graph_on, part_service
from khop.graph.partitions.book import read_book
from khop.graph.partitions.parts_folder import open_parts
from khop.loading.ordered_map import InFlight
from khop.sampling.seeds import ids_here
from khop.servers.access import Answer, Buffer, CallContext
from khop.servers.parts.exchange import OwnerAddresses
from khop.servers.service import Service
from support.batch_kinds import TYPED
from support.dated_shop import BUYS, DATED
from support.in_process import InProcess

Received = TypeVar("Received")
_PREFIX = struct.Struct("<4sIQ")
_NAMED = {"splits", "rows", "columns", "seed_columns"}  # objects by the names of a graph


def fields_of(value: object, place: str) -> Iterator[str]:
    """Yield the place of each value in plain JSON, with its type; entries of lists share a place.

    Arguments of samplers and rules (`with`) are left out: a server refuses one that it does not know.
    """
    if place.endswith(".with"):
        return
    match value:
        case dict():
            for name, entry in value.items():
                is_named = place.rpartition(".")[2].rstrip("[]") in _NAMED
                yield from fields_of(entry, f"{place}.{'*' if is_named else name}")
        case list():
            for entry in value:
                yield from fields_of(entry, f"{place}[]")
        case bool() | int() | float() | str() | None:
            yield f"{place} {type(value).__name__}"


@dataclass(eq=False)
class Recorded(InProcess):
    """An exchange that notes the fields of what passes."""

    found: set[str] = field(default_factory=set)

    def describe(self) -> bytes:
        """Return the description, noted."""
        text = super().describe()
        self.found.update(fields_of(json.loads(text), "description"))
        return text

    def ask(
        self, context: CallContext, request: bytes, receive: Callable[[Iterator[Buffer]], Received]
    ) -> Answer[Received]:
        """Ask, and note request and answer."""
        kind = context.stage.partition(" of part ")[0]
        self._note(request, f"request {kind}")

        def noted(pieces: Iterator[Buffer]) -> Iterator[Buffer]:
            first = next(pieces)
            self._note(bytes(first), f"answer {kind}")
            yield first
            yield from pieces

        return super().ask(context, request, lambda pieces: receive(noted(pieces)))

    def _note(self, message: bytes, place: str) -> None:
        _, _, length = _PREFIX.unpack(message[: _PREFIX.size])
        document = json.loads(message[_PREFIX.size : _PREFIX.size + length])
        self.found.update(fields_of(document, place))


def recorded_fields(whole: Sequence[Path], parts: Sequence[Path]) -> set[str]:
    """Return the fields of the messages about graphs, and about graphs of which servers have a part each."""
    found: set[str] = set()
    for path in whole:
        exchange = Recorded([Service(ServedGraph.of(khop.open_graph(path)))], found=found)
        _use(graph_on(exchange))
    for path in parts:
        _use(graph_on(Recorded(_parts(path, found), found=found)))
    return found


def _parts(path: Path, found: set[str]) -> list[Service]:
    count = read_book(path).num_parts
    exchanges = [Recorded([], found=found) for _ in range(count)]
    owners = OwnerAddresses((("127.0.0.1:7311",),) * count)
    services = [
        part_service(open_parts(path, [part]), {n: exchanges[n] for n in range(count) if n != part}, owners)
        for part in range(count)
    ]
    for exchange, service in zip(exchanges, services, strict=True):
        exchange.services = [service]
    return services


def _use(graph: khop.Graph) -> None:
    """Ask for everything that this graph has."""
    loaders: list[khop.Loader] = []
    if BUYS in graph.schema.edge_types and graph.schema.columns.get(BUYS, {}).keys() >= {"split"}:
        loaders = [loader for kind in DATED for loader in kind(graph)]
    elif "weight" in graph.schema.columns.get(BUYS, {}):
        loaders = [kind(graph) for kind in TYPED]
        split = khop.split_links(graph, BUYS, 0.2, 30, negatives=3, time="time", seed=4)
        split.val_links.rows(BUYS, torch.arange(3))
        split.test.topology.in_degrees(BUYS, torch.tensor([4, 2, 199]))
    for loader in loaders:
        # More batches than are requested ahead: the last request follows an answer, and needs no settings.
        with closing(iter(loader.epoch(0))) as batches:
            list(islice(batches, InFlight().prefetch + 1))
    for node_type in graph.split(graph.split_names[0]):
        ids_here(graph.split(graph.split_names[0])[node_type])
    names = names_of(graph)
    for of in (names.ids, names.original_ids):
        for ids in of.values():
            ids.at(torch.tensor([3, 1]))
            ids.at(torch.arange(3))
    dict(names.labels)
