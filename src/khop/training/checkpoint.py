"""Checkpoints: model, optimizer and training state in one folder, written atomically.

Tensors are in model.safetensors and optimizer.safetensors, everything else in state.json. Reading a
checkpoint never executes code from it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from khop.arguments import instance_of, path_of
from khop.distributed.processes.group import Group
from khop.models.layer import in_order, plain_name, row_orders
from khop.models.node_embedding import NodeEmbedding, sharded_rows, shown
from khop.training.optimizer_settings import ModelOptimizer
from khop.training.replace_folder import (
    FILES,
    MODEL,
    OPTIMIZER,
    checked_state,
    damaged,
    encoded,
    push_folder,
    pushed_folders,
    read_files,
)
from khop.training.run_log import Record

_WAYS_TO_COMPUTE = (
    "fused",
    "foreach",
)  # options of torch's optimizers that depend on the device, not on the run


@dataclass(frozen=True)
class Checkpoint:
    """Content of a checkpoint folder."""

    folder: Path  # the folder that was read: last-1 if last is damaged
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]  # "parameter/name of its state"
    groups: list[dict[str, Any]]  # the optimizer's parameter groups, parameters by name
    training: Mapping[str, object]  # JSON values of the trainer
    records: Sequence[Record]  # of the finished epochs


@dataclass(frozen=True)
class StateCopy:
    """Content of a checkpoint to be written, copied so that training can continue at the same time.

    A model compiled by `torch.compile`, as a whole or in parts, has the names of the original model.
    """

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    groups: list[dict[str, object]]
    training: Mapping[str, object]
    records: Sequence[Record]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: ModelOptimizer | torch.optim.Optimizer,
        training: Mapping[str, object],
        records: Iterable[Record] = (),
    ) -> StateCopy:
        """Copy all tensors to the CPU, and include the records of metrics.jsonl so far.

        For a model with sharded embeddings the call is collective. The snapshot on rank 0 is then complete;
        snapshots on other ranks lack the sharded rows.
        """
        with shown(model, lambda table: table.on_rank_0(table.weight)):
            state = {plain_name(name): of for name, of in _detached(model.state_dict()).items()}
        tensors, groups = _flatten_optimizer(model, optimizer)
        return cls(state, _detached(tensors), groups, training, tuple(records))

    def write(self, folder: Path, keep: int = 1, place: int = 0) -> None:
        """Write the snapshot to `folder` atomically; OSError if the write fails.

        The `keep` - 1 previous checkpoints are kept as folder-1, folder-2, ... With a place above 0, the
        snapshot itself is folder-place, and only the folders from there on are renamed.
        """
        tensors = {MODEL: save(dict(self.model)), OPTIMIZER: save(dict(self.optimizer))}
        state = {"training": self.training, "groups": self.groups, "records": self.records}
        try:
            files = encoded(tensors, state)
        except TypeError as error:
            raise ValueError(
                f"{folder}: the checkpoint cannot be written: {error}; give the options of the optimizer, "
                "and the state of a custom loader, as Python numbers, strings, lists and dicts"
            ) from error
        try:
            push_folder(folder, files, keep, place)
        except OSError as error:
            message = (
                f"{error.strerror}: the checkpoint could not be written; the previous one, if any, is intact"
            )
            raise OSError(error.errno, message, str(folder)) from error


def load_checkpoint(folder: Path, notice: Callable[[str], None] | None = None) -> Checkpoint:
    """Read a checkpoint, or the previous one (folder-1, folder-2, ...) if it is damaged.

    All files are checked before they are used.

    Args:
        folder: Folder of the checkpoint, such as `out/checkpoints/best`.
        notice: Function called with a sentence about each damaged checkpoint; by default a Python
            warning.
    Returns:
        Tensors and state of the checkpoint.
    Raises:
        ValueError: No checkpoint is intact; the message names the file that is missing, damaged or written
            by a newer khop.
    Example:
        >>> try:
        ...     khop.load_checkpoint(tmp / "best")
        ... except ValueError:
        ...     print("start from the beginning")
        start from the beginning
    """
    return _newest(path_of("folder", folder), notice or _warn)[0]


def shared_checkpoint(folder: Path, group: Group, notice: Callable[[str], None]) -> Checkpoint:
    """Read a checkpoint on rank 0 and broadcast it to all ranks. Collective.

    Works as `load_checkpoint`. Only rank 0 needs access to the folder, and only rank 0 calls `notice`.
    """
    found, files = _newest(folder, notice) if group.rank == 0 else (None, dict[str, bytes]())
    if group.world_size > 1:
        files = {name: group.share_bytes(files.get(name)) for name in FILES}
    return found or parsed(folder, files)


def parsed(folder: Path, files: Mapping[str, bytes]) -> Checkpoint:
    """Check and decode the files of a checkpoint; ValueError names the damaged file in `folder`."""
    state = checked_state(folder, files)
    model, optimizer = (_tensors(folder / name, files[name]) for name in (MODEL, OPTIMIZER))
    return Checkpoint(folder, model, optimizer, state["groups"], state["training"], state["records"])


def _newest(folder: Path, notice: Callable[[str], None]) -> tuple[Checkpoint, dict[str, bytes]]:
    """Find the newest intact checkpoint among `folder` and its predecessors; return it and its files."""
    problems: list[str] = []
    for kept in pushed_folders(folder) or [folder]:
        try:
            files = read_files(kept)
            found = parsed(kept, files)
        except ValueError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            notice(f"{problem.partition(';')[0]}; {kept} is used instead")
        return found, files
    raise ValueError(problems[0])


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=4)


def restore_model(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load a checkpoint's tensors into a model.

    Rows of edge types are loaded by name, because the graph may have its types in another order. The model
    may be compiled by `torch.compile` even if the saved model was not, and vice versa.

    Args:
        model: Model with the settings of training.
        checkpoint: Result of `khop.load_checkpoint`.
    Raises:
        ValueError: Tensors are missing, unexpected or have another shape; the message names them.
    Example:
        >>> def trained(graph, folder):
        ...     model = khop.models.SAGE.for_graph(graph, hidden=256)
        ...     khop.restore_model(model, khop.load_checkpoint(folder))
        ...     return model
    """
    instance_of("model", model, nn.Module, "must be a torch.nn.Module")
    instance_of("checkpoint", checkpoint, Checkpoint, "pass the result of khop.load_checkpoint(folder)")
    with shown(model, lambda table: torch.empty(table.count, table.width, device="meta")):
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    stored = checkpoint.model
    row_orders(model, stored)
    _compare({plain_name(name): shape for name, shape in shapes.items()}, stored)
    model.load_state_dict({name: stored[plain_name(name)] for name in shapes if plain_name(name) in stored})


