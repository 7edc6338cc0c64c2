from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.features.table import FeatureTable
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.inference.later_graph import JoinedGraph, Neighborhood

EDGE = ("n", "to", "n")
Edge = tuple[int, int, int]  # source, destination, time


def graph(count: int, edges: list[Edge], values: torch.Tensor, order: str | None = None) -> CscGraph:
    rows = torch.tensor(edges, dtype=torch.int64).view(-1, 3)
    columns = {"n": {"x": values}, EDGE: {"time": rows[:, 2]}}
    return csc_graph_from_edges(
        {"n": count}, {EDGE: (rows[:, 0], rows[:, 1])}, columns=columns, sort_by=order
    )


def rows_of(near: Neighborhood, node: int) -> tuple[list[int], list[int]]:
    """Return the neighbors of a node, as nodes of the joined graph, and the times of its edges."""
    csc, local = near.graph.csc(EDGE), int(near.local("n", torch.tensor([node])))
    span = slice(int(csc.indptr[local]), int(csc.indptr[local + 1]))
    return near.nodes["n"][csc.indices[span].long()].tolist(), near.columns[EDGE]["time"][span].tolist()


EDGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), max_size=20)


@given(before=EDGES, after=EDGES, hops=st.integers(1, 3), is_timed=st.booleans())
def test_rows_are_those_of_a_graph_of_all_edges(
    before: list[Edge], after: list[Edge], hops: int, is_timed: bool
) -> None:
    """Nodes 0 to 3 are of the graph; 4 and 5 are new. The later graph numbers them 5, 1, 4, 0, 2, 3."""
    order, numbers = "time" if is_timed else None, [5, 1, 4, 0, 2, 3]
    values = torch.arange(6.0)
    before = [(source % 4, destination % 4, time) for source, destination, time in before]
    place = {node: number for number, node in enumerate(numbers)}
    base = graph(4, before, values[:4], order)
    later = graph(6, [(place[s], place[d], t) for s, d, t in after], values[numbers])
    whole = graph(6, before + after, values, order)
    # The first later node that the graph lacks becomes node 4, the second node 5.
    joined_number = {5: 4, 4: 5}
    places = torch.tensor([joined_number.get(node, node) for node in numbers])
    features = FeatureTable({"n": {"x": values[:4]}})
    joined = JoinedGraph(base, features, later, {"n": places}, base.schema.columns, order)
    near = joined.neighborhood({"n": torch.tensor([4, 5])}, hops, [EDGE])

    own = {4: 5, 5: 4}
    reached = {4, 5}
    for _ in range(hops):
        for node in sorted(reached):
            csc, number = whole.csc(EDGE), own.get(node, node)
            span = slice(int(csc.indptr[number]), int(csc.indptr[number + 1]))
            neighbors = [joined_number.get(n, n) for n in csc.indices[span].tolist()]
            assert rows_of(near, node) == (neighbors, whole.columns[EDGE]["time"][span].tolist())
            reached |= set(neighbors)
    assert set(near.nodes["n"].tolist()) == reached
    of_nodes = [own.get(node, node) for node in near.nodes["n"].tolist()]
    assert near.columns["n"]["x"].tolist() == values[of_nodes].tolist()
