"""Parts by streaming over the edges, in memory that grows with the nodes alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from khop.graph.progress import Meter
from khop.kernels.assign import Assigner, InEdges, Score
from khop.partition.balance import AssignRequest

CLUSTERS_PER_PART = 16
CLUSTER_PASSES, PLACE_PASSES, STREAM_PASSES, REFINE_PASSES = 2, 2, 4, 4
_CALL_BLOCKS = 64  # between two looks at Ctrl-C
_Range = Callable[[int, int], None]


@dataclass(frozen=True)
class Streaming:
    """Clusters of neighbors are placed whole, then nodes one by one, then nodes move to their neighbors.

    Neighbors are the sources of in-edges, of all types alike: where messages run one way only, nodes
    follow those that they hear from. The result depends on the graph, the parts and the limits alone.
    """

    score: Score
    passes = CLUSTER_PASSES + PLACE_PASSES + STREAM_PASSES + REFINE_PASSES

    def assign(self, request: AssignRequest) -> Tensor:
        """int32 (nodes of all types): the part of each."""
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


def _pass(meter: Meter, nodes: int, unit: int, what: str, work: _Range, count: int) -> None:
    """One pass over `count` nodes or blocks, in calls short enough for Ctrl-C; a pass counts `nodes`."""
    step, told = unit * _CALL_BLOCKS, 0
    for begin in range(0, count, step):
        end = min(begin + step, count)
        work(begin, end)
        meter.at(what, nodes * end // count - told)
        told = nodes * end // count