def restore_optimizer(
    model: nn.Module, optimizer: ModelOptimizer | torch.optim.Optimizer, checkpoint: Checkpoint
) -> None:
    """Load moments and settings into the optimizer of a restored model, with the same checks."""
    names, sharded = _names(model), _sharded(model)
    order = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    saved = [sorted(group["params"]) for group in checkpoint.groups]
    if [sorted(group) for group in order] != saved:
        raise ValueError(
            "the optimizer's parameters differ from the checkpoint's: use the settings it was made with"
        )
    # torch numbers the parameters in the order of the groups.
    numbers = {name: number for number, name in enumerate(name for group in order for name in group)}
    shapes = {name: parameter.shape for parameter, name in names.items()}
    shapes |= {name: torch.Size([table.count, table.width]) for name, table in sharded.items()}
    rows = row_orders(model, checkpoint.model)
    state: dict[int, dict[str, Tensor | int]] = {}
    for key, tensor in checkpoint.optimizer.items():
        name, _, what = key.rpartition("/")
        if name not in numbers or not _fits(tensor.shape, shapes[name]):
            raise ValueError(
                f"the optimizer's {key} {tuple(tensor.shape)} does not fit any parameter of the model"
            )
        held = sharded[name].held(tensor) if name in sharded and tensor.dim() else tensor
        held = in_order(held, rows[name]) if name in rows else held
        # SparseAdam counts its steps in a Python number and uses it in double precision.
        is_count = held.dim() == 0 and held.dtype == torch.int64
        state.setdefault(numbers[name], {})[what] = int(held) if is_count else held
    groups = [
        _numbered({**settings, "params": own}, numbers) | _way_to_compute(group)
        for settings, own, group in zip(checkpoint.groups, order, optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _fits(shape: torch.Size, parameter: torch.Size) -> bool:
    """Return True for a state per parameter, per element, or per row or column, as in Adafactor."""
    sizes = zip(shape, parameter, strict=False)
    return not shape or (len(shape) == len(parameter) and all(own in (1, size) for own, size in sizes))


def _way_to_compute(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in _WAYS_TO_COMPUTE if name in group}


def _numbered(group: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, Any]:
    """Convert a parameter group to torch's form, with tuples instead of JSON's lists."""
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in group.items()}
    return settings | {"params": [numbers[name] for name in group["params"]]}


def _names(model: nn.Module) -> dict[Tensor, str]:
    """Map each trained tensor to its name in a checkpoint."""
    parameters: dict[Tensor, str] = {
        parameter: plain_name(name) for name, parameter in model.named_parameters()
    }
    return parameters | {table.weight: name for name, table in _sharded(model).items()}


def _sharded(model: nn.Module) -> dict[str, NodeEmbedding]:
    """Find sharded tables by the name of their weight in a checkpoint."""
    return {plain_name(name): table for name, table in sharded_rows(model).items()}


def _flatten_optimizer(
    model: nn.Module, optimizer: ModelOptimizer | torch.optim.Optimizer
) -> tuple[dict[str, Tensor], list[dict[str, object]]]:
    names, sharded = _names(model), _sharded(model)

    values = {
        (names[parameter], what): torch.as_tensor(value)
        for parameter, state in optimizer.state.items()
        for what, value in state.items()
        if value is not None
    }
    tensors = {}
    for name, what in sorted(
        values
    ):  # all ranks must exchange in the same order, which may differ between their states
        value = values[name, what]
        is_part = name in sharded and value.dim() > 0
        tensors[f"{name}/{what}"] = sharded[name].on_rank_0(value) if is_part else value
    return tensors, named_groups(model, optimizer)


def named_groups(
    model: nn.Module, optimizer: ModelOptimizer | torch.optim.Optimizer
) -> list[dict[str, object]]:
    """Return the optimizer's groups with the names of their parameters."""
    names = _names(model)
    return [group | {"params": [names[p] for p in group["params"]]} for group in optimizer.param_groups]


def _detached(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Clone each tensor, because safetensors rejects tensors that share memory, such as tied weights.
    own = torch.contiguous_format
    return {name: tensor.detach().cpu().clone(memory_format=own) for name, tensor in tensors.items()}


def _tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    try:
        return load(content)
    except SafetensorError as error:
        raise damaged(path) from error


def _compare(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor]) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    if shapes == wanted:
        return
    differ = [
        f"{name} is {shapes[name]} instead of {wanted[name]}"
        for name in wanted
        if name in shapes and shapes[name] != wanted[name]
    ]
    reasons = [
        *_listed("missing keys", (name for name in wanted if name not in shapes)),
        *_listed("unexpected keys", sorted(shapes.keys() - wanted.keys())),
        *_listed("different shapes", differ),
    ]
    raise ValueError(
        f"the checkpoint does not match the model: {'; '.join(reasons)}. Build the model with the settings "
        "that it was trained with"
    )


def _listed(title: str, names: Iterable[str]) -> list[str]:
    found = list(names)
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return [f"{title} {', '.join(found[:4])}{more}"] if found else []
