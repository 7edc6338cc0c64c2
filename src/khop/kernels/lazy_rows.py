"""Tensors whose rows are computed where an operation needs them, and operations that need none.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

Operation = Callable[..., Any]


class LazyRows(Tensor):
    """Rows (n, ...) without memory of their own. They have no gradient.

    A subclass lists in `_own` the operations that it computes in its own way; such an operation may return
    NotImplemented. All others, and these then, compute with `dense` rows.
    """

    _own: ClassVar[Mapping[Operation, Operation]]

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the rows as an ordinary tensor."""

    @classmethod
    def __torch_function__(
        cls,
        function: Operation,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Compute an operation: in its own way if there is one, else with dense rows."""
        given = kwargs or {}
        if function in _OF_SHAPE:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **given)
        in_its_way = cls._own.get(function)
        result = NotImplemented if in_its_way is None else in_its_way(*args, **given)
        if result is not NotImplemented:
            return result
        return function(*tree_map(_dense, args), **tree_map(_dense, given))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        function: Operation,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Compute an operation below autograd with dense rows."""
        return function(*tree_map(_dense, args), **tree_map(_dense, kwargs or {}))


def _dense(value: object) -> object:
    return value.dense() if isinstance(value, LazyRows) else value


_OF_SHAPE = {
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.requires_grad.__get__,  # type: ignore[attr-defined]
    Tensor.dim,
    Tensor.size,
    Tensor.numel,
    Tensor.is_floating_point,
}
