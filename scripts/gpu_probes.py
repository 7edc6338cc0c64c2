"""Probes of gpu-contact: each answers one question about khop on this machine's GPU with a line of JSON.

usage: PYTHONPATH=src:tests:scripts:benchmarks python scripts/gpu_probes.py NAME...

A probe returns facts, and raises Wrong with facts that contradict what khop promises.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from datetime import timedelta
from multiprocessing.queues import Queue
from pathlib import Path

import gpu_graph
import torch
import triton
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import khop
from khop.batch import Batch
from khop.distributed.processes.group import Group, enter
from khop.kernels.choice import why_no_kernels
from khop.kernels.gather import gather
from khop.kernels.triton import gather as device_gather
from khop.loading.device.device_memory import CudaMemory, PinningRefused, own_pages
from khop.loading.device.device_placement import StorePlace
from khop.loading.device.self_proof import CHECKS, why_not_proven
from khop.loading.device.static_choice import kept_verdict
from khop.training.gradients import GradientClock, _timed_average
from khop.training.tasks import NodeClassification
from khop.training.trainer import Trainer
from support.recorded_runs import RecordedRun
from support.small_graphs import one_type
from support.triton_rows import DEVICE
from support.triton_segments import by_triton
from support.typed_shop import bits, shop
from training.test_captured_steps import abandoned_losses, case, inputs, ordinary, prepared

Facts = dict[str, object]
HUGE_PAGES = 14  # MADV_HUGEPAGE
GIB = 1 << 30


class Wrong(AssertionError):
    """Facts that contradict a promise."""

    def __init__(self, problem: str, **facts: object) -> None:
        super().__init__(problem)
        self.facts = facts


def environment() -> Facts:
    """Versions, card, compiler, limits."""
    facts: Facts = {
        "gpu": None,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
        "compiler": shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"),
        "Python.h": Path(sysconfig.get_path("include"), "Python.h").exists(),
        "cores": len(os.sched_getaffinity(0)),
        "locked memory": subprocess.run(
            ["bash", "-c", "ulimit -l"], capture_output=True, text=True
        ).stdout.strip(),
    }
    for path in ("/sys/kernel/mm/transparent_hugepage/enabled", "/proc/driver/nvidia/version"):
        with suppress(OSError):
            facts[path] = Path(path).read_text().splitlines()[0]
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        facts |= {
            "gpu": torch.cuda.get_device_name(),
            "capability": torch.cuda.get_device_capability(),
            "cards": torch.cuda.device_count(),
            "free": free,
            "total": total,
            "NCCL": torch.cuda.nccl.version(),
        }
    return facts


def first_launch() -> Facts:
    """A kernel is compiled and gathers rows."""
    begun = time.monotonic()
    table = torch.randn(1000, 100, device=DEVICE)
    ids = torch.arange(0, 1000, 7, device=DEVICE)
    with by_triton():
        found = gather(table, ids)
    same("gathered rows", found, table[::7])
    return {"seconds to the first rows": round(time.monotonic() - begun, 2)}


def pins() -> Facts:
    """Columns of all sizes are pinned, two of them in one page too, and how long large ones take."""
    memory, facts = CudaMemory(torch.device("cuda", 0)), Facts()
    page = own_pages(3 * mmap.PAGESIZE, torch.uint8)
    near = [page[64:144], page[192:212]]
    for number, part in enumerate(near):
        try:
            memory.pinned(torch.empty(0, dtype=torch.uint8).set_(part))
            facts[f"part {number} of a page"] = "pinned"
        except PinningRefused as error:
            facts[f"part {number} of a page"] = str(error)
    for column in (torch.randn(200_000, 100), torch.randint(9, (200_000,)), torch.randn(200_000)):
        stored = memory.stored_rows(column, StorePlace.PINNED)
        same("a pinned column", stored.cpu(), column)
    for gibibytes in (1, 4):
        begun = time.monotonic()
        host = own_pages(gibibytes * GIB, torch.uint8)
        filled = time.monotonic()
        memory.pinned(host)
        facts[f"{gibibytes} GiB, seconds"] = [round(filled - begun, 2), round(time.monotonic() - filled, 2)]
    return facts


def placements() -> Facts:
    """Batches of every placement are the CPU's."""
    return tests_of("tests/gpu/test_placements.py")


