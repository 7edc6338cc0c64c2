"""Random graphs with times and weights, seeds with time limits, and rules of draws from them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from khop import Seeds, Temporal, TemporalStrategy, Uniform, Weighted
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.schema import EdgeType, NodeType
from support.random_graphs import graphs_and_seeds

TIMES = st.integers(-5, 5)


@st.composite
def timed_graphs(draw: st.DrawFn) -> tuple[CscGraph, Seeds]:
    """Random graphs whose nodes, edges or both have times, and weights; seeds with times of their own."""
    plain, nodes = draw(graphs_and_seeds())

    def column(size: int, values: st.SearchStrategy[int]) -> Tensor:
        return torch.tensor(draw(st.lists(values, min_size=size, max_size=size)), dtype=torch.int64)

    columns: dict[NodeType | EdgeType, dict[str, Tensor]] = {}
    first = next(iter(plain.edges))
    for edge_type, pairs in plain.edges.items():
        columns[edge_type] = {"weight": column(len(pairs), st.integers(0, 3))}
        if edge_type == first or draw(st.booleans()):
            columns[edge_type]["time"] = column(len(pairs), TIMES)
    for node_type, count in plain.counts.items():
        if draw(st.booleans()):
            columns[node_type] = {"time": column(count, TIMES)}
    ends = {
        t: (
            torch.tensor([s for s, _ in pairs], dtype=torch.int64),
            torch.tensor([d for _, d in pairs], dtype=torch.int64),
        )
        for t, pairs in plain.edges.items()
    }
    seeds, positions, times, at = {}, {}, {}, 0
    for node_type, ids in nodes.items():
        seeds[node_type] = torch.tensor(ids, dtype=torch.int64)
        positions[node_type] = torch.arange(at, at + len(ids))
        times[node_type] = column(len(ids), TIMES)
        at += len(ids)
    return csc_graph_from_edges(plain.counts, ends, columns=columns, sort_by="time"), Seeds(
        seeds, positions, times
    )


INNER = st.builds(Uniform, st.booleans()) | st.builds(Weighted, st.just("weight"), st.booleans())
_LIMITS = {"limit": st.sampled_from(["seed", "edge"]), "elapsed": st.booleans()}
RULES = st.builds(
    Temporal,
    st.just("time"),
    window=st.none() | st.tuples(st.none() | st.integers(2, 9), st.integers(-2, 0)),
    inner=INNER,
    **_LIMITS,
) | st.builds(Temporal, st.just("time"), st.just(TemporalStrategy.LATEST), **_LIMITS)
