"""Defaults of a sampler of one's own, which writes `sample` alone.

Every edge type has one number, whichever way it is written; what fits nothing is named.
"""

from __future__ import annotations

import pytest
import torch

from khop import DrawKey, Seeds
from khop.batch import Sample
from khop.errors import Unsupported
from khop.sampling.sampler import Fanout, SamplerBase, fanout_by_type, fanouts_by_type
from khop.sampling.seeds import LinkSeeds, SeedLinks
from khop.schema import Schema
from support.random_graphs import ring, seeds


class Alone(SamplerBase):
    """Samples of the seeds without any neighbor."""

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        return Sample(dict(seeds.nodes), (), {t: torch.arange(ids.numel()) for t, ids in seeds.nodes.items()})


def test_a_sampler_that_writes_sample_alone_has_the_rest() -> None:
    sampler = Alone(ring(5, 2))
    assert (sampler.num_layers, sampler.seed_kinds, sampler.exact_fanouts) == (
        None,
        frozenset({"nodes"}),
        None,
    )
    assert tuple(sampler.needs({"node"})) == ()
    assert sampler.visits({"node": torch.arange(3)}, 2) is None
    assert sampler.with_threads(4) is sampler
    assert sampler.for_evaluation(sampler.graph, [2], edge_ids=False) is None
    assert sampler.sample(seeds(3, 1), DrawKey(1)).nodes["node"].tolist() == [3, 1]
    with pytest.raises(Unsupported, match="Alone"):
        sampler.for_kernels()
    with pytest.raises(ValueError, match="must be a graph"):
        Alone(3)  # type: ignore[arg-type]


def test_seeds_are_counted_over_types_and_links() -> None:
    ends = torch.zeros(2, 4, dtype=torch.int64)
    links = SeedLinks(ends, torch.arange(4), ends)
    nodes = {"user": torch.arange(3), "item": torch.arange(2)}
    of_nodes = Seeds(nodes, {t: torch.arange(ids.numel()) for t, ids in nodes.items()})
    assert of_nodes.count == 5
    both = Seeds(nodes, of_nodes.positions, links=LinkSeeds({("user", "buys", "item"): links}, DrawKey(1)))
    assert both.count == 9


BUYS, SEES, HAS = ("user", "buys", "item"), ("user", "sees", "item"), ("item", "has", "tag")
SCHEMA = Schema(("user", "item", "tag"), (BUYS, SEES, HAS))


@pytest.mark.parametrize(
    ("fanout", "numbers"),
    [
        (5, (5, 5, 5)),
        (-1, (-1, -1, -1)),
        ({BUYS: 1, SEES: 2, HAS: 0}, (1, 2, 0)),
        ({HAS: 3, "*": 4}, (4, 4, 3)),
        ({"user buys item": 1, "*": 4}, (1, 4, 4)),
        ({"user * item": 7, "* has *": -1}, (7, 7, -1)),
        ({"*": 4, BUYS: 1}, (1, 4, 4)),
        ({"* sees *": 1, "user *": 2, "*": 3}, (2, 1, 3)),
    ],
)
def test_every_edge_type_has_its_number_in_schema_order(fanout: Fanout, numbers: tuple[int, ...]) -> None:
    assert list(fanout_by_type(SCHEMA, fanout).items()) == list(zip((BUYS, SEES, HAS), numbers, strict=True))


@pytest.mark.parametrize(
    ("fanout", "message"),
    [
        ({BUYS: 1, SEES: 2}, r"no fanout for \('item', 'has', 'tag'\): name it \(0 draws none of it\), or"),
        ({}, r"no fanout for \('user', 'buys', 'item'\)"),
        (
            {"*": 1, ("user", "likes", "item"): 3},
            r"fanout 3 for \('user', 'likes', 'item'\): fits no edge type of \"user buys item\", \"user sees",
        ),
        ({"*": 1, "user likes *": 3}, r"fanout 3 for 'user likes \*': fits no edge type of"),
        ({"*": 1, "user *": 3}, r"fanout 3 for 'user \*': comes after what fits the same edge types"),
        ({"*": 1, BUYS: -2}, r"fanout -2 for \('user', 'buys', 'item'\): must be 0 or more, or -1"),
        ({"*": 1.5}, r"fanout 1.5 for \('user', 'buys', 'item'\): must be 0"),
        (True, "fanout True for"),
    ],
)
def test_what_is_missing_surplus_or_no_number_is_named(fanout: Fanout, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fanout_by_type(SCHEMA, fanout)


@pytest.mark.parametrize("fanouts", [5, "5,5", {BUYS: [5, 5], "*": [2, 2]}, {5, 3}])
def test_fanouts_are_a_list_with_an_entry_per_hop(fanouts: object) -> None:
    with pytest.raises(ValueError, match=r"fanouts .*: must be a list, as .*an entry per hop"):
        fanouts_by_type(SCHEMA, fanouts)  # type: ignore[arg-type]


def test_a_graph_without_edges_takes_a_number() -> None:
    assert fanout_by_type(Schema(("node",), ()), 3) == {}
