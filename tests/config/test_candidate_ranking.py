"""Ndcg and recall of a run among all destinations are those of a count by hand."""

from __future__ import annotations

from math import log2
from pathlib import Path
from statistics import mean

import pytest
import torch

from khop.config.build import prepare
from khop.config.candidate_ranking import _is_all_known
from khop.config.link_run_task import LinkTask
from khop.config.read import RawRun
from khop.inference.chunks import evaluating, unwatched
from khop.inference.edge_outputs import triples_of_links
from khop.inference.link_evaluation import node_rows
from khop.sampling.link_seeds import LinkList
from support.small_link_folders import BUYS, write_shop


def task_of(home: Path, decoder: str, **links: object) -> LinkTask:
    values = {
        "graph": str(write_shop(home / "graph")),
        "task": {"kind": "link-prediction", "target": "user buys item"},
        "links": {"decoder": decoder, "ranking": True, "eval_negatives": 3, **links},
        "sampler": {"fanouts": [{"user sees shop": 0, "*": 3}]},
        "model": {"hidden": 4},
    }
    task = prepare(RawRun(values, "run.toml"), home / "cache").run_task
    assert isinstance(task, LinkTask)
    return task


def pairs(*lists: LinkList) -> set[tuple[int, int]]:
    found = [triples_of_links(links, BUYS)[[0, 2]].T.tolist() for links in lists]
    return {(source, destination) for each in found for source, destination in each}


@pytest.mark.parametrize("decoder", ["dot", "mlp"])
def test_all_destinations_are_ranked_without_links_of_the_splits_before(tmp_path: Path, decoder: str) -> None:
    task = task_of(tmp_path, decoder)
    split = task.split
    for name, graph, links, before in (
        ("val", split.val, split.val_links, (split.train_links,)),
        ("test", split.test, split.test_links, (split.train_links, split.val_links)),
    ):
        found = task.scores((name,), unwatched)
        rows = node_rows(task.model.encoder, graph, graph.features, ["user", "item"])
        seen = pairs(*before)
        held_out = pairs(links) - seen
        recall, ndcg = [], []
        with evaluating(task.model):
            for source in {source for source, _ in held_out}:
                scores = task.model.decoder(BUYS).grid(rows["user"][[source]], rows["item"])[0]
                order = [n for n in scores.argsort(descending=True).tolist() if (source, n) not in seen]
                wanted = {destination for of, destination in held_out if of == source}
                hits = [place for place, n in enumerate(order[:10]) if n in wanted]
                recall.append(len(hits) / len(wanted))
                best = sum(1 / log2(place + 2) for place in range(min(10, len(wanted))))
                ndcg.append(sum(1 / log2(place + 2) for place in hits) / best)
        assert found[f"{name}/full-recall@10"] == pytest.approx(mean(recall), abs=1e-6)
        assert found[f"{name}/full-ndcg@10"] == pytest.approx(mean(ndcg), abs=1e-6)
        assert found[f"{name}/full-recall@20"] >= found[f"{name}/full-recall@10"]


def test_links_with_relations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"links.ranking is true and links.relation is 'r': .* links.filt"):
        task_of(tmp_path, "distmult", relation="r")


@pytest.mark.parametrize("known", [[[0, 1], [2, 0]], [[0, 1, 1], [2, 0, 1]]])
def test_only_links_of_earlier_splits_leave_nothing_to_rank(known: list[list[int]]) -> None:
    held_out = torch.tensor([[1, 0, 1], [0, 2, 0]])
    assert _is_all_known(held_out, torch.tensor(known), 3)
    assert not _is_all_known(torch.cat([held_out, torch.tensor([[2], [1]])], dim=1), torch.tensor(known), 3)
