"""Versions and the machine of a run."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import torch

from khop.reporting.environment import environment, peak_memory_bytes, processor


def test_versions_and_the_machine_are_named() -> None:
    found = environment("cpu", 3)
    assert (found["cores"], found["device"]) == (3, "cpu")
    assert str(found["torch"]).startswith(torch.__version__.split("+")[0])


def test_the_processor_has_its_name_or_its_architecture(tmp_path: Path) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text("processor\t: 0\nmodel name\t: A CPU: 3 GHz\n")
    assert processor(facts) == "A CPU: 3 GHz"
    assert processor(tmp_path / "none")


def test_memory_that_was_written_counts_in_the_peak() -> None:
    before = peak_memory_bytes()
    memory = np.empty(before + 8_000_000, np.uint8)
    memory[:: mmap.PAGESIZE] = 1  # a byte of each page is enough
    assert peak_memory_bytes() > before
