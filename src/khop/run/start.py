"""Start of a run from the weights of another run; embeddings are matched by the nodes' ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from khop.data.builtin import builtin_folder, builtin_names
from khop.distributed.processes.group import this_group
from khop.graph.folder import Folder
from khop.graph.layout import owner_of
from khop.graph.node_ids import nodes_in
from khop.graph.partitions.parts_folder import known_folder
from khop.graph.remote import local_path
from khop.graph.snapshots import folder_with
from khop.models.encoder import Encoder, refuse_other_tables
from khop.run.build import CLASSES, Run, has_node_tables, recorded_facts
from khop.run.read import CHECKPOINTS, CONFIG, is_run_folder, read_toml
from khop.run.run_type import value_at
from khop.schema import NodeType
from khop.training.run_output import BEST
from khop.training.trainer import Trainer
from khop.user_cache import cache_folder


def start_from(run: Run, trainer: Trainer) -> list[str]:
    """Load the weights of `start_from`; return sentences about new nodes. Collective.

    Rank 0 reads the checkpoint, and the graph of its run if the model has embeddings by node.
    """
    config = run.config
    if config.start_from is None:
        return []
    checkpoint = checkpoint_of(Path(config.start_from))
    before = _facts_before(checkpoint)
    _refuse_other_classes(run, before)
    nodes = _nodes(run, checkpoint) if has_node_tables(run.model, run.run_task.whole) else {}
    trainer.start_from(checkpoint, nodes, optimizer=config.start_optimizer)
    counts = {t: int((of_type < 0).sum()) for t, of_type in nodes.items()}
    new = [f"{count:,} of {nodes[t].numel():,} {t}" for t, count in counts.items() if count]
    of_new = f"; new nodes: {', '.join(new)}" if new else ""
    here = Path.cwd()
    shown = checkpoint.relative_to(here) if checkpoint.is_relative_to(here) else checkpoint
    note = run.note_on_links(before.get("graph"))
    return [f"weights of {shown}{of_new}", *([] if note is None else [note])]


def checkpoint_of(path: Path) -> Path:
    """Return a checkpoint, or the best one of a run folder."""
    return path / CHECKPOINTS / BEST if is_run_folder(path) else path


def _facts_before(checkpoint: Path) -> Mapping[str, str]:
    """Return the facts of the run of a checkpoint, which rank 0 reads. Collective."""
    group = this_group()
    with group.exchanging("reading the classes of the checkpoint"):
        own = json.dumps(dict(recorded_facts(checkpoint)) if group.rank == 0 else None)
        found: Mapping[str, str] = json.loads(group.share_bytes(own.encode()))
    return found


def _refuse_other_classes(run: Run, before: Mapping[str, str]) -> None:
    """Raise ValueError if the label of both runs has other classes, or in another order."""
    config = run.config
    is_same_label = all(
        before.get(path) == str(value_at(config, path)) for path in ("task.target", "task.label")
    )
    given, now = json.loads(before.get(CLASSES, "[]")), [*run.classes]
    if is_same_label and given and now and given != now:
        raise ValueError(
            f"start_from is {config.start_from!r}: its classes of {config.task.target} are "
            f"{', '.join(given)}, and those of this run are {', '.join(now)}, so outputs would stand for "
            "other classes; give the label the classes of that run, by seeds.classes or in the import, or "
            "leave start_from out"
        )


def _nodes(run: Run, checkpoint: Path) -> dict[NodeType, Tensor]:
    """Return by type the nodes in the checkpoint's graph, int64, -1 for new nodes; {} for an equal graph.

    Only types with embeddings are included.
    """
    group, whole = this_group(), run.run_task.whole
    encoders = [module for module in run.model.modules() if isinstance(module, Encoder)]
    types = list(dict.fromkeys(t for encoder in encoders for t in encoder.embedded))
    with group.exchanging("finding the nodes of the checkpoint"):
        before = _graph_before(run, checkpoint) if group.rank == 0 else None
        is_other = json.loads(group.share_bytes(json.dumps(before is not None).encode()))
        if not is_other:
            return {}
        refuse_other_tables(run.model, {t: whole.num_nodes(t) for t in whole.schema.node_types})
        found = {}
        for node_type in types:
            own = None
            if before is not None:
                assert run.graph.folder is not None, "_graph_before has refused it"
                own = nodes_in(before, run.graph.folder, node_type).tobytes()
            shared = np.frombuffer(group.share_bytes(own), np.int64)
            found[node_type] = torch.from_numpy(shared.copy())
    return found


def _graph_before(run: Run, checkpoint: Path) -> Folder | None:
    """Return the graph that a checkpoint was trained on; None if it is the graph of the run.

    ValueError if it does not exist any more.
    """
    recorded = recorded_facts(checkpoint).get("graph")
    if recorded in (None, run.fingerprint):
        return None
    if run.graph.folder is None:
        raise ValueError(
            f"start_from is {str(checkpoint)!r}: its embeddings belong to the nodes of another graph, and a "
            "graph on servers has no ids to match them; train on the graph folder"
        )
    home = checkpoint.parent.parent / CONFIG
    name = str(read_toml(home).values.get("graph", "")) if home.is_file() else ""
    places = (
        [builtin_folder(name, cache_folder()) if name in builtin_names() else local_path(name)]
        if name
        else []
    )
    for path in (*places, run.graph.folder.path):
        owner = owner_of(path) or path
        for folder in (path, folder_with(owner, recorded)):
            if folder.is_dir() and (found := known_folder(folder)).fingerprint == recorded:
                return found
    raise ValueError(
        f"start_from is {str(checkpoint)!r}: its embeddings belong to the nodes of "
        f"{name or 'another graph'}, which has changed since and has no snapshot of that state; restore the "
        "graph, or train without start_from"
    )
