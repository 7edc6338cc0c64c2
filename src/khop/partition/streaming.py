"""Streaming partitioners. Their memory grows with the number of nodes, not of edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from khop.components import NoOptions
from khop.graph.progress import Meter
from khop.kernels.assign import Assigner, InEdges, Score
from khop.partition.balance import AssignRequest, PartitionContext

CLUSTERS_PER_PART = 16
CLUSTER_PASSES, PLACE_PASSES, STREAM_PASSES, REFINE_PASSES = 2, 2, 4, 4
_CALL_BLOCKS = 64  # blocks per native call; Ctrl-C is checked between two calls
_Range = Callable[[int, int], None]


@dataclass(frozen=True)
class Streaming:
    """A method in four stages: cluster neighbors, place clusters, place single nodes, and move nodes to the
    parts of their neighbors. Each stage makes several passes.

    Neighbors are the sources of in-edges, of all edge types alike. In a graph with edges in one direction
    only, a node is therefore placed with its sources. The result depends only on the graph, the number of
    parts and the limits.
    """

    score: Score
    passes = CLUSTER_PASSES + PLACE_PASSES + STREAM_PASSES + REFINE_PASSES

    def assign(self, request: AssignRequest) -> Tensor:
        """Assign a part to each node: int32 (nodes of all types)."""
        graph, numbering, meter = request.graph, request.numbering, request.meter
        parts, threads, nodes = request.parts, request.threads, numbering.num_nodes
        assigner = Assigner(
            numbering.first_node,
            [
                InEdges(numbering.first(t[0]), numbering.first(t[2]), graph.csc(t))
                for t in graph.schema.edge_types
            ],
            list(request.balance.limits.values()),
            request.balance.members,
            parts=parts,
            score=self.score,
            cluster_limit=max(1, nodes // (CLUSTERS_PER_PART * parts)),
        )
        over_nodes, over_blocks = (
            partial(_pass, meter, nodes, assigner.block),
            partial(_pass, meter, nodes, 1),
        )
        for _ in range(CLUSTER_PASSES):
            over_nodes("clustering", partial(assigner.cluster, threads=threads), nodes)
        blocks = assigner.num_cluster_blocks()
        for _ in range(PLACE_PASSES):
            over_blocks("placing clusters", partial(assigner.place_clusters, threads=threads), blocks)
        for _ in range(STREAM_PASSES):
            over_nodes("placing nodes", partial(assigner.stream, threads=threads), nodes)
        for _ in range(REFINE_PASSES):
            over_nodes("moving nodes", partial(assigner.refine, threads=threads), nodes)
        return assigner.parts()


class Ldg:
    """Linear deterministic greedy (Stanton and Kliot 2012)."""

    Options = NoOptions

    @staticmethod
    def build(options: NoOptions, context: PartitionContext) -> Streaming:
        """Make the method."""
        return Streaming(Score.LDG)


class Fennel:
    """Fennel (Tsourakakis et al. 2014)."""

    Options = NoOptions

    @staticmethod
    def build(options: NoOptions, context: PartitionContext) -> Streaming:
        """Make the method."""
        return Streaming(Score.FENNEL)


def _pass(meter: Meter, nodes: int, unit: int, what: str, work: _Range, count: int) -> None:
    """Make one pass over `count` nodes or blocks, in calls short enough for Ctrl-C.

    In the progress bar, each pass counts as `nodes`.
    """
    step, reported = unit * _CALL_BLOCKS, 0
    for begin in range(0, count, step):
        end = min(begin + step, count)
        work(begin, end)
        meter.at(what, nodes * end // count - reported)
        reported = nodes * end // count