def self_proof() -> Facts:
    """Kernels compiled anew give the CPU's bits on small graphs; the seconds that a first run waits."""
    device, begun = torch.device("cuda", 0), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        reason = why_no_kernels(0) or why_not_proven(device, anew=True)
        facts: Facts = {"seconds with compilation": round(time.monotonic() - begun, 1)}
        reason = reason or why_not_proven(device, list(CHECKS), anew=True)
    facts |= {"seconds of all": round(time.monotonic() - begun, 1), "kept": kept_verdict(0)}
    if reason is not None:
        raise Wrong(reason, **facts)
    return facts


def recorded() -> Facts:
    """A run with recorded steps takes the course of one with single launches."""
    return tests_of("tests/gpu/test_recorded_training.py")


def refused() -> Facts:
    """A step that cannot be recorded is launched singly, and its attempt leaves nothing behind.

    A number that the host reads is found before the capture; a call for the whole device ends the capture.
    """
    return {name: _refused(wait) for name, wait in WAITS.items()}


WAITS: Mapping[str, Callable[[Tensor], object]] = {
    "found before the capture": float,
    "found by the capture": lambda loss: torch.cuda.synchronize(),
}


def _refused(wait: Callable[[Tensor], object]) -> Facts:
    class Waits:
        def __init__(self, inner: NodeClassification) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

        def losses(self, output: Tensor, batch: Batch) -> Tensor:
            losses = self._inner.losses(output, batch)
            torch.rand_like(losses)  # a capture takes the generator
            wait(losses.detach().sum())
            return losses

    trainer = small_trainer(epochs=20)
    trainer.task = Waits(trainer.task)  # type: ignore[assignment, arg-type]
    before = torch.cuda.current_stream()
    with warnings.catch_warnings(action="ignore"):
        trainer.fit()
    torch.rand(3, device="cuda")
    torch.cuda.synchronize()
    stats, after = torch.cuda.memory_stats(), torch.cuda.current_stream()
    pending = stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"]
    facts: Facts = {"steps": type(trainer._steps).__name__, "pending bytes": pending, "empty_cache": "works"}
    try:
        torch.cuda.empty_cache()
    except RuntimeError as error:
        facts["empty_cache"] = str(error)[:200]
    if before != after or pending or facts["empty_cache"] != "works":
        raise Wrong(
            "a refused recording leaves a stream or memory behind", same_stream=before == after, **facts
        )
    return facts


def restart() -> Facts:
    """Losses that were left early and begun again are those of ordinary steps."""
    small, node_type, model = case("one type")
    task = NodeClassification(node_type, "y")
    given = inputs(small, node_type, [6] * 5)
    expected = [ordinary(small, model, task, one)[0] for one in given]
    with by_triton():
        steps = prepared(small, node_type, model, given)
        busy = torch.randn(4096, 4096, device=DEVICE) if DEVICE.type == "cuda" else torch.zeros(2, 2)
        for _ in range(3):
            for _ in range(20):
                busy = (busy @ busy).clamp(-1, 1)
            abandoned_losses(steps, given)
        found = [float(loss) for loss in steps.losses(given)]
    if max(abs(a - b) for a, b in zip(found, expected, strict=True)) > 1e-12:
        raise Wrong("losses after a restart differ", found=found, expected=expected)
    return {"losses": found}


def tf32() -> Facts:
    """Products of recorded steps are computed in TF32 where those of single launches are."""
    facts: Facts = {"single": [], "recorded": []}
    products = gpu_graph.products(60_000)
    for launches in facts:
        graph = products.graph.on("cuda", topology="device", columns="device")
        loader = khop.Loader(
            khop.NeighborSampler(graph, [10, 5]), torch.arange(8192), 1024, columns=["x"], seed_columns=["y"]
        )
        model = khop.models.SAGE.for_graph(products.graph, hidden=256, layers=2, label="y")
        settings = khop.TrainerSettings(
            2,
            precision="tf32",
            device="cuda",
            launches=launches,
            evaluate_every=2,  # type: ignore[arg-type]
        )
        with tempfile.TemporaryDirectory() as out:
            trainer = Trainer(
                model, NodeClassification("node", "y"), loader, lambda: {"val": 0.0}, settings, Path(out)
            )
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                trainer.fit()
        names = {event.key for event in profile.key_averages()}
        facts[launches] = sorted(n[:90] for n in names if "gemm" in n.lower() or "nvjet" in n.lower())
    has = {name: any("tf32" in kernel or "s1688" in kernel for kernel in facts[name]) for name in facts}  # type: ignore[attr-defined]
    if has["single"] and not has["recorded"]:
        raise Wrong("recorded products are not in TF32", **facts)
    return facts


