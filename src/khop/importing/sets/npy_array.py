"""Arrays of .npy files, mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def npy_array(path: Path, raw_width: int | None = None) -> npt.NDArray[Any]:
    """Map a .npy file. Nothing is unpickled.

    With `raw_width` the file may also be float32 numbers without a header, in rows of that many.
    """
    try:
        mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; give the folder as it was published") from None
    except ValueError as error:
        size = path.stat().st_size
        if raw_width is None or size % (4 * raw_width) or _has_header(path):
            raise ValueError(f"{path}: cannot be read ({error}); download it again") from None
        return np.memmap(path, np.float32, "r", shape=(size // (4 * raw_width), raw_width))


def _has_header(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) == b"\x93NUMPY"
