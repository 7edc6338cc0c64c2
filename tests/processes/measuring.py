"""What ranks measure in the tests: a function at the top of a module, so that a spawned process finds it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import khop
from khop.distributed.processes.group import this_group

LIKE = ("item", "like", "item")


def measures(rank: int, device: torch.device, folder: str, out: str) -> None:
    """Everything that can be measured of an untrained model, by the ranks together."""
    torch.set_num_threads(1)
    graph = khop.open_graph(folder)
    torch.manual_seed(5)
    model = khop.models.SAGE.for_graph(graph, hidden=16, layers=2, dropout=0.5)
    parallel = DistributedDataParallel(model) if this_group().world_size > 1 else model
    found = {
        metric: khop.evaluate(
            parallel, graph, split="val", task=khop.NodeClassification("item", "category", metric)
        )
        for metric in ("accuracy", "f1-macro", "f1-micro", "roc-auc", "average-precision")
    }
    found["sampled"] = khop.evaluate(parallel, graph, split="val", fanouts=[3, 3])
    found |= _of_links(graph)
    found["is training"] = parallel.training
    Path(out, f"{this_group().world_size}-{rank}.json").write_text(json.dumps(found))


def _of_links(graph: khop.Graph) -> dict[str, float]:
    split = khop.split_links(graph, LIKE, negatives=20)
    encoder = khop.models.SAGE.for_graph(split.train, hidden=8, target=["item"], outputs=8)
    model = khop.models.LinkPredictor.of(encoder, [LIKE], "dot", 8)
    found = khop.evaluate_links(
        model, split.test, split.test_links, metrics=["mrr", "hits@10", "roc-auc", "average-precision"]
    )
    rows = khop.node_rows(encoder, split.test, split.test.features, ["item"])["item"]
    ranking = khop.full_ranking(
        lambda items: rows[items] @ rows.T,
        split.test_links.edges[LIKE],
        split.train_links.edges[LIKE],
        rows.shape[0],
        chunk_bytes=16 * rows.shape[0] * 7,
    )
    return {f"links/{name}": value for name, value in found.items()} | {
        f"{name}@{k}": of_k
        for name, at in (("recall", ranking.recall), ("ndcg", ranking.ndcg))
        for k, of_k in at.items()
    }
