"""pytest plugin: Triton's interpreter as a device that shows the faults of kernels.

The programs of a launch run in a random order, blocks are so small that a launch has several programs, memory
is filled before its first use, and an access outside of the operands is an error.

usage: PYTHONPATH=tests python -m pytest -p support.disturbed_kernels tests/kernels/triton
"""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch
from torch import Tensor

from khop.kernels.gather import Shards

TESTS = Path(__file__).parents[1]


def disturbed(tests: Path) -> subprocess.CompletedProcess[str]:
    """Run tests with this plugin in another process, and return what it says."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "support.disturbed_kernels"]
    options += ["--timeout=0"]  # the test that starts it has a limit
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, tests],
        env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )


SMALL: Mapping[str, Mapping[str, int]] = {
    "all_neighbors": {"_ROWS": 4, "_EDGES": 8, "AT_ONCE": 2},
    "draw_hop": {"_SLOTS": 8},
    "draw_negatives": {"_SLOTS": 8},
    "dropout": {"BLOCKS": 2},
    "exclude_edges": {"_ROWS": 4},
    "expansion_csr": {"_ROWS": 4, "_EDGES": 8, "AT_ONCE": 2},
    "hash_table": {"BLOCK": 8, "AT_ONCE": 2, "_LANES": 8},
    "node_table": {"BLOCK": 8, "AT_ONCE": 2},
    "relu_gradient": {"_ROWS": 8},
    "sample_smallest": {"_ENTRIES": 16, "_LONG_ENTRIES": 32, "LONG_ROW": 100},
    "sample_uniform": {"_ROWS": 4, "_SLOTS": 8},
    "sample_weighted": {"_ROWS": 4, "_SLOTS": 8},
    "time_ranges": {"_ROWS": 4},
    "to_csr": {"BLOCK": 4, "AT_ONCE": 2},
    "transpose": {"EDGES": 8, "RUN": 4, "RUNS": 2, "AT_ONCE": 2, "MOST_PROGRAMS": 3},
}


def pytest_configure(config: pytest.Config) -> None:
    """Change the interpreter, the blocks and torch's memory for all tests of this process."""
    os.environ["TRITON_INTERPRET"] = "1"
    _Disturbed.install()
    for name, constants in SMALL.items():
        module = importlib.import_module(f"khop.kernels.triton.{name}")
        for constant, value in constants.items():
            assert hasattr(module, constant), f"{name}.{constant}"
            setattr(module, constant, value)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True


class _Disturbed:
    """The launch that runs, and its memory."""

    order: tuple[int, ...] = ()  # of its programs
    operands: tuple[tuple[int, int], ...] = ()  # first address and end of each
    shards: ClassVar[WeakValueDictionary[int, Shards]] = WeakValueDictionary()  # by address of `layout`

    @classmethod
    def install(cls) -> None:
        from triton.runtime import interpreter

        builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
        set_dim, set_index, on_host = builder.set_grid_dim, builder.set_grid_idx, executor._init_args_hst
        shuffled = random.Random(1)

        def set_grid_dim(self: object, x: int, y: int, z: int) -> None:
            cls.order = tuple(shuffled.sample(range(x), x))
            set_dim(self, x, y, z)

        def set_grid_idx(self: object, x: int, y: int, z: int) -> None:
            set_index(self, cls.order[x], y, z)

        def init_args(self: object, operands: tuple[object, ...], named: dict[str, object]) -> object:
            found, of_names = on_host(self, operands, named)
            tensors = [t for t in (*found, *of_names.values()) if isinstance(t, Tensor)]
            tensors += [
                piece
                for t in tensors
                if t.data_ptr() in cls.shards
                for piece in cls.shards[t.data_ptr()].pieces
            ]
            storages = [t.untyped_storage() for t in tensors]
            cls.operands = tuple((s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages)
            return found, of_names

        builder.set_grid_dim, builder.set_grid_idx = set_grid_dim, set_grid_idx
        executor._init_args_hst = init_args
        cls._note_shards()
        for name, mask in (("create_masked_load", 1), ("create_masked_store", 2), ("create_atomic_rmw", 3)):
            cls._check(builder, name, mask)

    @classmethod
    def _note_shards(cls) -> None:
        """Count the pieces of a sharded table, which kernels find by distances, as operands."""
        of = Shards.of

        def noted(pieces: Sequence[Tensor], device: torch.device) -> Shards:
            made = of(pieces, device)
            cls.shards[made.layout.data_ptr()] = made
            return made

        Shards.of = noted  # type: ignore[method-assign,assignment]

    @classmethod
    def _check(cls, builder: type, name: str, mask: int) -> None:
        """Let a method of the interpreter check the addresses that its operand number `mask` selects."""
        access, place = getattr(builder, name), int(name == "create_atomic_rmw")

        def checked(self: object, *operands: object) -> object:
            addresses = np.asarray(operands[place].data, np.uint64)
            used = addresses[np.broadcast_to(np.asarray(operands[mask].data, bool), addresses.shape)]
            size = np.uint64(max(1, operands[place].get_element_ty().primitive_bitwidth // 8))
            inside = np.zeros(used.shape, bool)
            for first, end in cls.operands:
                inside |= (used >= np.uint64(first)) & (used + size <= np.uint64(end))
            if not inside.all():
                raise IndexError(f"{name} of {(~inside).sum()} places outside of the operands")
            return access(self, *operands)

        setattr(builder, name, checked)
