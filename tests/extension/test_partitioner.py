"""A partitioner written outside khop: from Python, and by `khop partition --method`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

import khop
from cli.conftest import Ran
from khop.data.partition.partitioners import AssignRequest, PartitionContext
from khop.data.partition.verify import verify_partition
from khop.graph.partitions.parts_folder import open_parts

Command = Callable[..., Ran]
KIND = f"{__name__}:Blocks"


@dataclass(frozen=True)
class Blocks:
    """Blocks of consecutive nodes of all types, dealt to the parts in turn."""

    @dataclass(frozen=True)
    class Options:
        """Options of `khop partition`."""

        nodes_per_block: int
        """Nodes per block"""
        seed: int = 0
        """Part of the first block"""

    nodes_per_block: int
    first: int = 0
    passes = 1

    @classmethod
    def build(cls, options: Options, context: PartitionContext) -> Blocks:
        return cls(options.nodes_per_block, options.seed % context.parts)

    def assign(self, request: AssignRequest) -> Tensor:
        count = request.numbering.num_nodes
        request.meter.at("dealing blocks", count)
        return ((torch.arange(count) // self.nodes_per_block + self.first) % request.parts).int()


def owners(folder: Path) -> list[int]:
    """The part of every node of the graph before partitioning."""
    parts = open_parts(folder)
    found = torch.empty(600, dtype=torch.int64)
    bounds = parts.book.offsets["item"]
    for part, (begin, end) in enumerate(pairwise(bounds)):
        ids = khop.open_graph(folder, placement="whole").original_ids("item")
        assert ids is not None
        found[ids[begin:end]] = part
    return found.tolist()


def test_from_python_as_a_value_and_by_its_kind(learnable: Path, tmp_path: Path) -> None:
    book = khop.partition_graph(learnable, tmp_path / "value", 3, method=Blocks(10))
    assert book.method == KIND
    options = {"nodes_per_block": 10}
    khop.partition_graph(learnable, tmp_path / "kind", 3, method=KIND, method_options=options)
    wanted = [node // 10 % 3 for node in range(600)]
    for name in ("value", "kind"):
        assert owners(tmp_path / name) == wanted
        assert verify_partition(tmp_path / name) == []


def test_from_the_command(khop_command: Command, learnable: Path, tmp_path: Path) -> None:
    arguments = ("partition", str(learnable), str(tmp_path / "parts"), "--parts", "2", "--method", KIND)
    shown = khop_command(*arguments, "--help").stdout
    assert "--nodes-per-block" in shown
    assert "--method-seed" in shown  # --seed is the command's own
    missing = khop_command(*arguments)
    assert missing.code == 2
    assert "nodes_per_block is missing: give --nodes-per-block" in missing.stderr.replace("\n", " ")
    ran = khop_command(*arguments, "--nodes-per-block", "7", "--method-seed", "1", "--json")
    assert ran.code == 0, ran.stderr
    assert json.loads(ran.stdout)["method"] == KIND
    assert owners(tmp_path / "parts") == [(node // 7 + 1) % 2 for node in range(600)]


@pytest.mark.long
@pytest.mark.parametrize("procs", ["2"])
def test_two_ranks_train_on_its_parts(
    khop_command: Command, learnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, procs: str
) -> None:
    monkeypatch.chdir(tmp_path)
    khop.partition_graph(learnable, "parts", 2, method=Blocks(50))
    settings = ("--fanouts", "3,3", "--hidden", "8", "--dropout", "0", "--epochs", "1", "--batch-size", "128")
    losses = []
    for graph, count in (("parts", procs), (str(learnable), "1")):
        ran = khop_command("train", "--graph", graph, "--out", count, "--procs", count, *settings)
        assert ran.code == 0, ran.stderr
        losses.append(json.loads(Path(count, "metrics.jsonl").read_text())["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_an_unknown_method_is_refused(khop_command: Command, learnable: Path, tmp_path: Path) -> None:
    ran = khop_command("partition", str(learnable), str(tmp_path / "p"), "--parts", "2", "--method", "lgd")
    assert ran.code == 2
    assert (
        "method is 'lgd': must be one of ldg, fennel, metis, random, range, hash, or package.module:Class"
        in (ran.stderr.replace("\n", " "))
    )
