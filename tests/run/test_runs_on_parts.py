"""A run on a folder of parts, in one process, takes the course that it takes on the graph before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from khop.api.partition import partition_graph
from khop.run.build import Run, prepare
from khop.run.read import RawRun
from khop.training.run_log import Record
from khop.training.step_clock import Unwatched
from support.small_folders import write_learnable_graph
from support.small_labeled import write_labeled_graph
from support.small_link_folders import write_diary, write_shop
from support.small_runs import without_seconds


@dataclass
class Losses(Unwatched):
    """Notes the loss of every step."""

    seen: list[float] = field(default_factory=list)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        self.seen.append(loss)


LINKS = {"kind": "link-prediction", "target": "user buys item"}
IN_TIME = {"fanouts": [4, 3], "time": "day"}
RUNS: Mapping[str, tuple[Callable[[Path], Path], Mapping[str, object]]] = {
    "nodes": (write_learnable_graph, {"sampler": {"fanouts": [5, 3]}}),
    "nodes, sampled evaluation of a subgraph by weight": (
        write_diary,
        {
            "sampler": {"fanouts": [4, 3], "weight": "price", "expansion": "subgraph"},
            "evaluation": {"fanouts": [5, 5]},
            "model": {"kind": "rgcn", "hidden": 8, "bases": 2},
        },
    ),
    "nodes in time": (write_diary, {"sampler": IN_TIME, "evaluation": {"fanouts": [6, 6]}}),
    "nodes, by LABOR": (
        write_learnable_graph,
        {"sampler": {"fanouts": [5, 3], "rule": {"kind": "labor", "kappa": 3}}},
    ),
    "nodes, the largest values": (
        write_diary,
        {"sampler": {"fanouts": [3, 2], "rule": {"kind": "top-k", "column": "price"}}},
    ),
    "nodes, by GraphSAINT": (
        write_learnable_graph,
        {"sampler": {"kind": "saint-walk", "walk_roots": 40, "coverage": 3, "groups_per_step": 2}},
    ),
    "nodes, by ShaDow": (
        write_learnable_graph,
        {
            "sampler": {"kind": "shadow", "fanouts": [4], "seeds_per_group": 9, "groups_per_step": 5},
            "model": {"hidden": 8, "layers": 2},
        },
    ),
    "nodes, by normalized sums": (
        write_learnable_graph,
        {
            "sampler": {"fanouts": [5, 3], "rule": {"kind": "symmetric-sum"}},
            "model": {"kind": "gcn", "hidden": 8},
        },
    ),
    "nodes, by GCN over normalized sums of LABOR": (
        write_learnable_graph,
        {
            "sampler": {"fanouts": [5, 3], "rule": {"kind": "symmetric-sum", "inner": "labor", "kappa": 3}},
            "model": {"kind": "gcn", "hidden": 8},
        },
    ),
    "nodes, by GIN over sums of the largest values": (
        write_diary,
        {
            "sampler": {"fanouts": [3, 2], "rule": {"kind": "sum", "inner": "top-k", "column": "price"}},
            "model": {"kind": "gin", "hidden": 8},
        },
    ),
    "nodes, by GATv2 over a column of edges": (
        write_diary,
        {
            "sampler": {"fanouts": [4, 3]},
            "model": {
                "kind": "gat",
                "hidden": 8,
                "heads": 2,
                "attention": "gatv2",
                "edge_column": "price",
            },
        },
    ),
    "nodes, by HGT": (
        write_diary,
        {"sampler": {"fanouts": [4, 3]}, "model": {"kind": "hgt", "hidden": 8, "heads": 2}},
    ),
    "nodes, by GIN over sums": (
        write_diary,
        {
            "sampler": {"fanouts": [4, 3], "rule": {"kind": "sum"}},
            "model": {"kind": "gin", "hidden": 8},
        },
    ),
    "links, by SpotTarget": (
        write_shop,
        {
            "task": LINKS,
            "links": {"eval_negatives": 3, "spot_target": 7},
            "sampler": {"fanouts": [{"user sees shop": 0, "*": 4}] * 2},
        },
    ),
    "links, LightGCN in time": (
        write_diary,
        {
            "task": LINKS,
            "links": {"eval_negatives": 3, "decoder": "dot"},
            "sampler": {**IN_TIME, "rule": {"kind": "symmetric-sum"}},
            "evaluation": {"fanouts": [4, 3]},
            "model": {"kind": "lightgcn", "hidden": 8},
        },
    ),
    "links with exact negatives": (
        write_shop,
        {
            "task": LINKS,
            "links": {"eval_negatives": 6, "exact": True, "negatives": "degree"},
            "sampler": {"fanouts": [{"user sees shop": 0, "*": 5}] * 2},
            "evaluation": {"fanouts": []},
        },
    ),
    "classes of edges": (
        write_labeled_graph,
        {"task": {"kind": "edge-classification", "label": "stars"}, "sampler": {"fanouts": [4, 3]}},
    ),
    "numbers of edges in time": (
        write_diary,
        {
            "task": {"kind": "edge-regression", "target": "user buys item", "label": "price"},
            "sampler": IN_TIME,
            "evaluation": {"fanouts": [4, 3]},
        },
    ),
    "links in time": (
        write_diary,
        {
            "task": LINKS,
            "links": {"eval_negatives": 3},
            "sampler": IN_TIME,
            "evaluation": {"fanouts": [4, 3]},
        },
    ),
}


@pytest.mark.core(1)
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(("parts", "method"), [(3, "ldg"), (2, "random")])
def test_losses_and_scores_are_those_of_the_graph_before(
    name: str, parts: int, method: str, tmp_path: Path
) -> None:
    write, tables = RUNS[name]
    whole = write(tmp_path / "whole")
    partition_graph(whole, tmp_path / "parts", parts, method=method)

    def course(graph: Path) -> tuple[list[float], list[Record]]:
        training = {"epochs": 2, "batch_size": 64}
        # Scores of links that differ by rounding in float32 alone may change places.
        kept = {"graph": str(graph), "precision": "float64"}
        values = {**kept, "training": training, "model": {"hidden": 8}, **tables}
        run: Run = prepare(RawRun(values, "run.toml"), tmp_path)
        losses, out = Losses(), tmp_path / f"{graph.name}-run"
        out.mkdir()
        records = run.trainer(out, losses).fit().records
        return losses.seen, without_seconds(records)

    losses, records = course(whole)
    of_parts, records_of_parts = course(tmp_path / "parts")
    assert len(losses) >= 2
    assert of_parts == losses
    assert records_of_parts == records
