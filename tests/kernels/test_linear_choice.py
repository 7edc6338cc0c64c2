"""The way to compute layers is measured once, recorded whole, and read again only where it fits."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from khop.kernels.linear_blocks import Blocks
from khop.kernels.linear_choice import LayerKind, LinearChoices, fixed_by
from khop.kernels.linear_measure import Measured, Shape
from khop.kernels.linear_record import keep_record, read_record

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
