"""OGB's link sets: the links of .pt files, with their splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import khop
from data.formats.layouts import arxiv, gz_rows, links, mag
from khop.data.formats.ogb import OGB_SETS, ogb_links
from khop.data.formats.raw_arrays import Scratch
from khop.run.proposed_run import proposed_run

EDGE, BACK = ("node", "to", "node"), ("node", "rev_to", "node")


def imported(name: str, folder: Path) -> khop.Graph:
    out = folder.parent / "graph"
    with Scratch.beside(out, 1 << 30) as scratch:
        ogb_links(OGB_SETS[name], folder, "as stored", scratch).write(out, 1 << 30, 1, None)
    return khop.open_graph(out)


def rows(graph: khop.Graph, edge_type: tuple[str, str, str], *columns: str) -> list[tuple[float, ...]]:
    csc = graph.csc(edge_type)
    values = [graph.columns[edge_type][name].tolist() for name in columns]
    return sorted(zip(csc.indices.tolist(), csc.destinations().tolist(), *values, strict=True))


def test_arrays_of_numpy_in_pt_files(tmp_path: Path) -> None:
    folder = arxiv(tmp_path, "collab")
    parts = {
        "train": {"edge": np.array([[0, 1], [1, 2]]), "weight": np.array([1, 3]), "year": np.array([2001, 2002])},
        "valid": {"edge": np.array([[3, 4]]), "weight": np.array([2]), "year": np.array([2018]),
                  "edge_neg": np.array([[0, 4]])},
        "test": {"edge": np.array([[2, 4]]), "weight": np.array([5]), "year": np.array([2019]),
                 "edge_neg": np.array([[1, 4]])},
    }  # fmt: skip
    links(folder, "time", parts)
    graph = imported("ogbl-collab", folder)
    forward = [(0, 1, 0, 1, 2001), (1, 2, 0, 3, 2002), (2, 4, 2, 5, 2019), (3, 4, 1, 2, 2018)]
    assert rows(graph, EDGE, "split", "weight", "year") == forward
    assert rows(graph, BACK, "split") == sorted((d, s, split) for s, d, split, _, _ in forward)
    assert graph.schema.reverse(EDGE) == BACK
    assert graph.columns["node"]["x"].shape == (5, 2)


def test_tensors_with_published_negatives(tmp_path: Path) -> None:
    folder = arxiv(tmp_path, "citation-v2")
    ends = {"train": ([0, 1] * 5, [1, 2] * 5), "valid": ([3], [2]), "test": ([4], [0])}
    links(folder, "time", {
        name: {"source_node": torch.tensor(s), "target_node": torch.tensor(d),
               "target_node_neg": torch.zeros(len(s), 3, dtype=torch.int64)}
        for name, (s, d) in ends.items()
    })  # fmt: skip
    graph = imported("ogbl-citation2", folder)
    assert rows(graph, EDGE, "split") == [(0, 1, 0)] * 5 + [(1, 2, 0)] * 5 + [(3, 2, 1), (4, 0, 2)]
    assert graph.schema.edge_types == (EDGE,)
    run = tmp_path / "run.toml"
    run.write_text(proposed_run(tmp_path / "graph"))
    assert 'split = "column"  # by its column split: 10 links of training, 1 of validation, 1 of test' in (
        run.read_text()
    )


def test_relations_of_a_knowledge_graph(tmp_path: Path) -> None:
    folder = arxiv(tmp_path, "wikikg-v2")
    (folder / "raw" / "node-feat.csv.gz").unlink()
    triples = {"train": (0, 7, 1), "valid": (2, 8, 3), "test": (4, 7, 0)}
    links(folder, "time", {
        name: {"head": np.array([h]), "relation": np.array([r]), "tail": np.array([t])}
        for name, (h, r, t) in triples.items()
    })  # fmt: skip
    graph = imported("ogbl-wikikg2", folder)
    assert rows(graph, EDGE, "relation", "split") == [(0, 1, 7, 0), (2, 3, 8, 1), (4, 0, 7, 2)]


def test_links_of_a_typed_set_go_to_their_edge_type(tmp_path: Path) -> None:
    folder = mag(tmp_path).rename(tmp_path / "biokg")

    def part(*found: tuple[str, int, int, str, int]) -> dict[str, object]:
        return {
            "head_type": [one[0] for one in found], "head": np.array([one[1] for one in found]),
            "relation": np.array([one[2] for one in found]), "tail_type": [one[3] for one in found],
            "tail": np.array([one[4] for one in found]),
        }  # fmt: skip

    writes, cites = 1, 2
    links(folder, "random", {
        "train": part(("author", 0, writes, "paper", 1), ("paper", 0, cites, "paper", 2)),
        "valid": part(("author", 1, writes, "paper", 2)),
        "test": part(("paper", 1, cites, "paper", 0)),
    })  # fmt: skip
    graph = imported("ogbl-biokg", folder)
    assert rows(graph, ("author", "writes", "paper"), "split") == [(0, 1, 0), (1, 2, 1)]
    assert rows(graph, ("paper", "cites", "paper"), "split") == [(0, 2, 0), (1, 0, 2)]


def test_a_file_without_links_is_refused(tmp_path: Path) -> None:
    folder = arxiv(tmp_path, "ddi")
    gz_rows(folder / "raw" / "num-node-list.csv.gz", [[5]])
    links(folder, "target", {name: {"edges": np.zeros((1, 2))} for name in ("train", "valid", "test")})
    with pytest.raises(ValueError, match=r"train.pt: has edges, and no links"):
        imported("ogbl-ddi", folder)
