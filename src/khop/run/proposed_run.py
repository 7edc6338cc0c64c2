"""A run file proposed for a graph: task, splits and features, with comments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from khop.api.open_graph import open_graph
from khop.api.split_links import link_counts
from khop.graph.folder import Folder, import_record, negatives_folder, recorded_cut_offs, standard_set
from khop.graph.node_ids import LABEL, LABEL_TIME
from khop.graph.partitions.parts_folder import PartsFolder, known_folder
from khop.graph.remote import is_there
from khop.run.parts import words_of
from khop.run.read import EMBEDDING
from khop.run.tasks.resolve_task import forward_types, link_split
from khop.sampling.links.link_split import SPLIT, TIME
from khop.schema import EdgeType, NodeType, Schema

_SPLITS = ("train", "val", "test")
_INPUT, _UNKNOWN = "x", 0.05
_RARE = 0.1  # share of a class below which accuracy is not informative
_BATCH, _LEAST_BATCH, _STEPS = 1024, 32, 500  # steps of a small run: at most and at least
_METRICS = {
    "node-classification": '# metric = "f1-macro"  # instead of accuracy',
    "node-regression": '# metric = "mae"  # instead of rmse',
    "multi-label": '# metric = "f1-macro"  # instead of f1-micro',
}
# By type and column: kind of the task, sizes of the splits.
Labels = Mapping[tuple[NodeType, str], tuple[str, int, int, int]]
Settings = Mapping[str, Any]  # settings of a published result


def proposed_run(path: Path) -> str:
    """Return the text of a run file that trains on the graph without changes.

    The task predicts the first label with splits, or else the links of an edge type. Raises ValueError if the
    graph has neither.
    """
    folder = known_folder(path)
    labels = {
        (node_type, name): (kind, *sizes)
        for node_type in folder.schema.node_types
        for name, kind in _kinds(folder, node_type).items()
        if (sizes := _sizes(folder, node_type))
    }
    lines, seeds = _nodes(folder, labels) if labels else _links(path, folder)
    cut_offs = recorded_cut_offs(folder)
    head = [
        f"# A run on {path}: khop train FILE. Other settings have their defaults.",
        f"graph = {_text(str(path))}",
    ]
    if cut_offs is not None:
        unit = import_record(folder).get("time_unit")
        val, test = (_moment(time, unit) for time in (cut_offs.val, cut_offs.test))
        head.append(f"# Split by time: validation begins at {val}, test at {test}.")
    published = standard_set(folder).get("published")
    settings: Settings = {} if published is None else published["settings"]
    if published is not None:
        head.append("# Published: {metric} {value} on test by {model}, {source}".format_map(published))
        head.append("# khop has no measured result on this dataset; the settings below are a start.")
    target = next(iter(labels))[0] if labels else None
    rest = [*_model(folder.schema, settings, target), "", *_training(seeds, settings)]
    lines += [] if target is None else _events_as_nodes(folder.schema, target)
    return "\n".join([*head, "", *lines, "", *rest]) + "\n"


def _kinds(folder: Folder, node_type: NodeType) -> dict[str, str]:
    """Return the task of each label column: columns of classes, and the label written by an import."""
    columns = folder.schema.columns.get(node_type, {})
    found = {name: "node-classification" for name, spec in columns.items() if spec.num_classes is not None}
    label = import_record(folder).get("nodes", {}).get(node_type, {}).get(LABEL, {})
    task = standard_set(folder).get("labels", {}).get(node_type)
    found |= {LABEL: task} if task is not None and LABEL in columns else {}
    kinds = {"number": "node-regression", "multi": "multi-label"}
    return found | ({LABEL: kinds[label["kind"]]} if label.get("kind") in kinds else {})


def _sizes(folder: Folder, node_type: NodeType) -> tuple[int, int, int] | None:
    """Return the sizes of the three splits of a type; None if one is missing."""
    if any(name not in folder.split_names or node_type not in folder.split(name) for name in _SPLITS):
        return None
    train, val, test = (folder.split(name)[node_type].numel() for name in _SPLITS)
    return train, val, test


def _nodes(folder: Folder, labels: Labels) -> tuple[list[str], int]:
    (target, label), (kind, train, val, test) = next(iter(labels.items()))
    share = _share_of_rare_class(folder, target, label) if kind == "node-classification" else None
    others = [f"{name} of {node_type}" for node_type, name in list(labels)[1:]]
    lines = [
        "[task]",
        f"kind = {_text(kind)}",
        f"target = {_text(target)}",
        f"label = {_text(label)}  # {train:,} training, {val:,} validation and {test:,} test nodes",
        *([f"# other labels: {', '.join(others)}"] if others else []),
        _METRICS[kind]
        if share is None
        else f'metric = "average-precision"  # one class has {share:.2%} of the training nodes\n'
        'class_weights = "balanced"',
    ]
    return lines, train


def _share_of_rare_class(folder: Folder, target: NodeType, label: str) -> float | None:
    """Return the share of the rarer of two classes in training, if it is below 10 %."""
    if folder.schema.column(target, label).num_classes != 2 or isinstance(folder, PartsFolder):
        return None
    values = folder.columns()[target][label][folder.split("train")[target]]
    known = values[values >= 0]
    share = float((known == 1).double().mean()) if known.numel() else 0.5
    return min(share, 1 - share) if 0 < min(share, 1 - share) < _RARE else None


def _events_as_nodes(schema: Schema, target: NodeType) -> list[str]:
    """Propose to import the edges at labeled nodes as nodes, if these edges have numbers."""
    found: list[str] = []
    for edge_type in schema.edge_types:
        names = [name for name in schema.columns.get(edge_type, {}) if name not in (TIME, SPLIT)]
        if names and target in (edge_type[0], edge_type[2]) and edge_type in forward_types(schema):
            found.append(f"{', '.join(names)} of {words_of(edge_type)}")
    if not found:
        return []
    return [
        "",
        f"# Edges at {target} have numbers that sage does not read: {'; '.join(found)}.",
        "# Import each of these rows as a node, with the numbers as its columns and an edge to each end, and",
        '# every model reads them: docs/import-later.md, "Events as nodes", has the spec. Or keep the edges,',
        '# with model.kind = "gat" and model.edge_column = "...".',
    ]


def _links(path: Path, folder: Folder) -> tuple[list[str], int]:
    schema, cut_offs = folder.schema, recorded_cut_offs(folder)
    firsts = forward_types(schema)
    columns = {t: schema.columns.get(t, {}) for t in firsts}
    kinds = {t: link_split("auto", columns[t], cut_offs) for t in firsts if folder.num_edges(t) >= 10}
    for edge_type in sorted(kinds, key=lambda t: (kinds[t] == "random", -folder.num_edges(t))):
        counts = _link_counts(path, folder, edge_type, kinds[edge_type])
        if min(counts) > 0:
            given = _published_negatives(path, folder)
            return _of_links(edge_type, kinds[edge_type], counts, firsts, given)
    raise ValueError(
        f"{path}: no node type has a label with the splits train, val and test, and no edge type has 10 "
        "links or more; import it with label = ..., or with edges"
    )


def _link_counts(path: Path, folder: Folder, edge_type: EdgeType, kind: str) -> tuple[int, ...]:
    if kind == "random":
        tenth = folder.num_edges(edge_type) // 10
        return folder.num_edges(edge_type) - 2 * tenth, tenth, tenth
    return link_counts(open_graph(path), edge_type, "time" if kind == "time" else "column")


def _published_negatives(path: Path, folder: Folder) -> tuple[list[str], list[str]]:
    """Return lines of [task] and of [links] for negatives next to the graph; ([], []) if there are none."""
    published, home = standard_set(folder).get("published"), negatives_folder(path)
    if published is None or not is_there(home):
        return [], []
    files = [f"{split}_negatives = {_text(str(home / f'{split}.parquet'))}" for split in ("val", "test")]
    return [f"metric = {_text(published['metric'].lower())}"], [f"{files[0]}  # published", files[1]]


def _of_links(
    edge_type: EdgeType,
    kind: str,
    counts: tuple[int, ...],
    firsts: list[EdgeType],
    given: tuple[list[str], list[str]],
) -> tuple[list[str], int]:
    train, val, test = counts
    why = {"time": "by the cut-offs above", "column": "by its column split", "random": "at random"}
    others = [words_of(t) for t in firsts if t != edge_type]
    lines = [
        "[task]",
        'kind = "link-prediction"',
        f"target = {_text(words_of(edge_type))}",
        *given[0],
        *([f"# other edge types: {', '.join(others)}"] if others else []),
        "",
        "[links]",
        f"split = {_text(kind)}  # {why[kind]}: {train:,} training, {val:,} validation and {test:,} test "
        "links",
        *(given[1] or ["eval_negatives = 20  # negatives per validation or test link"]),
    ]
    return lines, train


def _model(schema: Schema, settings: Settings, target: NodeType | None) -> list[str]:
    """Propose the input, the neighbors and, if labeled nodes have times, that only earlier ones are drawn."""
    having = {t: list(schema.columns.get(t, {})) for t in schema.node_types}
    columns = [of for t in having for of in schema.columns.get(t, {}).items()]
    fit = (name for name, spec in columns if "float" in spec.dtype or spec.sparse_width is not None)
    names = dict.fromkeys(fit)
    column = _INPUT if _INPUT in names or not names else next(iter(names))
    without = [t for t in schema.node_types if column not in having[t]]
    lines = ["[model]", f"column = {_text(column)}  # the input of the node types that have it"]
    is_new = target is not None and TIME in having[target]
    is_timed = is_new or (target is not None and LABEL_TIME in having[target])
    if without == [target] and is_new and names:
        lines.append(f"embedding = 0  # nodes of {target} are new at each time: they get no embeddings")
    elif without:
        others = [t for t in without if not (is_new and t == target)] or without
        lines.append(f"embedding = {EMBEDDING}  # width of the embeddings of {', '.join(others)}")
        if others != without:
            lines.append(f'embedded_types = "others"  # nodes of {target} are new at each time')
        lines.append(
            f"unknown = {_UNKNOWN}  # share replaced by one shared embedding in training, which "
            f"unseen nodes get"
        )
    fanouts = settings.get("fanouts", [15, 10])
    sampler = ["[sampler]", f"fanouts = {fanouts}  # neighbors of each hop; one layer per hop"]
    if is_timed:
        sampler.append(f'time = "{TIME}"  # only edges and nodes before a labeled node are drawn for it')
        sampler += ["", "[evaluation]", f"fanouts = {fanouts}  # neighbors are drawn as in training"]
    lines.append(f"hidden = {settings.get('hidden', 64)}")
    if "dropout" in settings:
        lines.append(f"dropout = {settings['dropout']}")
    return [*lines, "", *sampler]


def _training(seeds: int, settings: Settings) -> list[str]:
    """Propose enough steps to learn from: small graphs get small batches and more epochs."""
    small = max(_LEAST_BATCH, 1 << max(0, (seeds // 16).bit_length() - 1))
    batch = min(settings.get("batch_size", _BATCH), small)
    steps = -(-seeds // batch)
    enough = min(50, max(10, -(-_STEPS // steps)))
    return [
        "[training]",
        f"epochs = {settings.get('epochs', enough)}",
        f"batch_size = {batch}  # {steps:,} steps per epoch",
        f"learning_rate = {settings.get('learning_rate', 0.003)}",
    ]


def _moment(time: int, unit: Literal["s", "ms", "us", "ns"] | None) -> str:
    """Return a time of the graph as people write it; the number itself if the unit is not known."""
    return str(time) if unit is None else f"{np.datetime_as_string(np.datetime64(time, unit), 'auto')} UTC"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
