"""A trainer says once that an R-GCN averages drawn edges by relation, and how to train without this bias."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

import khop
from khop.models import RGCN, LinkPredictor, RelationColumn
from khop.sampling.fanouts import Fanout
from khop.training.drawn_relations import notice_drawn_relations
from support.commands import train_here
from support.knowledge import BACK, FACT, RELATIONS, Triples, as_column

COLUMN = RelationColumn("r", {FACT: RELATIONS, BACK: RELATIONS})
SENTENCE = (
    "R-GCN averages the drawn edges of each relation of 'r': with limited fanouts, rare relations count less "
    "in training than in exact inference; draw by rule=khop.RelationMean('r'), in a run --rule relation-mean "
    "--rule-column r"
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    return as_column(tmp_path_factory.mktemp("facts") / "graph", Triples.drawn())


def model(graph: khop.Graph, relations: RelationColumn | None = COLUMN) -> LinkPredictor:
    encoder = RGCN.for_graph(graph, 8, 1, ["entity"], outputs=4, relations=relations)
    return LinkPredictor.of(encoder, [FACT], "dot", 4)


def loader(graph: khop.Graph, fanout: Fanout, rule: khop.Rule) -> khop.Loader:
    return khop.Loader(khop.LinkSampler(graph, [fanout], rule=rule), torch.arange(9), 9)


def test_means_of_drawn_relations_are_noticed_and_others_are_not(graph: khop.Graph) -> None:
    with pytest.warns(UserWarning, match=re.escape(SENTENCE)):
        notice_drawn_relations(model(graph), loader(graph, {FACT: 0, BACK: 3}, khop.Uniform()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notice_drawn_relations(model(graph), loader(graph, 3, khop.RelationMean("r")))
        notice_drawn_relations(model(graph, None), loader(graph, 3, khop.Uniform()))
        only_back = RelationColumn("r", {BACK: RELATIONS})
        notice_drawn_relations(model(graph, only_back), loader(graph, {FACT: 3, BACK: -1}, khop.Uniform()))


def test_a_run_says_it_once(tmp_path: Path) -> None:
    """In two epochs of one process; the rule of the sentence ends it."""
    as_column(tmp_path / "graph", Triples.drawn())
    path = tmp_path / "run.toml"
    path.write_text(f"""
        graph = "{tmp_path / "graph"}"
        task = {{ kind = "link-prediction", target = "entity fact entity" }}
        sampler = {{ fanouts = [2] }}
        model = {{ kind = "rgcn", hidden = 8, relation = "r" }}
        training = {{ epochs = 2, batch_size = 50 }}
        links = {{ eval_negatives = 2 }}
    """)
    with pytest.warns(UserWarning, match=re.escape(SENTENCE)) as seen:
        train_here(str(path), "--out", str(tmp_path / "drawn"))
    assert len(seen) == 1
    ended = ("--rule", "relation-mean", "--rule-column", "r")
    train_here(str(path), "--out", str(tmp_path / "means"), *ended)
    losses = [(tmp_path / name / "steps.jsonl").read_text() for name in ("drawn", "means")]
    assert losses[0] != losses[1]
