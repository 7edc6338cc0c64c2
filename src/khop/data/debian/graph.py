"""Debian's package graphs, built from one file of arrays: a plain graph and a typed one.

scripts/debian_graph.py makes the file from package lists.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.draw import DrawKey, Purpose
from khop.graph.atomic import ProgressCallback
from khop.graph.build import write_graph
from khop.graph.inputs import Array
from khop.graph.tables import EdgeTable, NodeTable
from khop.kernels.philox import permutation_slice
from khop.schema import EdgeType, NodeType

# Control field -> relation to other packages, real or virtual.
PROVIDES = "provides"
RELATIONS = {
    "Pre-Depends": "pre_depends",
    "Depends": "depends",
    "Recommends": "recommends",
    "Suggests": "suggests",
    "Enhances": "enhances",
    "Breaks": "breaks",
    "Replaces": "replaces",
    "Conflicts": "conflicts",
    "Provides": PROVIDES,
}
BUILT_FROM, MAINTAINED_BY, TAGGED_WITH = "built_from", "maintained_by", "tagged_with"
PACKAGE, VIRTUAL, SOURCE, MAINTAINER, TAG = "package", "virtual", "source", "maintainer", "tag"
NODE_TYPES = (PACKAGE, VIRTUAL, SOURCE, MAINTAINER, TAG)
EDGE_TYPES: tuple[EdgeType, ...] = (
    *((PACKAGE, relation, PACKAGE) for relation in RELATIONS.values()),
    *((PACKAGE, relation, VIRTUAL) for relation in RELATIONS.values()),
    (PACKAGE, BUILT_FROM, SOURCE),
    (PACKAGE, MAINTAINED_BY, MAINTAINER),
    (PACKAGE, TAGGED_WITH, TAG),
)
# Debian's sections in alphabetical order. A label is a position in this list in every graph, so that a model
# trained on one release can be tested on another. Add new sections only at the end.
SECTIONS = (
    "admin", "cli-mono", "comm", "database", "debug", "devel", "doc", "editors", "education",
    "electronics", "embedded", "fonts", "games", "gnome", "gnu-r", "gnustep", "golang", "graphics",
    "hamradio", "haskell", "httpd", "interpreters", "introspection", "java", "javascript", "kde",
    "kernel", "libdevel", "libs", "lisp", "localization", "mail", "math", "metapackages", "misc",
    "net", "news", "ocaml", "oldlibs", "otherosfs", "perl", "php", "python", "ruby", "rust",
    "science", "shells", "sound", "tasks", "tex", "text", "utils", "vcs", "video", "web", "x11",
    "xfce", "zope",
)  # fmt: skip
UNKNOWN = -1  # the label of a package with a section that is not in SECTIONS


@dataclass(frozen=True, eq=False)
class Pairs:
    """A relation: row i links `left[i]` to `right[i]`. Ordered by left, then right."""

    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.left)


@dataclass(frozen=True, eq=False)
class Facts:
    """A package graph. Packages are numbered by name, in byte order, other nodes by first occurrence.

    Package names are not stored, but the lists identify package `i`.
    """

    counts: Mapping[NodeType, int]
    sections: npt.NDArray[np.int8]  # (packages), a position in SECTIONS, or UNKNOWN
    words: Pairs  # package, bucket of a word of its description; one row per occurrence of the word
    tags: tuple[str, ...]  # the debtag of each tag node
    edges: Mapping[EdgeType, Pairs]  # an entry per EDGE_TYPES, without duplicate edges


BUCKETS = 512
_TOKEN = re.compile(r"[\w.+-]+")  # package names are tokens: "libc6", "g++", "x11-utils"
_WORD = re.compile(r"[^\W_]+")


def word_buckets(text: str, own_name: str) -> list[int]:
    """Return the bucket of each word of `text`, ascending, one entry per occurrence.

    Words are runs of letters and digits, in lower case. A token equal to `own_name` is dropped first: a
    package's name is not a feature.
    """
    tokens = (token.strip(".+-") for token in _TOKEN.findall(text.lower()))
    stripped = own_name.lower().strip(".+-")
    return sorted(_bucket(word) for token in tokens if token != stripped for word in _WORD.findall(token))


def word_counts(
    rows: npt.NDArray[np.int32], buckets: npt.NDArray[np.int32], num_rows: int
) -> npt.NDArray[np.uint8]:
    """Return (rows, BUCKETS) uint8 counts of each (row, bucket) in the two vectors, at most 255.

    The number of rows is `num_rows`.
    """
    cells, counts = np.unique(rows.astype(np.int64) * BUCKETS + buckets, return_counts=True)
    table = np.zeros(num_rows * BUCKETS, np.uint8)
    table[cells] = np.minimum(counts, np.iinfo(np.uint8).max)
    return table.reshape(num_rows, BUCKETS)


@lru_cache(maxsize=1 << 16)
def _bucket(word: str) -> int:
    """Return the first two bytes of the word's BLAKE2b digest (size 2), little endian, modulo BUCKETS."""
    return int.from_bytes(blake2b(word.encode(), digest_size=2).digest(), "little") % BUCKETS


Tables = tuple[dict[NodeType, NodeTable], dict[EdgeType, EdgeTable]]
LINKED: EdgeType = (PACKAGE, "linked", PACKAGE)
UNITED = ("pre_depends", "depends", "recommends", "suggests", "enhances")  # relations that link two packages
SPLIT_SEED = 0
_SPLITS = (("train", 0, 60), ("val", 60, 80), ("test", 80, 100))  # in percent


def plain_tables(facts: Facts) -> Tables:
    """Make one node type and one symmetric edge type: packages with a relation are linked."""
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

    Empty splits (of very small graphs) are omitted.
    """
    labeled = torch.from_numpy(np.flatnonzero(sections != UNKNOWN))
    count = len(labeled)
    order = permutation_slice(DrawKey.of(SPLIT_SEED, Purpose.SPLIT).value, count, 0, count)
    splits = {name: order[count * start // 100 : count * stop // 100] for name, start, stop in _SPLITS}
    return {name: labeled[positions].sort().values for name, positions in splits.items() if len(positions)}


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


def _read(name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Pairs:
    counts = arrays[f"{name}.counts"]
    return Pairs(np.repeat(np.arange(len(counts), dtype=np.int32), counts), arrays[f"{name}.right"])
