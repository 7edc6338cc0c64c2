"""Package graphs as graph folders: a plain one, easy to train on, and a complete, typed one.

A package graph as one small file: the format in which khop ships Debian's package graph.

Import of this or another machine's package lists as a graph folder: all steps of `khop import debian`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.data.debian.packages import (
    EDGE_TYPES,
    NODE_TYPES,
    PACKAGE,
    SECTIONS,
    TAG,
    UNKNOWN,
    Facts,
    Package,
    Pairs,
    collect,
    find_lists,
    list_lines,
    machine_lists,
    parse_packages,
    word_buckets,
    word_counts,
)
from khop.data.importers import DebianOptions, ImportContext
from khop.draw import DrawKey, Purpose
from khop.graph.atomic import Meter, ProgressCallback, refuse_existing
from khop.graph.build import write_graph
from khop.graph.inputs import Array
from khop.graph.tables import EdgeTable, NodeTable
from khop.kernels.philox import permutation_slice
from khop.schema import EdgeType, NodeType

Tables = tuple[dict[NodeType, NodeTable], dict[EdgeType, EdgeTable]]
LINKED: EdgeType = (PACKAGE, "linked", PACKAGE)
UNITED = ("pre_depends", "depends", "recommends", "suggests", "enhances")  # relations that link two packages
SPLIT_SEED = 0
_SPLITS = (("train", 0, 60), ("val", 60, 80), ("test", 80, 100))  # in percent


def plain_tables(facts: Facts) -> Tables:
    """Make one node type and one symmetric edge type: packages are linked if one needs or wants the other."""
    united = [facts.edges[(PACKAGE, relation, PACKAGE)] for relation in UNITED]
    left = np.concatenate([pairs.left for pairs in united]).astype(np.int64)
    right = np.concatenate([pairs.right for pairs in united]).astype(np.int64)
    count = facts.counts[PACKAGE]
    edges = np.unique(np.concatenate([left * count + right, right * count + left]))
    linked = EdgeTable((edges // count).astype(np.int32), (edges % count).astype(np.int32), reverse_of=LINKED)
    return {PACKAGE: _package_table(facts)}, {LINKED: linked}


def typed_tables(facts: Facts) -> Tables:
    """Make all node types, and all relations with reverses (rev_RELATION). Packages keep their plain ids."""
    nodes = {node_type: NodeTable(count) for node_type, count in facts.counts.items()}
    nodes[PACKAGE], nodes[TAG] = _package_table(facts), _tag_table(facts.tags)
    edges: dict[EdgeType, EdgeTable] = {}
    for (source, relation, destination), pairs in facts.edges.items():
        forward, backward = (source, relation, destination), (destination, f"rev_{relation}", source)
        edges[forward] = EdgeTable(pairs.left, pairs.right, reverse_of=backward)
        edges[backward] = EdgeTable(pairs.right, pairs.left, reverse_of=forward)
    return nodes, edges


GRAPHS: Mapping[str, Callable[[Facts], Tables]] = {"debian": plain_tables, "debian-typed": typed_tables}


def write_debian(
    path: str | os.PathLike[str], name: str, facts: Facts, notice: ProgressCallback | None = None
) -> Path:
    """Write the graph `name`, a key of GRAPHS, as a graph folder."""
    nodes, edges = GRAPHS[name](facts)
    return write_graph(path, nodes, edges, notice=notice)


def _package_table(facts: Facts) -> NodeTable:
    words = word_counts(facts.words.left, facts.words.right, facts.counts[PACKAGE])
    columns: dict[str, Array] = {"x": words, "section": facts.sections.astype(np.int64)}
    return NodeTable(facts.counts[PACKAGE], columns, _splits(facts.sections), {"section": len(SECTIONS)})


def _tag_table(tags: tuple[str, ...]) -> NodeTable:
    buckets = [word_buckets(tag, own_name="") for tag in tags]
    rows = np.repeat(np.arange(len(tags), dtype=np.int32), [len(row) for row in buckets])
    return NodeTable(
        len(tags), {"x": word_counts(rows, np.array(list(chain.from_iterable(buckets)), np.int32), len(tags))}
    )


def _splits(sections: npt.NDArray[np.int8]) -> dict[str, Tensor]:
    """Split the labeled packages 60/20/20 by a permutation that depends only on their number; ids ascend.

    A split that would be empty (in a very small graph) is left out.
    """
    labeled = torch.from_numpy(np.flatnonzero(sections != UNKNOWN))
    count = len(labeled)
    order = permutation_slice(DrawKey.of(SPLIT_SEED, Purpose.SPLIT).value, count, 0, count)
    splits = {name: order[count * start // 100 : count * stop // 100] for name, start, stop in _SPLITS}
    return {name: labeled[positions].sort().values for name, positions in splits.items() if len(positions)}


Arrays = Mapping[str, npt.NDArray[Any]]


def write_snapshot(path: str | os.PathLike[str], facts: Facts) -> None:
    """Write a compressed .npz of plain arrays: the same bytes for the same facts (and the same zlib).

    Pairs are stored as `NAME.counts`, the number of pairs per left id, and `NAME.right`.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "counts": np.array([facts.counts[node_type] for node_type in NODE_TYPES], np.int64),
        "sections": facts.sections,
        "tags": np.array(facts.tags, np.str_),
        **_stored("words", facts.words, facts.counts[PACKAGE]),
    }
    for edge_type in EDGE_TYPES:
        arrays |= _stored("__".join(edge_type), facts.edges[edge_type], facts.counts[PACKAGE])
    np.savez_compressed(path, allow_pickle=False, **arrays)


