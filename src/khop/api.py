"""What a training loop of one's own calls. The only part that knows of ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from khop.batch import Batch, Span, num_bytes
from khop.datasets.builtin import named_folder
from khop.distributed.caching import CacheBudgets, CacheBy, count_on_device, with_caches
from khop.distributed.group import this_group
from khop.distributed.lanes import LANES, Lanes
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.distributed.partitioned_links import PartitionedLinks
from khop.distributed.row_wire import Wire
from khop.distributed.spread import Parting, Spread, homes_of, stores_of
from khop.draw import DrawKey, DrawnNegatives, FrontierByType, Hop, NeighborsByType, Positives
from khop.features.store import FeatureStore
from khop.features.table import FeatureTable
from khop.graph.build import EdgeTable
from khop.graph.csc_graph import Columns, CscGraph
from khop.graph.folder import Folder, open_folder
from khop.graph.progress import Notice
from khop.graph.save import save_graph
from khop.graph.store import GraphStore, negative_store, original_ids, part_bounds
from khop.graph.text import graph_text
from khop.kernels.csc import Csc
from khop.loading.columns import ColumnChoice, NamesByType, Narrow
from khop.loading.cores import cores_of_rank, sampler_threads
from khop.loading.loader import BatchMaker, Position, State
from khop.loading.ordered_map import InFlight, ordered_map
from khop.loading.seed_times import SeedTimes
from khop.loading.seed_times import seed_times as times_of_seeds
from khop.partition.book import is_partitioned
from khop.partition.parts_graph import PartsGraph
from khop.partition.parts_table import PartsTable, whole_columns
from khop.sampling.link_seeds import Links, check_links
from khop.sampling.links import LinkSampler
from khop.sampling.neighbor import NeighborSampler, check_seeds
from khop.sampling.sampler import Sampler
from khop.sampling.seeds import NodeSeeds, SeedList, SeedOrder
from khop.schema import EdgeType, NodeType, Schema, sole_type

Batches = Generator[Batch, None, None]


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with its columns: a graph store and all that a user asks of it. Threads may share it.

    A folder's pickles as its path and how ranks share it, and is opened again, collectively where that is so.
    """

    topology: GraphStore
    features: FeatureStore
    folder: Folder | None = None  # None: made in memory
    splits: Mapping[str, Mapping[NodeType, Tensor]] = field(default_factory=dict)  # of a graph in memory
    parting: Parting | None = None  # how ranks share a folder of parts

    @property
    def schema(self) -> Schema:
        """Node types, edge types and their columns."""
        return self.topology.schema

    def num_nodes(self, node_type: NodeType) -> int:
        """How many nodes of a type there are."""
        return self.topology.num_nodes(node_type)

    def part_bounds(self, node_type: NodeType) -> tuple[int, ...]:
        """Where the nodes of each part begin, and where those of the last one end; often there is one."""
        return part_bounds(self.topology, node_type)

    @property
    def lanes(self) -> Lanes | None:
        """How what other ranks hold of the graph is asked for; None where all of it is here."""
        found = getattr(self.features, "lanes", None) or getattr(self.topology, "lanes", None)
        assert found is None or isinstance(found, Lanes)
        return found

    @property
    def original_ids(self) -> Mapping[NodeType, Tensor]:
        """int64 (nodes), of types that were renumbered: the ids before. Draws are keyed by them."""
        found = {t: original_ids(self.topology, t) for t in self.schema.node_types}
        return {t: ids for t, ids in found.items() if ids is not None}

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """The topology's: draw in-edges of every frontier node."""
        return self.topology.sample_hop(frontier, hop, key)

    def csc(self, edge_type: EdgeType) -> Csc:
        """The edges of a type by destination."""
        return self.in_one_piece(f"the edges of {edge_type}").csc(edge_type)

    def with_edges(self, edges: Mapping[EdgeType, EdgeTable]) -> Graph:
        """The same graph, in memory, with further edge types; what it had is shared and not copied."""
        topology = self.in_one_piece("with_edges").with_edges(edges)
        features = self.features
        if any(table.columns for table in edges.values()):
            if not isinstance(features, FeatureTable):
                raise ValueError(
                    f"with_edges: columns of edges cannot join {type(features).__name__}; leave them out"
                )
            added: Columns = {edge_type: topology.columns[edge_type] for edge_type in edges}
            features = FeatureTable({**features.columns, **added}, features.threads)
        return Graph(topology, features, splits={name: self.split(name) for name in self.split_names})

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """The topology's: draw destinations for the sources of links."""
        return negative_store(self.topology, negatives).sample_negatives(edge_type, negatives, positives, key)

    def only(self, edge_types: Collection[EdgeType]) -> Graph:
        """The same graph, in memory, with no other edge types, and the node types at their ends."""
        topology = self.topology
        if not isinstance(topology, PartitionedGraph):
            topology = self.in_one_piece("only")
        return Graph(topology.only(edge_types), self.features)

    @property
    def columns(self) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """Every column of every type, whole; of a folder mapped. Edge columns are in CSC order."""
        if self.folder is not None:
            return self.folder.columns()
        if isinstance(self.topology, CscGraph) and self.lanes is not None:
            return self.topology.columns  # of all parts: they lie here, as the edges do
        return whole_columns(self.features)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that some node type has."""
        return tuple(self.splits) if self.folder is None else self.folder.split_names

    def split(self, name: str) -> Mapping[NodeType, Tensor]:
        """The int64 node ids of a split, of each node type that has it."""
        if self.folder is not None:
            return self.folder.split(name)
        if name not in self.splits:
            raise ValueError(f"no split {name!r}; there are {list(self.splits)}")
        return self.splits[name]

    def save(self, path: str | os.PathLike[str], *, notice: Notice | None = None) -> Path:
        """Write the graph as a folder, with its columns and splits, and give its path: see `write_graph`."""
        splits = {name: self.split(name) for name in self.split_names}
        return save_graph(path, self.in_one_piece("save"), self.columns, splits, notice)

    def to_pyg(self) -> Any:  # noqa: ANN401
        """A torch_geometric `Data` where there is one node type and one edge type, else a `HeteroData`.

        Columns are shared; edges stand by destination; a split is a mask, `<split>_mask`.
        """
        # Imported on use: khop works without torch_geometric.
        return import_module("khop.pyg.convert").graph_to_pyg(self)

    def __reduce__(self) -> tuple[Callable[..., Graph], tuple[object, ...]]:
        if self.folder is None:
            return Graph, (self.topology, self.features, None, self.splits)
        return _opened, (self.folder.path, self.parting)

    def __repr__(self) -> str:
        return graph_text(self)

    def in_one_piece(self, what: str) -> CscGraph:
        """The topology where its edges lie in this process, of parts put together; `what` wants it so."""
        if isinstance(self.topology, PartsGraph):
            return self.topology.joined()
        if not isinstance(self.topology, CscGraph):
            raise ValueError(
                f"{what}: the edges of a {type(self.topology).__name__} do not lie in this process; open the "
                'graph with placement="features", or in one process'
            )
        return self.topology


def open_graph(
    path: str | os.PathLike[str],
    *,
    placement: Spread | str = Spread.FEATURES,
    lanes: int = LANES,
    wire: Wire | str = Wire.STORED,
) -> Graph:
    """Open a graph folder, or a built-in graph by its name as text ("debian"), in milliseconds.

    Files are mapped. Batches of a folder of parts have the bits of the graph before it was cut, by other ids;
    column "original_id" has the old ones. One process opens all parts. Each of several ranks opens some and
    asks others for columns, or with `placement` "all" for edges too; "whole" opens all parts on each. `lanes`
    batches are under way at once. Rows travel as stored, or rounded to `wire` "float16" or "int8".
    Collective, and so are then a loader's epochs, `break` included.
    """
    return _opened(named_folder(path), Parting(Spread(placement), lanes, Wire(wire)))


def _opened(path: str | os.PathLike[str], parting: Parting | None) -> Graph:
    if is_partitioned(path):
        parting = parting or Parting()
        return Graph(*stores_of(path, this_group(), parting), parting=parting)
    folder = open_folder(path)
    return Graph(CscGraph.open(folder), FeatureTable.of(folder.schema, folder.columns()), folder)


class Loader:
    """Batches of an epoch in order, made ahead by threads; where it stands can be saved and restored.

    Batch (epoch, step) is a pure function of graph, sampler, seeds, `batch_size`, `shuffle` and `seed`:
    threads, prefetch and device never change it. `batch_size` is the number of seeds per step over all
    ranks; each seed, node or link, is used once per epoch. `columns` are wanted of all nodes of a batch,
    `seed_columns` of its seeds: names, or a mapping from type to names, in `columns` also of edge types (see
    `Adjacency.columns`). `seed_times`, one per seed node or the name of a column of theirs, are what
    `khop.Temporal` needs. Columns of float16, bfloat16 or quantised ones come as float32 unless `narrow` is
    "stored". `threads` are chosen from the machine's cores unless given. At most `prefetch` batches are in
    flight; none is begun while finished ones hold more than `prefetch_bytes`. Where ranks hold parts of the
    graph, batches are made in its lanes, on all ranks in step; a step's seeds go to ranks that hold them as
    far as shares stay equal, unless `locality` is False, and nothing counts `prefetch_bytes`.
    """

    def __init__(
        self,
        sampler: Sampler,
        seeds: Tensor | Mapping[NodeType, Tensor] | Links | PartitionedLinks,
        batch_size: int,
        *,
        graph: Graph | None = None,
        shuffle: bool = False,
        seed: int = 0,
        columns: Sequence[str] | NamesByType = (),
        seed_columns: Sequence[str] | NamesByType = (),
        seed_times: SeedTimes | None = None,
        narrow: Narrow | str = Narrow.FLOAT32,
        device: torch.device | str | int = "cpu",
        threads: int | None = None,
        prefetch: int = 4,
        prefetch_bytes: int = 1 << 30,
        locality: bool = True,
    ) -> None:
        store = graph or getattr(sampler, "graph", None)
        if store is None:
            raise ValueError(f"sampler {sampler!r} has no attribute `graph`: give the loader graph=...")
        seed_list, seed_types = _seed_list(store, seeds, seed_times)
        self._group = this_group()
        self._lanes = store.lanes if isinstance(store, Graph) else None
        homes = homes_of(store, self._lanes) if locality else None
        ranks = (self._group.rank, self._group.world_size)
        order = SeedOrder(seed_list, batch_size, shuffle, seed, *ranks, homes)
        choice = ColumnChoice.of(store.schema, columns, seed_columns, seed_types, Narrow(narrow))
        self._maker = BatchMaker(order, sampler, _features(store, choice), choice, torch.device(device))
        if threads is None:
            threads = sampler_threads(cores_of_rank(self._group.local_world_size))
        self._in_flight = InFlight(threads, prefetch, prefetch_bytes)
        self._edges = store.topology if isinstance(store, Graph) else store
        if self._lanes is not None and isinstance(sampler, LinkSampler):
            sampler.prepare(*(t for t in seed_list.counts if isinstance(t, tuple)))
        self._next = Position()
        self._loaded: Position | None = None  # until an iteration goes on from it

    def keep_rows(
        self, budget_bytes: int, by: CacheBy | str = CacheBy.AUTO, *, device_bytes: int = 0
    ) -> None:
        """Keep those rows of other ranks that batches need most often, as many as the bytes have room for.

        The first of them lie on `device`, in `device_bytes`, and batches find them there. No batch changes;
        its `traffic` counts `kept_rows` and `device_rows`. What batches need is known `by` "visits", the
        chance that a batch has a node, or by "counts", for which the first epoch is drawn; "auto" counts
        where chances do not say it: edges that ranks hold in parts too, weights, times, links. Collective,
        once, before the first epoch. Where every rank has all columns nothing is kept.
        """
        budgets = CacheBudgets(budget_bytes, device_bytes)
        self._maker = with_caches(self._maker, self._edges, budgets, CacheBy(by))

    def __len__(self) -> int:
        """Steps per epoch, on every rank."""
        return self._maker.order.num_steps

    def batch(self, epoch: int, step: int) -> Batch:
        """One batch, made here and now: the same bits as in an iteration, whose state it does not touch.

        Torch's number of threads share the work of it.
        """
        maker = _split_over(self._maker, torch.get_num_threads())
        return maker.placed(maker.batch(epoch, step))

    def whole_batch(self, epoch: int, step: int) -> Batch:
        """One batch of the seeds of all ranks, the same on each."""
        order = replace(self._maker.order, rank=0, world_size=1)
        return self._maker.placed(replace(self._maker, order=order).batch(epoch, step))

    def epoch(self, epoch: int) -> Batches:
        """All batches of an epoch, in order; once, of the epoch of a loaded state, those that remain."""
        if epoch < 0:
            raise ValueError(f"epoch {epoch}: must be 0 or more")
        loaded = self._loaded
        if loaded is not None and loaded.epoch != epoch:
            raise ValueError(
                f"epoch {epoch}: the loaded state stands at epoch {loaded.epoch}, step {loaded.step}; "
                f"go on with epoch({loaded.epoch})"
            )
        return self._walk(loaded or Position(epoch))

    def __iter__(self) -> Batches:
        """What is left of the epoch where the loader stands; the next iteration is the next epoch."""
        return self._walk(self._next)

    def state_dict(self) -> dict[str, object]:
        """Where the consumer stands: the next batch that it has not received, as plain values for a file."""
        return self._next.state(self._maker.order)

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state, on any number of threads or ranks; ValueError if it does not fit."""
        self._next = self._loaded = Position.of_state(state, self._maker.order)

    def _walk(self, start: Position) -> Batches:
        self._loaded = None
        return self._batches(start)

    def _batches(self, start: Position) -> Batches:
        steps = range(start.step, len(self))
        with closing(self._made(start.epoch, steps)) as made:
            for step in steps:
                yield self._receive(made, Position(start.epoch, step))

    def _made(self, epoch: int, steps: range) -> Batches:
        """The batches where threads made them."""
        lanes, in_flight = self._lanes, self._in_flight
        if lanes is None:
            return ordered_map(partial(self._maker.batch, epoch), steps, in_flight, num_bytes)
        maker = _split_over(self._maker, max(1, in_flight.threads // lanes.count))

        def made(step: int) -> Batch:
            batch = maker.batch(epoch, step)
            count_on_device(lanes.peers, batch)
            return replace(batch, traffic=lanes.peers.counts())

        return lanes.map(made, steps, in_flight.prefetch, epoch)

    def _receive(self, made: Iterator[Batch], position: Position) -> Batch:
        # A function of its own, so that the suspended generator does not hold the batch.
        self._group.at("waiting for its batch", position.epoch, position.step)
        started = monotonic()
        batch = next(made)
        waiting = Span.since(started, "waiting")
        batch = self._maker.placed(batch)
        moving = Span.since(waiting.ended, "moving")
        self._next = position.after(len(self))
        self._group.at("computing", position.epoch, position.step)
        return replace(batch, spans=(*batch.spans, waiting, moving))


def _split_over(maker: BatchMaker, threads: int) -> BatchMaker:
    """The same batches, each made by several threads where its parts know how."""
    sampler, features = maker.sampler, maker.features
    if isinstance(sampler, NeighborSampler | LinkSampler):
        sampler = sampler.split_over(threads)
    if isinstance(features, FeatureTable | PartsTable):
        features = replace(features, threads=threads)
    return replace(maker, sampler=sampler, features=features)


def _seed_list(
    store: GraphStore,
    seeds: Tensor | Mapping[NodeType, Tensor] | Links | PartitionedLinks,
    seed_times: SeedTimes | None,
) -> tuple[SeedList, tuple[NodeType, ...]]:
    """The seeds, checked, and the node types that the model gives rows of."""
    if isinstance(seeds, Links | PartitionedLinks):
        if seed_times is not None:
            raise ValueError("seed_times with links: links carry their own, give khop.Links(..., times=...)")
        if isinstance(seeds, Links):
            check_links(store, seeds)
        ends = {end for source, _, destination in seeds.counts for end in (source, destination)}
        return seeds, tuple(t for t in store.schema.node_types if t in ends)
    if isinstance(seeds, Tensor):
        seeds = {sole_type(store.schema.node_types, "seeds given as one tensor"): seeds}
    if not isinstance(seeds, Mapping):
        raise ValueError(
            f"seeds are a {type(seeds).__name__}: give a tensor of node ids, as by torch.as_tensor, a "
            "mapping from node types to such, or khop.Links"
        )
    check_seeds(store, seeds)
    nodes = {t: seeds[t].long() for t in store.schema.node_types if t in seeds}
    if seed_times is None:
        return NodeSeeds(nodes), tuple(nodes)
    features = store.features if isinstance(store, Graph) else None
    return NodeSeeds(nodes, times_of_seeds(seed_times, nodes, store.schema, features)), tuple(nodes)


def _features(store: GraphStore, choice: ColumnChoice) -> FeatureStore | None:
    if choice.is_empty:
        return None
    if not isinstance(store, Graph):
        raise ValueError("columns are wanted, but the graph has none: give the loader graph=khop.Graph(...)")
    return store.features
