"""A run's graph with later data joined to it: the neighborhoods that predictions are computed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from khop.api.open_graph import Graph
from khop.config.build import Run
from khop.config.contexts import rule_of
from khop.config.values import RunConfig
from khop.features.table import FeatureTable
from khop.graph.csc_graph import csc_graph_from_edges, open_csc_graph
from khop.graph.folder import Folder, GraphFolder, open_folder
from khop.graph.later_nodes import joined_nodes
from khop.graph.row_order import INPUT
from khop.inference.later_graph import JoinedGraph, Neighborhood
from khop.models.edge_predictor import EdgePredictor
from khop.models.link_predictor import LinkPredictor
from khop.models.renumbered import renumbered
from khop.partition.parts_folder import PartsFolder
from khop.sampling.fanouts import followed_types
from khop.schema import EdgeType, NodeType

Computed = TypeVar("Computed")


@dataclass(frozen=True, eq=False)
class JoinedRun:
    """A run, and later data joined to its graph."""

    run: Run
    base: Folder  # of the run's graph
    later: Folder | None
    joined: JoinedGraph

    @classmethod
    def of(cls, run: Run, later: Path | None) -> JoinedRun:
        """Join the folder of later data, if there is one, to the graph of a run.

        ValueError for later data with other encoders, and if the graph's edges are not in this process.
        """
        graph = run.run_task.whole
        if run.graph.folder is None or graph.rank_edges is not None:
            raise ValueError(
                "the edges of the run's graph are on servers or other ranks: predict with its folder, in one "
                "process"
            )
        base, folder = run.graph.folder, None if later is None else open_folder(later)
        nothing = csc_graph_from_edges(dict.fromkeys(graph.schema.node_types, 0), {})
        joined = JoinedGraph(
            graph.in_one_piece("predict"),
            graph.features,
            nothing if folder is None else open_csc_graph(folder),
            {} if folder is None else joined_nodes(base, folder),
            graph.schema.columns,
            _sort_by(base),
        )
        return cls(run, base, folder, joined)

    def near(
        self, seeds: Mapping[NodeType, Tensor], compute: Callable[[Neighborhood, Graph], Computed]
    ) -> Computed:
        """Compute a value from all that reaches some nodes, in as many hops as the model has layers.

        `compute` gets the neighborhood, and its graph with columns. Inside, the model reads embeddings by the
        numbers of the neighborhood.
        """
        run, graph = self.run, self.run.run_task.whole
        hops, followed = _reach(run, graph)
        near = self.joined.neighborhood(seeds, hops, followed, run.config.compute_threads)
        features = FeatureTable.of(near.graph.schema, near.columns, run.config.threads)
        counts = {t: graph.num_nodes(t) for t in graph.schema.node_types}
        with renumbered(run.model, near.nodes, counts):
            return compute(near, Graph(near.graph, features))


def _reach(run: Run, graph: Graph) -> tuple[int, tuple[EdgeType, ...]]:
    """Return the hops that outputs of the run depend on, and the edge types that they follow.

    A rule that normalizes by degrees counts all edges of the outermost nodes, too.
    """
    config: RunConfig = run.config
    hops, schema = [config.sampler.fanouts, config.evaluation.fanouts], graph.schema
    model = run.model.encoder if isinstance(run.model, LinkPredictor | EdgePredictor) else run.model
    layers = getattr(model, "num_layers", 0)
    followed = {t for fanouts in hops if fanouts for t in followed_types(run.graph.schema, fanouts)}
    depth = max([*map(len, hops), layers if isinstance(layers, int) else 0])
    if rule_of(config, graph).degrees is not None:
        return depth + 1, schema.edge_types
    return depth, tuple(t for t in schema.edge_types if t in followed)


def _sort_by(folder: Folder) -> str | None:
    """Return the column that the rows of a graph are sorted by; None: they keep the order of the input."""
    match folder:
        case GraphFolder(manifest=manifest):
            edges = manifest.edges
        case PartsFolder(parts=parts):
            edges = parts[0].manifest.edges
        case _:
            edges = ()
    return next(iter(sorted({edge.row_order for edge in edges} - {INPUT})), None)
