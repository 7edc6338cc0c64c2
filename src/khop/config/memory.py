"""A check of the minimum memory of a run against this machine, before anything is allocated."""

from __future__ import annotations

from itertools import pairwise

from khop.config.fields import value_at
from khop.config.kinds import LINK_PREDICTION
from khop.config.link_task import targets_of
from khop.config.read import RawRun
from khop.config.values import RunConfig
from khop.graph.folder import Folder
from khop.graph.progress import in_bytes
from khop.kernels.memory import memory_limit_bytes
from khop.schema import NodeType

_FLOAT = 4
_TRAINED = 4  # values per parameter: the parameter, its gradient and Adam's two moments
_ROW_TRAINED = {"dense": 4, "sparse": 3, "sharded": 3}  # of embeddings: only dense ones have whole gradients
_PAIR_BYTES = 16  # two int64 ids
_OF_BATCH = "the pairs of a batch take"


def check_memory(config: RunConfig, graph: Folder, raw: RawRun, limit: int | None = None) -> None:
    """Raise ValueError if a single setting of the run needs more memory than this machine has.

    The count is a lower bound, so a run that passes may still be too large.
    """
    limit = memory_limit_bytes() if limit is None else limit
    needed = {
        "model.hidden": (weight_bytes(config, graph), "the weights and their updates take"),
        "model.embedding": (_replicated_embedding_numbers(config, graph) * _FLOAT, "the embeddings take"),
    }
    if config.task.kind == LINK_PREDICTION:  # another task may have no use for the table links
        links = config.links
        targets = targets_of(config.task.target, graph.schema)
        count = sum(map(graph.num_edges, targets))
        pair_bytes = _PAIR_BYTES * float(min(config.training.batch_size, count))  # one pair for each link
        negatives = count * (links.val + links.test) * links.eval_negatives
        table = _PAIR_BYTES / 2 * sum(graph.num_nodes(t[0]) for t in targets) * links.hard_negatives
        needed["links.negatives_per_positive"] = pair_bytes * links.negatives_per_positive, _OF_BATCH
        needed["links.shared_negatives"] = pair_bytes * links.shared_negatives, _OF_BATCH
        needed["links.hard_negatives"] = table, "the tables of hard negatives take"
        needed["links.eval_negatives"] = (_PAIR_BYTES / 2 * negatives, "the pairs of the held-out links take")
    for path, (size, what) in needed.items():
        value = value_at(config, path)
        if size > limit:
            raise ValueError(
                f"{path} is {value}: {what} {in_bytes(size)} at least, and this machine has "
                f"{in_bytes(limit)}; lower it ({raw.where(path)})"
            )


def weight_bytes(config: RunConfig, graph: Folder) -> float:
    """Return the least bytes of the weights, their gradients and Adam's moments."""
    outputs = config.model.hidden if config.task.kind == LINK_PREDICTION else 1
    inner = [config.model.hidden] * (len(config.sampler.fanouts) - 1)
    widths = [_input_width(config, graph), *inner, outputs]
    return _FLOAT * _TRAINED * float(sum(into * out for into, out in pairwise(widths)))


def embedding_bytes(config: RunConfig, graph: Folder, ranks: int) -> float:
    """Return the least bytes of embeddings on one of `ranks` ranks, with gradients and Adam's moments."""
    is_sharded = config.model.embedding_update == "sharded"
    numbers = _embedding_numbers(config, graph) / (ranks if is_sharded else 1)
    return _FLOAT * _ROW_TRAINED[config.model.embedding_update] * numbers


def _replicated_embedding_numbers(config: RunConfig, graph: Folder) -> float:
    """Return the numbers in embeddings that each rank holds for certain."""
    is_sharded = config.model.embedding_update == "sharded"
    return 0.0 if is_sharded else _embedding_numbers(config, graph)


def _embedding_numbers(config: RunConfig, graph: Folder) -> float:
    is_all = config.model.embedded_types == "all"
    types = (t for t in graph.schema.node_types if is_all or not _has_column(config, graph, t))
    return float(sum(map(graph.num_nodes, types))) * (config.model.embedding or 0)


def _input_width(config: RunConfig, graph: Folder) -> int:
    columns = graph.schema.columns
    having = [t for t in graph.schema.node_types if _has_column(config, graph, t)]
    return min((columns[t][config.model.column].width for t in having), default=1)


def _has_column(config: RunConfig, graph: Folder, node_type: NodeType) -> bool:
    return config.model.column in graph.schema.columns.get(node_type, {})
