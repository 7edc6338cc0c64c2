"""Counts of what makes the host wait for a device, on a machine without one.

A host read is any call that needs a value of a tensor: numbers, sizes that depend on data, copies to the
host. Torch's dispatch shows them on the CPU too. Copies from memory of the host that is not pinned wait as
well: tensors of numbers that are made with a device, and `to` and `copy_` of tensors that the block makes of
numbers without one.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import khop

_READS = {
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"),
        *("is_nonzero", "equal", "bincount"),
    )
}
_METHODS = {"tolist", "numpy", "__dlpack__", "cpu"}
_PLACED = "cuda" if torch.cuda.is_available() else "cpu"  # the kind of the device, or of its stand-in
_PACKAGE = f"{Path(khop.__file__).parent}/"
_INTERPRETER = "triton/runtime/interpreter.py"  # it stands for the device


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count the reads of the block, by operation and line."""
    found: Counter[str] = Counter()

    def note(name: str) -> None:
        frames = traceback.extract_stack()
        if any(frame.filename.endswith(_INTERPRETER) for frame in frames):
            return
        last = [frame for frame in frames if frame.filename.startswith(_PACKAGE)][-1:]
        where = "".join(f"{frame.filename.removeprefix(_PACKAGE)}:{frame.lineno}" for frame in last)
        found[f"{name} {where}"] += 1

    with _Methods(note), _Operations(note):
        yield found


class _Operations(TorchDispatchMode):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        name = func.name().split(".")[0]
        if name in _READS or _has_mask(name, args) or _has_unknown_size(name, kwargs or {}):
            self._note(name)
        return func(*args, **(kwargs or {}))


def _has_mask(name: str, args: tuple[Any, ...]) -> bool:
    """An index by a mask has as many results as the mask has True."""
    return name == "aten::index" and any(i is not None and i.dtype == torch.bool for i in args[1])


def _has_unknown_size(name: str, kwargs: Mapping[str, Any]) -> bool:
    return name == "aten::repeat_interleave" and kwargs.get("output_size") is None


class _Methods(TorchFunctionMode):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note
        self._of_host: list[Tensor] = []  # made of numbers, without a device

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        name, given = getattr(func, "__name__", ""), kwargs or {}
        if name in _METHODS or (name in ("to", "copy_") and self._copies_from_host(name, args, given)):
            self._note(f"Tensor.{name}")
        elif name == "new_tensor" and args[0].device.type == _PLACED:
            self._note(name)
        elif name in ("tensor", "as_tensor") and not isinstance(args[0], Tensor):
            if given.get("device") is None:
                made = func(*args, **given)
                self._of_host.append(made)  # type: ignore[arg-type]
                return made
            if torch.device(given["device"]).type == _PLACED:
                self._note(name)
        return func(*args, **given)

    def _copies_from_host(self, name: str, args: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
        source = args[1] if name == "copy_" else args[0]
        to = (
            args[0].device
            if name == "copy_"
            else next(
                (each for each in (*args[1:], given.get("device")) if isinstance(each, torch.device | str)),
                None,
            )
        )
        is_placed = to is not None and torch.device(to).type == _PLACED
        return is_placed and any(source is each for each in self._of_host)
