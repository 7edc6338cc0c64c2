"""Launches: the same kernel again, with other types, alignments and numbers.

Counts of compiled kernels, by Triton's compiler: it needs no GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

from khop.kernels.triton.launch import compilations_told, launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def add(
    x: tl.tensor,
    more: tl.tensor,
    out: tl.tensor,
    number: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size, other=0) + number
    if more is not None:
        value += tl.load(more + at, mask=at < size, other=0)
    tl.store(out + at, value, mask=at < size)


@pytest.mark.core(2)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("shift", [0, 1, 4])
@pytest.mark.parametrize("number", [0, 1, 3, 16, 1 << 20])
def test_each_launch_has_the_kernel_of_its_operands(dtype: torch.dtype, shift: int, number: int) -> None:
    x = torch.arange(200, device=DEVICE).to(dtype)[shift:]
    for more in (None, x, x.clone()):
        for _ in range(2):  # compiled, and known
            out = torch.full_like(x, -1)
            launch(add, triton.cdiv(x.numel(), 64), x, x, more, out, number, x.numel(), BLOCK=64)
            assert torch.equal(out, x + number if more is None else x + number + more)


def test_no_program_is_no_launch() -> None:
    x = torch.empty(0, device=DEVICE)
    launch(add, 0, x, x, None, x, 1, 0, BLOCK=64)


COMPILING = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from khop.kernels.triton import node_table
from khop.kernels.triton.launch import compilations_told

def compile_all():
    for variant in node_table.VARIANTS[:2]:
        names, constants = variant.kernel.arg_names, variant.constants
        types = {name: "constexpr" if name in constants else variant.types[name] for name in names}
        values = {(names.index(name),): value for name, value in constants.items()}
        triton.compile(ASTSource(variant.kernel, types, values), target=GPUTarget("cuda", 90, 32))

for _ in range(2):
    counts = []
    with compilations_told(counts.append):
        compile_all()
    print(counts)
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(triton, "knobs"), reason="this Triton has no listener")
def test_only_kernels_that_the_cache_lacks_are_counted(tmp_path: Path) -> None:
    """In a process of its own: this one runs the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILING],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["[1, 2]", "[]"], done.stderr


SPECIALIZED = """
import importlib
import pkgutil
import khop.kernels.triton as kernels

for module in pkgutil.iter_modules(kernels.__path__):
    loaded = importlib.import_module(f"{kernels.__name__}.{module.name}")
    for variant in getattr(loaded, "VARIANTS", ()):
        for parameter in variant.kernel.params:
            kind = "*" if parameter.name in variant.constants else variant.types[parameter.name]
            if not kind.startswith("*") and not parameter.do_not_specialize:
                print(variant.kernel.__name__, parameter.name)
"""


@pytest.mark.long
def test_numbers_do_not_specialize_kernels() -> None:
    """Dropout alone does: it loads 16 bytes at once if the number of values is divisible by 16."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SPECIALIZED], env=environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    assert set(done.stdout.splitlines()) == {"drop_values count"}


def test_a_listener_of_others_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = SimpleNamespace(listener=print)
    monkeypatch.setattr(triton, "knobs", SimpleNamespace(compilation=theirs), raising=False)
    with compilations_told(lambda count: None):
        assert theirs.listener is print
    assert theirs.listener is print


def test_a_triton_without_listeners_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(triton, "knobs", raising=False)
    counts: list[int] = []
    with compilations_told(counts.append):
        pass
    assert counts == []


def test_the_listener_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    own = SimpleNamespace(listener=None)
    monkeypatch.setattr(triton, "knobs", SimpleNamespace(compilation=own), raising=False)
    counts: list[int] = []
    with compilations_told(counts.append):
        own.listener(src=None, cache_hit=False)
        own.listener(src=None, cache_hit=True)
    assert (counts, own.listener) == ([1], None)
