"""The work of `khop doctor`: findings on the installation and on this machine, each with its remedy."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import import_module, metadata
from itertools import groupby
from pathlib import Path
from types import ModuleType

import typer
from packaging.requirements import Requirement
from rich.console import Console
from rich.filesize import decimal

import khop
from khop.cli.lines import tell
from khop.cli.start import FAILED
from khop.cli.terminal import say, say_next
from khop.distributed.processes.launchers import Interface
from khop.process_tuning import CGROUP_LIMIT, CoreTopology, RankCores, allowed_cores, usable_cores
from khop.user_cache import cache_folder

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SHARED_MEMORY, INFINIBAND = Path("/dev/shm"), Path("/sys/class/infiniband")
_LEAST_FILES, _LEAST_SHARED, _LEAST_DISK, _LEAST_MEMORY = 1024, 1 << 28, 1 << 30, 2 << 30
_ALLOCATOR = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD")
_NO_LIMIT = resource.RLIM_INFINITY


class FindingState(StrEnum):
    """State of a finding."""

    OK = "ok"
    NOTE = "note"  # not a problem, but not available
    WRONG = "wrong"  # khop works, but slowly or only in part
    STOPS = "stops"  # khop does not work


OK, NOTE, WRONG, STOPS = FindingState


@dataclass(frozen=True)
class Finding:
    """A property of the installation or of the machine."""

    area: str
    name: str
    found: str
    state: FindingState = OK
    remedy: str = ""  # a shell command, or a sentence; empty if nothing needs to be done


def examine(as_json: bool, proves: bool) -> None:
    """Print all findings; with `proves`, compare all kernels of the GPUs with the CPU first.

    The exit code is 1 if one of them stops khop.
    """
    found = list(findings(proves))
    stops = any(each.state is STOPS for each in found)
    if as_json:
        print(json.dumps({"works": not stops, "findings": [asdict(each) for each in found]}))
    else:
        _print(found, stops)
    if stops:
        raise typer.Exit(FAILED)


def _print(found: Sequence[Finding], stops: bool) -> None:
    console, width = Console(), max(len(each.name) for each in found)
    for area, of_area in groupby(found, key=lambda each: each.area):
        say(console, area)
        for each in of_area:
            say(console, f"  {each.state.value:<5}  {each.name:<{width}}  {each.found}")
            if each.remedy:
                say(console, f"  {'':<5}  {'':<{width}}  {each.remedy}")
    wrong, notes = sum(each.state in (WRONG, STOPS) for each in found), sum(e.state is NOTE for e in found)
    say(console, "", f"{wrong} wrong, {notes} not available; the line below each of them says what to do.")
    if stops:
        say(console, "khop does not work until you solve the problems marked stops.")
    else:
        say_next(console, ("khop", "train", "debian"))


def findings(proves: bool) -> Iterator[Finding]:
    """Examine the installation and this machine; see `examine`."""
    try:
        needs = metadata.requires("khop") or []
    except metadata.PackageNotFoundError:  # khop runs from a source folder
        needs = []
    yield from versions(needs, _installed)
    on_gpus = list(gpus(os.environ))
    # Other modules of khop need torch. If it is missing, that is already reported.
    if all(each.state is not STOPS for each in on_gpus):
        from khop.distributed.processes.launchers import interfaces

        yield from cores(os.environ)
        yield from memory(os.environ)
        yield from network(interfaces(), socket.gethostname())
        on_gpus += kernels(proves)
    yield from on_gpus
    yield from limits()
    yield folder("cache of graphs", cache_folder(), "export KHOP_CACHE=/a/larger/disk")
    yield folder("working directory", Path.cwd(), "cd /a/larger/disk (runs/ is made in it)")
    yield folder("temporary files", Path(tempfile.gettempdir()), "export TMPDIR=/a/larger/disk")


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions(needs: Sequence[str], version_of: Callable[[str], str | None]) -> Iterator[Finding]:
    """Yield findings on khop, Python, the compiled core, required packages, and packages of extras."""
    yield Finding("versions", "khop", khop.__version__)
    yield Finding("versions", "Python", platform.python_version())
    try:
        import_module("khop._core")
        yield Finding("versions", "compiled core", "loads")
    except ImportError as error:
        remedy = "pip install . (in the clone: compiles the core for this Python)"
        yield Finding("versions", "compiled core", f"cannot be loaded: {error}", STOPS, remedy)
    by_name: dict[str, list[Requirement]] = {}
    for need in map(Requirement, needs):
        by_name.setdefault(need.name, []).append(need)
    for name, of_package in by_name.items():
        extras = re.findall(r'extra == "([^"]+)"', " ".join(str(need.marker or "") for need in of_package))
        is_extra = all("extra" in str(need.marker or "") for need in of_package)
        purpose = f", for the extra {', '.join(dict.fromkeys(extras))}" if is_extra else ""
        version, wanted = version_of(name), max((str(need.specifier) for need in of_package), key=len)
        bad, install = (WRONG if is_extra else STOPS), f'pip install "{name}{wanted}"'
        if version is None:
            yield Finding("versions", name, f"not installed{purpose}", NOTE if is_extra else STOPS, install)
        elif not all(need.specifier.contains(version, prereleases=True) for need in of_package):
            yield Finding("versions", name, f"{version}, khop needs {name}{wanted}{purpose}", bad, install)
        else:
            yield Finding("versions", name, f"{version}{purpose}")


def gpus(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings on torch's build, the driver, the GPUs, and Triton if there is a GPU."""
    try:
        torch = import_module("torch")
    except (ImportError, OSError) as error:  # OSError: one of its libraries is missing
        remedy = 'pip install --force-reinstall "torch>=2.6"'
        yield Finding("GPUs", "torch", f"cannot be imported: {error}", STOPS, remedy)
        return
    driver = import_module("khop.kernels.card").driver_version()
    yield from cards(torch, driver, environment.get("CUDA_VISIBLE_DEVICES"))


