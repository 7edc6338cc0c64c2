"""Links on several ranks: the batches, the negatives and the course of training that one process has."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import khop
from khop.api.partition import partition_graph
from processes.link_ranks import (
    BATCH_SIZE,
    PARTS,
    RUNS,
    TRAINED,
    Account,
    Trained,
    account,
    loaders,
    take_part,
    train,
)
from support.small_link_folders import BOUGHT_BY, BUYS, write_dated, write_diary, write_shop
from support.started_ranks import StartedRanks


def ends_of(graph: khop.Graph, edge_type: tuple[str, str, str]) -> list[tuple[int, int]]:
    """(user, item) of every edge, by edge id."""
    csc = graph.csc(edge_type)
    rows = torch.repeat_interleave(torch.arange(csc.num_rows), csc.indptr.diff()).tolist()
    pairs = list(zip(csc.indices.tolist(), rows, strict=True))
    return pairs if edge_type == BUYS else [(user, item) for item, user in pairs]


def joined(folder: Path, ranks: int) -> list[list[Account]]:
    """What the ranks wrote down, put together step by step; no link is in two."""
    whole: list[list[Account]] = json.loads((folder / "0.json").read_text())
    for rank in range(1, ranks):
        for steps, others in zip(whole, json.loads((folder / f"{rank}.json").read_text()), strict=True):
            for step, other in zip(steps, others, strict=True):
                assert not step.keys() & other.keys()
                step |= other
    return whole


def records(run: Path, name: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (run / name).read_text().splitlines())
    return [
        {key: value for key, value in record.items() if key not in ("seconds", "traffic")} for record in lines
    ]


def assert_same_course(run: Path, other: Path) -> None:
    """The same loss of every step, and the same scores of every epoch."""
    ours, theirs = (records(folder, "steps.jsonl") for folder in (run, other))
    assert len(ours) >= 5
    assert [step["loss"] for step in theirs] == pytest.approx([s["loss"] for s in ours], rel=1e-9)
    for mine, other_s in zip(*(records(folder, "metrics.jsonl") for folder in (run, other)), strict=True):
        assert other_s == pytest.approx(mine, rel=1e-9)
        baselines = {name for name in mine if "_popularity_" in name or "_majority_" in name}
        assert baselines
        assert {name: mine[name] for name in baselines} == {name: other_s[name] for name in baselines}


WRITE = {
    "one-way": partial(write_shop, one_way=True),
    "diary": write_diary,
    "spotted": write_shop,
    "dated": write_dated,
    "dated-nodes": write_dated,
}
FEW: Trained = {2: [("shop", "features"), ("spotted", "all")]}


@pytest.mark.parametrize(
    "trained", [FEW, pytest.param(TRAINED, marks=pytest.mark.long)], ids=["two ranks", "two and three"]
)
def test_any_number_of_ranks_makes_the_same_batches_and_trains_the_same_model(
    tmp_path: Path, ranks: StartedRanks, trained: Trained
) -> None:
    graphs = tmp_path / "graphs"
    graphs.mkdir()
    shop = write_shop(graphs / "shop")
    for name in {name for runs in trained.values() for name, _ in runs}:
        if name != "shop":
            WRITE[name](graphs / name)
        method, parts = PARTS[name]
        partition_graph(graphs / name, graphs / f"{name}-parts", parts, method=method)
        train(RUNS[name], graphs / name, "whole", tmp_path / name)
    split = khop.split_links(khop.open_graph(shop), BUYS, val=0.2, negatives=3)
    saved = split.save(tmp_path / "split")
    folders = {procs: tmp_path / str(procs) for procs in (1, *trained)}
    for procs, folder in folders.items():
        folder.mkdir()
        ranks.launch(take_part, procs, (str(saved), str(graphs), str(folder), trained.get(procs, [])))
    alone = joined(folders[1], 1)
    assert alone == [[account(batch, BUYS) for batch in of.epoch(1)] for of in loaders(split)]
    for procs in trained:
        assert joined(folders[procs], procs) == alone
        assert_same_course(folders[1] / "run", folders[procs] / "run")
        for name, placement in trained[procs]:
            assert_same_course(tmp_path / name, folders[procs] / f"{name}-{placement}")

    training, trees = alone
    assert [len(step) for step in training] == [BATCH_SIZE] * (len(training) - 1) + [len(training[-1])]
    assert 0 < len(training[-1]) < BATCH_SIZE
    edges = {" ".join(t): ends_of(split.train, t) for t in (BUYS, BOUGHT_BY)}
    heard: set[tuple[int, int]] = set()
    for step in [*training, *trees]:
        asked = {(link[0][0], link[1][0]) for link in step.values()}
        drawn = [by_type for ends in step.values() for _, by_type in ends]
        carrying = {edges[t][edge] for by_type in drawn for t, of_type in by_type.items() for edge in of_type}
        assert not carrying & asked  # whichever rank asks for it
        heard |= carrying
    assert len(heard) > BATCH_SIZE
