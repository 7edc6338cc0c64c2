"""Ranking of held-out links: all destinations of each source, as a recommender does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.config.contexts import TaskContext
from khop.config.filtered_ranking import rows_of_ends
from khop.inference.chunks import Progress, evaluating
from khop.inference.edge_outputs import triples_of_links
from khop.inference.full_ranking import FullRanking, full_ranking
from khop.models.link_predictor import LinkPredictor
from khop.sampling.link_seeds import LinkList

_AT = (10, 20)


def candidate_ranking(
    context: TaskContext,
    model: LinkPredictor,
    graph: Graph,
    links: LinkList,
    seen: Sequence[LinkList],
    progress: Progress,
) -> dict[str, float]:
    """Return "full-ndcg@k" and "full-recall@k": means over sources with links, then over edge types.

    Every node of the destination type is a candidate, except the destinations of a source in `seen`, the
    links of the splits before. An edge type with no other links than these is left out. Embeddings are
    computed over all neighbors in `graph`. Collective.
    """
    rows = rows_of_ends(context, model, graph, links, progress)
    found: list[FullRanking] = []
    with evaluating(model):
        move = next(model.parameters(), torch.empty(0)).device
        for edge_type in links.counts:
            sources, destinations = (rows[end].to(move) for end in (edge_type[0], edge_type[2]))
            scores_of = partial(_scores, model.decoder(edge_type).grid, sources, destinations)
            held_out, *others = (triples_of_links(each, edge_type)[[0, 2]] for each in (links, *seen))
            known = torch.cat(others, dim=1)
            if _is_all_known(held_out, known, destinations.shape[0]):
                continue
            found.append(full_ranking(scores_of, held_out, known, destinations.shape[0], _AT))
    means: dict[str, float] = {}
    for k in _AT if found else ():
        means[f"full-ndcg@{k}"] = sum(ranking.ndcg[k] for ranking in found) / len(found)
        means[f"full-recall@{k}"] = sum(ranking.recall[k] for ranking in found) / len(found)
    return means


def _is_all_known(held_out: Tensor, known: Tensor, num_destinations: int) -> bool:
    """Return True if each pair of `held_out`, (2, n), is in `known`, (2, m)."""
    keys, others = (sources * num_destinations + destinations for sources, destinations in (held_out, known))
    return bool(torch.isin(keys, others).all())


def _scores(
    grid: Callable[[Tensor, Tensor], Tensor], sources: Tensor, destinations: Tensor, queries: Tensor
) -> Tensor:
    """Return (queries, destinations): the scores of some sources."""
    return grid(sources[queries.to(sources.device)], destinations)