def cards(torch: ModuleType, driver: str | None, visible: str | None) -> Iterator[Finding]:
    """Yield the findings on torch and a driver of this version; None: there is no driver."""
    choice = import_module("khop.kernels.choice")  # imports torch, which may be missing
    yield Finding("GPUs", "driver", driver or "no NVIDIA driver")
    kind = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    if not (torch.version.cuda or torch.version.hip):
        found = "torch is a CPU-only build"
        build = "install torch with GPU support: https://pytorch.org/get-started/locally"
        if driver is None:
            yield Finding("GPUs", "GPU", f"none; {found}; training runs on the CPU")
        else:
            yield Finding("GPUs", "GPU", f"{found}, although there is a driver", WRONG, build)
        return
    if not torch.cuda.is_available():
        if visible is not None and visible.strip() in ("", "-1"):
            unset = "unset CUDA_VISIBLE_DEVICES"
            yield Finding("GPUs", "GPU", "hidden by CUDA_VISIBLE_DEVICES", NOTE, unset)
        elif driver is None:
            found = f"none; torch is a build for {kind}; training runs on the CPU"
            yield Finding("GPUs", "GPU", found, NOTE)
        else:
            found = f"torch for {kind} finds no GPU with driver {driver}"
            yield Finding("GPUs", "GPU", found, WRONG, "nvidia-smi (then update the driver, or torch)")
        return
    for number in range(torch.cuda.device_count()):
        (free, total), capability = torch.cuda.mem_get_info(number), torch.cuda.get_device_capability(number)
        found = f"{torch.cuda.get_device_name(number)}, {decimal(free)} of {decimal(total)} free, {kind}"
        too_old = choice.why_too_old(capability) if torch.version.cuda else None
        if too_old is not None:
            remedy = "leave out --topology and --features: the CPU makes the batches"
            yield Finding("GPUs", f"cuda:{number}", f"{found}; no kernels: {too_old}", WRONG, remedy)
        else:
            found = f"{found}, capability {'.'.join(map(str, capability))}"
            yield Finding("GPUs", f"cuda:{number}", found)
    triton, least = choice.triton_version(), ".".join(map(str, choice.LEAST_TRITON))
    found = "not installed" if triton is None else ".".join(map(str, triton))
    if triton is None or triton < choice.LEAST_TRITON:
        found = f"{found}, kernels need {least}: the CPU makes the batches"
        yield Finding("GPUs", "Triton", found, WRONG, 'pip install "torch>=2.7"')
    else:
        yield Finding("GPUs", "Triton", found)


