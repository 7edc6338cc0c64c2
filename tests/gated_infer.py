"""`python -m gated_infer`: `khop infer`, of which every process stands at a gate after its first chunk.

That chunk is on the disk and in the journal by then. Spawned ranks import this module too, as their main one.
"""

from __future__ import annotations

import sys

from torch import Tensor

from gate import Gate
from khop.cli.main import run
from khop.training import work_folder

_put = work_folder.FileRows.put


def _put_and_stand(rows: work_folder.FileRows, chunk: int, values: Tensor) -> None:
    _put(rows, chunk, values)
    Gate.of_this_process().stand()


work_folder.FLUSH_S = -1.0  # each chunk at once
work_folder.FileRows.put = _put_and_stand

if __name__ == "__main__":
    run(["infer", *sys.argv[1:]])
