"""The way to compute layers is measured once, recorded whole, and read again only where it fits.

The measurement of the ways to compute a layer.

Measured choices in files: read as they were written, or not at all.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels import linear_choice as linear_measure
from khop.kernels.linear_blocks import Blocks
from khop.kernels.linear_choice import (
    LayerKind,
    LinearChoices,
    Measured,
    Shape,
    blocks_of,
    chosen,
    fastest,
    fixed_by,
    keep_record,
    read_record,
    values_of,
)

WAY = Measured(Blocks("blas", 2048))
OTHER = Measured(Blocks("blas", 1024))
KIND = LayerKind.here(torch.float32, "wide")


class Counting:
    """A measurement that always finds the same, and counts its calls."""

    def __init__(self, found: Measured = WAY) -> None:
        self.found = found
        self.calls: list[tuple[torch.dtype, Shape]] = []

    def __call__(self, dtype: torch.dtype, shape: Shape, float32: Blocks | None) -> Measured:
        self.calls.append((dtype, shape))
        return self.found


def choices_in(folder: Path, measure: Counting) -> LinearChoices:
    return LinearChoices(lambda: folder, measure)


def test_a_second_process_reads_what_the_first_measured(tmp_path: Path) -> None:
    first, second = Counting(WAY), Counting(OTHER)
    assert choices_in(tmp_path / "new", first).blocks(torch.float32, 256, may_measure=True) == WAY.blocks
    assert choices_in(tmp_path / "new", second).blocks(torch.float32, 256, may_measure=True) == WAY.blocks
    assert (len(first.calls), len(second.calls)) == (1, 0)
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".json"]


def test_a_process_measures_once_for_each_dtype_and_range_of_widths(tmp_path: Path) -> None:
    measure = Counting()
    choices = choices_in(tmp_path, measure)
    for _ in range(2):
        for dtype, width in ((torch.float32, 64), (torch.float32, 512), (torch.float64, 128)):
            choices.blocks(dtype, width, may_measure=True)
    assert measure.calls == [
        (torch.float32, "narrow"),
        (torch.float32, "wide"),
        (torch.float64, "wide"),
    ]


def test_inference_measures_nothing_and_keeps_its_choice(tmp_path: Path) -> None:
    measure = Counting()
    inferring = choices_in(tmp_path, measure)
    assert inferring.blocks(torch.float32, 256, may_measure=False) is None
    choices_in(tmp_path, Counting()).settle(KIND)
    assert inferring.blocks(torch.float32, 256, may_measure=False) is None
    assert choices_in(tmp_path, measure).blocks(torch.float32, 256, may_measure=False) == WAY.blocks
    assert measure.calls == []


@pytest.mark.parametrize("others", ["processor", "torch_version"])
def test_what_another_machine_or_torch_recorded_is_not_used(tmp_path: Path, others: str) -> None:
    choices_in(tmp_path, Counting(OTHER)).settle(replace(KIND, **{others: "another"}))  # type: ignore[arg-type]
    measure = Counting()
    assert choices_in(tmp_path, measure).settle(KIND) == WAY
    assert len(measure.calls) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_of_another_kind_under_this_ones_name_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / f"{KIND.number:015x}.json"
    keep_record(path, "of another processor", OTHER)
    assert choices_in(tmp_path, Counting()).settle(KIND) == WAY
    assert read_record(path, KIND.text) == WAY


def test_a_way_that_this_torch_cannot_take_is_measured_anew(tmp_path: Path) -> None:
    widened = Measured(Blocks("blas", 2048, in_float32=True))
    keep_record(tmp_path / f"{KIND.number:015x}.json", KIND.text, widened)
    measure = Counting()
    choices_in(tmp_path, measure).blocks(torch.float32, 256, may_measure=True)
    assert len(measure.calls) == 1


@pytest.mark.parametrize("blocked", ["file", "no home"])
def test_without_a_folder_to_write_to_the_choice_is_kept_in_memory(tmp_path: Path, blocked: str) -> None:
    (tmp_path / "file").write_text("")  # root may write to folders that say it may not

    def folder() -> Path:
        if blocked == "no home":
            raise RuntimeError("Could not determine home directory.")
        return tmp_path / "file" / "linear"

    measure = Counting()
    choices = LinearChoices(folder, measure)
    for _ in range(3):
        assert choices.blocks(torch.float32, 256, may_measure=True) == WAY.blocks
    assert len(measure.calls) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_of_processes_that_measure_at_once_the_first_to_write_decides(tmp_path: Path) -> None:
    class Late(Counting):
        """While it measures, another process writes."""

        def __call__(self, dtype: torch.dtype, shape: Shape, float32: Blocks | None) -> Measured:
            choices_in(tmp_path, Counting(OTHER)).settle(KIND)
            return super().__call__(dtype, shape, float32)

    late = choices_in(tmp_path, Late())
    assert late.settle(KIND) == OTHER
    assert late.blocks(torch.float32, 256, may_measure=False) == OTHER.blocks


def test_threads_of_a_process_share_one_measurement(tmp_path: Path) -> None:
    measure = Counting()
    choices = choices_in(tmp_path, measure)
    threads = [threading.Thread(target=choices.settle, args=(KIND,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(measure.calls) == 1


def test_a_way_has_a_name() -> None:
    assert fixed_by("torch") is None
    assert fixed_by("blas:2048") == Blocks("blas", 2048)
    assert fixed_by("onednn-float32:4096") == Blocks("onednn", 4096, in_float32=True)
    for wrong in ("", "mkl", "blas", "blas:", "blas:-1", "blas:1", "torch:2048", "-float32:64"):
        with pytest.raises(ValueError, match="must be"):
            fixed_by(wrong)


def test_a_fixed_way_is_taken_where_it_can_be_and_ends_with_its_block(tmp_path: Path) -> None:
    choices = choices_in(tmp_path, Counting())
    onednn = Blocks("onednn", 2048)
    with choices.fixed(onednn):
        assert choices.blocks(torch.float32, 256, may_measure=True) in (onednn, None)
        assert choices.blocks(torch.float64, 256, may_measure=True) is None
    assert list(tmp_path.iterdir()) == []
    assert choices.blocks(torch.float32, 256, may_measure=True) == WAY.blocks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_measurement_finds_a_way_that_works_and_leaves_torch_as_it_was(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_measure, "ROWS", 96)
    monkeypatch.setattr(linear_measure, "TRIAL_ROWS", 64)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = fastest(dtype, "narrow")
    assert found.blocks is None or found.blocks.can_compute(dtype)
    assert found.over_float32 > 0
    assert (found.over_float32 == 1) is (dtype != torch.bfloat16)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_a_near_tie_goes_to_the_fewest_rows_of_the_fastest_library() -> None:
    small, middle, large = (Blocks("onednn", rows) for rows in (1024, 2048, 4096))
    blas, widened = Blocks("blas", 1024), Blocks("onednn", 1024, in_float32=True)
    assert chosen({large: 1.0, middle: 1.05, small: 1.2}) == middle
    assert chosen({large: 1.0, middle: 1.2, small: 1.05}) == small
    assert chosen({large: 1.0, blas: 1.01, widened: 1.01, None: 1.02}) == large
    assert chosen({None: 1.0, small: 1.01}) is None


LINEAR_RECORD_WAY, LINEAR_RECORD_OTHER = Measured(Blocks("blas", 2048)), Measured(None, 0.5)


@given(library=st.sampled_from(["blas", "onednn"]), rows=st.integers(64, 1 << 20), widened=st.booleans())
def test_a_choice_is_read_as_it_was_written(library: str, rows: int, widened: bool) -> None:
    blocks = Blocks(library, rows, widened)  # type: ignore[arg-type]
    assert blocks_of(json.loads(json.dumps(values_of(blocks)))) == blocks
    assert blocks_of(json.loads(json.dumps(values_of(None)))) is None


def test_the_first_record_of_a_key_stays(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.json"
    assert keep_record(path, "key", LINEAR_RECORD_WAY) == LINEAR_RECORD_WAY
    assert keep_record(path, "key", LINEAR_RECORD_OTHER) == LINEAR_RECORD_WAY
    assert read_record(path, "key") == LINEAR_RECORD_WAY
    assert read_record(path, "another key") is None
    assert keep_record(path, "another key", LINEAR_RECORD_OTHER) == LINEAR_RECORD_OTHER
    assert list(path.parent.iterdir()) == [path]


def damaged_versions(content: bytes) -> list[bytes]:
    found = json.loads(content)
    changed: list[object] = [
        {**found, "format": 1},
        {**found, "blocks": {"library": "magic", "rows": 2048, "in_float32": False}},
        {**found, "blocks": {"library": "blas", "rows": 0, "in_float32": False}},
        {**found, "blocks": {"library": "blas", "rows": True, "in_float32": False}},
        {**found, "blocks": {"library": "blas", "rows": 2048}},
        {**found, "blocks": [1]},
        {**found, "over_float32": "1"},
        {**found, "over_float32": float("nan")},
        {name: value for name, value in found.items() if name != "over_float32"},
        [found],
        7,
    ]
    cut = [content[:end] for end in range(0, len(content) - 2, 7)]
    return [b"", b"\x00" * 64, b"[" * 100_000, b"\xff\xfe", *cut, *(json.dumps(c).encode() for c in changed)]


def test_a_damaged_file_is_not_read_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    keep_record(path, "key", LINEAR_RECORD_OTHER)
    for content in damaged_versions(path.read_bytes()):
        path.write_bytes(content)
        assert read_record(path, "key") is None, content[:60]
        assert keep_record(path, "key", LINEAR_RECORD_WAY) == LINEAR_RECORD_WAY
        assert read_record(path, "key") == LINEAR_RECORD_WAY
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_without_links_has_whole_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "record.json"
    assert keep_record(path, "key", LINEAR_RECORD_WAY) == LINEAR_RECORD_WAY
    assert read_record(path, "key") == LINEAR_RECORD_WAY
    assert list(tmp_path.iterdir()) == [path]
