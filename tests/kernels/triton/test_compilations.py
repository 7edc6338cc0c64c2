"""Counts of compiled kernels, by Triton's compiler: it needs no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton

from khop.kernels.triton.compilations import compilations_told

COMPILING = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from khop.kernels.triton import node_table
from khop.kernels.triton.compilations import compilations_told

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