def kernels(proves: bool) -> Iterator[Finding]:
    """Yield the kept verdicts on the kernels of all GPUs; with `proves`, compare them with the CPU first."""
    import torch

    from khop.kernels.choice import why_no_kernels
    from khop.loading.device.static_choice import kept_verdict, why_no_batches
    from khop.loading.device.streams import num_gpus

    for number in range(num_gpus()):
        reason = why_no_kernels(number)
        if reason is None and proves:
            tell(f"comparing the kernels of cuda:{number} with the CPU")
            reason = why_no_batches(torch.device("cuda", number), every=True)
        answers = kept_verdict(number)
        wrong = next((problem for problem in answers.values() if problem), None)
        yield kernels_of(number, reason or wrong, answers)
    if proves and not num_gpus():
        yield Finding("GPUs", "kernels", "there is no GPU to compare", NOTE)


def kernels_of(number: int, reason: str | None, answers: Mapping[str, str]) -> Finding:
    """Return the finding on the kernels of a GPU: why they are not used, or which comparisons they passed.

    `answers` are the stored results of the comparisons: "" if all bits were equal.
    """
    name, proven = f"kernels of cuda:{number}", ", ".join(name for name, text in answers.items() if not text)
    if reason is not None:
        again = "khop doctor --gpu (compares again, after the cause is fixed)"
        return Finding("GPUs", name, f"the CPU makes the batches: {reason}", WRONG, again)
    if not proven:
        found = "not compared with the CPU yet: the first run on the GPU does so"
        return Finding("GPUs", name, found, NOTE, "khop doctor --gpu")
    return Finding("GPUs", name, f"bit-identical to the CPU: {proven}")


def cores(
    environment: Mapping[str, str], limit: Path = CGROUP_LIMIT, load: float | None = None
) -> Iterator[Finding]:
    """Yield findings on the usable cores, their load (default: one-minute average), and OpenMP settings."""
    of_machine, allowed, usable = os.cpu_count() or 1, allowed_cores(), usable_cores(limit)
    reasons = [f"{of_machine} in the machine"]
    reasons += [f"{allowed} by affinity (taskset, Slurm or a container)"] if allowed < of_machine else []
    reasons += [f"{usable} by the control group's quota"] if usable < allowed else []
    yield Finding("cores", "usable cores", f"{usable} ({', '.join(reasons)})")
    yield memory_nodes(CoreTopology.read(), getattr(os, "sched_getaffinity", lambda _: range(of_machine))(0))
    load = os.getloadavg()[0] if load is None else load
    found = f"{load:.1f} running threads on {of_machine} cores"
    if load > of_machine:
        found = f"{found}: other programs use the cores"
        yield Finding("cores", "load", found, WRONG, "top -o %CPU (shows these programs)")
    else:
        yield Finding("cores", "load", found)
    policy, threads = environment.get("OMP_WAIT_POLICY", ""), environment.get("OMP_NUM_THREADS", "")
    if policy.lower() == "active":
        found = "OMP_WAIT_POLICY=active: idle compute threads take the cores of sampler threads"
        yield Finding("cores", "OpenMP waiting", found, WRONG, "unset OMP_WAIT_POLICY")
    else:
        note = "idle threads sleep: set by the command, and in a script at its first epoch"
        yield Finding("cores", "OpenMP waiting", f"{policy or 'not set'} ({note})")
    if threads.isdigit() and int(threads) > usable:
        found = f"OMP_NUM_THREADS={threads}, more than the usable cores"
        yield Finding("cores", "OpenMP threads", found, WRONG, "unset OMP_NUM_THREADS")


def memory_nodes(topology: CoreTopology, allowed: Collection[int]) -> Finding:
    """Return the memory nodes of the usable cores, and the default binding of several processes."""
    nodes = {node: sorted(cores & set(allowed)) for node, cores in topology.nodes.items()}
    there = {node: RankCores(tuple(cores)) for node, cores in nodes.items() if cores}
    bind = topology.default_bind(allowed, 2)
    words = "; ".join(f"node {node}: {place}" for node, place in there.items()) or "unknown"
    return Finding("cores", "memory nodes", f"{words}; processes of a run have --bind {bind} by default")


