"""Features of times are those of the paper, and attention reads them as features of edges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.nn import GATConv

import khop
from khop.models import GAT, Time2Vec
from khop.sampling.rules.temporal import TemporalLimit

EDGE = ("node", "to", "node")
UNTIMED = ("node", "like", "node")


def test_the_first_feature_is_linear_and_the_others_are_sines() -> None:
    encode = Time2Vec(5)
    with torch.no_grad():
        encode.phases.copy_(torch.arange(5) / 7)
    times = np.array([0, 1, 17, 86_400, 1_700_000_000])
    w, p = encode.frequencies.double().detach().numpy(), encode.phases.double().detach().numpy()
    wanted = np.concatenate([times[:, None] * w[:1] + p[:1], np.sin(times[:, None] * w[1:] + p[1:])], axis=1)
    found = encode(torch.from_numpy(times))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-6, atol=1e-6)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert encode.frequencies.grad is not None
    assert encode.phases.grad is not None
    with pytest.raises(ValueError, match="width 0"):
        Time2Vec(0)


def timed_graph(folder: Path) -> khop.Graph:
    """Edges with times, and a few without."""
    numbers = torch.Generator().manual_seed(2)
    x, ends = torch.randn(20, 4, generator=numbers), torch.randint(20, (2, 90), generator=numbers)
    nodes = {"node": khop.NodeTable(20, {"x": x, "y": torch.arange(20) % 3}, num_classes={"y": 3})}
    edges = {
        EDGE: khop.EdgeTable(*ends, {"time": torch.randint(50, (90,), generator=numbers)}),
        UNTIMED: khop.EdgeTable(ends[0][:9], ends[1][:9]),
    }
    return khop.open_graph(khop.write_graph(folder / "graph", nodes, edges, sort_by="time"))


def timed_loader(graph: khop.Graph, rule: khop.Temporal) -> khop.Loader:
    sampler = khop.NeighborSampler(graph, [5, 3], rule=rule)
    times = 30 + torch.arange(20)
    return khop.Loader(sampler, torch.arange(20), 20, seed_times=times, columns=["x"], seed_columns=["y"])


@pytest.mark.parametrize("limit", ["seed", "edge"])
def test_attention_over_times_is_that_of_torch_geometric_over_features_of_edges(
    tmp_path: Path, limit: TemporalLimit
) -> None:
    graph = timed_graph(tmp_path)
    rule = khop.Temporal("time", limit=limit, elapsed=True)
    batch = timed_loader(graph, rule).batch(epoch=0, step=0)
    torch.manual_seed(3)
    model = GAT.for_graph(graph, hidden=4, layers=2, heads=1, label="y", edge_times=6).double()
    x = batch["x"].double()
    for number, block in enumerate(batch.blocks):
        layer = model.layers[number]
        total = torch.nn.functional.linear(
            x[: block.num_dst], layer.own["node:node"], layer.bias["node:node"]
        )
        for edge_type, adjacency in block.adjacencies.items():
            ours = layer.attention[f"node:{edge_type[1]}:node"]
            theirs = GATConv((x.shape[1],) * 2, 4, 1, edge_dim=6, add_self_loops=False, bias=False).double()
            one = torch.zeros(1, 1, 4, dtype=torch.float64)
            one[..., 0] = 1
            first = torch.zeros(4, 1, dtype=torch.float64)
            first[0] = 1
            theirs.load_state_dict(
                {
                    "att_src": ours.score[None],
                    "att_dst": one,
                    "att_edge": one,
                    "lin_src.weight": ours.values,
                    "lin_dst.weight": first @ ours.destination,
                    "lin_edge.weight": first @ ours.edge,
                }
            )
            assert adjacency.elapsed is not None
            if edge_type == UNTIMED:
                assert not adjacency.elapsed.any()
            of_edges = layer.times(adjacency.elapsed).double()
            total = total + theirs((x, x[: block.num_dst]), adjacency.edge_index, of_edges)
        x = total.relu()
    wanted = model.head("node", x[batch.seed_index])
    found = model(_in_double(batch))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def _in_double(batch: khop.Batch) -> khop.Batch:
    return replace(batch, columns={"node": {"x": batch["x"].double()}})


def test_a_batch_without_elapsed_times_is_refused_with_the_remedy(tmp_path: Path) -> None:
    graph = timed_graph(tmp_path)
    model = GAT.for_graph(graph, hidden=4, layers=2, heads=1, label="y", edge_times=6)
    with pytest.raises(ValueError, match=r"elapsed times of .*Temporal\(column, elapsed=True\)"):
        model(timed_loader(graph, khop.Temporal("time")).batch(epoch=0, step=0))
