"""Recommendations: for each source of an edge type, the destinations with the best scores of a model."""

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

from khop.api.in_degrees import in_degrees
from khop.api.infer import Inference
from khop.api.linked import linked, without_edges
from khop.api.open_graph import Graph
from khop.arguments import check_word, graph_of, instance_of, path_of, shown, whole_number
from khop.graph.csc_graph import CscGraph
from khop.inference.best_candidates import Best
from khop.inference.chunk_bounds import ChunkLimits
from khop.inference.chunks import Progress, evaluating, unwatched
from khop.inference.exact_draws import ExactDraws
from khop.models.link_predictor import LinkPredictor
from khop.rules.rule import Rule
from khop.rules.uniform import Uniform
from khop.runtime.group import this_group, unwrapped
from khop.sampling.fanouts import Fanout
from khop.sampling.node_set import check_ids
from khop.schema import EdgeType, EdgeTypeName, NodeType, edge_type_of
from khop.training.move import mover

Candidates = Literal["unseen", "all"]
_PAIRS_AT_ONCE = 1 << 22  # scored at a time
_BLOCK = 1 << 14  # candidates
_CHUNKS = ChunkLimits(2048)
_SOURCES_AT_ONCE = 1 << 16  # whose links are read at a time


@dataclass(frozen=True, eq=False)
class Recommendations:
    """The best destinations of some sources, best first; equal scores by ascending node."""

    sources: Tensor  # int64 (n)
    destinations: Tensor  # int64 (n, k); -1 where there are fewer candidates than k
    scores: Tensor  # float32 or float64 (n, k), of the model, or the in-degree; -inf where there is none
    cold: Tensor  # bool (n): sources without an edge, ranked by popularity


def recommend(
    model: LinkPredictor,
    graph: Graph,
    edge_type: EdgeTypeName,
    sources: Tensor | None = None,
    *,
    k: int = 20,
    candidates: Candidates = "unseen",
    rule: Rule = Uniform(),
    fanouts: Sequence[Fanout] | None = None,
    work_folder: str | os.PathLike[str] | None = None,
    progress: Progress = unwatched,
) -> Recommendations:
    """Return the `k` best destinations of each source, by the model's decoder, over all destinations.

    `sources` are nodes, int64 (n), without repetition; None: all nodes of the source type. Candidates exist
    in `graph`: in the graph of a split by time, the nodes before its cut-off. "unseen" leaves out the
    destinations that a source is linked to already. A node is never recommended to itself. A source without
    any edge is cold: its candidates are ranked by their number of in-edges, and marked in the result.

    The rows of all nodes are computed layer by layer over all neighbors, by the `rule` of training (and its
    `fanouts`: see `khop.layerwise_inference`), into files in `work_folder`, by default the system's folder of
    temporary files. They are removed at the end. Pairs are scored in blocks, so memory is bounded, except for
    the result. For one process with all edges.
    """
    work = None if work_folder is None else path_of("work_folder", work_folder)
    checked = Recommender.checked(model, graph, edge_type_of(edge_type), k, candidates)
    wanted = checked.sources(sources)
    with checked.rows(ExactDraws(rule, fanouts), work, progress) as recommender:
        pieces = list(recommender.pieces(wanted, progress))
    return Recommendations(
        *(torch.cat([getattr(piece, name) for piece in pieces]) for name in Recommendations.__annotations__)
    )


@dataclass(frozen=True, eq=False)
class Recommender:
    """A model, the edges of a graph and a choice of candidates, checked."""

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
        """Check the arguments. ValueError if they do not fit together, before any work."""
        graph_of("graph", graph)
        instance_of("graph", graph, Graph, "give a khop.Graph, as khop.open_graph gives it")
        predictor = unwrapped(model)
        if not isinstance(predictor, LinkPredictor):
            raise ValueError(f"model {shown(model)}: give a khop.models.LinkPredictor")
        check_word("candidates", candidates, Candidates)
        k = whole_number("k", k, 1)
        if edge_type not in graph.schema.edge_types:
            raise ValueError(f"edge type {edge_type}: the graph has {list(graph.schema.edge_types)}")
        predictor.decoder(edge_type)
        if this_group().world_size > 1:
            raise ValueError("recommend on several ranks: it works in one process; start it without --procs")
        if graph.num_nodes(edge_type[2]) == 0:
            raise ValueError(f"recommend: there are no nodes of {edge_type[2]!r}")
        return cls(predictor, graph, graph.in_one_piece("recommend"), edge_type, k, candidates)

    def sources(self, given: Tensor | None) -> Tensor:
        """Return the sources to recommend for, int64 (n): as given, or all. ValueError for other nodes."""
        source, count = self.edge_type[0], self.graph.num_nodes(self.edge_type[0])
        if given is None:
            return torch.arange(count)
        instance_of("sources", given, Tensor, f"give the nodes of {source!r}, int64 (n)")
        if given.dim() != 1 or given.numel() == 0 or given.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"sources {given.dtype} {tuple(given.shape)}: give nodes of {source!r}, int64 (n), n > 0"
            )
        given = given.long()
        check_ids(f"sources of {source!r}", given, count)
        if given.unique().numel() < given.numel():
            raise ValueError(f"sources of {source!r}: some are given twice; give each once")
        return given

    @contextmanager
    def rows(self, draws: ExactDraws, work_folder: Path | None, progress: Progress) -> Iterator[Ranker]:
        """Compute the rows of all nodes at both ends into files, and yield what ranks them."""
        ends = tuple(dict.fromkeys(self.edge_type[::2]))
        with tempfile.TemporaryDirectory(prefix=".recommend-", dir=work_folder) as folder:
            out = Path(folder) / "rows.npy"
            inference = Inference.of(self.model, self.graph, out, ends, None, "outputs", _CHUNKS, draws)
            files = inference.run(progress)
            rows = {t: torch.from_numpy(np.load(path, mmap_mode="c")) for t, path in files.items()}
            yield Ranker(self, rows)


@dataclass(frozen=True, eq=False)
class Ranker:
    """The rows of all nodes, to rank destinations with."""

    of: Recommender
    rows_of: Mapping[NodeType, Tensor]

    def pieces(self, sources: Tensor, progress: Progress = unwatched) -> Iterator[Recommendations]:
        """Yield recommendations for consecutive sources, some at a time."""
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
