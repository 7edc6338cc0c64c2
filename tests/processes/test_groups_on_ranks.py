"""Every sampler of groups takes one course on any number of ranks, on partitions, and after a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import khop
from processes.group_ranks import SAMPLERS, trained
from support.small_folders import write_learnable_graph
from support.started_ranks import StartedRanks


def losses(run: Path) -> list[float]:
    """The losses of all steps."""
    return [json.loads(line)["loss"] for line in (run / "steps.jsonl").read_text().splitlines()]


def folders(tmp_path: Path) -> dict[str, str]:
    """A graph with clusters, and its parts."""
    plain = write_learnable_graph(tmp_path / "plain", nodes=150)
    whole = khop.cluster_graph(plain, tmp_path / "whole", 9, method="random", seed=3)
    khop.partition_graph(whole, tmp_path / "parts", 3, method="hash", seed=1)
    return {"whole": str(whole), "parts": str(tmp_path / "parts")}


def compare(one: Path, other: Path, names: tuple[str, ...] = tuple(SAMPLERS)) -> None:
    for name in names:
        assert losses(other / name) == pytest.approx(losses(one / name), rel=1e-9), name
        assert len(set(losses(one / name))) > 2, name


def test_losses_are_the_same_on_one_process_and_on_two_ranks_of_a_partitioned_graph(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    """Nine clusters, two in a group, two groups in a step: one rank has no group in the last step."""
    graphs, names = folders(tmp_path), ("saint-walk", "cluster", "shadow, merged")
    trained(0, torch.device("cpu"), graphs["whole"], "whole", str(tmp_path / "one"), 1, names)
    ranks.launch(trained, 2, (graphs["parts"], "all", str(tmp_path / "two"), 1, names))
    compare(tmp_path / "one", tmp_path / "two", names)


@pytest.mark.long
def test_micro_batches_of_groups_have_the_gradient_of_the_step(tmp_path: Path) -> None:
    """Two or three groups in a step, in three parts: a part may have no group."""
    folder, names = folders(tmp_path)["whole"], ("saint-walk", "cluster", "shadow, merged")
    for micro_batches in (1, 3):
        out = str(tmp_path / f"{micro_batches}")
        trained(0, torch.device("cpu"), folder, "whole", out, 2, names, micro_batches)
    compare(tmp_path / "1", tmp_path / "3", names)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_losses_are_the_same_on_four_ranks_and_after_a_resume_by_another_number(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    graphs = folders(tmp_path)
    ranks.launch(trained, 1, (graphs["whole"], "whole", str(tmp_path / "one"), 2))
    for procs, epochs, placement in ((2, 1, "all"), (4, 2, "features")):
        ranks.launch(trained, procs, (graphs["parts"], placement, str(tmp_path / "many"), epochs))
    compare(tmp_path / "one", tmp_path / "many")
    micro = (graphs["parts"], "all", str(tmp_path / "micro"), 2, tuple(SAMPLERS), 2)
    ranks.launch(trained, 2, micro)
    compare(tmp_path / "one", tmp_path / "micro")