def nccl_one_rank() -> Facts:
    """Calls of torch.distributed that khop makes on tensors of a GPU, with one rank."""
    torch.cuda.set_device(0)
    with tempfile.TemporaryDirectory() as folder:
        store = distributed.FileStore(f"{folder}/store", 1)
        distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
        try:
            if "nccl" not in distributed.get_backend_config():
                raise Wrong("rows would not take the communicator of the gradients")
            x = torch.arange(64, dtype=torch.uint8, device="cuda").view(1, 64)
            y, side = torch.empty_like(x), torch.cuda.Stream(priority=-1)
            with torch.cuda.stream(side):
                distributed.all_to_all_single(y, x, group=distributed.group.WORLD, async_op=True).wait()
            side.synchronize()
            same("rows exchanged with itself", y, x)
            found = [torch.empty((), dtype=torch.float64, device="cuda")]
            distributed.all_gather(found, torch.tensor(3.0, dtype=torch.float64, device="cuda"))
            distributed.all_reduce(torch.ones(3, device="cuda"), async_op=True).wait()
            distributed.broadcast(torch.ones(3, device="cuda"), src=0)
            distributed.all_gather([torch.empty(2)], torch.ones(2))
            model = DistributedDataParallel(nn.Linear(3, 3).cuda(), find_unused_parameters=True)
            model.register_comm_hook(GradientClock(), _timed_average)
            model(torch.ones(2, 3, device="cuda")).sum().backward()
            torch.cuda.synchronize()
            return {"gathered": float(found[0])}
        finally:
            distributed.destroy_process_group()


def two_ranks() -> Facts:
    """Two processes on one card: memory of the other by CUDA IPC, collectives over gloo, shared pins."""
    spawning = torch.multiprocessing.get_context("spawn")
    rows, said = spawning.Queue(), spawning.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [(rank, f"{folder}/store", rows, said) for rank in range(2)]
        processes = [spawning.Process(target=_rank, args=each, daemon=True) for each in arguments]
        for process in processes:
            process.start()
        found = [said.get(timeout=40) for _ in processes]
        for process in processes:
            process.join(10)
    failures = [text for _, text in sorted(found) if text]
    if failures:
        raise Wrong("ranks on one card fail", failures=failures)
    return {"ranks": len(found)}


def _rank(rank: int, store: str, rows: Queue[Tensor], said: Queue[tuple[int, str]]) -> None:
    try:
        _work_of_rank(rank, store, rows)
        said.put((rank, ""))
    except BaseException:
        said.put((rank, traceback.format_exc()[-1500:]))


def _work_of_rank(rank: int, store: str, rows: Queue[Tensor]) -> None:
    torch.cuda.set_device(0)
    distributed.init_process_group(
        "cpu:gloo,cuda:gloo",
        store=distributed.FileStore(store, 2),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=30),
    )
    total = torch.full((3,), rank + 1.0, device="cuda")
    distributed.all_reduce(total)
    same("a sum over gloo", total.cpu(), torch.full((3,), 3.0))
    table = torch.arange(1000 * 4, dtype=torch.float32, device="cuda").view(1000, 4)
    if rank == 0:
        rows.put(table)
    else:
        ids = torch.arange(999, -1, -7, device="cuda")
        out = torch.empty(ids.numel(), 4, device="cuda")
        device_gather.gather(rows.get(timeout=20), ids, out)
        same("rows of the other process", out, table[ids])
    enter(Group(rank, 2, rank, 2, 30.0))
    graph = shop()
    placed = graph.on("cuda:0", topology="pinned", columns="pinned")
    for ours, theirs in zip(_batches(placed), _batches(graph), strict=True):
        if bits(ours.map(Tensor.cpu)) != bits(theirs):
            raise Wrong("batches over shared pins differ")
    distributed.barrier()


def _batches(graph: khop.Graph) -> khop.Loader:
    sampler = khop.NeighborSampler(graph, [3, 2])
    return khop.Loader(sampler, {"item": torch.arange(30)}, 10, columns=["x"], seed_columns=["price"])


