"""Verification of a graph folder: all arrays are read, and problems are reported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from khop.errors import REMEDY
from khop.graph import layout
from khop.graph.atomic import Meter, ProgressCallback
from khop.graph.derived import derived_files, derived_problems
from khop.graph.folder import ORIGINAL_ID, read_document
from khop.graph.inputs import Given, check_sparse, check_splits
from khop.graph.manifest import INPUT, EdgeEntry, Manifest, NodeEntry, read_manifest
from khop.graph.node_ids import first_lost, ids_of
from khop.graph.npy import ID_ARRAYS, file_checksum, map_array, row_chunks
from khop.graph.snapshots import Snapshot, snapshot_folder, snapshot_record
from khop.kernels.csc import Csc, check_offsets
from khop.kernels.edge_arrays import first_unsorted
from khop.kernels.edge_times import EdgeTimes, whole_numbers
from khop.schema import EdgeType, NodeType

WRITE_AGAIN = "write the graph again"
Check = Callable[[Given], None]  # raises ValueError
_SEEN_AT_ONCE = 1 << 28  # ids marked in one pass over a permutation, one byte each


@dataclass(frozen=True)
class FileFinding:
    """A problem and its file."""

    file: str  # relative to the folder
    problem: str


def verify_folder(
    path: str | os.PathLike[str], progress: ProgressCallback | None = None
) -> list[FileFinding]:
    """Return all problems of a folder, sorted by file; empty if there are none.

    After appends, the newest snapshot is checked, and the record of all snapshots.

    Sizes, headers and checksums reveal damage. Ids, offsets, lengths, labels and splits reveal a faulty
    writer. Reads every file of graph.json twice, and derived files once. ValueError if there is no graph
    folder.
    """
    folder = Path(path)
    try:
        snapshots = snapshot_record(folder).snapshots
    except ValueError as error:
        record = folder / layout.SNAPSHOT_RECORD
        return [FileFinding(layout.SNAPSHOT_RECORD, str(error).removeprefix(f"{record}: "))]
    if snapshots:
        return _snapshot_problems(folder, snapshots, progress)
    try:
        manifest, fingerprint = read_manifest(folder)
    except ValueError as error:
        if not (folder / layout.MANIFEST).is_file():
            raise
        return [FileFinding(layout.MANIFEST, str(error))]
    findings = [FileFinding(file, f"{problem}; {REMEDY}") for file, problem in manifest.problems(folder)]
    checks = _checks(manifest)
    sound = sorted((manifest.arrays.keys() & checks.keys()) - {finding.file for finding in findings})
    derived_bytes = sum(file.lstat().st_size for file in derived_files(folder, fingerprint))
    meter = Meter(2 * sum(manifest.arrays[file].bytes for file in sound) + derived_bytes, progress)
    findings += _damage(folder, manifest, sound, meter)
    sound = sorted(set(sound) - {finding.file for finding in findings})
    findings += _contradictions(folder, manifest, {file: checks[file] for file in sound}, meter)
    damaged = derived_problems(folder, fingerprint, manifest.arrays, meter.at)
    findings += [FileFinding(file, problem) for file, problem in damaged]
    for name, sha256 in manifest.documents.items():
        findings += document_problems(folder, name, sha256)
    meter.at("done", meter.total - meter.done)
    return sorted(findings, key=lambda finding: finding.file)


def _snapshot_problems(
    folder: Path, snapshots: Sequence[Snapshot], progress: ProgressCallback | None
) -> list[FileFinding]:
    """Return the problems of the newest snapshot, and the earlier ones that are missing or replaced."""
    findings = []
    for number, snapshot in enumerate(snapshots, start=1):
        own = snapshot_folder(folder, snapshot)
        home = own.relative_to(folder)
        try:
            if read_manifest(own)[1] != snapshot.fingerprint:
                problem = f"is not the graph that {layout.SNAPSHOT_RECORD} names; {REMEDY}"
                findings.append(FileFinding(str(home / layout.MANIFEST), problem))
            if number == len(snapshots):
                findings += [replace(one, file=str(home / one.file)) for one in verify_folder(own, progress)]
        except ValueError as error:
            findings.append(FileFinding(str(home), str(error).removeprefix(f"{own}: ")))
    return sorted(set(findings), key=lambda finding: finding.file)


def document_problems(folder: Path, name: str, sha256: str) -> Iterator[FileFinding]:
    """Yield the damage of a document, if there is any."""
    try:
        read_document(folder, name, sha256)
    except ValueError as error:
        yield FileFinding(name, str(error).removeprefix(f"{folder / name}: "))


def _damage(folder: Path, manifest: Manifest, files: list[str], meter: Meter) -> Iterator[FileFinding]:
    for file in files:
        if file_checksum(folder / file, partial(meter.at, file)) != manifest.arrays[file].sha256:
            yield FileFinding(file, f"checksum differs from graph.json; {REMEDY}")


def _contradictions(
    folder: Path, manifest: Manifest, checks: Mapping[str, Check], meter: Meter
) -> Iterator[FileFinding]:
    right: dict[str, Given] = {}
    for file, check in checks.items():
        given = Given.of(map_array(folder / file, manifest.arrays[file]), file)
        try:
            check(given)
            right[file] = given
        except ValueError as error:
            yield FileFinding(file, str(error))
        meter.at(file, manifest.arrays[file].bytes)
    for edge in manifest.edges:
        yield from _disorder(edge, right)
    for node in manifest.nodes:
        if node.ids and all(layout.node_ids(node.type, n) in right for n in ID_ARRAYS[node.ids](node.count)):
            yield from _lost_ids(folder, manifest, node)
        splits = {name: layout.node_split(node.type, name) for name in node.splits}
        try:
            given_splits = {name: right[file] for name, file in splits.items() if file in right}
            check_splits(given_splits, node.count, f"{node.type!r} nodes")
        except ValueError as error:
            yield FileFinding(layout.node_splits(node.type), str(error))


def _disorder(edge: EdgeEntry, right: Mapping[str, Given]) -> Iterator[FileFinding]:
    """Yield rows that are not in the order that graph.json states."""
    files = {
        "indptr": layout.edge_array(edge.type, "indptr"),
        "indices": layout.edge_array(edge.type, "indices"),
    }
    times: dict[NodeType | EdgeType, str] = {
        edge.type: layout.edge_column(edge.type, edge.row_order),
        edge.type[0]: layout.node_column(edge.type[0], edge.row_order),
    }
    if edge.times:  # a partition has only the times of its nodes, and the times of all its edges
        times = {edge.type: layout.edge_array(edge.type, "times")}
    if edge.row_order == INPUT or not all(file in right for file in files.values()):
        return
    csc = Csc(right[files["indptr"]].tensor(), right[files["indices"]].tensor())
    columns = {
        type_: {edge.row_order: right[file].tensor()} for type_, file in times.items() if file in right
    }
    own, of_sources = (columns.get(type_, {}).get(edge.row_order) for type_ in (edge.type, edge.type[0]))
    if own is None and of_sources is None:
        return
    found = EdgeTimes(*(None if given is None else whole_numbers(given) for given in (own, of_sources)))
    position = first_unsorted(csc, found)
    if position >= 0:
        yield FileFinding(
            files["indices"],
            f"row_order is {edge.row_order!r}, but the edge at position {position} is earlier than the one "
            f"before it; {WRITE_AGAIN}",
        )


def _checks(manifest: Manifest) -> dict[str, Check]:
    """Return a function for each file that checks its values."""
    checks: dict[str, Check] = {}
    for node in manifest.nodes:
        checks |= _node_checks(node)
    for edge in manifest.edges:
        checks |= _edge_checks(edge, manifest.num_sources(edge.type[0]))
        if manifest.part is not None and edge.edge_id:  # positions in the whole graph's input
            checks[layout.edge_array(edge.type, "edge_id")] = partial(
                Given.check_ids, count=1 << 62, what="edges", way_out=WRITE_AGAIN
            )
    return checks


def _node_checks(node: NodeEntry) -> dict[str, Check]:
    checks: dict[str, Check] = {}
    for name in node.columns:
        file = layout.node_column(node.type, name)
        checks[file] = Given.check_original_ids if name == ORIGINAL_ID else _check_numbers
        if name in node.sparse:
            checks[file] = partial(check_sparse, width=node.sparse[name])
        if name in node.num_classes:
            checks[file] = partial(Given.check_labels, num_classes=node.num_classes[name])
    for name in node.splits:
        checks[layout.node_split(node.type, name)] = partial(_check_split, node=node)
    for name in ID_ARRAYS[node.ids](node.count) if node.ids else ():
        checks[layout.node_ids(node.type, name)] = _ID_CHECKS.get(name, Given.check_finite)
    return checks


def _check_numbers(given: Given) -> None:
    """Check a node column. It may be a regression target, in which NaN means unknown."""
    given.check_finite("NaN")


def _edge_checks(edge: EdgeEntry, num_sources: int) -> dict[str, Check]:
    checks: dict[str, Check] = {
        layout.edge_array(edge.type, "indptr"): lambda given: check_offsets(given.tensor(), edge.count),
        layout.edge_array(edge.type, "indices"): partial(
            Given.check_ids, count=num_sources, what=f"{edge.type[0]!r} nodes", way_out=WRITE_AGAIN
        ),
        layout.edge_array(edge.type, "edge_id"): partial(_check_permutation, count=edge.count),
    }
    if edge.times:
        checks[layout.edge_array(edge.type, "times")] = Given.check_finite
    return checks | {layout.edge_column(edge.type, name): Given.check_finite for name in edge.columns}


def _check_each_id(given: Given) -> None:
    """Raise ValueError unless each node is in the index exactly once."""
    _check_permutation(given, len(given))


_ID_CHECKS: dict[str, Check] = {"rows": _check_each_id}


def _lost_ids(folder: Path, manifest: Manifest, node: NodeEntry) -> Iterator[FileFinding]:
    """Yield a finding if the index does not lead from an id to its node."""
    file = layout.node_ids(node.type, "rows")
    try:
        ids = ids_of(folder, manifest, node.type)
        lost = first_lost(ids)
    except ValueError as error:
        yield FileFinding(file, f"the index of ids is damaged ({error}); {WRITE_AGAIN}")
        return
    if lost >= 0:
        yield FileFinding(file, f"the id of node {lost} is not found, or names another node; {WRITE_AGAIN}")


def _check_split(given: Given, node: NodeEntry) -> None:
    check_splits({given.name: given}, node.count, f"{node.type!r} nodes")


def _check_permutation(given: Given, count: int) -> None:
    given.check_ids(count, "edges", WRITE_AGAIN)
    for first in range(0, count, _SEEN_AT_ONCE):
        seen = np.zeros(min(_SEEN_AT_ONCE, count - first), bool)
        for _, ids in row_chunks(given.values):
            seen[ids[(ids >= first) & (ids < first + len(seen))] - first] = True
        if not seen.all():
            position = first + int(np.argmin(seen))
            raise ValueError(f"{given.name}: no edge has input position {position}; {WRITE_AGAIN}")
