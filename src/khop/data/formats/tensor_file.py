"""Tensors and arrays in a .pt file, read without executing code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")  # since NumPy 2, and before


class Record:
    """Stands for a class in a .pt file, such as torch_geometric's Data, which is never instantiated."""


def tensor_file(path: Path, names: tuple[str, ...] = ()) -> Any:
    """Return the values of a .pt file: dicts, lists, text, numbers, tensors and NumPy arrays of numbers.

    Nothing else is unpickled; `names` are classes that the file may contain, each of which becomes `Record`.
    ValueError with a remedy for a file that needs others.
    """
    known: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [*_numpy_types()]
    known += [(Record, name) for name in names]
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(known):
            warnings.simplefilter("ignore", UserWarning)  # about the file's pickle protocol
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; give the folder as it was published") from None
    except UnpicklingError as error:
        raise ValueError(
            f"{path}: {_needed(str(error))}, and reading it may execute code; if you trust it, "
            f"convert it once: {way_out(path)}"
        ) from None
    except (RuntimeError, EOFError, OSError):
        raise ValueError(f"{path}: is damaged, or not a file of torch.save; download it again") from None


def way_out(path: Path) -> str:
    """Return a command that converts a file, which executes code in it."""
    return (
        f"python -c \"import torch; d = torch.load('{path}', weights_only=False); "
        f"d = d[0] if isinstance(d, tuple) else d; "
        f"torch.save(d.to_dict() if hasattr(d, 'to_dict') else d, '{path}')\""
    )


def _numpy_types() -> Iterator[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    made = type(np.empty(0).__reduce__()[0])  # of a built-in function
    rebuild, scalar = np.empty(0).__reduce__()[0], np.int64(0).__reduce__()[0]
    assert isinstance(rebuild, made)
    yield np.ndarray
    yield np.dtype
    for code in "?bBhHiIlLqQefd":
        yield type(np.dtype(code))
    for module in _MODULES:
        yield rebuild, f"{module}._reconstruct"  # type: ignore[misc]
        yield scalar, f"{module}.scalar"  # type: ignore[misc]


def _needed(message: str) -> str:
    _, _, rest = message.partition("GLOBAL ")
    return f"holds {rest.split()[0]}" if rest else "has content that torch cannot read without executing code"
