"""Process settings for training on a CPU: allocator, OpenMP threads, cores and memory nodes, forks.

The command applies the settings before it imports torch, a script with its first epoch of batches.
Environment variables that configure the allocator or OpenMP take precedence.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

# mallopt(3) of the GNU C library.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST = (1 << 31) - 1  # mallopt takes an int

_SMALL_BLOCK = 1 << 18  # bytes; larger blocks are returned when memory is scarce

_HUGE_PAGES = 14  # MADV_HUGEPAGE of Linux
_HUGE_PAGE_BYTES = 1 << 21
_HEAP_BYTES = 1 << 30  # below _LARGEST, so that it is part of the heap

# Variables by which users choose how OpenMP waits, or configure or replace the allocator.
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
_ALLOCATION = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD")
_LOADED = Path("/proc/self/maps")


def tune_before_torch() -> None:
    """Tune the allocator, and set the variable that OpenMP reads when torch loads it."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    tune_memory()


@cache
def tune_for_training() -> None:
    """Tune this process once, as the command does at its start. Torch may already be imported."""
    tune_memory()
    if not any(name in os.environ for name in _WAITING) and not rest_openmp():
        warnings.warn(
            "idle OpenMP threads use the cores that sampler threads need: export OMP_WAIT_POLICY=passive",
            stacklevel=2,
        )


@cache
def tune_memory() -> bool:
    """Keep freed memory in this process for reuse by large tensors; return True if a setting changed.

    By default the C library returns every large block to the kernel and requests a new one. The kernel zeroes
    its pages one fault at a time, which takes a quarter of a training step on a CPU. After this call, freed
    memory stays with the process, and the first GiB of its heap requests huge pages.

    Only glibc has the required functions; with other C libraries nothing changes.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc" in tunables or any(name in os.environ for name in _ALLOCATION):
        return False
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt")):
        return False
    kept = libc.mallopt(_MMAP_THRESHOLD, _LARGEST) and libc.mallopt(_TRIM_THRESHOLD, _LARGEST)
    if kept:
        _request_huge_pages(libc)
    return bool(kept)


def return_freed_memory() -> None:
    """Undo `tune_memory` if memory is scarce: large blocks are returned to the kernel when they are freed.

    Settings from the user's environment are kept. The heap is trimmed at once.
    """
    if not tune_memory():
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, _SMALL_BLOCK)
    libc.mallopt(_TRIM_THRESHOLD, _SMALL_BLOCK)
    libc.malloc_trim(0)


def _request_huge_pages(libc: ctypes.CDLL) -> None:
    """Grow the heap once, in address space only: pages are allocated when written, huge if allowed."""
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    block = libc.malloc(_HEAP_BYTES)
    if block is None:
        return
    first = -(-block // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    libc.madvise(first, block + _HEAP_BYTES - first, _HUGE_PAGES)
    libc.free(block)


def rest_openmp() -> bool:
    """Let idle threads of a loaded OpenMP sleep within microseconds; return False if one cannot be set.

    By default they spin for about a millisecond (GNU) or 200 (LLVM, Intel) after each operator, on the cores
    that sampler threads need. `OMP_WAIT_POLICY` no longer has an effect once OpenMP is loaded.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) == 1:
        return True
    for path in _openmp_libraries():
        library = ctypes.CDLL(path)
        if hasattr(library, "kmp_set_blocktime"):  # LLVM and Intel: threads of this thread's teams
            library.kmp_set_blocktime(0)
        elif hasattr(library, "GOMP_parallel"):
            _oversubscribe(library)
        else:
            return False
    return True


def _openmp_libraries() -> set[str]:
    lines = _LOADED.read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    return {path for path in paths if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))}


def _oversubscribe(libgomp: ctypes.CDLL) -> None:
    """Give GNU OpenMP more threads than cores, all asleep.

    Its threads then spin 1,000 times instead of 300,000 (`gomp_throttled_spin_count_var` in its wait.h).
    The threads belong to a thread that never ends.
    """
    nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL)
    threads = len(os.sched_getaffinity(0)) + 1
    started = threading.Event()

    def hold() -> None:
        libgomp.GOMP_parallel(nothing, None, threads, 0)
        started.set()
        threading.Event().wait()

    threading.Thread(target=hold, name="khop-openmp", daemon=True).start()
    started.wait()


SETTLE_S = 0.1  # time for OpenMP threads to sleep, because they spin for a moment after each operation
_THREADS = Path("/proc/self/task")