def memory(
    environment: Mapping[str, str], huge_pages: Path = HUGE_PAGES, free: int | None = None
) -> Iterator[Finding]:
    """Yield findings on usable and free memory, huge pages, and the allocator."""
    from khop.kernels.memory import free_memory_bytes, memory_limit_bytes

    of_machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    usable, free = memory_limit_bytes(), free_memory_bytes() if free is None else free
    limited = f", limited by the control group; the machine has {decimal(of_machine)}"
    yield Finding("memory", "usable memory", f"{decimal(usable)}{limited if usable < of_machine else ''}")
    if free < _LEAST_MEMORY:
        remedy = "ps aux --sort=-rss | head (shows the programs that use memory)"
        yield Finding(
            "memory", "free memory", f"{decimal(free)}: too little for most training runs", WRONG, remedy
        )
    else:
        yield Finding("memory", "free memory", decimal(free))
    chosen = re.search(r"\[(\w+)\]", huge_pages.read_text()) if huge_pages.is_file() else None
    if chosen is None:
        yield Finding("memory", "huge pages", "not supported by this system", NOTE)
    elif chosen[1] == "never":
        found = "never: training on the CPU is slower (docs/models.md#process-settings)"
        yield Finding("memory", "huge pages", found, WRONG, f"echo madvise | sudo tee {huge_pages}")
    else:
        yield Finding("memory", "huge pages", chosen[1])
    named = [name for name in _ALLOCATOR if environment.get(name)]
    if named:
        found = f"{', '.join(named)} set the allocator, so khop does not tune it"
        yield Finding("memory", "allocator", found, NOTE, f"unset {' '.join(named)}")
    else:
        found = "tuned by the command, and in a script at its first epoch"
        yield Finding("memory", "allocator", found)


def limits(shared: Path = SHARED_MEMORY, infiniband: Path = INFINIBAND) -> Iterator[Finding]:
    """Yield findings on limits that khop or its libraries can reach."""
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != _NO_LIMIT:
        found = f"{decimal(space)}: the limit includes memory-mapped graphs"
        yield Finding("limits", "address space", found, WRONG, "ulimit -v unlimited")
    free = _free(shared) if shared.exists() else None
    if free is None:
        yield Finding("limits", str(shared), "missing: NCCL and Ray need it", NOTE)
    elif free < _LEAST_SHARED:
        found = f"{decimal(free)} free: too little for NCCL between GPUs of a machine, and for Ray"
        yield Finding("limits", str(shared), found, WRONG, "docker run --shm-size 8g ... (in a container)")
    else:
        yield Finding("limits", str(shared), f"{decimal(free)} free")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if infiniband.exists() and locked != _NO_LIMIT:
        found = f"{decimal(locked)}: NCCL over InfiniBand needs more"
        yield Finding("limits", "locked memory", found, WRONG, "ulimit -l unlimited")


def open_files(soft: int, hard: int) -> Finding:
    """Return the finding on the limits of open files."""
    shown = "unlimited" if soft == _NO_LIMIT else f"{soft:,}"
    if soft == _NO_LIMIT or soft >= _LEAST_FILES:
        return Finding("limits", "open files", shown)
    is_free = hard == _NO_LIMIT or hard >= _LEAST_FILES
    remedy = f"ulimit -n {_LEAST_FILES}" if is_free else "raise nofile in /etc/security/limits.conf"
    return Finding(
        "limits", "open files", f"{shown}: too few for graphs with many files and for servers", WRONG, remedy
    )


def _free(path: Path) -> int:
    return shutil.disk_usage(path).free


def folder(name: str, path: Path, remedy: str) -> Finding:
    """Return the finding on a folder, which need not exist yet."""
    there = next(each for each in (path, *path.parents) if each.exists())
    if not os.access(there, os.W_OK):
        return Finding("disk", name, f"{path}: no permission to write", WRONG, remedy)
    found = f"{path}, {decimal(_free(there))} free"
    if _free(there) < _LEAST_DISK:
        return Finding("disk", name, f"{found}: little space", WRONG, remedy)
    return Finding("disk", name, found)


def network(among: Sequence[Interface], host: str) -> Iterator[Finding]:
    """Yield findings on each network interface, then on the host name."""
    if not any(each.is_loopback for each in among):
        found = "missing: processes of one machine cannot connect to each other"
        yield Finding("network", "loopback", found, WRONG, "sudo ip link set lo up")
    for each in among:
        use = "public: khop listens there only with --allow-public"
        use = use if each.is_public else f"for other machines (--interface {each.name})"
        use = "for the processes of this machine" if each.is_loopback else use
        yield Finding("network", each.name, f"{each.address}, {use}")
    outward = [each.address for each in among if not each.is_loopback]
    if not outward:
        yield Finding("network", "other machines", "no interface: runs use this machine only", NOTE)
        return
    try:
        yield Finding("network", "host name", f"{host} is {socket.getaddrinfo(host, None)[0][4][0]}")
    except OSError:
        remedy = f'echo "{outward[0]} {host}" | sudo tee -a /etc/hosts'
        yield Finding(
            "network", "host name", f"{host} has no address: other machines need one", WRONG, remedy
        )
