"""A run that trains on a CPU fits in the free memory, or is refused with numbers before it starts."""

from __future__ import annotations

import re
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from khop.api.loader import drawn_size
from khop.batch import Batch, num_bytes
from khop.distributed.processes.group import ALONE
from khop.run import memory_need as module
from khop.run.build import Run, fitted, prepare
from khop.run.check import checked
from khop.run.memory_need import MemoryNeed, fit_memory, memory_need
from khop.run.read import RawRun, with_options
from khop.training.step_clock import Unwatched
from support.typed_runs import write_tagged_shop

MB = 10**6
NEED = MemoryNeed(
    process=250 * MB, updates=3 * MB, batch=200 * MB, step=100 * MB, layers=300 * MB, chunk=50 * MB,
    chunk_step=10 * MB, ahead=0, readers=0,
)  # fmt: skip
RAW = RawRun({"graph": "g", "sampler": {"fanouts": [10, 5]}, "threads": 2}, "run.toml")


@pytest.fixture
def raw(tmp_path: Path) -> RawRun:
    graph = write_tagged_shop(tmp_path / "shop")
    tables: dict[str, Any] = {"sampler": {"fanouts": [3, 2]}, "training": {"batch_size": 8, "epochs": 1}}
    task = {"kind": "node-classification", "target": "item", "label": "kind"}
    return RawRun({"graph": str(graph), "task": task, "model": {"embedding": 4}, **tables}, "run.toml")


@pytest.fixture
def run(raw: RawRun, tmp_path: Path) -> Run:
    return prepare(raw, tmp_path / "cache")


@pytest.mark.parametrize(
    ("room", "prefetch", "words"),
    [
        (2000, 4, None),
        (1400, 4, "of 1.4 GB of free memory, the run needs 1.35 GB; freed memory is returned to the system"),
        (1000, 2, "the run needs 953 MB: prefetch is 2 instead of 4, because a batch takes 200 MB; freed"),
        (753, 1, "the run needs 753 MB: prefetch is 1 instead of 4"),
    ],
)
def test_prefetch_is_the_largest_that_fits(room: int, prefetch: int, words: str | None) -> None:
    fit = fit_memory(checked(RAW), NEED, ALONE, RAW, room * MB)
    assert fit.prefetch == prefetch
    assert fit.line is None if words is None else words in str(fit.line)


def test_a_run_below_the_least_need_is_refused_with_numbers_and_settings() -> None:
    with pytest.raises(ValueError, match="the run needs at least 753 MB of memory") as error:
        fit_memory(checked(RAW), NEED, ALONE, RAW, 600 * MB)
    words = str(error.value)
    assert "600 MB is free (run.toml): 253 MB for Python, torch, the model and its updates" in words
    assert "2 x 200 MB for batches of 1,024 seeds, 100 MB for a step; try --batch-size 568" in words
    assert "--evaluation-fanouts 10,5" in words
    size = re.search(r"--batch-size (\d+)", words)
    assert size is not None
    share = int(size[1]) / 1024
    fits = replace(NEED, batch=int(200 * MB * share), step=int(100 * MB * share), layers=0)
    assert fit_memory(checked(RAW), fits, ALONE, RAW, 600 * MB).prefetch >= 1


@pytest.mark.long
def test_evaluations_within_an_epoch_need_memory_beside_the_batches_of_training(
    raw: RawRun, tmp_path: Path
) -> None:
    within = replace(NEED, ahead=1)
    assert within.evaluation(2) == NEED.evaluation(2) + 3 * 200 * MB
    assert (within.training(2), within.kept(2)) == (NEED.training(2), NEED.kept(2))
    assert fit_memory(checked(RAW), within, ALONE, RAW, 1300 * MB).prefetch == 1  # else 3
    for options, ahead in (({}, 0), ({"evaluation.every": 0.5}, 1), ({"evaluation.every_steps": 3}, 1)):
        run = prepare(with_options(raw, options), tmp_path / "cache")
        assert memory_need(run.config, run.run_task.whole, run.loader(), run.model).ahead == ahead


