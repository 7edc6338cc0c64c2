"""The snapshot of a graph that a run was trained on: embeddings belong to its nodes."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from khop.api.open_graph import Graph
from khop.graph.folder import GraphFolder
from khop.graph.snapshots import current_folder, folder_with, owner_of
from khop.models.encoder import Encoder
from khop.models.node_embedding import NodeEmbedding
from khop.runtime.group import this_group
from khop.training.checkpoint_files import read_state
from khop.training.replace_folder import pushed_folders


def has_node_tables(model: nn.Module, graph: Graph) -> bool:
    """Return True if a model has a row for each node of a type of the graph."""
    counts = {graph.num_nodes(node_type) for node_type in graph.schema.node_types}
    return any(
        isinstance(one, NodeEmbedding)
        or (isinstance(one, Encoder) and len(one.tables) > 0)
        or (isinstance(one, nn.Embedding) and one.num_embeddings in counts)
        for one in model.modules()
    )


def trained_snapshot(graph: Graph, checkpoint: Path) -> Path | None:
    """Return the snapshot that a checkpoint was trained on, if it is another one than `graph`. Collective.

    None if the graph has no such snapshot. Only rank 0 needs the checkpoint.
    """
    if not isinstance(graph.folder, GraphFolder):
        return None
    group = this_group()
    with group.exchanging("reading the graph of the checkpoint"):
        own = json.dumps(_recorded_graph(checkpoint) if group.rank == 0 else None)
        recorded: str | None = json.loads(group.share_bytes(own.encode()))
    if recorded is None or recorded == graph.folder.fingerprint:
        return None
    owner = owner_of(graph.folder.path) or graph.folder.path
    found = folder_with(owner, recorded)
    return None if found == owner else found


def newer_snapshot(graph: Graph) -> Path | None:
    """Return the newest snapshot of a graph folder if an earlier one is open."""
    owner = None if graph.folder is None else owner_of(graph.folder.path)
    newest = None if owner is None else current_folder(owner)
    return newest if graph.folder is not None and newest != graph.folder.path else None


def _recorded_graph(checkpoint: Path) -> str | None:
    """Return the fingerprint of the graph of training; None if no state of the checkpoint is intact."""
    for kept in pushed_folders(checkpoint) or [checkpoint]:
        try:
            training = read_state(kept)["training"]
        except ValueError:
            continue
        graph = training.get("facts", {}).get("graph")
        return graph if isinstance(graph, str) else None
    return None
