"""Tuples of nodes are seeds with one label each, dealt to ranks whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

import khop
from khop.api.serve import graph_on
from khop.distributed.processes.group import this_group
from khop.models import SAGE
from khop.sampling.seeds import SeedOrder
from support.covered import covered
from support.group_graphs import COUNT, chorded
from support.in_process import exchange_with
from support.small_folders import write_learnable_graph
from support.started_ranks import StartedRanks

GRAPH = chorded()
TUPLES = (torch.arange(30) * 5 % COUNT).view(10, 3)
LABELS = torch.arange(10.0) ** 2


def test_a_batch_has_the_nodes_of_its_tuples_in_order_and_their_labels() -> None:
    loader = khop.Loader(
        khop.NeighborSampler(GRAPH, [2]),
        khop.NodeTuples(TUPLES, LABELS),
        4,
        graph=GRAPH,
        shuffle=True,
        seed=3,
    )
    seen = []
    for batch in loader.epoch(0):
        numbers = batch.tuple_labels["node"].sqrt().long()
        assert torch.equal(batch.seeds.view(-1, 3), TUPLES[numbers])
        assert torch.equal(batch.input_nodes[batch.seed_index], batch.seeds)
        assert batch.num_global_seeds == len(numbers)
        losses = batch.seeds.view(-1, 3).double().sum(1)
        assert float(batch.global_mean(losses)) == pytest.approx(
            float(TUPLES[numbers].double().sum(1).mean())
        )
        seen += numbers.tolist()
    assert sorted(seen) == list(range(10))
    assert len(loader) == 3


@given(st.integers(1, 4), st.integers(1, 11), st.booleans())
def test_ranks_share_the_tuples_of_a_step(ranks: int, batch_size: int, shuffle: bool) -> None:
    alone = SeedOrder(khop.NodeTuples(TUPLES, LABELS).of_graph(GRAPH), batch_size, shuffle, 2)
    for step in range(alone.num_steps):
        whole = alone.share(0, step)
        parts = [replace(alone, rank=rank, world_size=ranks).share(0, step) for rank in range(ranks)]
        for field in ("nodes", "positions"):
            together = torch.cat([getattr(part, field)["node"] for part in parts])
            assert torch.equal(together, getattr(whole, field)["node"])
        labels = [(part.tuple_labels or {})["node"] for part in parts]
        assert torch.equal(torch.cat(labels), (whole.tuple_labels or {})["node"])
        for part in parts:
            assert part.batch_nodes is not None
            assert torch.equal(part.batch_nodes["node"], whole.nodes["node"])


def test_disjoint_trees_have_a_key_for_each_node_of_a_tuple() -> None:
    sampler = khop.NeighborSampler(GRAPH, [1], trees="disjoint")
    same = torch.full((2, 3), 4)
    sample = khop.Loader(sampler, khop.NodeTuples(same), 2).batch(0, 0).sample
    assert sample.nodes["node"][:6].tolist() == [4] * 6
    assert len(set(sample.nodes["node"][6:].tolist())) > 1


def test_servers_sample_tuples(tmp_path: Path) -> None:
    folder = write_learnable_graph(tmp_path / "graph", nodes=60)
    tuples = khop.NodeTuples(torch.arange(60).view(20, 3), torch.rand(20))
    batches = []
    for graph in (khop.open_graph(folder), graph_on(exchange_with(khop.open_graph(folder), 2))):
        loader = khop.Loader(khop.NeighborSampler(graph, [3, 2]), tuples, 7, shuffle=True, columns=["x"])
        batches.append(list(loader.epoch(1)))
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one.input_nodes, other.input_nodes)
        assert torch.equal(one["x"], other["x"])
        assert torch.equal(one.seed_index, other.seed_index)
        assert torch.equal(one.tuple_labels["item"], other.tuple_labels["item"])
    assert [batch.tuple_labels["item"].numel() for batch in batches[1]] == [7, 7, 6]


def test_the_state_knows_tuples_and_labels() -> None:
    def loader(tuples: khop.NodeTuples) -> khop.Loader:
        return khop.Loader(khop.NeighborSampler(GRAPH, [1]), tuples, 4)

    state = loader(khop.NodeTuples(TUPLES, LABELS)).state_dict()
    loader(khop.NodeTuples(TUPLES, LABELS)).load_state_dict(state)
    for other in (khop.NodeTuples(TUPLES), khop.NodeTuples(TUPLES.flip(0), LABELS)):
        with pytest.raises(ValueError, match="another seed list"):
            loader(other).load_state_dict(state)


def test_bad_tuples_are_named() -> None:
    for arguments, words in (
        ((torch.arange(4),), r"of shape \(4,\); give int64 \(N, M\)"),
        ((torch.full((1, 2), 99),), "there is no node 99"),
        ((TUPLES, LABELS[:3]), "3 for 10 tuples"),
        (({"zz": TUPLES},), "'zz': not a node type"),
        ((TUPLES[:, :0],), "of 0 nodes each"),
    ):
        with pytest.raises(ValueError, match=words):
            khop.Loader(khop.NeighborSampler(GRAPH, [1]), khop.NodeTuples(*arguments), 4)


@covered
def train_on_tuples(rank: int, device: torch.device, folder: str, placement: str, out: str) -> None:
    """Fit labels of fifty tuples; write the losses of all steps."""
    torch.set_num_threads(1)
    graph = khop.open_graph(folder, placement=placement)
    draw = torch.Generator().manual_seed(2)
    nodes = torch.randint(150, (50, 3), generator=draw)
    labels = torch.rand(50, generator=draw).double()
    originals = graph.original_ids("item")
    tuples = khop.NodeTuples(nodes if originals is None else originals.argsort()[nodes], labels)
    sampler = khop.NeighborSampler(graph, [3, 2], trees="disjoint")
    loader = khop.Loader(sampler, tuples, 12, shuffle=True, seed=4, columns=["x"])
    torch.manual_seed(3)
    model = SAGE.for_graph(graph, 8, target="item", outputs=4).double()
    parallel = DistributedDataParallel(model) if torch.distributed.is_initialized() else model
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.2)
    losses = []
    for epoch in range(2):
        for batch in loader.epoch(epoch):
            scores = parallel(batch).view(-1, 3, 4).prod(dim=1).sum(dim=1)
            each = (scores - batch.tuple_labels["item"]) ** 2
            optimizer.zero_grad()
            batch.global_mean(each).backward()
            optimizer.step()
            losses.append(float(this_group().gather(each.detach().sum()).sum()) / batch.num_global_seeds)
    if rank == 0:
        Path(out).write_text(json.dumps(losses))


@pytest.mark.long
@pytest.mark.parametrize("procs", [2, 4])
def test_losses_are_the_same_on_one_process_and_on_ranks_of_a_partitioned_graph(
    procs: int, tmp_path: Path, ranks: StartedRanks
) -> None:
    """Fifty tuples in steps of twelve: of the last step's two, a rank of four may have none."""
    whole = write_learnable_graph(tmp_path / "whole", nodes=150)
    khop.partition_graph(whole, tmp_path / "parts", 3, method="hash", seed=1)
    for name, count, folder, placement in (
        ("one", 1, whole, "whole"),
        ("whole", procs, whole, "whole"),
        ("parts", procs, tmp_path / "parts", "all"),
    ):
        ranks.launch(train_on_tuples, count, (str(folder), placement, str(tmp_path / f"{name}.json")))
    losses = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert len(losses["one"]) == 10
    assert losses["one"][-1] != losses["one"][0]
    for name in ("whole", "parts"):
        assert losses[name] == pytest.approx(losses["one"], rel=1e-9), name
