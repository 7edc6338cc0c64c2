"""A model, its optimiser and where training stands, as a folder that is written whole or not at all.

model.safetensors and optimizer.safetensors hold the tensors, state.json the rest; nothing in it can run code.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

import khop
from khop.models.learned_rows import sharded_rows, shown
from khop.training.model_optimizer import HasState
from khop.training.replace_folder import push_folder, pushed_folders, standing_folder

FORMAT = 1
FILES = MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint folder holds."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]  # "parameter/name of its state"
    groups: list[dict[str, Any]]  # the optimiser's parameter groups, parameters by name
    training: Mapping[str, object]  # what the trainer put in: JSON values


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint will hold, apart from the tensors that training goes on with."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    groups: list[dict[str, object]]
    training: Mapping[str, object]

    @classmethod
    def of(cls, model: nn.Module, optimizer: HasState, training: Mapping[str, object]) -> Snapshot:
        """As everything stands now, on the CPU.

        Of a model with sharded rows it is collective, and rank 0's is whole; the others lack those rows.
        """
        with shown(model, lambda table: table.on_rank_0(table.weight)):
            state = _detached(model.state_dict())
        tensors, groups = _flatten_optimizer(model, optimizer)
        return cls(state, _detached(tensors), groups, training)

    def write(self, folder: Path, keep: int = 1) -> None:
        """Make it the checkpoint in `folder`, whole or not at all; OSError where the disk does not take it.

        The `keep` - 1 that stood there before are kept beside.
        """
        files = {MODEL: save(dict(self.model)), OPTIMIZER: save(dict(self.optimizer))}
        checksums = {name: zlib.crc32(content) for name, content in files.items()}
        state = {
            "format": FORMAT,
            "khop": khop.__version__,
            "checksums": checksums,
            "training": self.training,
            "groups": self.groups,
        }
        files[STATE] = (json.dumps(state, indent=1) + "\n").encode()
        try:
            push_folder(folder, files, keep)
        except OSError as error:
            message = (
                f"{error.strerror}: the checkpoint could not be written; the one before, if any, is intact"
            )
            raise OSError(error.errno, message, str(folder)) from error


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read and check a checkpoint; ValueError names the file that is missing, damaged or of a newer khop."""
    return parsed(folder, checkpoint_files(folder))


def checkpoint_files(folder: Path) -> dict[str, bytes]:
    """What lies in a checkpoint folder, unchecked; ValueError names the file that is missing."""
    if not standing_folder(folder).is_dir():
        raise ValueError(f"{folder}: no checkpoint there; train first, or name another run folder")
    folder = standing_folder(folder)
    return {name: _read(folder / name) for name in FILES}


def newest_files(folder: Path, notice: Callable[[str], None]) -> dict[str, bytes]:
    """The files of the youngest whole checkpoint that `folder` or what is kept beside it holds.

    `notice` hears of those that are damaged. ValueError where there is none, or none that is whole.
    """
    problems: list[str] = []
    for kept in pushed_folders(folder):
        try:
            files = checkpoint_files(kept)
            parsed(kept, files)
        except ValueError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            notice(f"{problem.partition(';')[0]}; {kept} is used instead")
        return files
    if problems:
        raise ValueError(problems[0])
    return checkpoint_files(folder)


def parsed(folder: Path, files: Mapping[str, bytes]) -> Checkpoint:
    """The checkpoint that files make; ValueError names the one in `folder` that is damaged."""
    state = _state(folder / STATE, files[STATE])
    checksums = state["checksums"]
    model, optimizer = (
        _tensors(folder / name, files[name], checksums.get(name)) for name in (MODEL, OPTIMIZER)
    )
    return Checkpoint(model, optimizer, state["groups"], state["training"])


