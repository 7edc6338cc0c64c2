"""verify_folder finds what opening does not read: each flipped bit, numbers that contradict each other."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.build import write_graph
from khop.graph.folder import open_folder
from khop.graph.manifest import fingerprint
from khop.graph.tables import NodeTable
from khop.graph.verify import FileFinding, verify_folder


def test_nothing_is_found_in_a_good_folder(shop: Path) -> None:
    assert verify_folder(shop) == []
    assert verify_folder(str(shop)) == []


@given(data=st.data())
def test_a_flipped_bit_is_found_and_its_file_named(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    columns = {"x": np.arange(40.0).reshape(10, 4), "y": np.arange(10)}
    nodes = {"n": NodeTable(columns=columns, splits={"train": np.arange(3)}, num_classes={"y": 10})}
    path = write_graph(tmp_path_factory.mktemp("flip") / "g", nodes, {})
    file = path / data.draw(st.sampled_from(["nodes/n/x.npy", "nodes/n/y.npy", "nodes/n/splits/train.npy"]))
    content = bytearray(file.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    (finding,) = verify_folder(path)
    assert finding.file == str(file.relative_to(path))
    assert "Re-import, or copy it again" in finding.problem


def test_a_flipped_bit_in_the_data_opens_and_is_found(shop: Path) -> None:
    file = shop / "nodes/item/x.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    open_folder(shop)
    problem = "checksum differs from graph.json; the file was changed or damaged. Re-import, or copy it again"
    assert verify_folder(shop) == [FileFinding("nodes/item/x.npy", problem)]


def test_every_damaged_file_is_named_at_once(shop: Path) -> None:
    os.truncate(shop / "nodes/item/x.npy", 140)
    (shop / "edges/user__buys__item/indptr.npy").unlink()
    with (shop / "nodes/item/y.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x07")
    findings = verify_folder(shop)
    assert [(finding.file, finding.problem.split(";")[0]) for finding in findings] == [
        ("edges/user__buys__item/indptr.npy", "is missing"),
        ("nodes/item/x.npy", "has 140 bytes, graph.json says 152"),
        ("nodes/item/y.npy", "checksum differs from graph.json"),
    ]


def test_a_damaged_graph_json_is_a_finding_and_a_missing_one_an_error(shop: Path) -> None:
    file = shop / "graph.json"
    file.write_text(file.read_text().replace('"count": 4', '"count": 5'))
    (finding,) = verify_folder(shop)
    assert finding.file == "graph.json"
    assert "the fingerprint does not match the content" in finding.problem
    file.unlink()
    with pytest.raises(ValueError, match=r"not a graph folder, or unfinished: graph\.json is missing"):
        verify_folder(shop)


def test_a_file_that_only_graph_json_knows_is_a_finding(shop: Path) -> None:
    graph = json.loads((shop / "graph.json").read_text())
    del graph["fingerprint"]
    graph["arrays"]["nodes/item/z.npy"] = graph["arrays"]["nodes/item/x.npy"]
    (shop / "graph.json").write_text(json.dumps({**graph, "fingerprint": fingerprint(graph)}))
    (finding,) = verify_folder(shop)
    assert finding.problem.startswith("describes nodes/item/z.npy in one place only")


def overwrite(path: Path, file: str, values: list[float]) -> None:
    """Put other numbers into an array and reseal the folder, as a wrong program would write it."""
    array = np.load(path / file)
    array.reshape(-1)[:] = np.asarray(values).astype(array.dtype)
    np.save(path / file, array)
    graph = json.loads((path / "graph.json").read_text())
    del graph["fingerprint"]
    content = (path / file).read_bytes()
    graph["arrays"][file] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / "graph.json").write_text(json.dumps({**graph, "fingerprint": fingerprint(graph)}))


LIE = "edges/user__buys__item"
CONTRADICTIONS = {
    "indptr falls": (f"{LIE}/indptr.npy", [0, 3, 2, 5], "indptr has 2 at position 2"),
    "indptr begins late": (f"{LIE}/indptr.npy", [1, 2, 3, 5], "indptr has 1 at position 0"),
    "indptr ends early": (f"{LIE}/indptr.npy", [0, 2, 3, 4], "indptr has 4 at position 3"),
    "source too high": (
        f"{LIE}/indices.npy",
        [3, 2, 0, 4, 1],
        f"{LIE}/indices.npy[3] is 4: there are 4 'user' nodes, ids 0 to 3; write the graph again",
    ),
    "negative source": (
        f"{LIE}/indices.npy",
        [3, -1, 0, 0, 1],
        "indices.npy[1] is -1: there are 4 'user' nodes",
    ),
    "input position too high": (
        f"{LIE}/edge_id.npy",
        [1, 4, 3, 5, 2],
        "edge_id.npy[3] is 5: there are 5 edges",
    ),
    "input position twice": (f"{LIE}/edge_id.npy", [1, 4, 3, 1, 2], "no edge has input position 0"),
    "nan on edges": (
        f"{LIE}/columns/price.npy",
        [1, 4, np.nan, 0, 2],
        "price.npy[2] is nan: not a finite number",
    ),
    "infinity": ("nodes/item/x.npy", [0, 1, 2, np.inf, 4, 5], "nodes/item/x.npy[1, 1] is inf: not a finite"),
    "no such class": ("nodes/item/y.npy", [0, 3, 1], "nodes/item/y.npy[1] is 3: there are 3 classes"),
    "negative original id": ("nodes/item/original_id.npy", [7, -5, 6], "original_id.npy[1] is -5"),
    "split out of range": (
        "nodes/item/splits/test.npy",
        [1, 3],
        "test.npy[1] is 3: there are 3 'item' nodes",
    ),
    "node twice in a split": (
        "nodes/item/splits/test.npy",
        [1, 1],
        "test.npy[1] is 1: that node is already in the split",
    ),
    "splits overlap": (
        "nodes/item/splits/test.npy",
        [1, 2],
        "test.npy[1] is 2: the node is in split 'train' too",
    ),
}


@pytest.mark.core(7)
@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_numbers_that_contradict_the_rest_are_found(shop: Path, case: str) -> None:
    file, values, problem = CONTRADICTIONS[case]
    overwrite(shop, file, values)
    open_folder(shop)
    (finding,) = verify_folder(shop)
    assert file.startswith(finding.file)
    assert problem in finding.problem


def test_progress_ends_with_all_bytes_done(shop: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    verify_folder(shop, lambda *news: heard.append(news))
    done = [news[1] for news in heard]
    assert done == sorted(done)
    assert heard[-1][1] == heard[-1][2] == 2 * sum(path.stat().st_size for path in shop.rglob("*.npy"))
