"""Scores and outputs over servers of parts equal those of all parts in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.api.partition import partition_graph
from khop.models import SAGE
from khop.sampling.seeds import ids_here
from khop.servers.errors import TooLarge
from support.batch_kinds import link_scores
from support.parts_in_process import connected_to, connected_to_parts, part_services
from support.small_folders import write_hub_graph


def test_exact_outputs_and_scores_of_nodes_are_the_local_ones(plain_parts: Path) -> None:
    here, there = khop.open_graph(plain_parts), connected_to_parts(plain_parts)
    model = SAGE.for_graph(here, hidden=8, layers=2)
    assert khop.evaluate(model, there, split="val") == khop.evaluate(model, here, split="val")
    found = khop.layerwise_inference(model, there, there.features, "item", chunk_size=100)
    expected = khop.layerwise_inference(model, here, here.features, "item", chunk_size=100)
    assert torch.equal(found, expected)


@pytest.mark.long
def test_hubs_are_chunks_of_their_own_wherever_their_edges_are(tmp_path: Path) -> None:
    partition_graph(write_hub_graph(tmp_path / "whole"), tmp_path / "parts", 3, method="random")
    here, services = khop.open_graph(tmp_path / "parts"), part_services(tmp_path / "parts")
    for service in services:
        service._max_batch_bytes = 36_000
    there = connected_to(services)
    model = SAGE.for_graph(here, hidden=8, layers=2)

    def rows(graph: khop.Graph) -> torch.Tensor:
        return khop.layerwise_inference(model, graph, graph.features, "item", chunk_size=200, chunk_edges=400)

    assert torch.equal(rows(there), rows(here))
    with pytest.raises(TooLarge, match="--evaluation-batch-edges in exact evaluation"):
        khop.layerwise_inference(model, there, there.features, "item", chunk_size=200)


@pytest.mark.core(1)
@pytest.mark.parametrize("fanouts", [None, [3]])
def test_scores_of_links_are_the_local_ones(typed_parts: Path, fanouts: list[int] | None) -> None:
    assert link_scores(connected_to_parts(typed_parts), fanouts) == link_scores(
        khop.open_graph(typed_parts), fanouts
    )


def test_numbers_of_a_split_bring_its_ids(plain_parts: Path) -> None:
    here, there = khop.open_graph(plain_parts), connected_to_parts(plain_parts)
    assert ids_here(there.split("val")["item"]).tolist() == ids_here(here.split("val")["item"]).tolist()
