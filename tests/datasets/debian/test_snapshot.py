"""The file that khop ships, and what must never be in it."""

from __future__ import annotations

import io
import zipfile
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from khop.datasets.builtin import SNAPSHOT
from khop.datasets.debian.facts import EDGE_TYPES, NODE_TYPES, Facts, collect
from khop.datasets.debian.packages import parse_packages
from khop.datasets.debian.snapshot import read_snapshot, write_snapshot

# The counts of docs/debian.md: Debian 12.15, main, amd64.
RELATED = {  # relation: to packages, to virtual packages
    "pre_depends": (965, 29),
    "depends": (246_748, 33_558),
    "recommends": (28_802, 779),
    "suggests": (22_849, 878),
    "enhances": (1_737, 45),
    "breaks": (5_758, 556),
    "replaces": (3_651, 1_135),
    "conflicts": (1_552, 858),
    "provides": (493, 37_051),
}
OTHER = {"built_from": 63_436, "maintained_by": 63_436, "tagged_with": 112_118}


@pytest.fixture(scope="module")
def shipped() -> bytes:
    return (files("khop.datasets") / "data" / SNAPSHOT).read_bytes()


def test_the_shipped_snapshot_has_the_documented_counts(shipped: bytes) -> None:
    facts = read_snapshot(shipped)
    for relation, (to_packages, to_virtual) in RELATED.items():
        assert len(facts.edges["package", relation, "package"]) == to_packages
        assert len(facts.edges["package", relation, "virtual"]) == to_virtual
    others = {relation: len(pairs) for (_, relation, _), pairs in facts.edges.items() if relation in OTHER}
    assert others == OTHER


def test_every_edge_of_the_shipped_snapshot_joins_nodes_that_exist_and_none_is_there_twice(
    shipped: bytes,
) -> None:
    facts = read_snapshot(shipped)
    assert tuple(facts.edges) == EDGE_TYPES
    for (source, _, destination), pairs in facts.edges.items():
        assert 0 <= pairs.left.min() <= pairs.left.max() < facts.counts[source]
        assert 0 <= pairs.right.min() <= pairs.right.max() < facts.counts[destination]
        flat = pairs.left.astype(np.int64) * facts.counts[destination] + pairs.right
        assert (np.diff(flat) > 0).all()


def test_the_shipped_snapshot_holds_integers_and_debtags_and_nothing_that_could_name_a_person(
    shipped: bytes,
) -> None:
    texts = []
    with np.load(io.BytesIO(shipped), allow_pickle=False) as arrays:
        for name, array in arrays.items():
            assert array.dtype.kind in "iuU", name
            if array.dtype.kind == "U":
                texts.append((name, array))
    ((name, tags),) = texts
    assert name == "tags"
    assert all("::" in tag and "@" not in tag and " " not in tag for tag in tags.tolist())
    with zipfile.ZipFile(io.BytesIO(shipped)) as archive:
        assert archive.comment == b""
        assert all(not entry.comment and not entry.extra for entry in archive.infolist())


def test_what_is_written_is_read(tmp_path: Path) -> None:
    facts = collect(parse_packages(["Package: a", "Depends: b", "Tag: x::y", "", "Package: b"], "Packages"))
    write_snapshot(tmp_path / "one.npz", facts)
    again = read_snapshot((tmp_path / "one.npz").read_bytes())
    assert (again.counts, again.tags) == (facts.counts, facts.tags)
    assert again.sections.tolist() == facts.sections.tolist()
    assert pairs_of(again) == pairs_of(facts)


def test_equal_settings_make_equal_bytes(tmp_path: Path, shipped: bytes) -> None:
    facts = read_snapshot(shipped)
    for name in ("one.npz", "two.npz"):
        write_snapshot(tmp_path / name, facts)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    assert tuple(facts.counts) == NODE_TYPES


def pairs_of(facts: Facts) -> list[tuple[list[int], list[int]]]:
    return [(pairs.left.tolist(), pairs.right.tolist()) for pairs in (facts.words, *facts.edges.values())]
