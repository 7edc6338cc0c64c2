"""DGL graphs become graphs. DGL has no build for this torch: a stand-in has the members that are read."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import khop


class Edges:
    """`graph.edges`, which DGL both calls and indexes."""

    def __init__(
        self, ends: Mapping[object, tuple[Tensor, Tensor]], data: Mapping[object, dict[str, Tensor]]
    ) -> None:
        self.ends, self.data = ends, data

    def __call__(self, etype: object) -> tuple[Tensor, Tensor]:
        return self.ends[etype]

    def __getitem__(self, etype: object) -> SimpleNamespace:
        return SimpleNamespace(data=self.data.get(etype, {}))


def dgl_graph(
    nodes: Mapping[str, tuple[int, dict[str, Tensor]]],
    ends: Mapping[tuple[str, str, str], tuple[list[int], list[int]]],
    data: Mapping[object, dict[str, Tensor]],
) -> SimpleNamespace:
    tensors = {etype: (torch.tensor(s), torch.tensor(d)) for etype, (s, d) in ends.items()}
    return SimpleNamespace(
        ntypes=list(nodes), canonical_etypes=list(ends), num_nodes=lambda ntype: nodes[ntype][0],
        edges=Edges(tensors, data),
        nodes={ntype: SimpleNamespace(data=of) for ntype, (_, of) in nodes.items()},
    )  # fmt: skip


def test_a_graph_of_one_type_has_khops_names() -> None:
    node_data = {"feat": torch.ones(3, 2), "train_mask": torch.tensor([True, False, True])}
    etype = ("_N", "_E", "_N")
    given = dgl_graph(
        {"_N": (3, node_data)}, {etype: ([0, 1], [2, 0])}, {etype: {"w": torch.tensor([5.0, 6.0])}}
    )
    graph = khop.graph_from_dgl(given)
    edge_type = ("node", "to", "node")
    assert graph.csc(edge_type).indices.tolist() == [1, 0]
    assert graph.columns[edge_type]["w"].tolist() == [6, 5]  # by destination
    assert graph.split("train")["node"].tolist() == [0, 2]
    assert set(graph.columns["node"]) == {"feat"}


def test_a_mask_that_marks_no_node_is_left_out_with_a_warning() -> None:
    given = dgl_graph(
        {"_N": (3, {"val_mask": torch.zeros(3, dtype=torch.bool)})}, {("_N", "_E", "_N"): ([], [])}, {}
    )
    with pytest.warns(UserWarning, match="the mask of 'val' marks no 'node' node: the split is left out"):
        assert khop.graph_from_dgl(given).split_names == ()


def test_types_are_kept() -> None:
    etype = ("user", "buys", "item")
    graph = khop.graph_from_dgl(dgl_graph({"user": (2, {}), "item": (3, {})}, {etype: ([0, 1], [2, 0])}, {}))
    assert graph.schema.node_types == ("user", "item")
    assert graph.num_edges(etype) == 2
    with pytest.raises(ValueError, match="must be a DGLGraph"):
        khop.graph_from_dgl(5)
