"""graph.json: whatever was done to it, it either means the same or does not open."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from khop.graph.folder import open_folder
from khop.graph.manifest import fingerprint

Graph = dict[str, object]


def meaning_or_error(path: Path) -> object:
    try:
        folder = open_folder(path)
    except ValueError as error:
        return "graph.json" if "graph.json: " in str(error) else str(error)
    return folder.manifest, folder.fingerprint


@pytest.mark.long
def test_a_flipped_bit_is_noticed_or_harmless(shop: Path) -> None:
    file = shop / "graph.json"
    right = file.read_bytes()
    meaning = meaning_or_error(shop)
    for bit in range(0, 8 * len(right), 29):
        wrong = bytearray(right)
        wrong[bit // 8] ^= 1 << bit % 8
        file.write_bytes(wrong)
        assert meaning_or_error(shop) in (meaning, "graph.json")


@pytest.mark.parametrize("bytes_left", [0, 1, 100])
def test_a_truncated_graph_json_does_not_open(shop: Path, bytes_left: int) -> None:
    file = shop / "graph.json"
    file.write_bytes(file.read_bytes()[:bytes_left])
    with pytest.raises(ValueError, match=r"graph\.json: not what khop writes .*Re-import, or copy it again"):
        open_folder(shop)


def test_the_fingerprint_can_be_recomputed_from_the_text(shop: Path) -> None:
    graph = json.loads((shop / "graph.json").read_text())
    claimed = graph.pop("fingerprint")
    assert claimed == fingerprint(graph) == open_folder(shop).fingerprint
    reordered = json.loads(json.dumps(graph, sort_keys=True))
    assert fingerprint(reordered) == claimed


EDITS: dict[str, tuple[Callable[[Graph], object], str]] = {
    "another format": (lambda graph: graph.update(format="zip"), r"format \('zip', 1\) is not 'khop-graph'"),
    "version 0": (lambda graph: graph.update(version=0), r"format \('khop-graph', 0\) is not"),
    "no nodes": (lambda graph: graph.pop("nodes"), r"not as format 1 has it \(KeyError\('nodes'\)\)"),
    "no count": (lambda graph: graph["nodes"][0].pop("count"), r"not as format 1 has it .*count"),
    "a list of arrays": (lambda graph: graph.update(arrays=[]), "not as format 1 has it"),
    "an unknown dtype": (
        lambda graph: graph["arrays"]["nodes/item/x.npy"].update(dtype="complex64"),
        "not as format 1 has it .*complex64",
    ),
    "an unknown row order": (lambda graph: graph["edges"][0].update(row_order="x"), "row_order 'x'"),
    "an edge type of two parts": (lambda graph: graph["edges"][0]["type"].pop(), "not as format 1 has it"),
    "an unknown node type": (
        lambda graph: graph["edges"][0].update(type=["moon", "buys", "item"]),
        "no node type 'moon'",
    ),
    "an unknown destination": (
        lambda graph: graph["edges"][0].update(type=["item", "buys", "moon"]),
        "no node type 'moon'",
    ),
    "an unknown reverse": (
        lambda graph: graph["edges"][0].update(reverse_of=["item", "buys", "moon"]),
        r"no edge type \('item', 'buys', 'moon'\)",
    ),
    "a column without a file": (
        lambda graph: graph["nodes"][0]["columns"].append("z"),
        r"graph\.json: describes nodes/user/z\.npy in one place only",
    ),
    "a file of nothing": (
        lambda graph: graph["arrays"].update({"nodes/x.npy": graph["arrays"]["nodes/item/x.npy"]}),
        r"graph\.json: describes nodes/x\.npy in one place only",
    ),
    "a document outside": (
        lambda graph: graph.update(documents={"../import.json": "0" * 64}),
        r"graph\.json: '\.\./import\.json': is not a path below the folder",
    ),
    "a column of width 0": (
        lambda graph: graph["arrays"]["nodes/item/x.npy"].update(shape=[3, 0]),
        r"graph\.json: column 'x' of 'item' has width 0, so it has no entries: leave the column out",
    ),
    "another count": (
        lambda graph: graph["nodes"][1].update(count=4),
        r"indptr\.npy: is int64 of shape \(4,\) in graph.json, where its counts need int64 of shape \(5,\)",
    ),
    "a split of pairs": (
        lambda graph: graph["arrays"]["nodes/item/splits/test.npy"].update(shape=[2, 1]),
        r"nodes/item/splits/test\.npy: is int64 of shape \(2, 1\) in graph\.json, where its",
    ),
    "offsets of another dtype": (
        lambda graph: graph["arrays"]["edges/user__buys__item/indptr.npy"].update(dtype="float64"),
        r"edges/user__buys__item/indptr\.npy: is float64 of shape \(4,\) in graph\.json",
    ),
}


@pytest.mark.parametrize("case", EDITS)
def test_a_folder_that_contradicts_itself_does_not_open(shop: Path, case: str) -> None:
    """Even with the right fingerprint, as another program might write it."""
    edit, sentence = EDITS[case]
    graph = json.loads((shop / "graph.json").read_text())
    del graph["fingerprint"]
    edit(graph)
    (shop / "graph.json").write_text(json.dumps({**graph, "fingerprint": fingerprint(graph)}))
    with pytest.raises(ValueError, match=sentence):
        open_folder(shop)
