"""Conversions of weights to 16-bit floats while a block runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

_SOURCES = {torch.ops.aten._to_copy.default: 0, torch.ops.aten.copy_.default: 1}  # place of the argument


class Lowered(TorchDispatchMode):
    """Counts conversions of single weights from float32 to bfloat16 or float16."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()
        self.count = 0
        self._addresses = {weight.data_ptr() for weight in weights}

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        if func in _SOURCES and out.dtype in (torch.bfloat16, torch.float16):
            source = args[_SOURCES[func]]
            self.count += source.dtype == torch.float32 and source.data_ptr() in self._addresses
        return out
