"""Package graphs as graph folders: a plain one, easy to train on, and a complete, typed one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.datasets.debian.facts import PACKAGE, SECTIONS, TAG, UNKNOWN, Facts
from khop.datasets.debian.words import word_buckets, word_counts
from khop.draw import DrawKey, Purpose
from khop.graph.build import write_graph
from khop.graph.inputs import Array
from khop.graph.progress import ProgressCallback
from khop.graph.tables import EdgeTable, NodeTable
from khop.kernels.permutation import permutation_slice
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
