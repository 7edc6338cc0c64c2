"""Start of a run from the checkpoint of another one: weights by name, embeddings by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from khop.models.encoder import Encoder
from khop.models.layer import parameter_name, plain_name
from khop.models.node_embedding import gathered
from khop.schema import NodeType
from khop.training.checkpoint import Checkpoint, named_groups, restore_model, restore_optimizer
from khop.training.optimizer_settings import ModelOptimizer

_OF_THE_RUN = {"params", "lr", "initial_lr", "fused", "foreach", "capturable", "differentiable"}


def start(
    model: nn.Module,
    optimizer: ModelOptimizer | None,
    checkpoint: Checkpoint,
    nodes: Mapping[NodeType, Tensor],
) -> None:
    """Load the weights of another run, and the state of its optimizer if `optimizer` is given.

    `nodes` maps types to the nodes in the other run's graph, int64 (nodes), -1 for new ones; nodes of other
    types have the same numbers, and additional ones are new. A new node gets the row `unknown` of the
    checkpoint, or keeps the row of `model` if there is none. Settings of the optimizer, such as its learning
    rate, and buffers with another shape are not changed. Raises ValueError for a mismatch. Collective if
    embeddings are sharded.
    """
    with gathered(model):
        own = {plain_name(name): tensor.detach() for name, tensor in model.state_dict().items()}
    stored, moments = {**checkpoint.model}, {**checkpoint.optimizer}
    for name in {plain_name(name) for name, _ in model.named_buffers()} & own.keys() & stored.keys():
        if stored[name].shape != own[name].shape:
            stored[name] = own[name]
    for table, unknown, node_type in _tables(model):
        if table not in stored or stored[table].shape[1:] != own[table].shape[1:]:
            continue  # refused below
        places = _Places.of(nodes.get(node_type), len(stored[table]), len(own[table]), node_type)
        for key, state in moments.items():
            if key.rpartition("/")[0] == table and state.dim() and len(state) == places.before:
                moments[key] = places.moved(state, torch.zeros(()))
        stored[table] = places.moved(stored[table], stored.get(unknown, own[table]))
    fitting = replace(checkpoint, model=stored, optimizer=moments)
    restore_model(model, fitting)
    if optimizer is not None:
        groups = _groups(named_groups(model, optimizer), checkpoint.groups)
        restore_optimizer(model, optimizer, replace(fitting, groups=groups))


@dataclass(frozen=True)
class _Places:
    """Nodes of one type in the graph of the checkpoint."""

    nodes: Tensor  # int64 (nodes), -1 for new ones
    before: int  # nodes in the graph of the checkpoint

    @classmethod
    def of(cls, nodes: Tensor | None, before: int, count: int, node_type: NodeType) -> _Places:
        if nodes is None and count < before:
            raise ValueError(
                f"{node_type!r} has {before:,} embeddings in the checkpoint, but the graph has {count:,} "
                f"nodes; give nodes={{{node_type!r}: ...}}, the node of the checkpoint's graph for each node"
            )
        if nodes is None:
            nodes = torch.arange(count)
            nodes[before:] = -1
        if nodes.dtype != torch.int64 or nodes.shape != (count,) or not bool((nodes < before).all()):
            raise ValueError(
                f"nodes of {node_type!r}: {nodes.dtype} of shape {tuple(nodes.shape)}; give int64 ({count}), "
                f"nodes below {before} of the checkpoint's graph, and -1 for new nodes"
            )
        return cls(nodes, before)

    def moved(self, rows: Tensor, new: Tensor) -> Tensor:
        """Return a row for each node; new nodes get `new`: a single row, or a row for each node."""
        is_new = self.nodes < 0
        out = rows.new_empty(len(self.nodes), *rows.shape[1:])
        out[~is_new] = rows[self.nodes[~is_new]]
        out[is_new] = new.to(out).expand_as(out)[is_new]
        return out


def _tables(model: nn.Module) -> Iterator[tuple[str, str, NodeType]]:
    """Yield the names of the embeddings by node, and of their rows `unknown`, with the node types."""
    for prefix, module in model.named_modules():
        for node_type in module.embedded if isinstance(module, Encoder) else ():
            name = parameter_name(node_type)
            at = f"{prefix}." if prefix else ""
            table, unknown = (plain_name(f"{at}{part}.{name}.weight") for part in ("tables", "unknown"))
            yield table, unknown, node_type


def _groups(own: Sequence[dict[str, Any]], stored: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings of this optimizer with the parameters of the checkpoint's.

    Raises ValueError for another kind of optimizer.
    """
    if [_kind(group) for group in own] != [_kind(group) for group in stored]:
        raise ValueError(
            "the checkpoint has the state of another optimizer; use the optimizer and options of its run, or "
            "start without its state"
        )
    return [{**group, "params": of["params"]} for group, of in zip(own, stored, strict=True)]


def _kind(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of settings and the boolean values, which determine the form of the state."""
    return {
        name: value if isinstance(value, bool) else None
        for name, value in group.items()
        if name not in _OF_THE_RUN
    }
