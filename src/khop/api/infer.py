"""Inference for every node of a graph into files: activations may be larger than memory."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

import khop
from khop.api.names_of import names_of
from khop.api.open_graph import Graph
from khop.arguments import check_word, graph_of, path_of
from khop.exchange.lanes import Lanes
from khop.graph.progress import in_bytes
from khop.inference.chunk_bounds import CHUNK_EDGES, ChunkLimits
from khop.inference.chunks import Progress, unwatched
from khop.inference.collective_chunks import CollectiveChunks, rank_bounds
from khop.inference.exact_draws import ALL_NEIGHBORS, ExactDraws, takes_fanouts
from khop.inference.node_outputs import Layers
from khop.inference.rank_folder import is_seen_by_all, own_stage, rank_folder
from khop.inference.row_output import RowOutput
from khop.inference.work_folder import remove, work_folder
from khop.loading.ordered_map import FEW_IN_FLIGHT, InFlight
from khop.models.edge_predictor import EdgePredictor
from khop.models.link_predictor import LinkPredictor
from khop.models.node_embedding import gathered
from khop.models.stack import Stack
from khop.rules.rule import Rule
from khop.rules.uniform import Uniform
from khop.runtime.group import ALONE, Group, this_group, unwrapped
from khop.sampling.fanouts import Fanout
from khop.sampling.given_seeds import SeedIds, node_ids
from khop.schema import NodeType, sole_type

Values = Literal["embeddings", "outputs"]
UNFINISHED = ".unfinished"  # suffix of the work folder next to the result
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def infer(
    model: nn.Module,
    graph: Graph,
    out: str | os.PathLike[str],
    *,
    node_types: NodeType | Sequence[NodeType] | None = None,
    nodes: SeedIds | None = None,
    values: Values = "embeddings",
    rule: Rule = Uniform(),
    fanouts: Sequence[Fanout] | None = None,
    chunk_size: int = 2048,
    chunk_edges: int = CHUNK_EDGES,
    progress: Progress = unwatched,
    in_flight: InFlight = FEW_IN_FLIGHT,
) -> dict[NodeType, Path]:
    """Compute a row for every node, or for `nodes` in their order, over all neighbors; return files by type.

    "embeddings" are the outputs of the model's last layer for the node type; for a link-prediction model, the
    inputs of its decoder. "outputs" are the outputs of the whole model, e.g. the logits of a classifier.
    `nodes` are ids or a boolean mask, as a tensor, an array or a list.
    Give the `rule` and the `fanouts` of training, as for `khop.layerwise_inference`.

    `out` ends in .npy (`name.ids.npy` next to it holds the ids) or in .parquet (columns of ids and rows).
    With several node types each has a file, such as `name.user.npy`. Files are written atomically.

    The computation runs layer by layer, in files: a process holds a few chunks of `chunk_size` nodes in
    memory, or of fewer nodes with `chunk_edges` edges, for any size of the graph. Collective: the ranks share
    the chunks, and the result is bit-identical for any number of ranks.

    If the call is killed, or stopped by a full disk, the next call resumes it, also with another number of
    ranks. Until then the unfinished work is in `out`.unfinished. Ranks that hold parts of the graph and share
    no file system write one file each, `name.rank-0.npy`; the returned path is then this rank's file.
    """
    graph_of("graph", graph)
    wanted = (node_types,) if isinstance(node_types, str) else tuple(node_types or ())
    wanted = wanted or (sole_type(graph.schema.node_types, "infer without node_types"),)
    chunks = ChunkLimits(chunk_size, chunk_edges)
    draws = ExactDraws(rule, fanouts)
    planned = Inference.of(model, graph, path_of("out", out), wanted, nodes, values, chunks, draws)
    return planned.run(progress, in_flight)


@dataclass(frozen=True, eq=False)
class Inference:
    """A validated plan of rows to compute and write."""

    out: Path
    layers: Layers
    outputs: tuple[RowOutput, ...]  # one for each stage of the last layer
    facts: dict[str, str]  # must be equal for a later call to reuse the work of this one
    lanes: Lanes | None = None  # of a graph that ranks hold in parts

    @classmethod
    def of(
        cls,
        model: nn.Module,
        graph: Graph,
        out: Path,
        node_types: Sequence[NodeType],
        nodes: SeedIds | None,
        values: Values,
        chunks: ChunkLimits,
        draws: ExactDraws = ALL_NEIGHBORS,
    ) -> Inference:
        """Make the plan; ValueError if model, graph and files do not fit together."""
        check_word("values", values, Values)
        ids = _checked_nodes(graph, node_types, nodes)
        model, depth = _rows_of(unwrapped(model), node_types, values)
        wanted = dict.fromkeys(node_types, ids)
        layers = Layers.of(model, graph, graph.features, wanted, chunks, depth=depth, draws=draws)
        outputs, names = [], names_of(graph)
        for stage in layers.stages[-1]:
            is_one = len(layers.stages[-1]) == 1
            path = out if is_one else out.with_name(f"{out.stem}.{stage.node_type}{out.suffix}")
            original, own = (of.get(stage.node_type) for of in (names.original_ids, names.ids))
            name = values.removesuffix("s")
            output = RowOutput(path, stage.node_type, name, stage.count, ids, original, own)
            output.check()
            outputs.append(output)
        with gathered(model):
            weights = _digest(*model.state_dict().values())
        facts = {
            "khop version": khop.__version__,
            "graph": _fingerprint(graph),
            "model": weights,
            "choice of nodes": "all" if ids is None else _digest(ids),
            "choice of values": f"{values} of {', '.join(node_types)}",
            "chunk size": str(chunks.nodes),
            "edges of a chunk": str(chunks.edges),
        }
        if draws.rule != Uniform():
            facts["rule"] = str(draws.rule)
        if takes_fanouts(draws.rule, graph.schema, graph.schema.edge_types):
            facts["fanouts"] = str(list(draws.fanouts or ()))
        return cls(out, layers, tuple(outputs), facts, graph.lanes)

    @property
    def bytes_kept(self) -> int:
        """Size of the result in bytes."""
        return sum(stage.entry.bytes + 8 * stage.count for stage in self.layers.stages[-1])

    @property
    def bytes_needed(self) -> int:
        """Peak disk usage in bytes: two layers, or the last layer and the result."""
        of_layers = [sum(stage.entry.bytes for stage in layer) for layer in self.layers.stages]
        pairs = [before + after for before, after in pairwise(of_layers)]
        return max([*pairs, self.bytes_kept, of_layers[-1] + self.bytes_kept * self._is_copied])

    @property
    def work_folder(self) -> Path:
        """Path of the folder with unfinished work."""
        return self.out.with_name(self.out.name + UNFINISHED)

    def run(
        self, progress: Progress = unwatched, in_flight: InFlight = FEW_IN_FLIGHT
    ) -> dict[NodeType, Path]:
        """Compute and write all rows; OSError if the disk has no space for them. Collective."""
        group = this_group()
        group.meet("inferring")
        try:
            with group.exchanging("inferring"):
                return self._run(progress, in_flight, group)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise OSError(
                f"{self.out}: no space for the rows ({os.strerror(error.errno)}); free some and "
                f"run it again, to continue from {self.work_folder}"
            ) from error

    def _run(self, progress: Progress, in_flight: InFlight, group: Group) -> dict[NodeType, Path]:
        sharing = self.layers.sharing(self.lanes, group, in_flight)
        if isinstance(sharing, CollectiveChunks) and not is_seen_by_all(
            self.out.absolute().parent, sharing.group
        ):
            return self._run_apart(progress, sharing)
        if group.rank == 0:
            self._check_space()
        with work_folder(self.work_folder, self.facts, self.layers.stages, group) as folder:
            first = folder.first_layer(self.layers.stages)
            rows = self.layers.computed(sharing, folder, progress, first=first)
            for stage, output in zip(self.layers.stages[-1], self.outputs, strict=True):
                output.write(rows[stage.node_type], folder.file(stage), group)
            remove(folder)
        return {output.node_type: output.path for output in self.outputs}

    def _run_apart(self, progress: Progress, sharing: CollectiveChunks) -> dict[NodeType, Path]:
        """Compute rows with one set of files per rank."""
        rank = sharing.group.rank
        stages = [own_stage(stage, sharing.group) for stage in self.layers.stages[-1]]
        outputs = [
            output.of_rank(rank, rank_bounds(stage, sharing.group.world_size)[rank], own.count)
            for stage, own, output in zip(self.layers.stages[-1], stages, self.outputs, strict=True)
        ]
        for output in outputs:
            output.check()
        path = self.out.with_name(f"{self.out.name}.rank-{rank}{UNFINISHED}")
        with rank_folder(path, self.facts, self.layers.stages, sharing.lanes) as folder:
            first = folder.first_layer(self.layers.stages)
            rows = self.layers.computed(sharing, folder, progress, first=first)
            for own, output in zip(stages, outputs, strict=True):
                output.write(rows[own.node_type], folder.folder.file(own), ALONE)
            remove(folder.folder)
        sharing.group.barrier()
        return {output.node_type: output.path for output in outputs}

    def _check_space(self) -> None:
        folder = self.out.absolute().parent
        there = sum(file.stat().st_blocks * 512 for file in self.work_folder.glob("*.npy"))
        free = shutil.disk_usage(folder).free + there
        if self.bytes_needed > free:
            raise OSError(
                f"{self.out}: needs {in_bytes(self.bytes_needed)} on the disk of {folder} while it is "
                f"computed, {in_bytes(free)} are free; free some, or write to another disk"
            )

    @property
    def _is_copied(self) -> bool:
        return self.out.suffix == ".parquet"


def _fingerprint(graph: Graph) -> str:
    found = graph.servers if graph.folder is None else graph.folder
    return f"in the memory of process {os.getpid()}" if found is None else found.fingerprint


def _checked_nodes(graph: Graph, node_types: Sequence[NodeType], nodes: SeedIds | None) -> Tensor | None:
    for node_type in node_types:
        if node_type not in graph.schema.node_types:
            there = ", ".join(graph.schema.node_types)
            raise ValueError(f"node type {node_type!r}: the graph has none of that name; it has {there}")
    if nodes is None:
        return None
    if len(node_types) > 1:
        raise ValueError(
            f"nodes with the node types {', '.join(node_types)}: ids need one node type, name it"
        )
    return node_ids(f"seeds of {node_types[0]!r}", nodes, graph.num_nodes(node_types[0]))


def _rows_of(
    model: nn.Module, node_types: Sequence[NodeType], values: Values
) -> tuple[nn.Module, int | None]:
    """Return the model that computes the rows, and the number of layers to apply; None: the whole model."""
    if isinstance(model, LinkPredictor | EdgePredictor):
        model = model.encoder
        if isinstance(model, Stack) and set(node_types) <= set(model.sizes.target_types):
            return model, None  # the decoder's input is the embedding
    return model, _depth(model, node_types) if values == "embeddings" else None


def _depth(model: nn.Module, node_types: Sequence[NodeType]) -> int:
    if not isinstance(model, Stack):
        return int(getattr(model, "num_layers", 0))
    depths = {node_type: model.depth(node_type) for node_type in node_types}
    for node_type, depth in depths.items():
        if depth == 0:
            raise ValueError(
                f"node type {node_type!r}: no layer of the model gives rows of it; its targets are "
                f"{', '.join(model.sizes.target_types)}"
            )
    if len(set(depths.values())) > 1:
        raise ValueError(
            f"node types {', '.join(node_types)}: they have different numbers of layers, {depths}; "
            "infer one type at a time"
        )
    return depths[node_types[0]]


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
