"""Settings of requests, as a server uses them: a sampler, columns, and the list of seeds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary, ref

import torch

from khop.features.table import NO_COLUMNS
from khop.graph.store import GraphStore
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import LocalSource
from khop.sampling.sampler import Sampler, Seeds, sampler_of
from khop.sampling.seeds import SeedList
from khop.schema import NodeType
from khop.servers.bound import DrawnEnds
from khop.servers.json_fields import Document
from khop.servers.lists import seed_list
from khop.servers.registry import Registry
from khop.servers.served import Served, Viewed
from khop.servers.settings import read_columns
from khop.servers.split_arguments import edge_type_of

_CPU = torch.device("cpu")


def _none() -> None:
    return None


def _same(found: SeedList) -> SeedList:
    return found


@dataclass(eq=False)
class Prepared:
    """The parts of a source of batches. What takes time is made for the first batch, once.

    Views are held by the server alone, which may drop them: a source or a list of links ends with its view,
    and is made again for the next batch. Threads may share the object.
    """

    served: Served
    registry: Registry
    given: Document
    sampler: Sampler  # over the whole graph, which tells the largest batch
    columns: ColumnChoice
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sources: WeakKeyDictionary[Viewed, LocalSource] = field(default_factory=WeakKeyDictionary)
    _list: Callable[[], SeedList | None] = _none

    @classmethod
    def of(cls, served: Served, registry: Registry, given: Document) -> Prepared:
        """Read settings; ValueError names what does not fit the graph or is not registered."""
        graph = served.whole.graph
        kept = [step["only"] for step in given["view"].each() if step.given("only") is not None]
        if kept:
            graph = graph.only([edge_type_of(each.type_(), graph.schema) for each in kept[-1].each()])
        sampler = _sampler(registry, given, graph)
        return cls(served, registry, given, sampler, read_columns(given["columns"], graph.schema))

    @property
    def drawn_ends(self) -> DrawnEnds:
        """Negatives that the sampler draws for each link."""
        return DrawnEnds.of(self.sampler)

    def source(self) -> LocalSource:
        """Return the source of batches, over the view of the graph."""
        viewed = self.served.viewed(self.given["view"])
        with self._lock:
            if viewed not in self._sources:
                features = None if self.columns.is_empty else viewed.features
                if features is NO_COLUMNS:
                    raise ValueError("columns are requested, but the graph has none: leave them out")
                sampler = _sampler(self.registry, self.given, viewed.graph)
                self._sources[viewed] = LocalSource(sampler, features, self.columns, _CPU)
            return self._sources[viewed]

    def knows(self, asked: Seeds) -> bool:
        """Return True if the seeds of a request need no list that is still to be made."""
        return asked.listed is None or self._list() is not None

    def seeds(self, asked: Seeds) -> Seeds:
        """Return the seeds of a request, looked up in the list if it names numbers."""
        if asked.listed is None:
            return asked
        seeds = self.seed_list()
        order, total = asked.listed.order, sum(seeds.counts.values())
        if order.numel() and not 0 <= int(order.min()) <= int(order.max()) < total:
            raise ValueError(f"seeds {int(order.min())} to {int(order.max())}: the list has {total}")
        return seeds.taken(asked.listed)

    def seed_list(self) -> SeedList:
        """Return the list that the settings name; ValueError if they name none."""
        with self._lock:
            found = self._list()
            if found is None:
                reference = self.given.given("seeds")
                if reference is None:
                    raise ValueError("seeds by number: the settings name no list")
                found = seed_list(self.served, reference)
                of_view = reference.given("part") is not None
                self._list = ref(found) if of_view else partial(_same, found)
            return found

    def listed_counts(self, seeds: Seeds) -> dict[NodeType, int] | None:
        """Return an upper limit of the seed nodes by type for numbers of a list; None for other seeds."""
        if seeds.listed is None:
            return None
        count, found = seeds.listed.mine.numel(), dict[NodeType, int]()
        drawn = self.drawn_ends
        of_link = 2 + drawn.sources + drawn.destinations + self._given_negatives()
        for type_ in self.seed_list().counts:
            for end in dict.fromkeys([type_] if isinstance(type_, str) else (type_[0], type_[2])):
                found[end] = count * (1 if isinstance(type_, str) else of_link)
        return found

    def _given_negatives(self) -> int:
        """Return the negatives that each link of the list has; at most those of its split."""
        reference = self.given.given("seeds")
        if reference is None or reference.given("part") is None:
            return 0
        return reference["view"].each()[-1]["split_links"]["negatives"].whole()


def _sampler(registry: Registry, given: Document, graph: GraphStore) -> Sampler:
    return sampler_of(registry.made(given["sampler"], graph))