def restore_model(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Put the checkpoint's tensors into the model; ValueError names what is missing, extra or misshapen."""
    with shown(model, lambda table: torch.empty(table.count, table.width, device="meta")):
        wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    _compare(wanted, checkpoint.model)
    model.load_state_dict(dict(checkpoint.model))


def restore_optimizer(model: nn.Module, optimizer: HasState, checkpoint: Checkpoint) -> None:
    """Put the checkpoint's moments and settings into the optimiser of a restored model, as strictly."""
    names, sharded = _names(model), sharded_rows(model)
    order = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    if order != [group["params"] for group in checkpoint.groups]:
        raise ValueError(
            "the optimiser's parameters differ from the checkpoint's: use the settings it was made with"
        )
    # torch numbers the parameters in the order of the groups.
    numbers = {name: number for number, name in enumerate(name for group in order for name in group)}
    shapes = {name: parameter.shape for parameter, name in names.items()}
    shapes |= {name: torch.Size([table.count, table.width]) for name, table in sharded.items()}
    state: dict[int, dict[str, Tensor | int]] = {}
    for key, tensor in checkpoint.optimizer.items():
        name, _, what = key.rpartition("/")
        if name not in numbers or tensor.shape not in (shapes[name], torch.Size()):
            raise ValueError(f"the optimiser's {key} {tuple(tensor.shape)} fits no parameter of the model")
        held = sharded[name].held(tensor) if name in sharded and tensor.dim() else tensor
        # SparseAdam counts its steps by a Python number, and computes in double precision with it.
        is_count = held.dim() == 0 and held.dtype == torch.int64
        state.setdefault(numbers[name], {})[what] = int(held) if is_count else held
    groups = [_numbered(group, numbers) for group in checkpoint.groups]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _numbered(group: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, Any]:
    """A parameter group as torch takes it; JSON made lists of its tuples."""
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in group.items()}
    return settings | {"params": [numbers[name] for name in group["params"]]}


def _names(model: nn.Module) -> dict[Tensor, str]:
    """What a checkpoint calls what is trained."""
    parameters: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return parameters | {table.weight: name for name, table in sharded_rows(model).items()}


def _flatten_optimizer(
    model: nn.Module, optimizer: HasState
) -> tuple[dict[str, Tensor], list[dict[str, object]]]:
    names, sharded = _names(model), sharded_rows(model)

    values = {
        (names[parameter], what): torch.as_tensor(value)
        for parameter, state in optimizer.state.items()
        for what, value in state.items()
        if value is not None
    }
    tensors = {}
    for name, what in sorted(values):  # ranks exchange in one order, whatever that of what they once read
        value = values[name, what]
        is_part = name in sharded and value.dim() > 0
        tensors[f"{name}/{what}"] = sharded[name].on_rank_0(value) if is_part else value
    groups = [group | {"params": [names[p] for p in group["params"]]} for group in optimizer.param_groups]
    return tensors, groups


def _detached(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # A clone each: safetensors refuses tensors that share memory, as tied weights do.
    own = torch.contiguous_format
    return {name: tensor.detach().cpu().clone(memory_format=own) for name, tensor in tensors.items()}


def _state(path: Path, content: bytes) -> dict[str, Any]:
    try:
        state = json.loads(content)
    except ValueError as error:  # no JSON, or no UTF-8
        raise _damaged(path) from error
    kinds = {"format": int, "checksums": dict, "groups": list, "training": dict}
    if not isinstance(state, dict) or not all(isinstance(state.get(k), kind) for k, kind in kinds.items()):
        raise _damaged(path)
    if state["format"] != FORMAT:
        reason = f"format {state['format']}, this khop reads {FORMAT}; use the khop that wrote it"
        raise ValueError(f"{path}: {reason}")
    return state


def _tensors(path: Path, content: bytes, checksum: int | None) -> dict[str, Tensor]:
    if zlib.crc32(content) != checksum:
        raise _damaged(path)
    try:
        return load(content)
    except SafetensorError as error:
        raise _damaged(path) from error


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"{path}: missing from the checkpoint; use another checkpoint, or train again")
    return path.read_bytes()


def _damaged(path: Path) -> ValueError:
    return ValueError(f"{path}: cut short or damaged; use another checkpoint, or train again")


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
        *_listed("lacks", (name for name in wanted if name not in shapes)),
        *_listed("has too much:", sorted(shapes.keys() - wanted.keys())),
        *_listed("differs in shape:", differ),
    ]
    raise ValueError(
        f"the checkpoint does not fit the model: it {'; it '.join(reasons)}. "
        "Build the model with the settings that it was trained with"
    )


def _listed(verb: str, names: Iterable[str]) -> list[str]:
    found = list(names)
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return [f"{verb} {', '.join(found[:4])}{more}"] if found else []
