"""Refuse to copy damaged data: arrays are compared with their checksums before they are copied."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock

from khop.errors import REMEDY
from khop.graph.folder import Folder, refuse_replaced
from khop.graph.npy import file_checksum
from khop.graph.progress import Meter, ProgressCallback

_THREADS = 2  # sha256 runs without the GIL


def refuse_damage(folder: Folder, notice: ProgressCallback | None = None) -> None:
    """Raise ValueError that names the first file of a graph with a wrong checksum.

    Reads each primary array once. Arrays that are not on this machine are skipped.
    """
    arrays = folder.arrays
    meter, lock = Meter(sum(entry.bytes for entry in arrays.values()), notice), Lock()

    def read(file: str, size: int) -> None:
        with lock:
            meter.at(f"checking {file}", size)

    refuse_replaced(folder)

    def checksum(file: str) -> str:
        return file_checksum(folder.path / file, partial(read, file))

    with ThreadPoolExecutor(_THREADS) as pool:
        found = zip(sorted(arrays), pool.map(checksum, sorted(arrays)), strict=True)
        damaged = next((file for file, sha256 in found if sha256 != arrays[file].sha256), None)
        if damaged is not None:
            refuse_replaced(folder)
            pool.shutdown(wait=False, cancel_futures=True)
            raise ValueError(
                f"{folder.path / damaged}: checksum differs; {REMEDY}. "
                f"`khop verify {folder.path}` lists all that is damaged"
            )
