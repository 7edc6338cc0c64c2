"""Filtered ranking of held-out links: both ends of each among all nodes, without the other known links."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.config.contexts import TaskContext, exact_draws_of
from khop.config.parts import in_flight_of
from khop.inference.chunks import Progress, evaluating
from khop.inference.edge_outputs import triples_of_links
from khop.inference.link_evaluation import node_rows
from khop.inference.triple_ranking import TripleRanking, triple_ranking
from khop.models.link_predictor import LinkPredictor
from khop.runtime.group import this_group
from khop.sampling.link_seeds import LinkList
from khop.schema import NodeType

_AT = (1, 3, 10)


def filtered_ranking(
    context: TaskContext,
    model: LinkPredictor,
    graph: Graph,
    links: LinkList,
    known: Sequence[LinkList],
    progress: Progress,
) -> dict[str, float]:
    """Return "filtered-mrr" and "filtered-hits@k", the means over both ends and over edge types. Collective.

    Embeddings are computed over all neighbors in `graph`. `known` are the links of all splits, which do not
    count against a link of the same relation and other end.
    """
    rows = rows_of_ends(context, model, graph, links, progress)
    found: list[TripleRanking] = []
    with evaluating(model):
        move = next(model.parameters(), torch.empty(0)).device
        for edge_type in links.counts:
            sources, destinations = (rows[end].to(move) for end in (edge_type[0], edge_type[2]))
            triples, *others = (triples_of_links(each, edge_type) for each in (links, *known))
            every: Tensor = torch.cat(others, dim=1)
            decoder = model.decoder(edge_type)
            found.append(triple_ranking(decoder, sources, destinations, triples, every, _AT))
    mrr = sum(ranking.mrr for ranking in found) / len(found)
    hits = {f"filtered-hits@{k}": sum(ranking.hits[k] for ranking in found) / len(found) for k in _AT}
    return {"filtered-mrr": mrr, **hits}


def rows_of_ends(
    context: TaskContext, model: LinkPredictor, graph: Graph, links: LinkList, progress: Progress
) -> dict[NodeType, Tensor]:
    """Return the embeddings of all nodes at the ends of links, over all neighbors in `graph`. Collective."""
    config = context.config
    ends = dict.fromkeys(end for edge_type in links.counts for end in (edge_type[0], edge_type[2]))
    draws = exact_draws_of(config, graph)
    return node_rows(
        model.encoder,
        graph,
        graph.features,
        list(ends),
        rule=draws.rule,
        fanouts=draws.fanouts,
        chunk_size=config.evaluation.batch_size,
        chunk_edges=config.evaluation.batch_edges,
        progress=progress,
        in_flight=in_flight_of(config),
        group=this_group(),
        lanes=graph.lanes,
    )