def check_fork() -> None:
    """Warn once in a forked process if torch's next operation may hang.

    The warning points at the caller's caller. GNU OpenMP keeps its threads between operations. A fork copies
    the records of these threads, but not the threads. The first parallel operation of the child waits for
    them forever. CUDA does not work in such a child.
    """
    causes = _Forks.causes()
    if causes and os.getpid() not in _Forks.warned:
        _Forks.warned.add(os.getpid())
        warnings.warn(
            f"this process was forked from one with {' and '.join(causes)}: torch hangs or fails in it. "
            "Start processes with khop.launch or with the spawn method, e.g. "
            'multiprocessing.get_context("spawn").Process',
            RuntimeWarning,
            stacklevel=3,
        )


class _Forks:
    """State of this process, copied into its forks."""

    had_openmp = False  # at the last fork
    lost_openmp = False  # in the process that forked this one, or in an earlier one
    warned: ClassVar[set[int]] = set()  # processes

    @classmethod
    def causes(cls) -> list[str]:
        import torch  # the command loads this module, and must not load torch

        openmp = cls.lost_openmp and torch.get_num_threads() > 1  # one thread starts no others
        cuda = torch.cuda._is_in_bad_fork()
        return [
            name for name, lost in (("live threads of OpenMP", openmp), ("CUDA initialized", cuda)) if lost
        ]


def before_fork() -> None:
    """Record what a child of this process, which has loaded torch, will lack."""
    _Forks.had_openmp = _has_openmp_threads()


def after_fork() -> None:
    """Record in the child what it lacks."""
    _Forks.lost_openmp = _Forks.lost_openmp or _Forks.had_openmp


def _has_openmp_threads() -> bool:
    """Return True if GNU OpenMP threads wait for work, or if the state of native threads is unknown."""
    end = time.monotonic() + SETTLE_S
    while True:
        code = _code_of_openmp()
        resting, num_running = _native_threads()
        if any(address in code_range for code_range in code for address in resting):
            return True
        if not code or num_running == 0:
            return False
        if time.monotonic() > end:
            return True
        time.sleep(SETTLE_S / 50)


