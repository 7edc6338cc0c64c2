"""A graph store over the parts that a process holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from torch import Tensor

from khop.draw import (
    DrawKey,
    DrawnNegatives,
    Positives,
)
from khop.errors import Unsupported
from khop.graph.csc_graph import CscGraph
from khop.graph.edge_draws import check_edge_type
from khop.graph.needs import Need
from khop.graph.negatives import NegativeTables
from khop.graph.store import DrawsHops, NumberedGraph, NumberedNodes
from khop.kernels.owners import first_outside
from khop.partition.joined import joined_graph
from khop.partition.local_partitions import LocalPartitions
from khop.partition.parts_folder import PartsFolder, held_parts
from khop.partition.parts_links import PartsLinks
from khop.rules.rule import Hop
from khop.schema import EdgeType, Schema


@dataclass(frozen=True, eq=False)
class LocalPartitionGraph(NumberedGraph):
    """A graph store over consecutive parts. If parts are missing, it draws only for nodes of the held parts.

    If all parts are held, rules that need no arrays but the edges draw from the joined edges. These are built
    once and stored next to the parts, because splitting a frontier and reordering the answers costs more than
    the draws. For other rules, as by weight or time, each part draws for its own nodes, from the arrays
    stored with it.
    Draws equal the draws from the unpartitioned graph: they use original ids, and rows keep their order.
    Pickles as the path of the folder. Threads may share it.
    """

    folder: PartsFolder
    schema: Schema = field(init=False, repr=False)  # of the whole graph
    nodes: NumberedNodes = field(init=False, repr=False)
    _held: LocalPartitions = field(init=False, repr=False)
    _negatives: NegativeTables = field(init=False, repr=False)
    _joined: list[CscGraph] = field(default_factory=list, repr=False)  # filled on first use
    _lock: Lock = field(default_factory=Lock, repr=False)

    def __post_init__(self) -> None:
        folder = self.folder
        held = LocalPartitions.of(folder)
        object.__setattr__(self, "schema", folder.schema)
        object.__setattr__(self, "nodes", held.nodes)
        object.__setattr__(self, "_held", held)
        tables = NegativeTables(held.nodes.counts, held.nodes.originals, folder.columns(), PartsLinks(held))
        object.__setattr__(self, "_negatives", tables)

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type in all parts."""
        return self.folder.num_edges(edge_type)

    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Return the number of in-edges of some nodes of the held parts, which are not joined for it."""
        return self._held.in_degrees(edge_type, nodes)

    def prepare(self, needs: Collection[Need]) -> None:
        """Build now the arrays that draws need; see GraphStore."""
        self._held.prepare(needs)
        super().prepare(needs)

    def for_hops(self, hops: Sequence[Hop]) -> DrawsHops:
        """Return the draws from the joined edges, or those of each part for its own nodes.

        They raise ValueError for a node of a part that is not held.
        """
        is_whole = len(self.folder.held) == self.folder.book.num_parts > 1
        needs_arrays = any(hop.rule.needs(edge_type) for hop in hops for edge_type in hop.fanouts)
        return self.in_one_piece("sampling").for_hops(hops) if is_whole and not needs_arrays else self._held

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations for the sources of links; see GraphStore.

        Exact negatives require that this process holds the sources.
        """
        check_edge_type(edge_type, self.schema)
        bounds = self.folder.bounds(edge_type[0])
        position = first_outside(positives.sources, bounds) if negatives.exact else -1
        if position >= 0:
            raise ValueError(
                f"negatives of {edge_type}: source {int(positives.sources[position])}: not in [{bounds[0]}, "
                f"{bounds[-1]}), the nodes of {held_parts(self.folder)}"
            )
        return self._negatives.draw(edge_type, negatives, positives, key)

    def in_one_piece(self, what: str) -> CscGraph:
        """Return all parts joined into one graph; see `joined_graph`. Built once."""
        if len(self.folder.held) < self.folder.book.num_parts:
            raise Unsupported(f"{what}: this process has {held_parts(self.folder)} alone; open all parts")
        with self._lock:
            if not self._joined:
                self._joined.append(joined_graph(self.folder))
            return self._joined[0]

    def only(self, edge_types: Collection[EdgeType]) -> CscGraph:
        """Return the joined graph, in memory, with only these edge types; see GraphStore."""
        return self.in_one_piece("only").only(edge_types)

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> CscGraph:
        """Return the joined graph, in memory, with only some edges of some types; see GraphStore."""
        return self.in_one_piece("keeping").keeping(kept)

    def __reduce__(self) -> tuple[Callable[..., LocalPartitionGraph], tuple[PartsFolder]]:
        return LocalPartitionGraph, (self.folder,)
