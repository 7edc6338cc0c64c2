"""A folder of unfinished work: only what the journals say is on the disk counts.

Folders of ranks: a rank has its own rows, in the chunks of all.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest
import torch
from hypothesis import given

from khop.distributed.exchange.lanes import Lanes
from khop.distributed.processes.group import ALONE, Group
from khop.inference import work_folder as work_folder_module
from khop.inference.chunks import rank_bounds, shares
from khop.inference.stages import Stage
from khop.inference.work_folder import WorkFolder, is_seen_by_all, own_stage, rank_folder, remove, work_folder
from support.gate import WAIT_S
from support.stages import chunk_sizes, part_sizes, ranks, stage_of

FACTS = {"graph": "a"}
STAGE = Stage(1, "a/b", 10, 4, torch.empty(0, 3, dtype=torch.float64))
LAYERS = [[STAGE]]


def put(folder: WorkFolder, *chunks: int) -> None:
    with closing(folder.open(STAGE)) as rows:
        for chunk in chunks:
            rows.put(chunk, torch.full((STAGE.size(chunk), 3), float(chunk), dtype=torch.float64))


def test_chunks_that_are_journalled_are_not_missing_any_more(tmp_path: Path) -> None:
    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE) as folder:
        assert folder.open(STAGE).missing == [0, 1, 2]
        put(folder, 1)
    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE) as folder:
        assert folder.open(STAGE).missing == [0, 2]
        assert folder.first_layer([[STAGE]]) == 0
        put(folder, 2, 0)
    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE) as folder:
        rows = folder.open(STAGE)
        assert rows.missing == []
        assert rows.finished()[:, 0].tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 2
        rows.close()
        later = Stage(2, "a/b", 10, 4, STAGE.like)
        assert folder.first_layer([[later], [STAGE], [later]]) == 1
        remove(folder)
    assert list(tmp_path.iterdir()) == []


def test_rows_are_put_while_others_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_folder_module, "FLUSH_S", -1.0)
    begun, may_end = Event(), Event()

    def slow_disk(descriptor: int) -> None:
        begun.set()
        assert may_end.wait(WAIT_S)

    monkeypatch.setattr(os, "fsync", slow_disk)
    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE) as folder, closing(folder.open(STAGE)) as rows:
        rows.put(0, torch.zeros(4, 3, dtype=torch.float64))
        assert begun.wait(WAIT_S)
        rows.put(1, torch.ones(4, 3, dtype=torch.float64))  # the disk has not answered
        assert not folder.journal.exists()
        may_end.set()
    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE) as folder:
        assert folder.open(STAGE).missing == [2]


def test_a_flush_that_failed_is_an_error_of_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_folder_module, "FLUSH_S", -1.0)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE) as folder:
        rows = folder.open(STAGE)
        with monkeypatch.context() as of_disk:
            of_disk.setattr(os, "fsync", full)
            rows.put(0, torch.zeros(4, 3, dtype=torch.float64))
            with pytest.raises(OSError, match="full"):
                rows.flush()
        rows.close()
    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE) as folder:
        assert folder.open(STAGE).missing == [0, 1, 2]  # nothing is known to be on disk


def test_half_a_line_of_a_killed_process_and_a_file_of_another_size_count_for_nothing(tmp_path: Path) -> None:
    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE) as folder:
        put(folder, 0)
        with folder.journal.open("a") as journal:
            journal.write(json.dumps({"stage": "1-a%2Fb", "chunks": {"1": "0" * 16}})[:-3])
    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE) as folder:
        assert folder.open(STAGE).missing == [1, 2]
        file = folder.file(STAGE)
        os.truncate(file, file.stat().st_size - 1)
        assert folder.open(STAGE).missing == [0, 1, 2]


def completed(path: Path) -> list[int]:
    """The chunks that were missing, and are there now."""
    with work_folder(path, FACTS, LAYERS, ALONE) as folder:
        missing = list(folder.open(STAGE).missing)
        put(folder, *missing)
    return missing


def test_rows_that_were_damaged_on_disk_are_computed_again(tmp_path: Path) -> None:
    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE) as folder:
        put(folder, 0, 1, 2)
    file = folder.file(STAGE)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # a bit of the last row, in chunk 2
    file.write_bytes(content)
    with pytest.warns(UserWarning, match=r"1-a%2Fb\.npy: 1 of 3 chunks of rows are damaged"):
        assert completed(tmp_path / "w") == [2]
    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE) as folder:
        assert folder.is_whole([STAGE])


def test_layers_that_are_released_leave_the_disk(tmp_path: Path) -> None:
    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE) as folder:
        put(folder, 0, 1, 2)
        folder.release(0)
        assert folder.file(STAGE).exists()
        folder.release(1)
        assert not folder.file(STAGE).exists()


def test_one_process_at_a_time_is_at_work_in_it(tmp_path: Path) -> None:
    with (
        work_folder(tmp_path / "w", FACTS, LAYERS, ALONE),
        pytest.raises(ValueError, match=r"w: in use by another process; wait for it"),
        work_folder(tmp_path / "w", FACTS, LAYERS, ALONE),
    ):
        pass


def test_other_settings_are_named(tmp_path: Path) -> None:
    with work_folder(tmp_path / "w", FACTS, LAYERS, ALONE):
        pass
    with (
        pytest.raises(ValueError, match=r"w: was started with another graph \(a, now b\); continue with"),
        work_folder(tmp_path / "w", {"graph": "b"}, LAYERS, ALONE),
    ):
        pass


class RemoteRows(Group):
    """Rank 1 on a machine that does not have rank 0's disk."""

    def share_bytes(self, content: bytes | None) -> bytes:
        return b"{}"


def test_a_rank_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(
            ValueError, match=r"w: this folder of rank 0 is not visible to rank 1; write to a file"
        ),
        work_folder(tmp_path / "w", FACTS, LAYERS, RemoteRows(1, 2)),
    ):
        pass


@given(part_sizes, chunk_sizes, ranks)
def test_the_stage_of_a_rank_has_the_same_chunks(sizes: list[int], chunk_size: int, world_size: int) -> None:
    stage = stage_of(sizes, chunk_size)
    bounds = rank_bounds(stage, world_size)
    for rank, share in enumerate(shares(stage, world_size)):
        own = own_stage(stage, Group(rank, world_size))
        assert (own.count, own.num_chunks) == (bounds[rank + 1] - bounds[rank], len(share))
        for chunk, of_all in enumerate(share):
            span, whole = own.span(chunk), stage.span(of_all)
            assert (span.start, span.stop) == (whole.start - bounds[rank], whole.stop - bounds[rank])


def test_alone_a_rank_resumes_where_it_was(tmp_path: Path) -> None:
    stage, lanes = stage_of([3, 4], 2), Lanes(ALONE, 1)
    rows = torch.arange(14.0).view(7, 2)
    with (
        rank_folder(tmp_path / "w", {"graph": "a"}, [[stage]], lanes) as folder,
        closing(folder.open(stage)) as place,
    ):
        assert place.missing == [0, 1, 2, 3]
        place.put(1, rows[stage.span(1)])
    with rank_folder(tmp_path / "w", {"graph": "a"}, [[stage]], lanes) as folder:
        assert folder.first_layer([[stage]]) == 0
        with closing(folder.open(stage)) as place:
            assert place.missing == [0, 2, 3]
            for chunk in place.missing:
                place.put(chunk, rows[stage.span(chunk)])
            assert torch.equal(place.finished(), rows)
    assert is_seen_by_all(tmp_path, ALONE)
    assert [path.name for path in tmp_path.iterdir()] == ["w"]
