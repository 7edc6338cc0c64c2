"""The Illinois Graph Benchmark: files as published become graph folders."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import khop
from data.formats.layouts import igb
from data.formats.server import FileServer
from khop.data.formats import igb as module
from khop.data.formats.igb import IGB_SETS, igb_edges, igb_importer
from khop.data.importers import Igb, ImportContext


@pytest.mark.core(1)
@pytest.mark.parametrize("root", [".", "tiny", "tiny/processed"])
def test_papers_alone(root: str, tmp_path: Path) -> None:
    pairs = igb(tmp_path / "tiny")
    out = tmp_path / "out"
    assert (
        igb_importer(Igb("tiny", root=root), ImportContext(tmp_path)).write(out)
        == "10 paper; 5 paper cites paper, 5 paper rev_cites paper"
    )
    graph = khop.open_graph(out)
    assert graph.schema.edge_types == (("paper", "cites", "paper"), ("paper", "rev_cites", "paper"))
    csc = graph.csc(("paper", "cites", "paper"))
    found = zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True)
    assert sorted(found) == sorted(map(tuple, pairs.tolist()))
    assert graph.columns["paper"]["label"].tolist() == [row % 19 for row in range(10)]
    parts = {name: graph.split(name)["paper"].tolist() for name in graph.split_names}
    assert parts == {"train": [0, 1, 2, 3, 4, 5], "val": [6, 7], "test": [8, 9]}


def test_all_types_and_the_larger_label(tmp_path: Path) -> None:
    igb(tmp_path / "tiny")
    importer = igb_importer(Igb("hetero-tiny", root=".", classes="2983"), ImportContext(tmp_path))
    importer.write(tmp_path / "out")
    graph = khop.open_graph(tmp_path / "out")
    assert graph.schema.node_types == ("paper", "author")
    assert ("paper", "written_by", "author") in graph.schema.edge_types
    assert graph.schema.columns["paper"]["label"].num_classes == 2983


def test_an_archive_with_the_publishers_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    igb(tmp_path / "files" / "tiny")
    (tmp_path / "served").mkdir()
    archive = shutil.make_archive(
        str(tmp_path / "served" / "igb_homogeneous_tiny"), "gztar", tmp_path / "files"
    )
    context = ImportContext(tmp_path, cache=tmp_path / "cache")
    with FileServer(tmp_path / "served") as server:
        with pytest.raises(ValueError, match="the publisher's is 34856534da55419b316d620e2d5b21be"):
            igb_importer(Igb("tiny", mirror=server.url), context).write(tmp_path / "out")
        md5 = hashlib.md5(Path(archive).read_bytes()).hexdigest()
        here = {**module.IGB_SETS, "tiny": replace(module.IGB_SETS["tiny"], md5=md5)}
        monkeypatch.setattr(module, "IGB_SETS", here)
        assert (
            igb_importer(Igb("tiny", mirror=server.url), context).write(tmp_path / "out")
            == "10 paper; 5 paper cites paper, 5 paper rev_cites paper"
        )


def test_papers_without_a_label_and_large_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    igb(tmp_path / "full")
    np.save(tmp_path / "full" / "processed" / "paper" / "node_label_19.npy", np.arange(8, dtype=np.float32))
    monkeypatch.setitem(module.IGB_SETS, "full", replace(IGB_SETS["full"], num_labeled={19: 8}))  # type: ignore[arg-type]
    igb_importer(Igb("full", root="."), ImportContext(tmp_path)).write(tmp_path / "out")
    graph = khop.open_graph(tmp_path / "out")
    assert graph.columns["paper"]["label"].tolist() == [*range(8), -1, -1]
    assert graph.split("test")["paper"].tolist() == [5, 6, 7]
    with pytest.raises(ValueError, match="igb:large: khop does not download it; give its folder by --root"):
        igb_importer(Igb("large"), ImportContext(tmp_path)).write(tmp_path / "other")
    with pytest.raises(ValueError, match="igb:huge: no such set"):
        igb_importer(Igb("huge"), ImportContext(tmp_path))


@pytest.mark.core(1)
@pytest.mark.parametrize("classes", ["19", "2983"])
@pytest.mark.parametrize("name", ["large", "full", "hetero-large", "hetero-full"])
def test_large_sets_are_numbers_without_a_header(
    name: str, classes: Literal["19", "2983"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = name.removeprefix("hetero-")
    igb(tmp_path / size)
    folders = [tmp_path / size / "processed" / node_type for node_type in ("paper", "author")]
    for path in [file for folder in folders for file in folder.glob("node_*.npy")]:
        path.write_bytes(np.load(path).astype(np.float32).tobytes())
    if "full" in name:
        known = replace(IGB_SETS[name], num_labeled={int(classes): 8})
        monkeypatch.setitem(module.IGB_SETS, name, known)  # type: ignore[arg-type]
    options = Igb(name, root=".", classes=classes)
    igb_importer(options, ImportContext(tmp_path)).write(tmp_path / "out")
    graph = khop.open_graph(tmp_path / "out")
    scale = {"19": 1, "2983": 100}[classes]
    assert graph.columns["paper"]["label"].tolist() == [scale * row for row in range(10)]
    assert graph.columns["paper"]["x"].shape == (10, 1024)
    assert graph.schema.columns["paper"]["label"].num_classes == int(classes)
    assert graph.split("train")["paper"].tolist() == list(range(4 if "full" in name else 6))
    if name.startswith("hetero"):
        assert graph.columns["author"]["x"].shape == (4, 1024)


def test_more_labels_than_papers(tmp_path: Path) -> None:
    igb(tmp_path / "tiny")
    np.save(tmp_path / "tiny" / "processed" / "paper" / "node_label_19.npy", np.zeros(11, np.float32))
    with pytest.raises(ValueError, match="has 11 labels, but there are 10 papers"):
        igb_importer(Igb("tiny", root="."), ImportContext(tmp_path)).write(tmp_path / "out")


def test_types_between_known_nodes_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.data.formats.igb._EDGES_AT_ONCE", 2)
    pairs = igb(tmp_path)
    found = igb_edges(tmp_path / "processed", ("paper",))
    ((edge_type, chunks),) = found.items()
    assert (edge_type, chunks.reverse) == (("paper", "cites", "paper"), ("paper", "rev_cites", "paper"))
    tables = list(chunks.chunks)
    assert len(tables) == 3
    assert np.concatenate([table.sources for table in tables]).tolist() == pairs[:, 0].tolist()
    with pytest.raises(ValueError, match="has no SOURCE__RELATION__DESTINATION/edge_index.npy"):
        igb_edges(tmp_path, ("paper",))
    np.save(tmp_path / "processed" / "paper__cites__paper" / "edge_index.npy", np.zeros((2, 5), np.int64))
    with pytest.raises(ValueError, match=r"has shape \(2, 5\), but \(edges, 2\) is expected"):
        list(igb_edges(tmp_path / "processed", ("paper",))[edge_type].chunks)


def test_citations_as_mlperf_reads_them_and_features_of_half_the_bytes(tmp_path: Path) -> None:
    """Both directions without loops, a loop per paper and direction, in one edge type."""
    pairs = igb(tmp_path / "tiny")
    options = Igb("hetero-tiny", root=".", cites="mlperf", dtype="float16")
    igb_importer(options, ImportContext(tmp_path)).write(tmp_path / "out")
    graph = khop.open_graph(tmp_path / "out")
    cites, author = ("paper", "cites", "paper"), ("paper", "written_by", "author")
    assert set(graph.schema.edge_types) == {cites, author, ("author", "rev_written_by", "paper")}
    csc = graph.csc(cites)
    loops = [(node, node) for node in range(10)]
    ends = [(s, d) for s, d in pairs.tolist() if s != d]
    wanted = [(d, s) for s, d in ends] + loops + ends + loops
    assert sorted(zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True)) == sorted(wanted)
    assert graph.schema.columns["paper"]["x"].dtype == "float16"
    assert graph.columns["paper"]["x"].tolist() == np.ones((10, 1024)).tolist()


def test_features_that_float16_does_not_have_are_named(tmp_path: Path) -> None:
    igb(tmp_path / "tiny")
    np.save(tmp_path / "tiny" / "processed" / "author" / "node_feat.npy", np.full((4, 1024), 1e5, np.float32))
    importer = igb_importer(Igb("hetero-tiny", root=".", dtype="float16"), ImportContext(tmp_path))
    with pytest.raises(ValueError, match="'author'.*float16 has numbers up to 65504; keep float32"):
        importer.write(tmp_path / "out")
