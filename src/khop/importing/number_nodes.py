"""Nodes of an import by their ids: the rows of node tables, then ids that edges name."""

from __future__ import annotations

import numpy as np

from khop.graph.parallel_tasks import in_order
from khop.importing.id_column import keys_of
from khop.importing.import_state import ImportState, edge_reader, node_reader
from khop.importing.rows import Rows
from khop.importing.source import OpenSource
from khop.kernels.id_table import Keys


def read_ids(work: ImportState) -> None:
    """Number the nodes: rows of node tables, then ids that edges add, in the order of the spec."""
    for node_type, source in work.sources.items():
        work.meter.begin(f"ids of {node_type}")
        _number_rows(work, node_type, source)
    for edge_type, rules in work.rules().items():
        ends = {edge_type[0], edge_type[2]}
        adds = ends if rules.orphans == "add" else {end for end in ends if _is_from_edges(work, end)}
        if adds or work.given is not None:
            name = " ".join(edge_type)
            work.meter.begin(f"ids of {name}")
            before = {end: len(work.ids[end].table) for end in sorted(adds) if end in work.sources}
            edge_reader(work, edge_type).add_ends(adds)
            if work.given is None:  # of later data, nodes of the graph get ids too
                added = {end: len(work.ids[end].table) - count for end, count in before.items()}
                work.notes += [
                    f"{name}: {n:,} nodes of {end} added by edges" for end, n in added.items() if n
                ]
    for node_type, of_type in work.ids.items():
        work.touched[node_type] = np.zeros(len(of_type.table), bool)
        if node_type in work.node_times and len(work.node_times[node_type]) != len(of_type.table):
            raise ValueError(
                f'edges add nodes to {node_type!r}, whose nodes have times; give orphans = "drop", or '
                f"complete the table of nodes.{node_type}"
            )


def _is_from_edges(work: ImportState, node_type: str) -> bool:
    """Return True for a type without a table: its nodes are ids that edges name."""
    if work.given is not None and not work.given.is_from_edges(node_type):
        return False
    return node_type not in work.sources


def _number_rows(work: ImportState, node_type: str, source: OpenSource) -> None:
    column, of_type = work.spec.nodes[node_type].id, work.ids[node_type]
    assert column is not None
    reader, times = node_reader(work, node_type, None), []
    wanted = [column] if reader.spec.time is None else [column, reader.spec.time]
    if reader.spec.time is not None and reader.spec.label is not None:
        wanted = [*dict.fromkeys([*wanted, reader.spec.label.column])]
    pieces: list[tuple[int, Rows]] = []  # without values: the places of rows, for errors
    for rows in in_order(source.pieces(wanted), work.threads):
        first = len(of_type.table)
        keys = keys_of(rows.column(column), of_type.kind, f"nodes.{node_type}.id", rows.row)
        pieces.append((first, Rows(rows.batch.select([]), rows.place, rows.numbers)))
        _refuse_known(work, node_type, keys, rows)
        twice = of_type.table.append(keys)
        if twice >= 0:
            before = int(of_type.table.find(keys[twice : twice + 1])[0])
            at, piece = next((begin, one) for begin, one in reversed(pieces) if begin <= before)
            value = rows.column(column)[twice].as_py()
            raise ValueError(
                f"{rows.row(twice)}: nodes.{node_type}.id is {value!r}, and so is "
                f"{piece.row(before - at)}; ids are unique, remove one of the rows"
            )
        of_rows = reader.times(rows)
        times += [] if of_rows is None else [of_rows]
    work.rows[node_type] = len(of_type.table)
    if reader.spec.time is not None and work.given is None:
        work.node_times[node_type] = np.concatenate(times) if times else np.zeros(0, np.int64)


def _refuse_known(work: ImportState, node_type: str, keys: Keys, rows: Rows) -> None:
    """Raise ValueError for a row of later data with the id of a node of the graph."""
    given = work.given
    if given is None or not given.stores_ids(node_type):
        return
    known = np.flatnonzero(given.rows(node_type, keys) >= 0)
    if len(known):
        value = rows.column(work.spec.nodes[node_type].id or "")[int(known[0])].as_py()
        raise ValueError(
            f"{rows.row(int(known[0]))}: nodes.{node_type}.id is {value!r}, a node of {given.home}; tables "
            "of later data hold new nodes, leave the row out, as by where"
        )