def sanitizers() -> Facts:
    """torch's sanitizer of streams, and NVIDIA's of memory, over a few tests."""
    some = ["tests/gpu/test_placements.py", "-k", "late_consumer or not_wait or copied_unchanged"]
    facts = {"streams": _tested(some, TORCH_CUDA_SANITIZER="1")}
    if shutil.which("compute-sanitizer"):
        memcheck = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9"]
        node_table = ["tests/kernels/triton/test_node_table.py", "-x"]
        facts["memory"] = _tested(node_table, memcheck, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    if any(found["code"] for found in facts.values()):
        raise Wrong("a sanitizer found an error", **facts)
    return dict(facts)


def huge_pins() -> Facts:
    """The speed of gathers from pinned memory, with pages of 4 kB and with huge ones."""
    num_rows, width = 8 * GIB // 512, 128
    ids = torch.randint(num_rows, (470_000,), device="cuda")
    out = torch.empty(ids.numel(), width, device="cuda")
    facts: Facts = {}
    for name, advice in (("pages of 4 kB", None), ("huge pages", HUGE_PAGES)):
        host = own_pages(num_rows * width, torch.float32).view(num_rows, width)
        if advice is not None:
            address, size = ctypes.c_void_p(host.data_ptr()), ctypes.c_size_t(host.nbytes)
            facts["madvise"] = ctypes.CDLL(None).madvise(address, size, advice)
        host.fill_(1.0)
        far = CudaMemory(torch.device("cuda", 0)).pinned(host)
        for _ in range(3):
            device_gather.gather(far, ids, out, is_pinned=True)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(10):
            device_gather.gather(far, ids, out, is_pinned=True)
        end.record()
        end.synchronize()
        facts[f"{name}, GB/s"] = round(10 * out.nbytes / begin.elapsed_time(end) / 1e6, 1)
        del far, host
    return facts


def same(what: str, found: Tensor, wanted: Tensor) -> None:
    """Raise Wrong unless two tensors have the same bits."""
    if not torch.equal(found, wanted):
        count = int((found != wanted).sum()) if found.shape == wanted.shape else list(found.shape)
        raise Wrong(f"{what} differ", different=count)


def small_trainer(**settings: object) -> Trainer:
    """Return a trainer with recorded steps over a small graph on the GPU."""
    run = RecordedRun(Path(tempfile.mkdtemp()) / "run", graph=one_type(torch.float64)).with_(
        device="cuda", **settings
    )
    graph = khop.Graph(run.graph.store, run.graph.features)
    return run.on(graph.on("cuda", topology="device", columns="device"))


def tests_of(*paths: str) -> Facts:
    """Return the summary of some tests; Wrong if one fails."""
    found = _tested(list(paths))
    if found["code"]:
        raise Wrong("tests fail", **found)
    return found


def _tested(paths: list[str], tool: list[str] | None = None, **variables: str) -> Facts:
    command = [
        *(tool or []),
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *paths,
    ]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    print(done.stdout, done.stderr, file=sys.stderr)
    return {"code": done.returncode, "tail": done.stdout[-1500:] if done.returncode else done.stdout[-100:]}


ON_CPU = {environment, first_launch, restart}  # in Triton's interpreter
PROBES: Mapping[str, Callable[[], Facts]] = {
    probe.__name__: probe
    for probe in (
        environment, first_launch, pins, placements, self_proof, recorded, refused, restart, tf32,
        nccl_one_rank, two_ranks, sanitizers, huge_pins,
    )
}  # fmt: skip


def answer(name: str) -> dict[str, object]:
    """Run a probe; return its line."""
    begun = time.monotonic()
    line: dict[str, object] = {"probe": name, "verdict": "passed"}
    if not torch.cuda.is_available() and PROBES[name] not in ON_CPU:
        return line | {"verdict": "no GPU", "seconds": 0.0}
    try:
        with redirect_stdout(sys.stderr):
            line |= PROBES[name]()
    except Wrong as error:
        line |= {"verdict": "failed", "problem": str(error), **error.facts}
    except Exception as error:  # a probe that ends by an error is an answer too
        traceback.print_exc()
        line |= {"verdict": "failed", "problem": f"{type(error).__name__}: {error}"[:1500]}
    return line | {"seconds": round(time.monotonic() - begun, 1)}


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(json.dumps(answer(each), default=str), flush=True)
