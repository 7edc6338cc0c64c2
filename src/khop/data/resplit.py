"""Graph folders with random splits of the labeled nodes. All other data are shared with the old folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from khop.arguments import seed_number, shown
from khop.draw import DrawKey, Purpose
from khop.graph import layout
from khop.graph.atomic import Meter, ProgressCallback, new_folder
from khop.graph.folder import (
    DOCUMENT,
    TIME_SPLIT,
    GraphFolder,
    documents_of,
    import_record,
    open_folder,
    record_document,
    refuse_damage,
    write_documents,
)
from khop.graph.folder_writer import FolderWriter, share_files
from khop.graph.manifest import write_manifest
from khop.graph.node_ids import LABEL
from khop.kernels.philox import permutation_slice
from khop.schema import NodeType

NAMES = ("train", "val", "test")
_MOST_NAMES = 10  # of classes in a note


@dataclass(frozen=True)
class Resplit:
    """The number of nodes of each split, and notes about lost cut-offs, labels and classes."""

    counts: Mapping[str, int]
    notes: tuple[str, ...]


def resplit(
    graph: Path,
    out: Path,
    ratio: Sequence[float],
    *,
    node_type: NodeType | None = None,
    label: str | None = None,
    seed: int = 0,
    notice: ProgressCallback | None = None,
) -> Resplit:
    """Write a graph with random splits of the labeled nodes.

    Arrays are shared with `graph` if the file system has hard links, and copied otherwise. The cut-offs of a
    split by time are removed, because runs would use different edges for nodes of each split. The splits
    depend only on the number of labeled nodes, the ratio and the seed. `ratio` has the shares of training,
    validation and test nodes; without a third share, all others are test nodes. ValueError for other shares,
    and for a folder that is partitioned or damaged.
    """
    folder = open_folder(graph)
    if not isinstance(folder, GraphFolder):
        raise ValueError(f"{graph}: is partitioned; split the graph first, then partition it")
    shares = _checked(ratio)
    node_type, label = folder.schema.label_column(node_type, label)
    refuse_damage(folder, notice)
    labels = folder.columns()[node_type][label]
    known = ~labels.isnan() if labels.is_floating_point() else labels >= 0
    nodes = (known if known.dim() == 1 else known.any(1)).nonzero().squeeze(1)
    splits, record = _drawn(nodes, shares, seed), import_record(folder)
    files = [file for file in folder.arrays if not file.startswith(f"{layout.node_splits(node_type)}/")]
    with new_folder(out) as target:
        writer = FolderWriter(target, Meter(sum(8 * ids.numel() for ids in splits.values()), notice))
        share_files(folder, writer, files)
        for name, ids in splits.items():
            writer.array(layout.node_split(node_type, name), "int64", tuple(ids.shape), [ids.numpy()])
        entries = tuple(
            replace(entry, splits=NAMES if entry.type == node_type else entry.splits)
            for entry in folder.manifest.nodes
        )
        contents = documents_of(folder.path, folder.documents)
        if TIME_SPLIT in record:
            kept = {key: value for key, value in record.items() if key != TIME_SPLIT}
            contents[DOCUMENT] = record_document(kept)
        documents = write_documents(target, contents)
        manifest = replace(folder.manifest, nodes=entries, arrays=writer.arrays, documents=documents)
        write_manifest(target, manifest)
    notes = _notes(graph, record, node_type, label, labels, nodes, splits["train"])
    return Resplit({name: ids.numel() for name, ids in splits.items()}, tuple(notes))


def _notes(
    graph: Path, record: Mapping[str, Any], node_type: NodeType, label: str, labels: Tensor, nodes: Tensor,
    training: Tensor,
) -> Iterator[str]:  # fmt: skip
    """Yield notes about removed cut-offs, labels that the import does not know, and lost classes."""
    if TIME_SPLIT in record:
        yield (
            f"the time cut-offs of {graph} are removed: all splits use all edges, and links are not split by "
            "time"
        )
    of_label = record.get("nodes", {}).get(node_type, {}).get(LABEL) if label == LABEL else None
    if of_label is not None and nodes.numel() < len(labels):
        yield (
            f"{len(labels) - nodes.numel():,} nodes of {node_type} are in no split: they have no label, or "
            "one of a class that was not in training when the graph was imported"
        )
    if labels.dim() == 1:
        lost = sorted({*labels[nodes].unique().tolist()} - {*labels[training].unique().tolist()})
        names = [str(one) if of_label is None else repr(of_label["classes"][one]) for one in lost]
        more = "" if len(names) <= _MOST_NAMES else f" and {len(names) - _MOST_NAMES:,} more"
        if names:
            yield f"classes without a training node: {', '.join(names[:_MOST_NAMES])}{more}"


def _checked(ratio: Sequence[float]) -> list[float]:
    shares = list(ratio)
    fits = all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares)
    if len(shares) not in (2, 3) or not fits:
        raise ValueError(
            f"ratio {shown(ratio)}: must be the shares of training, validation and test nodes, such as "
            "0.6,0.2,0.2; without a third share, all other nodes are test nodes"
        )
    if sum(shares) > 1 + 1e-9:
        raise ValueError(
            f"ratio {shown(ratio)}: the shares exceed 1, their sum is {sum(shares):g}; give "
            "smaller shares, such as 0.6,0.2,0.2"
        )
    return shares


def _drawn(nodes: Tensor, shares: Sequence[float], seed: int) -> dict[str, Tensor]:
    """Return the nodes of each split, in random order."""
    count = nodes.numel()
    key = DrawKey.of(seed_number(seed), Purpose.SPLIT)
    order = nodes[permutation_slice(key.value, count, 0, count)]
    sizes = [int(count * share + 1e-9) for share in shares]
    if len(sizes) == 2:
        sizes.append(count - sum(sizes))
    elif sum(shares) > 1 - 1e-9:  # shares of all nodes: none is lost by rounding
        last = max(index for index, share in enumerate(shares) if share)
        sizes[last] += count - sum(sizes)
    bounds = pairwise(accumulate(sizes, initial=0))
    return {name: order[first:last].clone() for name, (first, last) in zip(NAMES, bounds, strict=True)}
