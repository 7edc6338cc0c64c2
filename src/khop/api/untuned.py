"""Notice of a loader that batches are large, and that the process is not tuned for them."""

from __future__ import annotations

import warnings

from khop.api.tune_process import has_chosen_allocation
from khop.batch import Batch
from khop.process_memory import is_tuned
from khop.runtime.group import Group

# glibc does not reuse freed blocks of this size: the kernel zeroes their pages for each batch anew.
NEVER_REUSED_BYTES = 32 << 20
_NOTICED: list[bool] = []  # in this process


def notice_untuned(batch: Batch, group: Group) -> None:
    """Warn once per process, on rank 0, if a batch has columns that an untuned process is slow for."""
    if _NOTICED or group.rank > 0 or is_tuned() or has_chosen_allocation():
        return
    sizes = [
        column.nbytes
        for of_type in batch.columns.values()
        for column in of_type.values()
        if column.device.type == "cpu"
    ]
    largest = max(sizes, default=0)
    if largest < NEVER_REUSED_BYTES:
        return
    _NOTICED.append(True)
    warnings.warn(
        f"a batch has a column of {largest / 1e6:.0f} MB, and this process returns such memory to the kernel "
        "after each batch: call khop.tune_process() before torch is imported, as the command does for itself",
        stacklevel=3,
    )
