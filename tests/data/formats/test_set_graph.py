"""Tables of a set, written as a graph folder with their record."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from khop.data.formats.ogb import OGB_SETS
from khop.data.formats.set_graph import EDGE, NODE, PUBLISHED, SetGraph, memory_budget
from khop.data.importers import ImportContext
from khop.graph.folder import open_folder, standard_set
from khop.graph.tables import EdgeTable, NodeTable
from khop.kernels.memory import free_memory_bytes
from khop.pyg.import_set import PYG_RAW
from khop.run.check import checked
from khop.run.proposed_run import proposed_run
from khop.run.read import read_toml


def small(name: str, labels: np.ndarray, **classes: int) -> SetGraph:
    ids = np.arange(8)
    splits = {"train": ids[:4], "val": ids[4:6], "test": ids[6:]}
    table = NodeTable(8, {"x": np.ones((8, 3), np.float32), "label": labels}, splits, classes)
    task = "node-classification" if classes else "multi-label"
    return SetGraph(name, {NODE: table}, {EDGE: EdgeTable(ids, ids[::-1].copy())}, {NODE: task})


def test_the_published_result_and_its_run(tmp_path: Path) -> None:
    graph = small("ogbn-arxiv", np.arange(8) % 40, label=40)
    assert graph.write(tmp_path / "g", ImportContext(tmp_path), None) == "8 node; 8 node to node"
    record = standard_set(open_folder(tmp_path / "g"))
    assert record["name"] == "ogbn-arxiv"
    assert record["published"]["value"] == "0.7149 ± 0.0027"
    text = proposed_run(tmp_path / "g")
    assert "# Published: accuracy 0.7149 ± 0.0027 on test by GraphSAGE, https://ogb.stanford.edu" in text
    (tmp_path / "run.toml").write_text(text)
    run = checked(read_toml(tmp_path / "run.toml"))
    assert (run.model.hidden, run.training.learning_rate) == (256, 0.003)
    assert len(run.sampler.fanouts) == 3


def test_several_answers_are_a_multi_label_task(tmp_path: Path) -> None:
    small("own", np.zeros((8, 2), np.uint8)).write(tmp_path / "g", ImportContext(tmp_path), None)
    assert 'kind = "multi-label"' in proposed_run(tmp_path / "g")
    assert "Published" not in proposed_run(tmp_path / "g")


def test_all_sets_of_ogb_and_torch_geometric_but_one_have_a_result() -> None:
    assert PUBLISHED.keys() == {*OGB_SETS, *PYG_RAW} - {"Coauthor-Physics"}


def test_each_result_has_its_source() -> None:
    for name, one in PUBLISHED.items():
        assert one.source.startswith("https://"), name
        assert one.record()["value"] == one.value
        assert str(one).startswith(one.metric)


def test_a_given_budget_counts() -> None:
    assert memory_budget(ImportContext(Path(), 5)) == 5
    assert 0 < memory_budget(ImportContext(Path())) < free_memory_bytes()