def _code_of_openmp() -> list[range]:
    """Return address ranges of libgomp's code; empty if it is not loaded. Other runtimes survive a fork."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    found = [line.split()[0] for line in lines if "libgomp" in line and " r-xp " in line]
    return [range(*(int(end, 16) for end in addresses.split("-"))) for addresses in found]


def _native_threads() -> tuple[list[int], int]:
    """Return the kernel wait addresses of threads not started by Python, and the number that are running."""
    import threading  # only needed at a fork

    # Python 3.11 keeps the parent's id for the thread of a forked process.
    of_python = {threading.get_native_id(), *(thread.native_id for thread in threading.enumerate())}
    resting, num_running = [], 0
    for thread in _THREADS.iterdir() if _THREADS.is_dir() else ():
        if int(thread.name) in of_python:
            continue
        try:
            *_, last = (thread / "syscall").read_text().split()
        except (OSError, ValueError):  # it has just ended, or this system has no such file
            continue
        if last == "running":
            num_running += 1
        else:
            resting.append(int(last, 16))
    return resting, num_running


CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # "<microseconds or max> <period>", in containers


def allowed_cores() -> int:
    """Return the number of cores that this process may use; all on a system without affinity (macOS)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def usable_cores(limit: Path = CGROUP_LIMIT, cores: int = 0) -> int:
    """Return the number of cores that this process may use, limited by the container's CPU quota.

    `cores` is the limit without a quota, by default the cores that the process may run on.
    """
    cores = cores or allowed_cores()
    try:
        quota, period = limit.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def cores_of_rank(ranks_here: int) -> int:
    """Return the number of cores per rank, for `ranks_here` ranks on this machine."""
    if _Bound.has_own_cores:  # a quota of the container is still shared
        return max(1, min(allowed_cores(), usable_cores(cores=1 << 20) // ranks_here))
    return max(1, usable_cores() // ranks_here)


def sampler_threads(cores: int, device_type: str = "cpu") -> int:
    """Return the number of sampler threads while training uses all `cores`: about a quarter.

    If a GPU computes, all cores except two: one launches kernels, one reads results. The minimum is two,
    unless there is only one core: sampling is bound by memory latency, and on two cores, two threads are the
    fastest in benchmarks/threads.py.
    """
    return min(cores, max(2, cores // 4 if device_type == "cpu" else cores - 2))


Bind = Literal["none", "cores", "numa"]
_CORES = Path("/sys/devices/system")
# set_mempolicy(2) and mbind(2); other machines keep the policy of their kernel, which allocates where a
# thread runs.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MBIND = {"x86_64": 237, "aarch64": 235}
_PREFERRED = 1  # MPOL_PREFERRED: other nodes if this one is full
_INTERLEAVED = 3  # MPOL_INTERLEAVE: page after page from one node after the other


class _Bound:
    """State of this process."""

    has_own_cores = False  # no other rank of the machine runs on its cores


def own_cores() -> None:
    """State that no other rank of this machine runs on the cores of this process."""
    _Bound.has_own_cores = True


def bound_to() -> str:
    """Return the cores of this process in words, if no other rank of the machine runs on them; else ""."""
    if not _Bound.has_own_cores:
        return ""
    topology, cores = CoreTopology.read(), sorted(os.sched_getaffinity(0))
    nodes = {topology.node_of(core) for core in cores}
    return str(RankCores(tuple(cores), nodes.pop() if len(nodes) == 1 else None))


@dataclass(frozen=True)
class CoreTopology:
    """Logical cores of a machine: those of each memory node, and those that share a physical core."""

    nodes: Mapping[int, frozenset[int]]  # memory node -> cores
    siblings: Mapping[int, frozenset[int]]  # core -> the cores of its physical core

    @classmethod
    def read(cls, system: Path = _CORES) -> CoreTopology:
        """Read the topology from Linux' files; empty where there are none."""
        nodes = {
            int(folder.name[4:]): _listed(folder / "cpulist") for folder in system.glob("node/node[0-9]*")
        }
        siblings = {
            int(folder.name[3:]): _listed(folder / "topology" / "thread_siblings_list")
            for folder in system.glob("cpu/cpu[0-9]*")
        }
        return cls({node: cores for node, cores in sorted(nodes.items()) if cores}, siblings)

    def node_of(self, core: int) -> int | None:
        """Return the memory node of a core; None if unknown."""
        return next((node for node, cores in self.nodes.items() if core in cores), None)

    def default_bind(self, allowed: Collection[int], ranks: int) -> Bind:
        """Return numa if the allowed cores are on several memory nodes and each rank gets one, else none."""
        several = len({self.node_of(core) for core in allowed}) > 1
        return "numa" if several and 1 < ranks <= len(allowed) else "none"

    def places(self, allowed: Collection[int], ranks: int, bind: Bind) -> tuple[RankCores, ...]:
        """Divide the allowed cores among the ranks of a machine: disjoint, and none if `bind` is none.

        Physical cores stay whole while there are enough of them. With "numa" a rank has cores of one memory
        node, or whole nodes if there are more nodes than ranks. ValueError for more ranks than cores.
        """
        if bind == "none":
            return ()
        if ranks > len(allowed):
            raise ValueError(
                f"bind {bind}: {ranks} processes, and this process may run on {len(allowed)} cores; start "
                f"{len(allowed)} at most, or bind none"
            )
        by_node: dict[int | None, list[int]] = {}
        for core in sorted(allowed):
            by_node.setdefault(self.node_of(core), []).append(core)
        groups = [*by_node.values()]
        if bind == "cores" or len(groups) == 1:
            shares = self._shares([core for group in groups for core in group], ranks)
        elif ranks <= len(groups):
            shares = [[core for group in part for core in group] for part in _even(groups, ranks)]
        else:
            counts = _proportional([len(group) for group in groups], ranks)
            shares = [
                share for group, n in zip(groups, counts, strict=True) for share in self._shares(group, n)
            ]
        return tuple(self._place(share) for share in shares)

    def _shares(self, cores: Sequence[int], ranks: int) -> list[list[int]]:
        """Divide cores evenly, by physical cores if there are enough."""
        whole: dict[frozenset[int], list[int]] = {}
        for core in cores:
            whole.setdefault(self.siblings.get(core) or frozenset([core]), []).append(core)
        units = [*whole.values()] if len(whole) >= ranks else [[core] for core in cores]
        return [sorted(core for unit in part for core in unit) for part in _even(units, ranks)]

    def _place(self, cores: Sequence[int]) -> RankCores:
        nodes = {self.node_of(core) for core in cores}
        return RankCores(tuple(sorted(cores)), nodes.pop() if len(nodes) == 1 else None)


@dataclass(frozen=True)
class RankCores:
    """Cores of a rank, and their memory node."""

    cores: tuple[int, ...]
    node: int | None = None  # None: several, or unknown

    def __str__(self) -> str:
        """Return such as "cores 0-3 on memory node 0"."""
        ranges = [
            [core for _, core in run]
            for _, run in groupby(enumerate(self.cores), key=lambda pair: pair[1] - pair[0])
        ]
        words = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ranges)
        return f"cores {words}" + ("" if self.node is None else f" on memory node {self.node}")

    def bind_thread(self) -> None:
        """Bind the calling thread, and the threads and processes that it starts from now on."""
        os.sched_setaffinity(0, self.cores)
        if self.node is not None:
            _prefer_node(self.node)

    def bind_process(self) -> None:
        """Bind all threads of this process; memory that it has already stays where it is."""
        self.bind_thread()
        for thread in _THREADS.iterdir() if _THREADS.is_dir() else ():
            with suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(int(thread.name), self.cores)

    @contextmanager
    def inherited(self) -> Iterator[None]:
        """Bind the processes that the calling thread starts in the block."""
        before = os.sched_getaffinity(0)
        self.bind_thread()
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)
            if self.node is not None:
                _prefer_node(None)


def places_of_ranks(ranks: int, bind: Bind | None) -> tuple[RankCores, ...]:
    """Return the place of each rank of this machine; () for no binding.

    None means numa on a machine with several memory nodes, else none. Cores that this process may not run on,
    by its affinity or its control group, are left out.
    """
    if ranks == 1 or bind == "none" or not hasattr(os, "sched_getaffinity"):
        return ()
    topology, allowed = CoreTopology.read(), os.sched_getaffinity(0)
    return topology.places(allowed, ranks, bind or topology.default_bind(allowed, ranks))


def interleave(address: int, num_bytes: int) -> None:
    """Allocate the pages of a mapping from all memory nodes with cores in turn, once they are written.

    `address` is that of a page. Every core and every GPU then reads it through all memory controllers. Pages
    that exist already stay where they are.
    """
    nodes = CoreTopology.read().nodes
    if len(nodes) > 1 and num_bytes:
        place = ctypes.c_void_p(address), ctypes.c_ulong(num_bytes)
        _set_policy(_MBIND, *place, _INTERLEAVED, *_node_mask(nodes), ctypes.c_uint(0))


def _prefer_node(node: int | None) -> None:
    """Allocate memory of the calling thread on a memory node; None: where the thread runs."""
    _set_policy(_SET_MEMPOLICY, *((0, None, 0) if node is None else (_PREFERRED, *_node_mask([node]))))


def _node_mask(nodes: Collection[int]) -> tuple[ctypes.Array[ctypes.c_ulong], ctypes.c_ulong]:
    """Return a set of memory nodes as Linux takes it, and its length in bits."""
    words, bits = (ctypes.c_ulong * 16)(), 8 * ctypes.sizeof(ctypes.c_ulong)
    for node in nodes:
        words[node // bits] |= 1 << node % bits
    return words, ctypes.c_ulong(16 * bits)


def _set_policy(call: Mapping[str, int], *arguments: object) -> None:
    """Call Linux, where it has the call.

    A kernel without memory nodes, or a container that forbids the call, refuses: then memory is allocated
    where a thread runs.
    """
    number = call.get(os.uname().machine) if sys.platform == "linux" else None
    if number is not None:
        ctypes.CDLL(None).syscall(ctypes.c_long(number), *arguments)


def _listed(file: Path) -> frozenset[int]:
    """Return the numbers of a list of Linux, such as 0-3,8."""
    try:
        parts = file.read_text().strip().split(",")
    except OSError:
        return frozenset()
    bounds = [part.partition("-") for part in parts if part]
    return frozenset(core for first, _, last in bounds for core in range(int(first), int(last or first) + 1))


T = TypeVar("T")


def _even(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Divide items into consecutive parts of equal size, up to one item."""
    return [items[len(items) * n // parts : len(items) * (n + 1) // parts] for n in range(parts)]


def _proportional(sizes: Sequence[int], ranks: int) -> list[int]:
    """Divide ranks among groups of cores: one each at least, and no more than its cores."""
    counts = [1] * len(sizes)
    for _ in range(ranks - len(sizes)):
        free = [n for n, (size, count) in enumerate(zip(sizes, counts, strict=True)) if count < size]
        counts[max(free, key=lambda n: sizes[n] / (counts[n] + 1))] += 1
    return counts
