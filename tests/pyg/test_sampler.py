"""Parts of torch_geometric that run without compiled extras make the same of khop's samples as khop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import loader as theirs
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling, SamplerOutput
from torch_geometric.sampler.neighbor_sampler import edge_sample

from khop import pyg
from khop.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler
from khop.pyg.keyed import Draws
from khop.pyg.outputs import NODE
from khop.sampling.seeds import Seeds
from pyg.pyg_cases import BOUGHT, BUYS, PAIRS, facts, plain, some, typed

DRAWS = Draws(7, step=2, position=30)
KNOWS = ("user", "knows", "user")
KNOWN = torch.tensor([[3, 3, 0, 8], [0, 8, 3, 8]])


class Given(NegativeSampling):
    """Draws what it is told."""

    def __init__(self, mode: str, amount: float, drawn: dict[str, Tensor]) -> None:
        super().__init__(mode, amount)
        self.drawn = drawn

    def sample(self, num_samples: int, endpoint: str, num_nodes: int | None = None) -> Tensor:
        padded = torch.cat([self.drawn[endpoint], self.drawn[endpoint][:1].expand(num_samples)])
        return padded[:num_samples]


def timed(data: Data | HeteroData) -> Data | HeteroData:
    if isinstance(data, Data):
        data.time = some(25, 40, 7)
    else:
        data["user"].time, data["item"].time = some(9, 40, 7), some(12, 40, 5)
    return data


def negatives_of(out: Any, count: int, edge_type: Any, is_triplet: bool) -> dict[str, Tensor]:
    """The nodes that were drawn, as `edge_sample` deals them out.

    The first of every link, then the second; of triplets around merged seeds, link after link.
    """
    nodes = (out.node, out.node) if edge_type is None else (out.node[edge_type[0]], out.node[edge_type[2]])
    if is_triplet:
        rows = out.metadata[3].view(count, -1)
        return {"dst": nodes[1][(rows if out.batch is None else rows.t()).flatten()]}
    sources, destinations = out.metadata[1][:, count:]
    return {"src": nodes[0][sources], "dst": nodes[1][destinations]}


def by_type(values: Any) -> dict[str, Tensor] | None:
    return None if values is None else values if isinstance(values, dict) else {NODE: values}


@pytest.mark.parametrize(
    ("mode", "amount"), [("binary", 0.5), ("binary", 1), ("binary", 2.5), ("triplet", 3)]
)
@pytest.mark.parametrize("kind", ["merged", "disjoint", "timed"])
@pytest.mark.parametrize(
    ("make", "edge_type", "pairs"), [(plain, None, PAIRS), (typed, BUYS, BOUGHT), (typed, KNOWS, KNOWN)]
)
def test_links_and_negatives_lie_as_torch_geometric_lays_them(
    make: Any, edge_type: Any, pairs: Tensor, kind: str, mode: str, amount: float
) -> None:
    """`edge_sample`, given the negatives that khop drew: the same seeds, their order, and metadata."""
    count, is_timed = pairs.shape[1], kind == "timed"
    data = timed(make()) if is_timed else make()
    sampler = NeighborSampler(data, [-1], disjoint=kind == "disjoint", time_attr="time" if is_timed else None)
    times = torch.arange(count) * 3 + 30 if is_timed else None
    labels = torch.arange(1, count + 1) if mode == "binary" and amount > 1 else None
    inputs = EdgeSamplerInput(torch.arange(count) + 5, pairs[0], pairs[1], labels, times, edge_type)
    keyed = sampler.keyed()
    ours = keyed.sample_edges(inputs, NegativeSampling(mode, amount), DRAWS)

    def around(seeds: Any, seed_times: Any) -> Any:
        nodes = by_type(seeds)
        assert nodes is not None
        places = {t: torch.arange(ids.numel()) for t, ids in nodes.items()}
        seeds = Seeds(nodes, places, by_type(seed_times))
        return keyed._given(keyed._typed_output(seeds, DRAWS))

    given = Given(mode, amount, negatives_of(ours, count, edge_type, mode == "triplet"))
    source = sampler._edges.source
    counts, node_times = dict(source.graph.counts), dict(source.node_times)
    expected = edge_sample(
        inputs,
        around,
        counts[NODE] if edge_type is None else counts,
        sampler.disjoint,
        (node_times.get(NODE) if edge_type is None else node_times) if is_timed else None,
        given,
    )
    assert len(ours.metadata) == len(expected.metadata)
    for found, wanted in zip(ours.metadata, expected.metadata, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0) if wanted is not None else None
        assert (found is None) == (wanted is None)
    for name in ("node", "row", "col", "edge", "batch"):
        if name == "batch" and amount != math.ceil(amount):
            continue  # theirs is off where links have unlike numbers of negatives
        torch.testing.assert_close(getattr(ours, name), getattr(expected, name), rtol=0, atol=0)


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("sampling", [None, NegativeSampling("binary", 1.5), NegativeSampling("triplet", 2)])
@pytest.mark.parametrize(("make", "pairs"), [(plain, PAIRS), (typed, (BUYS, BOUGHT))])
def test_their_loader_makes_the_same_batch_of_the_same_links(
    make: Any, pairs: Any, sampling: Any, disjoint: bool
) -> None:
    """Attributes, their order, shapes, dtypes and values."""
    loader = LinkNeighborLoader(
        make(), [2, 2], pairs, neg_sampling=sampling, disjoint=disjoint, filter_per_worker=False
    )
    out = loader.collate_fn(torch.tensor([2, 0, 3]))
    ours, expected = facts(loader.filter_fn(out)), facts(theirs.LinkNeighborLoader.filter_fn(loader, out))
    assert ours == expected
    assert list(ours) == list(expected)


@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional graph")  # theirs, of "on" and "likes"
@pytest.mark.parametrize(
    ("kind", "disjoint"),
    [
        ("directional", False),
        ("directional", True),
        ("bidirectional", False),
        ("bidirectional", True),
        ("induced", False),
    ],
)
@pytest.mark.parametrize(("make", "nodes"), [(plain, torch.arange(9)), (typed, ("item", torch.arange(9)))])
def test_their_loader_makes_the_same_batch_of_the_same_nodes(
    make: Any, nodes: Any, kind: str, disjoint: bool
) -> None:
    loader = NeighborLoader(
        make(), [2, 2], nodes, subgraph_type=kind, disjoint=disjoint, filter_per_worker=False
    )
    out = loader.collate_fn(torch.tensor([2, 0, 3, 0]))
    ours, expected = facts(loader.filter_fn(out)), facts(theirs.NeighborLoader.filter_fn(loader, out))
    assert ours == expected
    assert list(ours) == list(expected)


class Own(BaseSampler):
    """A sampler of a user's own: the seeds and no edges."""

    def sample_from_nodes(self, index: Any) -> SamplerOutput:
        nothing = torch.empty(0, dtype=torch.int64)
        return SamplerOutput(index.node, nothing, nothing, nothing, metadata=(index.input_id, index.time))

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> SamplerOutput:
        nothing, places = torch.empty(0, dtype=torch.int64), torch.arange(2 * index.row.numel())
        ends = torch.cat([index.row, index.col])
        metadata = (index.input_id, places.view(2, -1), index.label, index.time)
        return SamplerOutput(ends, nothing, nothing, nothing, metadata=metadata)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("name", "links"), [("NeighborLoader", None), ("LinkNeighborLoader", PAIRS)])
def test_a_custom_sampler_is_taken(name: str, links: Any, workers: int) -> None:
    """And khop's threads run it; batches are those of torch_geometric's loader."""
    inputs = {"input_nodes": torch.arange(7)} if links is None else {"edge_label_index": links}
    made = [
        [facts(batch) for batch in getattr(package, name)(plain(), [2], neighbor_sampler=Own(), **settings)]
        for package, settings in (
            (pyg, {"batch_size": 3, "num_workers": workers, **inputs}),
            (theirs, {"batch_size": 3, **inputs}),
        )
    ]
    assert made[0] == made[1]
    assert len(made[0]) > 1
