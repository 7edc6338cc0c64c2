"""Filtered MRR of a run's held-out links is that of a count by hand."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest
import torch

from khop.config.build import prepare
from khop.config.link_run_task import LinkTask
from khop.config.read import RawRun
from khop.inference.chunks import evaluating, unwatched
from khop.inference.edge_outputs import triples_of_links
from khop.inference.link_evaluation import node_rows
from support.knowledge import ENTITIES, FACT, Triples, as_column


def task_of(home: Path, decoder: str) -> LinkTask:
    as_column(home / "graph", Triples.drawn())
    values = {
        "graph": str(home / "graph"),
        "task": {"kind": "link-prediction", "target": "entity fact entity"},
        "links": {"decoder": decoder, "relation": "r", "filtered": True, "eval_negatives": 3},
        "sampler": {"fanouts": [3]},
        "model": {"hidden": 4},
    }
    task = prepare(RawRun(values, "run.toml"), home / "cache").run_task
    assert isinstance(task, LinkTask)
    return task


@pytest.mark.parametrize("decoder", ["distmult", "rotate"])
def test_both_ends_are_ranked_among_all_nodes_without_known_triples(tmp_path: Path, decoder: str) -> None:
    task = task_of(tmp_path, decoder)
    found = task.scores(("test",), unwatched)
    split, ranks = task.split, []
    rows = node_rows(task.model.encoder, split.test, split.test.features, ["entity"])["entity"]
    lists = (split.train_links, split.val_links, split.test_links)
    known = {tuple(triple) for links in lists for triple in triples_of_links(links, FACT).T.tolist()}
    score = task.model.decoder(FACT)
    with evaluating(task.model):
        for source, relation, destination in triples_of_links(split.test_links, FACT).T.tolist():
            for place in (0, 2):
                triple = [source, relation, destination]
                own, scores = triple[place], []
                for other in range(ENTITIES):
                    triple[place] = other
                    if other == own or tuple(triple) not in known:
                        ends = rows[triple[0]], rows[triple[2]]
                        scores.append((float(score(*ends, torch.tensor(relation))), other))
                mine = next(value for value, other in scores if other == own)
                above = sum(value > mine for value, _ in scores)
                tied = sum(value == mine for value, _ in scores) - 1
                ranks.append(range(above + 1, above + tied + 2))  # equal scores are in any order
    assert found["test/filtered-mrr"] == pytest.approx(
        mean(mean(1 / n for n in of) for of in ranks), abs=1e-6
    )
    assert found["test/filtered-hits@3"] == pytest.approx(mean(mean(n <= 3 for n in of) for of in ranks))


def test_a_decoder_without_relations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"links.filtered is true and links.decoder is 'dot': .* relations"):
        task_of(tmp_path, "dot")