def test_rows_read_from_disk_take_a_copy_in_each_thread() -> None:
    from_disk = replace(NEED, readers=2)
    assert [from_disk.batches(prefetch) for prefetch in (1, 2, 4)] == [3, 5, 7]
    assert [NEED.batches(prefetch) for prefetch in (1, 2, 4)] == [2, 3, 5]


def test_few_bytes_of_prepared_batches_limit_the_need() -> None:
    config = checked(replace(RAW, values={**RAW.values, "prefetch_bytes": 1}))  # so one batch per thread
    fit = fit_memory(config, NEED, ALONE, RAW, NEED.total(2))
    assert fit.prefetch == 4
    assert "prefetch is" not in str(fit.line)


def test_a_drawn_batch_has_the_size_of_the_real_one(run: Run) -> None:
    loader = run.loader()
    for step in range(len(loader)):
        batch = loader.batch(0, step)
        without_seeds = replace(batch, seed_columns={})
        _, size, rows = drawn_size(loader, 0, step)
        assert size + rows == num_bytes(without_seeds)


def test_the_need_covers_each_batch_and_counts_updates(run: Run) -> None:
    need = memory_need(run.config, run.graph, run.loader(), run.model)
    loader = run.loader()
    largest = max(num_bytes(loader.batch(0, step)) for step in range(3))
    assert largest <= need.batch <= 1.2 * largest
    assert need.updates == 3 * 4 * sum(weight.numel() for weight in run.model.parameters())


def test_scarce_memory_lowers_prefetch_and_keeps_batches(
    run: Run, raw: RawRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = memory_need(run.config, run.graph, run.loader(), run.model)
    monkeypatch.setattr(module, "own_memory_bytes", lambda: need.process)
    monkeypatch.setattr(module, "free_memory_bytes", lambda: need.total(1) - need.process + (64 << 20))
    fit, line = fitted(run, raw)
    assert line is not None
    assert fit.config.prefetch < run.config.prefetch
    for ours, theirs in zip(fit.loader(), run.loader(), strict=True):
        assert torch.equal(ours.seeds, theirs.seeds)
        assert torch.equal(ours["item", "x"], theirs["item", "x"])


def test_too_little_memory_is_an_error(run: Run, raw: RawRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "free_memory_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"needs at least .* of memory, and .* is free"):
        fitted(run, raw)


def test_evaluation_and_inference_count_their_chunks_alone(
    run: Run, raw: RawRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, alone = (memory_need(run.config, run.run_task.whole, of, run.model) for of in (run.loader(), None))
    assert (alone.updates, alone.batch, alone.step) == (0, 0, 0)
    assert (alone.layers, alone.chunk, alone.chunk_step) == (whole.layers, whole.chunk, whole.chunk_step)
    assert alone.layers > 0
    monkeypatch.setattr(module, "free_memory_bytes", lambda: 10 * alone.chunk)
    monkeypatch.setattr(module, "_LATER_BYTES", 0)
    assert fitted(run, raw, "evaluation") == (run, None)
    monkeypatch.setattr(module, "free_memory_bytes", lambda: 0)
    for work in ("evaluation", "inference"):
        with pytest.raises(ValueError, match=r"That is .* for rows of all nodes, 2 x .* for chunks of 8,192"):
            fitted(run, raw, work)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_step_holds_no_batch_of_an_earlier_one(run: Run, tmp_path: Path) -> None:
    earlier: list[weakref.ref[torch.Tensor]] = []

    def check(model: torch.nn.Module, given: tuple[Batch]) -> None:
        assert [row() for row in earlier] == [None] * len(earlier)
        earlier.append(weakref.ref(given[0].columns["item"]["x"]))

    run.model.register_forward_pre_hook(check)
    run.trainer(tmp_path / "out", Unwatched()).fit()
    assert len(earlier) >= 5
