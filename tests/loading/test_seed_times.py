"""Seeds carry their times into every batch, wherever they come from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.schema import NodeType

EDGE = ("item", "follows", "item")
WHEN = torch.arange(100) * 10


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    """A chain: item i hears from items 0 to i - 1, each as old as its number."""
    later, earlier = torch.tril_indices(100, 100, -1)
    nodes = {"item": khop.NodeTable(columns={"when": WHEN, "x": torch.rand(100, 2)})}
    path: Path = tmp_path_factory.mktemp("graphs") / "chain"
    return khop.open_graph(
        khop.write_graph(path, nodes, {EDGE: khop.EdgeTable(later, earlier)}, sort_by="when")
    )


def loader(graph: khop.Graph, seed_times: object, shuffle: bool = False) -> khop.Loader:
    sampler = khop.NeighborSampler(graph, [-1], rule=khop.Temporal("when"))
    return khop.Loader(sampler, torch.arange(20), 7, seed_times=seed_times, shuffle=shuffle)


@pytest.mark.parametrize(
    "seed_times", [WHEN[:20] + 205, {"item": (WHEN[:20] + 205).int()}], ids=["tensor", "mapping"]
)
def test_every_batch_has_the_times_of_its_seeds(graph: khop.Graph, seed_times: object) -> None:
    seen = []
    for batch in loader(graph, seed_times, shuffle=True):
        counts = batch.blocks[0].adjacency.indptr.diff()
        # Of the items later than seed s, those up to number s + 20 are no later than 10 s + 205.
        assert counts.tolist() == [20] * batch.seeds.numel()
        seen += batch.seeds.tolist()
    assert sorted(seen) == list(range(20))


def test_a_column_of_the_seeds_gives_their_times(graph: khop.Graph) -> None:
    for batch in loader(graph, "when"):
        assert batch.blocks[0].adjacency.indices.numel() == 0  # all that leads to an item is later than it


def test_a_seed_without_a_time_in_the_column_is_named(tmp_path: Path) -> None:
    """The time of an undated label is the least int64: no edge would be before it."""
    when = torch.tensor([5, torch.iinfo(torch.int64).min, 7])
    nodes = {"item": khop.NodeTable(columns={"when": when, "x": torch.rand(3, 2)})}
    edges = {EDGE: khop.EdgeTable(torch.tensor([0, 1]), torch.tensor([1, 2]))}
    graph = khop.open_graph(khop.write_graph(tmp_path / "g", nodes, edges, sort_by="when"))
    sampler = khop.NeighborSampler(graph, [-1], rule=khop.Temporal("when"))
    khop.Loader(sampler, [0, 2], 2, seed_times="when").batch(0, 0)
    with pytest.raises(ValueError, match=r"'when' of 'item' has no time for node 1 \(1 of 2 seeds\)"):
        khop.Loader(sampler, [1, 2], 2, seed_times="when").batch(0, 0)


def test_the_state_of_a_loader_knows_the_times(graph: khop.Graph) -> None:
    state = loader(graph, WHEN[:20]).state_dict()
    loader(graph, WHEN[:20]).load_state_dict(state)
    with pytest.raises(ValueError, match="another seed list"):
        loader(graph, WHEN[:20] + 1).load_state_dict(state)


def test_missing_times_are_named_when_the_first_batch_is_made(graph: khop.Graph) -> None:
    with pytest.raises(ValueError, match=r"seeds of 'item' have no times.*seed_times"):
        loader(graph, None).batch(0, 0)


@pytest.mark.parametrize(
    ("seed_times", "message"),
    [
        (WHEN[:19], r"seed_times of 'item' are .*\(19,\): give a whole number for each of 20 seeds"),
        (WHEN[:20].double(), "seed_times of 'item' are torch.float64"),
        (WHEN[:20] > 50, "seed_times of 'item' are torch.bool"),
        (["a"] * 20, "seed_times of 'item' cannot be read as numbers"),
        ({"item": 5}, "seed_times of 'item' 5: give numbers"),
        ({"user": WHEN[:20]}, r"none for 'item', there are those of \['user'\]"),
        (
            "then",
            r"column 'then' of 'item': not in the graph; there are \['when', 'x'\]; each seed needs a time",
        ),
        ("x", "are torch.float32"),
    ],
    ids=[
        "too few",
        "no whole numbers",
        "yes or no",
        "texts",
        "one number",
        "another type",
        "no such column",
        "no times",
    ],
)
def test_times_that_do_not_fit_are_named(graph: khop.Graph, seed_times: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader(graph, seed_times)


def test_a_bare_store_has_no_columns_to_read(graph: khop.Graph) -> None:
    sampler = khop.NeighborSampler(graph.topology, [1], rule=khop.Temporal("when"))
    seeds: dict[NodeType, torch.Tensor] = {"item": torch.arange(3)}
    with pytest.raises(ValueError, match="the graph has no columns; give the times themselves"):
        khop.Loader(sampler, seeds, 2, seed_times="when")
