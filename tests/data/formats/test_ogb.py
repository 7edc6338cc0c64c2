"""OGB's sets of nodes and links: files as published become graph folders."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import khop
from data.formats.layouts import arxiv, gz_rows, gz_split, links, mag, papers, proteins
from data.formats.server import FileServer
from khop.data.formats.ogb import (
    OGB_SETS,
    Directions,
    edge_table,
    ogb_importer,
    ogb_labels,
    ogb_links,
    ogb_nodes,
    ogb_raw,
    ogb_splits,
    only_count,
    reverse_of,
    triplets,
)
from khop.data.formats.raw_arrays import Scratch
from khop.data.importers import ImportContext, Ogb
from khop.run.proposed_run import proposed_run


@pytest.mark.core(1)
@pytest.mark.parametrize("place", [".", "arxiv", "ogbn_arxiv"])
def test_the_folder_of_a_set_is_found_where_it_is_unpacked(place: str, tmp_path: Path) -> None:
    made = arxiv(tmp_path / "published")
    root = tmp_path / "root"
    shutil.copytree(made, root / place)
    importer = ogb_importer(Ogb("ogbn-arxiv", root="root"), ImportContext(tmp_path))
    assert importer.name == "ogbn-arxiv"
    assert importer.write(tmp_path / "out") == "5 node; 4 node to node"
    assert khop.open_graph(tmp_path / "out").num_edges(("node", "to", "node")) == 4


def test_a_set_comes_from_a_server_once(tmp_path: Path) -> None:
    arxiv(tmp_path / "published")
    shutil.make_archive(str(tmp_path / "served" / "arxiv"), "zip", tmp_path / "published")
    context = ImportContext(tmp_path, cache=tmp_path / "cache")
    with FileServer(tmp_path / "served") as server:
        importer = ogb_importer(Ogb("ogbn-arxiv", mirror=server.url), context)
        importer.write(tmp_path / "one")
    importer.write(tmp_path / "two")  # the server is gone
    assert khop.open_graph(tmp_path / "one").schema == khop.open_graph(tmp_path / "two").schema
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "one", "published", "served", "two"]


def test_an_unknown_set_and_a_wrong_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="ogb:ogbn-arxivs: no such node or link set; did you mean ogbn-arxiv"
    ):
        ogb_importer(Ogb("ogbn-arxivs"), ImportContext(tmp_path))
    importer = ogb_importer(Ogb("ogbn-arxiv", root="."), ImportContext(tmp_path))
    with pytest.raises(ValueError, match="has none of raw, arxiv/raw, ogbn_arxiv/raw, .*arxiv.zip"):
        importer.write(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


PATH = Path("node-label.csv.gz")


def test_nan_is_unknown() -> None:
    given = np.array([[3], [np.nan], [0]], np.float32)
    found = ogb_labels(given, 4, PATH)
    assert found.tolist() == [3, -1, 0]
    assert found.dtype == np.int64
    assert ogb_labels(np.array([[1, np.nan], [0, 1]]), 0, PATH).tolist() == [[1, 255], [0, 1]]
    assert ogb_labels(np.array([[1], [2]]), 3, PATH).tolist() == [1, 2]


@pytest.mark.parametrize("wrong", [-1.0, 4.0, 0.5])
def test_other_values_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=f"row 2: the label is {wrong:g}, but there are 4 classes, 0 to 3"):
        ogb_labels(np.array([[0.0], [wrong]]), 4, PATH)
    with pytest.raises(ValueError, match="has 2 labels per node"):
        ogb_labels(np.zeros((1, 2)), 4, PATH)


def test_both_forms_give_the_same(tmp_path: Path) -> None:
    gz_split(tmp_path / "csv", [3, 1], [0], [2])
    (tmp_path / "pt").mkdir()
    torch.save(
        {"train": torch.tensor([3, 1]), "valid": np.array([0]), "test": np.array([2])},
        tmp_path / "pt/split_dict.pt",
    )
    for folder in ("csv", "pt"):
        found = {name: ids.tolist() for name, ids in ogb_splits(tmp_path / folder).items()}
        assert found == {"train": [3, 1], "val": [0], "test": [2]}
    (tmp_path / "csv" / "test.csv.gz").unlink()
    with pytest.raises(ValueError, match=r"test.csv.gz: no such file"):
        ogb_splits(tmp_path / "csv")
    torch.save({"train": torch.tensor([3, 1])}, tmp_path / "pt/split_dict.pt")
    with pytest.raises(ValueError, match="has no 'valid'"):
        ogb_splits(tmp_path / "pt")


def test_an_edge_is_followed_by_its_opposite_as_in_ogbs_own_reader() -> None:
    columns = {"w": np.array([5, 6])}
    table = edge_table((np.array([0, 1]), np.array([2, 3])), columns, "both directions")
    assert (table.sources.tolist(), table.destinations.tolist()) == ([0, 2, 1, 3], [2, 0, 3, 1])
    assert table.columns["w"].tolist() == [5, 5, 6, 6]


def test_counts_must_agree(tmp_path: Path) -> None:
    raw = arxiv(tmp_path) / "raw"
    gz_rows(raw / "num-edge-list.csv.gz", [[5]])
    with Scratch.beside(tmp_path / "out", 1 << 20) as scratch:
        _, edges = ogb_raw(raw, scratch, "as stored")
        with pytest.raises(ValueError, match=r"edge.csv.gz: has 4 edges, but num-edge-list has 5"):
            list(edges)
    gz_rows(raw / "num-node-list.csv.gz", [[2], [3]])
    with pytest.raises(ValueError, match="the set has 2 graphs"):
        only_count(raw / "num-node-list.csv.gz")


EDGE = ("node", "to", "node")


def imported(
    name: str, folder: Path, directions: Directions = "as stored", memory: int = 1 << 30
) -> khop.Graph:
    out = folder.parent / f"graph-{directions}-{memory}"
    with Scratch.beside(out, memory) as scratch:
        ogb_nodes(OGB_SETS[name], folder, directions, scratch).write(out, ImportContext(out, memory), None)
    return khop.open_graph(out)


def edges_of(graph: khop.Graph, edge_type: tuple[str, str, str] = EDGE) -> list[tuple[int, int]]:
    csc = graph.csc(edge_type)
    return sorted(zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True))


def test_a_plain_set(tmp_path: Path) -> None:
    graph = imported("ogbn-arxiv", arxiv(tmp_path))
    columns = graph.columns["node"]
    assert edges_of(graph) == [(0, 1), (1, 2), (3, 2), (4, 0)]
    assert columns["label"].tolist() == [4, 0, 39, -1, 1]  # nan is unknown
    assert graph.schema.columns["node"]["label"].num_classes == 40
    expected = np.array([[0.1 * row, -row] for row in range(5)]).astype(np.float32)
    assert columns["x"].numpy().tobytes() == expected.tobytes()
    assert columns["year"].tolist() == [2010, 2011, 2012, 2013, 2014]
    assert {name: graph.split(name)["node"].tolist() for name in graph.split_names} == {
        "train": [0, 1], "val": [2], "test": [4],
    }  # fmt: skip


def test_both_directions(tmp_path: Path) -> None:
    graph = imported("ogbn-arxiv", arxiv(tmp_path), "both directions")
    assert edges_of(graph) == sorted([(0, 1), (1, 2), (3, 2), (4, 0), (1, 0), (2, 1), (2, 3), (0, 4)])


def test_several_answers_and_edge_columns_in_both_directions(tmp_path: Path) -> None:
    graph = imported("ogbn-proteins", proteins(tmp_path))
    assert graph.columns["node"]["label"].tolist() == [[1, 0], [0, 255], [1, 1]]
    assert graph.columns["node"]["species"].tolist() == [3702, 9606, 9606]
    assert edges_of(graph) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    csc, given = graph.csc(EDGE), graph.columns[EDGE]["x"]
    of_pair = {
        frozenset((s, d)): row
        for s, d, row in zip(csc.indices.tolist(), csc.destinations().tolist(), given.tolist(), strict=True)
    }
    assert of_pair == {frozenset((0, 1)): [0.5, 1.0], frozenset((1, 2)): [0.25, 2.0]}


def test_a_typed_set_and_its_reverses(tmp_path: Path) -> None:
    graph = imported("ogbn-mag", mag(tmp_path))
    assert graph.schema.node_types == ("author", "paper")
    assert edges_of(graph, ("author", "writes", "paper")) == [(0, 0), (1, 1), (1, 2)]
    assert graph.columns["paper"]["label"].tolist() == [7, 0, 348]
    assert graph.columns["paper"]["x"].tolist() == [[1.5, 2], [3, 4], [5, 6]]
    assert graph.split("test")["paper"].tolist() == [2]
    both = imported("ogbn-mag", tmp_path / "mag", "both directions")
    assert edges_of(both, ("paper", "rev_writes", "author")) == [(0, 0), (1, 1), (2, 1)]
    assert both.schema.reverse(("paper", "cites", "paper")) == ("paper", "rev_cites", "paper")


@pytest.mark.parametrize("memory", [1, 1 << 30], ids=["mapped", "in memory"])
def test_data_npz_is_streamed(memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.data.formats.ogb._EDGES_AT_ONCE", 7)
    arrays = papers(tmp_path)
    graph = imported("ogbn-papers100M", tmp_path / "papers100M-bin", memory=memory)
    assert edges_of(graph) == sorted(map(tuple, arrays["edge_index"].T.tolist()))
    assert torch.equal(graph.columns["node"]["x"], torch.from_numpy(arrays["node_feat"]))
    labels = arrays["node_label"][:, 0]
    assert (
        graph.columns["node"]["label"].tolist() == np.where(np.isnan(labels), -1, labels).astype(int).tolist()
    )


def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    folder = arxiv(tmp_path)
    gz_rows(folder / "raw" / "node-feat.csv.gz", [[1.5]] * 4)
    with pytest.raises(ValueError, match=r"node-feat.csv.gz: has 4 rows, but 5 are expected"):
        imported("ogbn-arxiv", folder)
    assert not list(tmp_path.glob("graph*"))
    assert not list(tmp_path.glob(".graph*"))


def test_a_label_beyond_the_classes_is_named(tmp_path: Path) -> None:
    folder = arxiv(tmp_path)
    gz_rows(folder / "raw" / "node-label.csv.gz", [[0], [40], [1], [2], [3]])
    with pytest.raises(
        ValueError, match=r"node-label.csv.gz, row 2: the label is 40, but there are 40 classes"
    ):
        imported("ogbn-arxiv", folder)


def test_types_are_in_alphabetical_order(tmp_path: Path) -> None:
    raw = mag(tmp_path) / "raw"
    assert triplets(raw) == [("author", "writes", "paper"), ("paper", "cites", "paper")]
    assert reverse_of(("author", "writes", "paper")) == ("paper", "rev_writes", "author")
    gz_rows(raw / "triplet-type-list.csv.gz", [["a", "b"]])
    with pytest.raises(ValueError, match="a row has 2 fields, but 3 are expected"):
        triplets(raw)


EDGE, BACK = ("node", "to", "node"), ("node", "rev_to", "node")


def imported_of_ogb_links(name: str, folder: Path) -> khop.Graph:
    out = folder.parent / "graph"
    with Scratch.beside(out, 1 << 30) as scratch:
        ogb_links(OGB_SETS[name], folder, "as stored", scratch).write(out, ImportContext(out, 1 << 30), None)
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
    graph = imported_of_ogb_links("ogbl-collab", folder)
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
    graph = imported_of_ogb_links("ogbl-citation2", folder)
    assert rows(graph, EDGE, "split") == [(0, 1, 0)] * 5 + [(1, 2, 0)] * 5 + [(3, 2, 1), (4, 0, 2)]
    assert graph.schema.edge_types == (EDGE,)
    run = tmp_path / "run.toml"
    run.write_text(proposed_run(tmp_path / "graph"))
    assert 'split = "column"  # by its column split: 10 training, 1 validation and 1 test links' in (
        run.read_text()
    )


def test_no_space_for_published_negatives_leaves_no_graph(tmp_path: Path) -> None:
    folder = arxiv(tmp_path / "sets", "citation-v2")
    random = np.random.default_rng(0)
    links(folder, "time", {
        name: {"source_node": np.array([0]), "target_node": np.array([1]),
               "target_node_neg": random.integers(5, size=(1, 1 << 20))}
        for name in ("train", "valid", "test")
    })  # fmt: skip
    importer = ogb_importer(Ogb("ogbl-citation2", root="sets"), ImportContext(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError, match=r"out-negatives: no space for the file val.parquet .* left behind"):
            importer.write(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["sets"]
    importer.write(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"sets", "out", "out-negatives"}


def test_relations_of_a_knowledge_graph(tmp_path: Path) -> None:
    folder = arxiv(tmp_path, "wikikg-v2")
    (folder / "raw" / "node-feat.csv.gz").unlink()
    triples = {"train": (0, 7, 1), "valid": (2, 8, 3), "test": (4, 7, 0)}
    links(folder, "time", {
        name: {"head": np.array([h]), "relation": np.array([r]), "tail": np.array([t])}
        for name, (h, r, t) in triples.items()
    })  # fmt: skip
    graph = imported_of_ogb_links("ogbl-wikikg2", folder)
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
    graph = imported_of_ogb_links("ogbl-biokg", folder)
    assert rows(graph, ("author", "writes", "paper"), "split") == [(0, 1, 0), (1, 2, 1)]
    assert rows(graph, ("paper", "cites", "paper"), "split") == [(0, 2, 0), (1, 0, 2)]


def test_a_file_without_links_is_refused(tmp_path: Path) -> None:
    folder = arxiv(tmp_path, "ddi")
    gz_rows(folder / "raw" / "num-node-list.csv.gz", [[5]])
    links(folder, "target", {name: {"edges": np.zeros((1, 2))} for name in ("train", "valid", "test")})
    with pytest.raises(ValueError, match=r"train.pt: has edges, but no links"):
        imported_of_ogb_links("ogbl-ddi", folder)


def test_addresses_and_folders() -> None:
    assert OGB_SETS["ogbn-arxiv"].url == "http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"
    assert OGB_SETS["ogbl-citation2"].url == "http://snap.stanford.edu/ogb/data/linkproppred/citation-v2.zip"
    assert OGB_SETS["ogbn-papers100M"].folders == ("papers100M-bin", "ogbn_papers100M", "ogbn-papers100M")
    assert {name for name, one in OGB_SETS.items() if one.has_links} == {
        name for name in OGB_SETS if name.startswith("ogbl-")
    }
