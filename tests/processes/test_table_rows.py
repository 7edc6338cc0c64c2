"""Embeddings take one course on any number of ranks, and cost what batches read of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import khop
from processes.row_ranks import both_kinds, trained
from support.small_rated import write_rated


@pytest.mark.long
def test_embeddings_train_alike_on_any_number_of_ranks_and_send_only_rows_read(tmp_path: Path) -> None:
    """Three ranks train two epochs, two go on to the fourth, beside one rank that is never stopped.

    A third run, sharded, ends by SIGTERM to one of the three in the third epoch, and two go on from there.
    """
    small = str(write_rated(tmp_path / "small"))
    large = str(write_rated(tmp_path / "large", users=30_000))
    found = {}
    for procs, epochs, where in ((1, 4, "one"), (3, 2, "many"), (2, 4, "many")):
        out = tmp_path / where / str(procs)
        out.mkdir(parents=True)
        khop.launch(both_kinds, procs=procs, arguments=(small, large, str(out), epochs), device="cpu")
        assert len(list(out.glob("*.terminated"))) == (3 if procs == 3 else 0)
        found[procs] = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    (alone,) = found[1]
    for of_ranks in (found[2], found[3]):
        for of_rank in of_ranks:
            assert "get the state dict inside `with khop.models.gathered(model):`" in of_rank.pop(
                "state of a part"
            )
            for kind, course in of_rank.items():
                expected = alone["large sparse" if "large" in kind else "sparse"]
                assert course["losses"] == pytest.approx(expected["losses"], rel=1e-9)
                assert course["score"] == expected["score"]
                assert torch.allclose(torch.tensor(course["rows"]), torch.tensor(expected["rows"]), atol=1e-7)
                if "large" in kind:  # a hundred times the rows, of which the same are read
                    assert course["sent"] == of_rank[kind.removeprefix("large ")]["sent"]
        assert all(of_rank["sparse"]["rows"] == of_rank["sharded"]["rows"] for of_rank in of_ranks)
    assert alone["sparse"]["sent"] == [0] * len(alone["sparse"]["sent"])
    assert max(found[3][0]["large sharded"]["sent"]) < 30_000  # bytes; the table has 1,200,000
    for kind in ("sparse", "sharded", "preempted"):
        assert steps(tmp_path / "many" / kind) == pytest.approx(steps(tmp_path / "one" / kind), rel=1e-9)
    assert_same_checkpoints(tmp_path / "many", "sparse", "sharded")


def steps(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "steps.jsonl").read_text().splitlines()]


def assert_same_checkpoints(folder: Path, first: str, second: str) -> None:
    """Bit for bit, weights and moments."""
    ours, theirs = (khop.load_checkpoint(folder / kind / "checkpoints" / "last") for kind in (first, second))
    for mine, yours in ((ours.model, theirs.model), (ours.optimizer, theirs.optimizer)):
        assert mine.keys() == yours.keys()
        assert [name for name in mine if not torch.equal(mine[name], yours[name])] == []
    assert ours.model["encoder.tables.node:user.weight"].shape == (300, 5)
    assert ours.optimizer["encoder.tables.node:user.weight/exp_avg"].shape == (300, 5)


def test_a_run_with_embeddings_continues_bit_for_bit(tmp_path: Path) -> None:
    graph = khop.open_graph(write_rated(tmp_path / "small"))
    trained(graph, "sparse", tmp_path / "whole", 4)
    for epochs in (2, 4):
        trained(graph, "sparse", tmp_path / "halves", epochs)
    assert steps(tmp_path / "halves") == steps(tmp_path / "whole")
