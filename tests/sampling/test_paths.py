"""Times fall along every path: batches are the recursion of TGAT and TGN, on CPU, device and parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop import DrawKey, Expansion, NeighborSampler, Seeds, Temporal, TemporalStrategy
from khop.batch import Sample
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.sampling.on_device.device_batch import padded_sample
from khop.sampling.on_device.device_sampler import DeviceSampler
from reference.paths import Interactions, Recursion, Tree
from support.device_batches import device_batch
from support.random_graphs import FANOUTS
from support.same_samples import assert_same
from support.timed_graphs import RULES, timed_graphs
from support.triton_rows import DEVICE

KEY = DrawKey(3)
EDGE = ("node", "to", "node")
EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))


def unfolded(sample: Sample, node_type: str, row: int, hop: int) -> Tree:
    """The edges of a row at a hop, and those behind them, from the blocks of a sample."""
    if hop > len(sample.blocks):
        return []
    found: Tree = []
    for edge_type, rows in sample.blocks[-hop].adjacencies.items():
        if edge_type[2] == node_type:
            assert rows.edge_ids is not None
            assert rows.elapsed is not None
            for at in range(int(rows.indptr[row]), int(rows.indptr[row + 1])):
                behind = unfolded(sample, edge_type[0], int(rows.indices[at]), hop + 1)
                found.append((edge_type, int(rows.edge_ids[at]), int(rows.elapsed[at]), behind))
    return found


@pytest.mark.core(1)
@EXPANSIONS
@given(asked=timed_graphs(), rule=RULES, fanouts=st.lists(FANOUTS, min_size=1, max_size=3))
def test_samples_are_the_recursion(
    asked: tuple[CscGraph, Seeds], rule: Temporal, fanouts: list[int], expansion: Expansion
) -> None:
    graph, seeds = asked
    # By the seed's time, a node of a subgraph is one row of its tree, whose edges are drawn at one hop alone.
    rule = replace(rule, elapsed=True, limit="edge" if expansion is Expansion.SUBGRAPH else rule.limit)
    sampler = NeighborSampler(graph, fanouts, rule=rule, expansion=expansion, edge_ids=True)
    sample = sampler.sample(seeds, KEY)
    recursion = Recursion(graph, rule, fanouts, KEY.value)
    assert seeds.times is not None
    for node_type, ids in seeds.nodes.items():
        for at, node in enumerate(ids.tolist()):
            limit, position = int(seeds.times[node_type][at]), int(seeds.positions[node_type][at])
            row = int(sample.seed_index[node_type][at])
            wanted = recursion.edges(node_type, node, limit, position, 1)
            assert unfolded(sample, node_type, row, 1) == wanted


def stream_of_interactions(nodes: int, count: int) -> tuple[CscGraph, Interactions]:
    """Random interactions with few different times; both ends have each of them."""
    numbers = np.random.default_rng(5)
    ends, times = numbers.integers(0, nodes, (2, count)), np.sort(numbers.integers(0, count // 3, count))
    sources, destinations = np.concatenate([ends, ends[::-1]], axis=1)
    both = np.concatenate([times, times])
    order = [np.flatnonzero(destinations == node) for node in range(nodes)]
    order = [of[np.argsort(both[of], kind="stable")] for of in order]
    graph = csc_graph_from_edges(
        {"node": nodes},
        {EDGE: (torch.from_numpy(sources), torch.from_numpy(destinations))},
        columns={EDGE: {"time": torch.from_numpy(both)}},
        sort_by="time",
    )
    return graph, Interactions([sources[of] for of in order], [both[of] for of in order])


def test_the_latest_earlier_interactions_are_those_of_tgat() -> None:
    graph, interactions = stream_of_interactions(40, 600)
    nodes, times = list(range(40)), [150 + node for node in range(40)]
    rule = Temporal("time", TemporalStrategy.LATEST, window=(None, -1), limit="edge")
    sampler = NeighborSampler(graph, [7, 5, 3], rule=rule, expansion=Expansion.SUBGRAPH)
    seeds = Seeds({"node": torch.tensor(nodes)}, {"node": torch.arange(40)}, {"node": torch.tensor(times)})
    sample = sampler.sample(seeds, KEY)
    subgraph, first = sample.subgraph, 40
    assert subgraph is not None
    elapsed = subgraph.adjacencies[EDGE].elapsed
    assert elapsed is not None
    for level in interactions.levels(nodes, times, [7, 5, 3]):
        last = first + len(level)
        assert sample.nodes["node"][first:last].tolist() == level[:, 0].tolist()
        assert elapsed[first - 40 : last - 40].tolist() == level[:, 2].tolist()
        assert (level[:, 2] > 0).all()  # strictly earlier
        first = last
    assert first == sample.nodes["node"].numel()


def chain() -> CscGraph:
    """0 hears from 1 at 5 and at 9, and 1 from 2 at 3, 5 and 7."""
    ends = torch.tensor([1, 1, 2, 2, 2]), torch.tensor([0, 0, 1, 1, 1])
    columns = {EDGE: {"time": torch.tensor([5, 9, 3, 5, 7])}}
    return csc_graph_from_edges({"node": 3}, {EDGE: ends}, columns=columns, sort_by="time")


def times_behind(rule: Temporal) -> list[list[int]]:
    """The times of the edges behind the edges of node 0 with a seed time of 10."""
    seeds = Seeds({"node": torch.tensor([0])}, {"node": torch.arange(1)}, {"node": torch.tensor([10])})
    sample = NeighborSampler(chain(), [-1, -1], rule=rule, edge_ids=True).sample(seeds, KEY)
    times = chain().columns[EDGE]["time"]
    return [[int(times[at]) for _, at, _, _ in behind] for _, _, _, behind in unfolded(sample, "node", 0, 1)]


def test_a_node_has_the_edges_up_to_the_edge_that_led_to_it() -> None:
    assert times_behind(Temporal("time", limit="edge")) == [[3, 5], [3, 5, 7]]
    assert times_behind(Temporal("time", window=(None, -1), limit="edge")) == [[3], [3, 5, 7]]
    assert times_behind(Temporal("time", window=(4, 0), limit="edge")) == [[5, 7]]  # 6 to 10, then 5 to 9
    assert times_behind(Temporal("time", elapsed=True)) == [[3, 5, 7], [3, 5, 7]]


@pytest.mark.core(1)
@EXPANSIONS
@pytest.mark.parametrize("fanouts", [[-1, 2], [4, 3, 2]], ids=str)
@pytest.mark.parametrize("limit", ["seed", "edge"])
def test_batches_of_the_device_are_those_of_the_cpu(
    fanouts: list[int], expansion: Expansion, limit: str
) -> None:
    graph, _ = stream_of_interactions(30, 150)
    rule = Temporal("time", window=(None, -1), limit=limit, elapsed=True)  # type: ignore[arg-type]
    sampler = NeighborSampler(graph, fanouts, rule=rule, expansion=expansion)
    batches = []
    for number in range(2):
        nodes = torch.arange(6) * (number + 1) % 30
        times = {"node": 20 + 4 * torch.arange(6)}
        batches.append((Seeds({"node": nodes}, {"node": torch.arange(6)}, times), DrawKey(number)))
    device = DeviceSampler.measured(sampler, batches, DEVICE)
    for seeds, key in batches:
        assert_same(device.sample(seeds, key), sampler.sample(seeds, key))
    assert device.overflows == 0
    batch = device_batch(sampler, *batches)
    for seeds, key in batches:
        batch.write(seeds, key)
        batch.launch()
        padded, exact = padded_sample(batch).sample, sampler.sample(seeds, key)
        for found, wanted in zip(padded.blocks, exact.blocks, strict=True):
            of_found, of_wanted = found.adjacency, wanted.adjacency
            count = int(of_found.indptr[-1])
            assert of_wanted.elapsed is not None
            assert of_found.elapsed is not None
            assert torch.equal(of_found.elapsed[:count].cpu(), of_wanted.elapsed[:count])
        assert exact.trees is not None
        assert padded.trees is not None
        trees = exact.trees["node"]
        assert torch.equal(padded.trees["node"][: trees.numel()].cpu(), trees)


def test_several_parts_give_the_batches_of_one(tmp_path: Path) -> None:
    """Limits travel with the frontier, and times with the drawn neighbors."""
    graph, _ = stream_of_interactions(40, 400)
    csc = graph.csc(EDGE)
    destinations = torch.repeat_interleave(torch.arange(40), csc.indptr.diff())
    table = khop.EdgeTable(csc.indices.long(), destinations, {"time": graph.columns[EDGE]["time"]})
    whole = khop.write_graph(tmp_path / "whole", {"node": khop.NodeTable(40)}, {EDGE: table}, sort_by="time")
    parts = tmp_path / "parts"
    khop.partition_graph(whole, parts, 3)
    batches = []
    for folder in (whole, parts):
        opened = khop.open_graph(folder)
        rule = Temporal("time", limit="edge", inner=khop.Uniform(replacement=True))
        sampler = NeighborSampler(opened, [4, -1, 2], rule=rule)
        ids = torch.arange(40)
        times = 60 + ids
        originals = opened.original_ids("node")
        if originals is not None:
            ids = originals.argsort()
        loader = khop.Loader(sampler, ids, 8, seed_times=times)
        batches.append([loader.batch(epoch=0, step=step) for step in range(5)])
        nodes = [batch.sample.nodes["node"] for batch in batches[-1]]
        batches[-1] = [
            (n if originals is None else originals[n], [(r.indptr, r.indices, r.elapsed) for r in rows])
            for n, rows in zip(
                nodes, [[b.adjacency for b in batch.blocks] for batch in batches[-1]], strict=True
            )
        ]
    assert_same(batches[1], batches[0])


def test_other_edges_than_the_drawn_ones_have_no_elapsed_time() -> None:
    with pytest.raises(ValueError, match="reversed edges have no elapsed time; use directional"):
        NeighborSampler(
            chain(), [2], rule=Temporal("time", elapsed=True), expansion="subgraph", output="bidirectional"
        )
    with pytest.raises(ValueError, match=r"limit 'node': must be .*seed.*edge"):
        Temporal("time", limit="node")  # type: ignore[arg-type]