def read_snapshot(data: bytes) -> Facts:
    """Read facts written by `write_snapshot`. Nothing is unpickled."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return Facts(
            counts=dict(zip(NODE_TYPES, arrays["counts"].tolist(), strict=True)),
            sections=arrays["sections"],
            words=_read("words", arrays),
            tags=tuple(arrays["tags"].tolist()),
            edges={edge_type: _read("__".join(edge_type), arrays) for edge_type in EDGE_TYPES},
        )


def _stored(name: str, pairs: Pairs, num_left: int) -> dict[str, npt.NDArray[Any]]:
    counts = np.bincount(pairs.left, minlength=num_left)
    narrow = np.min_scalar_type(int(counts.max(initial=0)))
    return {f"{name}.counts": counts.astype(narrow), f"{name}.right": pairs.right}


def _read(name: str, arrays: Arrays) -> Pairs:
    counts = arrays[f"{name}.counts"]
    return Pairs(np.repeat(np.arange(len(counts), dtype=np.int32), counts), arrays[f"{name}.right"])


_PACKAGES_PER_NOTICE = 1000


def import_debian(
    out: Path, name: str, lists: Path | None = None, notice: ProgressCallback | None = None
) -> Facts:
    """Write the graph `name` ("debian" or "debian-typed") of all package lists in a folder to `out`.

    Without `lists`, the folder is apt's own. `notice` is called while reading, then while writing. Returns
    the graph's data, so that callers can print their size.
    """
    refuse_existing(out)
    facts = read_facts(find_lists(machine_lists() if lists is None else lists), notice)
    write_debian(out, name, facts, notice)
    return facts


@dataclass(frozen=True)
class DebianImporter:
    """An import of the package lists in a folder."""

    name: str
    lists: Path | None  # None: apt's own

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder; return the number of packages in words."""
        facts = import_debian(out, self.name, self.lists, notice)
        return f"{facts.counts[PACKAGE]:,} packages"


def debian_importer(options: DebianOptions, context: ImportContext) -> DebianImporter:
    """Make the importer."""
    name = "debian-typed" if options.typed else "debian"
    return DebianImporter(name, None if options.lists is None else context.folder / options.lists)


def read_facts(lists: Sequence[Path], notice: ProgressCallback | None = None) -> Facts:
    """Read lists into one package graph; ValueError if they contain no package."""
    facts = collect(_packages(lists, Meter(sum(path.stat().st_size for path in lists), notice)))
    if facts.counts[PACKAGE] == 0:
        raise ValueError(
            f"{', '.join(map(str, lists))}: no package in it; run `apt-get update` and try again"
        )
    return facts


def _packages(lists: Sequence[Path], meter: Meter) -> Iterator[Package]:
    # The position in a compressed list is unknown while a pipe reads it: the bar moves list by list.
    for path in lists:
        for number, package in enumerate(parse_packages(list_lines(path), str(path))):
            if number % _PACKAGES_PER_NOTICE == 0:
                meter.at(f"{path.name}: {number:,} packages")
            yield package
        meter.at(path.name, path.stat().st_size)
