"""Opened tables of an import, and the facts known of them so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.graph.progress import ProgressCallback
from khop.importing.edge_reader import EdgeReader, NodeTableIds
from khop.importing.given_encoders import GivenEncoders
from khop.importing.id_column import id_kind
from khop.importing.node_columns import NodeReader
from khop.importing.read_meter import ReadMeter
from khop.importing.row_splits import CutOffs
from khop.importing.source import PART, OpenSource, SourceFolder
from khop.importing.spec import EdgeRules, Spec, Split, Unit
from khop.importing.times import finest, unit_of
from khop.kernels.id_table import id_table
from khop.schema import EdgeType, edge_type_of


@dataclass(eq=False)
class ImportState:
    """The state of an import: opened tables, ids, edges."""

    spec: Spec
    sources: Mapping[str, OpenSource]  # by node type
    edge_sources: Mapping[EdgeType, OpenSource]
    edge_keys: Mapping[EdgeType, str]
    unit: Unit
    cut_offs: CutOffs | None
    threads: int
    memory: int
    meter: ReadMeter
    node_times: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    touched: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)  # by an edge before validation
    timed: dict[EdgeType, bool] = field(default_factory=dict)
    ids: dict[str, NodeTableIds] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    given: GivenEncoders | None = None  # None: encoders are made from the rows
    rows: dict[str, int] = field(default_factory=dict)  # nodes of tables, by type; the others are of edges

    def rules(self) -> dict[EdgeType, EdgeRules]:
        """Return the rules of each edge type."""
        return dict(self.spec.edge_types())

    def bound_ids(self, folder: Path) -> None:
        """Let dictionaries of ids take half the budget, and files in `folder` beyond it."""
        for of_type in self.ids.values():
            of_type.table.spill_beyond(self.ids_share, str(folder))

    @property
    def ids_share(self) -> int:
        """Bytes of memory that the dictionary of one type may take."""
        return self.memory // (2 * max(1, len(self.ids)))


def opened(
    spec: Spec,
    folder: SourceFolder,
    threads: int,
    memory: int,
    notice: ProgressCallback,
    given: GivenEncoders | None = None,
) -> ImportState:
    """Open and check all tables before rows are read."""
    sources = {
        node_type: OpenSource.open(node, f"nodes.{node_type}", folder, node.also, node.id or "")
        for node_type, node in spec.nodes.items()
        if node.has_rows
    }
    edge_sources: dict[EdgeType, OpenSource] = {}
    keys: dict[EdgeType, str] = {}
    for name, edge in spec.edges.items():
        keys[edge_type_of(name)] = f'edges."{name}"'
        edge_sources[edge_type_of(name)] = OpenSource.open(edge, f'edges."{name}"', folder)
    for number, table in enumerate(spec.edges_from):
        opened = OpenSource.open(table, f"edges_from[{number}]", folder)
        for at, typed in enumerate(table.edges):
            key = f"edges_from[{number}].edges[{at}]"
            keys[edge_type_of(typed.type)] = key
            edge_sources[edge_type_of(typed.type)] = opened.filtered(typed.where, f"{key}.where")
    spec = _with_parts(spec, sources, edge_sources, keys, folder)
    unit = spec.time_unit or finest(_units([*sources.values(), *edge_sources.values()]))
    cut_offs = None if spec.splits is None else CutOffs.of(spec.splits, unit, "splits.time")
    meter = ReadMeter(notice)
    work = ImportState(
        spec,
        {node_type: replace(source, meter=meter) for node_type, source in sources.items()},
        {edge_type: replace(source, meter=meter) for edge_type, source in edge_sources.items()},
        keys,
        unit,
        cut_offs,
        threads,
        memory,
        meter,
        given=given,
    )
    _check(work)
    return work


def _with_parts(
    spec: Spec,
    sources: dict[str, OpenSource],
    edge_sources: dict[EdgeType, OpenSource],
    keys: Mapping[EdgeType, str],
    folder: SourceFolder,
) -> Spec:
    """Return a spec whose splits by files are splits by a column, which its tables get."""
    by_column = Split(column=PART)
    nodes, edges = dict(spec.nodes), dict(spec.edges)
    for node_type, source in sources.items():
        node, split = spec.nodes[node_type], spec.node_split(node_type)
        if split is None or not split.files or (node.split is None and node.label is None):
            continue
        key = "splits" if node.split is None else f"nodes.{node_type}.split"
        sources[node_type] = source.with_parts(split, folder, key, node.id or "")
        nodes[node_type] = node.model_copy(update={"split": by_column})
    for name, edge in spec.edges.items():
        if edge.split is not None and edge.split.files:
            edge_type, key = edge_type_of(name), f"{keys[edge_type_of(name)]}.split"
            edge_sources[edge_type] = edge_sources[edge_type].with_parts(edge.split, folder, key)
            edges[name] = edge.model_copy(update={"split": by_column})
    tables = []
    for table in spec.edges_from:
        typed = []
        for one in table.edges:
            edge_type, split = edge_type_of(one.type), one.split
            if split is not None and split.files:
                key = f"{keys[edge_type]}.split"
                edge_sources[edge_type] = edge_sources[edge_type].with_parts(split, folder, key)
                one = one.model_copy(update={"split": by_column})
            typed.append(one)
        tables.append(table.model_copy(update={"edges": tuple(typed)}))
    return spec.model_copy(update={"nodes": nodes, "edges": edges, "edges_from": tuple(tables)})


def _units(sources: list[OpenSource]) -> list[Unit]:
    found: list[Unit] = []
    for source in sources:
        name = source.spec.time
        if name is not None:
            source.check({name: f"{source.key}.time"})
            dtype = source.schema.field(name).type
            found.append(unit_of(dtype, source.time_format, f"{source.key}.time"))
    return found


def _check(work: ImportState) -> None:
    """Raise ValueError for columns that do not exist and splits that cannot be made, before rows are read."""
    for node_type, source in work.sources.items():
        source.check(node_reader(work, node_type, None).columns())
        node, split = work.spec.nodes[node_type], work.spec.node_split(node_type)
        if node.label is not None and split is not None and split.time is not None and node.time is None:
            raise ValueError(
                f"nodes.{node_type}: its labels have no times, and the split is by time; give time = ..., or "
                "split = { ratio = [0.8, 0.1, 0.1] }"
            )
    for edge_type, rules in work.rules().items():
        reader = edge_reader(work, edge_type)
        is_by_time = rules.split is not None and rules.split.time is not None
        if is_by_time and reader.source.spec.time is None:
            raise ValueError(
                f"{reader.key}.split.time: the edges have no times; give time = ..., or "
                "split = { ratio = [0.8, 0.1, 0.1] }"
            )
        reader.source.check(reader.columns())
    for node_type, node in work.spec.nodes.items():
        columns = []
        if node_type in work.sources:
            columns.append((f"nodes.{node_type}.id", *_typed(work.sources[node_type], node.id or "")))
        for edge_type, rules in work.rules().items():
            for name, end in ((rules.source, edge_type[0]), (rules.destination, edge_type[2])):
                if end == node_type:
                    key = f"{work.edge_keys[edge_type]}.{'source' if name == rules.source else 'destination'}"
                    columns.append((key, *_typed(work.edge_sources[edge_type], name)))
        kind = id_kind(columns, node.id_type, node_type)
        work.ids[node_type] = NodeTableIds(kind, id_table(kind))


def _typed(source: OpenSource, column: str) -> tuple[Any, bool]:
    return source.schema.field(column).type, source.is_untyped


def node_reader(work: ImportState, node_type: str, touched: npt.NDArray[np.bool_] | None) -> NodeReader:
    """Return the reader of a node type."""
    node = work.spec.nodes[node_type]
    kind = work.ids[node_type].kind if node_type in work.ids else "string"
    split = node.split
    if split is None and node.label is not None:
        split = work.spec.node_split(node_type)
    encoders = None if work.given is None else work.given.node_encoders(node_type)
    return NodeReader(
        node_type, node, work.sources[node_type], kind, work.unit, split, work.cut_offs, touched,
        work.threads, encoders,
    )  # fmt: skip


def edge_reader(work: ImportState, edge_type: EdgeType) -> EdgeReader:
    """Return the reader of an edge type."""
    return EdgeReader(
        edge_type, work.rules()[edge_type], work.edge_sources[edge_type], work.edge_keys[edge_type],
        work.unit, work.cut_offs, work.ids, work.threads, work.given,
    )  # fmt: skip
