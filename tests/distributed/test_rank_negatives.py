"""Negatives of ranks, here of one: those of the same parts in one process; tests/processes has several."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.draw import DegreeNegatives, DrawKey, DrawnNegatives, Positives, UniformNegatives
from khop.partition.local_partition_graph import LocalPartitionGraph
from khop.partition.parts_folder import open_parts
from support.one_rank import one_rank_graph
from support.small_typed_folders import BUYS, LIKE

POSITIVES = Positives(torch.arange(0, 150, 7), torch.arange(22))


@pytest.mark.parametrize(
    "negatives",
    [UniformNegatives(2), UniformNegatives(2, exact=True), DegreeNegatives(3, exact=True)],
    ids=str,
)
@pytest.mark.parametrize("edge_type", [BUYS, LIKE], ids=" ".join)
def test_draws_are_those_of_one_process(
    typed_parts: Path, negatives: DrawnNegatives, edge_type: tuple[str, str, str]
) -> None:
    key = DrawKey(11)
    expected = LocalPartitionGraph(open_parts(typed_parts)).sample_negatives(
        edge_type, negatives, POSITIVES, key
    )
    found = one_rank_graph(typed_parts).sample_negatives(edge_type, negatives, POSITIVES, key)
    assert torch.equal(found, expected)


def test_a_source_that_does_not_exist_is_named(typed_parts: Path) -> None:
    wrong = Positives(torch.tensor([3, 300]), torch.arange(2))
    with pytest.raises(ValueError, match="source 300: there are 300 'user' nodes"):
        one_rank_graph(typed_parts).sample_negatives(BUYS, UniformNegatives(exact=True), wrong, DrawKey(1))
