"""Public recommendations: the destinations with the highest scores for each source."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from khop.api.edges import in_degrees, linked, without_edges
from khop.api.inference import Inference
from khop.api.open_graph import Graph
from khop.arguments import check_word, graph_of, instance_of, path_of, shown, whole_number
from khop.distributed.processes.group import this_group, unwrapped
from khop.graph.rule import Rule
from khop.graph.store import CscGraph
from khop.inference.chunks import Progress, evaluating, unwatched
from khop.inference.full_ranking import Best
from khop.inference.node_outputs import ExactDraws, rule_of
from khop.inference.stages import ChunkLimits
from khop.models.link_predictor import LinkPredictor
from khop.sampling.sampler import Fanout
from khop.sampling.seeds import SeedIds, node_ids
from khop.schema import EdgeType, EdgeTypeName, NodeType, edge_type_of
from khop.training.steps import mover

Candidates = Literal["unseen", "all"]
_PAIRS_AT_ONCE = 1 << 22  # scored at a time
_BLOCK = 1 << 14  # candidates
_CHUNKS = ChunkLimits(2048)
_SOURCES_AT_ONCE = 1 << 16  # whose links are read at a time


@dataclass(frozen=True, eq=False)
class Recommendations:
    """The destinations with the highest scores for some sources, best first; ties in the order of nodes.

    Args:
        sources: The sources, int64 (n).
        destinations: Their destinations, int64 (n, k); -1 where there are fewer candidates than k.
        scores: Scores of the model, or in-degrees for cold sources, float32 or float64 (n, k); -inf where
            there is no candidate.
        cold: True for sources without an edge, ranked by popularity, bool (n).
    Example:
        >>> found = khop.Recommendations(
        ...     sources=torch.tensor([3]),
        ...     destinations=torch.tensor([[5, 2]]),
        ...     scores=torch.tensor([[0.9, 0.4]]),
        ...     cold=torch.tensor([False]),
        ... )
        >>> found.destinations[:, 0]
        tensor([5])
    """

    sources: Tensor
    destinations: Tensor
    scores: Tensor
    cold: Tensor


def recommend(
    model: LinkPredictor,
    graph: Graph,
    edge_type: EdgeTypeName,
    sources: SeedIds | None = None,
    *,
    k: int = 20,
    candidates: Candidates = "unseen",
    rule: Rule | None = None,
    fanouts: Sequence[Fanout] | None = None,
    work_folder: str | os.PathLike[str] | None = None,
    progress: Progress = unwatched,
) -> Recommendations:
    """Find the destinations with the highest scores for each source, among all destinations.

    A node is never recommended to itself. A source without edges is cold: its candidates are ranked by
    in-degree, and the result marks it. Pairs are scored in blocks, so that only the size of the result
    limits memory. All edges must be in this process.

    Args:
        model: A `khop.models.LinkPredictor`.
        graph: Graph with the candidates: in the graph of a split by time, the nodes before its cut-off.
        edge_type: Edge type of the links.
        sources: Nodes, as ids or a mask, without duplicates; by default all of the source type.
        k: Destinations per source, default 20.
        candidates: "unseen" (default) excludes destinations that a source is already linked to; "all".
        rule: Rule of training, as for `khop.layerwise_inference`; by default the model's.
        fanouts: Fanouts of training, for rules that need them; default None.
        work_folder: Folder for temporary files with the rows of all nodes; by default the system's
            temporary folder.
        progress: Function called with the numbers of finished sources and of all sources; by default none.
    Returns:
        Destinations, scores and cold sources.
    Raises:
        ValueError: Model and graph do not fit together, or there are several ranks.
    Example:
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(20), torch.arange(1, 21) % 20)}
        >>> nodes = {"item": khop.NodeTable(columns={"x": torch.rand(20, 8)})}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> encoder = khop.models.SAGE.for_graph(graph, hidden=16, target=["item"], outputs=16)
        >>> model = khop.models.LinkPredictor(encoder, {"item to item": khop.models.Dot()})
        >>> khop.recommend(model, graph, "item to item", sources=[0, 1], k=5).destinations.shape
        torch.Size([2, 5])
    """
    work = None if work_folder is None else path_of("work_folder", work_folder)
    checked = Recommender.checked(model, graph, edge_type_of(edge_type), k, candidates)
    wanted = checked.sources(sources)
    draws = ExactDraws(rule_of(checked.model) if rule is None else rule, fanouts)
    with checked.rows(draws, work, progress) as recommender:
        pieces = list(recommender.pieces(wanted, progress))
    return Recommendations(
        *(torch.cat([getattr(piece, name) for piece in pieces]) for name in Recommendations.__annotations__)
    )


@dataclass(frozen=True, eq=False)
class Recommender:
    """A validated model, graph and choice of candidates."""

    model: LinkPredictor
    graph: Graph
    edges: CscGraph
    edge_type: EdgeType
    k: int
    candidates: Candidates

    @classmethod
    def checked(
        cls, model: LinkPredictor, graph: Graph, edge_type: EdgeType, k: int, candidates: Candidates
    ) -> Recommender:
        """Check the arguments. Raises ValueError before any work if they do not fit together."""
        graph_of("graph", graph)
        instance_of("graph", graph, Graph, "give a khop.Graph, such as khop.open_graph returns")
        predictor = unwrapped(model)
        if not isinstance(predictor, LinkPredictor):
            raise ValueError(f"model {shown(model)}: give a khop.models.LinkPredictor")
        check_word("candidates", candidates, Candidates)
        k = whole_number("k", k, 1)
        if edge_type not in graph.schema.edge_types:
            raise ValueError(f"edge type {edge_type}: the graph has {list(graph.schema.edge_types)}")
        predictor.decoder(edge_type)
        if this_group().world_size > 1:
            raise ValueError(
                "recommend runs in one process, and there are several ranks; start it without --procs"
            )
        for end in (edge_type[0], edge_type[2]):
            if graph.num_nodes(end) == 0:
                raise ValueError(f"recommend: there are no nodes of {end!r}")
        return cls(predictor, graph, graph.in_one_piece("recommend"), edge_type, k, candidates)

    def sources(self, given: SeedIds | None) -> Tensor:
        """Return the sources to recommend for, int64 (n): as given, or all. ValueError for unknown nodes."""
        source, count = self.edge_type[0], self.graph.num_nodes(self.edge_type[0])
        if given is None:
            return torch.arange(count)
        nodes = node_ids(f"sources of {source!r}", given, count)
        if nodes.numel() == 0:
            raise ValueError(f"sources of {source!r}: there are none; give one or more, or None for all")
        if nodes.unique().numel() < nodes.numel():
            raise ValueError(f"sources of {source!r}: some are given twice; give each once")
        return nodes

    @contextmanager
    def rows(self, draws: ExactDraws, work_folder: Path | None, progress: Progress) -> Iterator[Ranker]:
        """Compute the rows of all nodes at both ends into files, and yield a ranker."""
        ends = tuple(dict.fromkeys(self.edge_type[::2]))
        with tempfile.TemporaryDirectory(prefix=".recommend-", dir=work_folder) as folder:
            out = Path(folder) / "rows.npy"
            inference = Inference.of(self.model, self.graph, out, ends, None, "outputs", _CHUNKS, draws)
            files = inference.run(progress)
            rows = {t: torch.from_numpy(np.load(path, mmap_mode="c")) for t, path in files.items()}
            yield Ranker(self, rows)


@dataclass(frozen=True, eq=False)
class Ranker:
    """Ranks destinations by the rows of all nodes."""

    of: Recommender
    rows_of: Mapping[NodeType, Tensor]

    def pieces(self, sources: Tensor, progress: Progress = unwatched) -> Iterator[Recommendations]:
        """Yield recommendations for consecutive chunks of sources."""
        edges, edge_type = self.of.edges, self.of.edge_type
        is_cold = without_edges(edges, edge_type[0])
        popular = in_degrees(self.of.graph, edge_type, ()).double().unsqueeze(0)
        done = 0
        with torch.no_grad(), evaluating(self.of.model):
            for group in sources.split(_SOURCES_AT_ONCE):
                at, seen = self._left_out(group)
                for span in torch.arange(group.numel()).split(max(1, _PAIRS_AT_ONCE // _BLOCK)):
                    first, last = int(span[0]), int(span[-1]) + 1
                    near = (at >= first) & (at < last)
                    some, left_out = group[first:last], (at[near] - first, seen[near])
                    yield self._ranked(some, is_cold[some], left_out, popular)
                    done += some.numel()
                    progress(done, sources.numel())

    def _left_out(self, sources: Tensor) -> tuple[Tensor, Tensor]:
        """Return pairs that are not recommended: positions of sources, ascending, and destinations."""
        none = torch.empty(0, dtype=torch.int64)
        edge_type = self.of.edge_type
        seen = linked(self.of.edges, edge_type, sources) if self.of.candidates == "unseen" else (none, none)
        if edge_type[0] != edge_type[2]:
            return seen
        return torch.cat([seen[0], torch.arange(sources.numel())]), torch.cat([seen[1], sources])

    def _ranked(
        self, sources: Tensor, cold: Tensor, left_out: tuple[Tensor, Tensor], popular: Tensor
    ) -> Recommendations:
        model, (source, _, destination) = self.of.model, self.of.edge_type
        move, decoder = mover(model), model.decoder(self.of.edge_type)
        candidates = self.rows_of[destination]
        own = move(self.rows_of[source][sources])

        def by_model(span: slice) -> Tensor:
            return decoder.grid(own, move(candidates[span]))

        def by_popularity(span: slice) -> Tensor:
            return popular[:, span].expand(sources.numel(), -1)

        k, count = self.of.k, candidates.shape[0]
        allowed = self.of.edges.candidates.get(destination)
        best = Best.of(by_model, count, k, left_out, allowed, _BLOCK)
        if not cold.any():
            return Recommendations(sources, best.candidates, best.scores, cold)
        popularity = Best.of(by_popularity, count, k, left_out, allowed, _BLOCK)
        rows = cold.unsqueeze(1)
        return Recommendations(
            sources,
            torch.where(rows, popularity.candidates, best.candidates),
            torch.where(rows, popularity.scores.to(best.scores.dtype), best.scores),
            cold,
        )
