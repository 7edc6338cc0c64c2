"""A finding of `khop doctor`: one line of its output.

Findings on versions: Python, khop, and the packages that khop requires or can use.

Findings on GPUs: torch, the driver, each card, and Triton.

Findings on the cores that this process may use, and on waiting threads.

Findings on the limits of this process and of shared memory.

Findings on disks: the folders that khop writes to.

Findings on the network: interfaces, and the name of this machine.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType

from rich.filesize import decimal

import khop
from khop.distributed.processes.launchers import Interface
from khop.process_tuning import CGROUP_LIMIT, allowed_cores, usable_cores


class FindingState(StrEnum):
    """State of a finding."""

    OK = "ok"
    NOTE = "note"  # nothing is wrong, but something is not available
    WRONG = "wrong"  # khop works, but slowly, or without a part of it
    STOPS = "stops"  # khop does not work


@dataclass(frozen=True)
class Finding:
    """A property of the installation or of the machine."""

    area: str
    name: str
    found: str
    state: FindingState = FindingState.OK
    remedy: str = ""  # a line for the shell, or a sentence; empty if nothing is to do


AREA = "versions"
PURPOSES = {
    "torch_geometric": "khop.pyg, the loaders and converters of torch_geometric",
    "pymetis": "khop partition --method metis",
    "tensorboard": "khop train --tensorboard",
    "wandb": "khop train --logger wandb",
    "mlflow-skinny": "khop train --logger mlflow",
    "pyarrow": "khop import, khop serve and Parquet files",
    "duckdb": "khop import of CSV files and databases",
    "adbc-driver-postgresql": "khop import of Postgres tables",
    "adbc-driver-sqlite": "khop import of SQLite tables",
    "pyyaml": "khop import dgl:FOLDER, which reads meta.yaml",
    "scipy": "khop import of MatrixMarket files",
    "ray": "khop serve --on-ray",
}
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:>=\s*([\d.]+))?[^;]*(?:;(.*))?")


def installed(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def requirements() -> list[str]:
    """Return the requirements of khop, extras included; empty if khop runs from a source folder."""
    try:
        return metadata.requires("khop") or []
    except metadata.PackageNotFoundError:
        return []


def versions(needs: Sequence[str], version_of: Callable[[str], str | None]) -> Iterator[Finding]:
    """Yield khop, Python, the compiled core, then the required and the optional packages."""
    yield Finding(AREA, "khop", khop.__version__)
    yield Finding(AREA, "Python", platform.python_version())
    yield _core()
    for name, (least, is_extra) in _packages(needs).items():
        yield _package(name, least, is_extra, version_of(name))


def _core() -> Finding:
    try:
        import_module("khop._core")
    except ImportError as error:
        remedy = "pip install . (in the clone: compiles the core for this Python)"
        return Finding(AREA, "compiled core", f"cannot be loaded: {error}", FindingState.STOPS, remedy)
    return Finding(AREA, "compiled core", "loads")


def _packages(needs: Sequence[str]) -> dict[str, tuple[str, bool]]:
    """Return by package its lowest version, and whether only extras require it."""
    found: dict[str, tuple[str, bool]] = {}
    for need in needs:
        match = _REQUIREMENT.fullmatch(need.strip())
        if match is None:
            continue
        name, least, is_extra = match[1], match[2] or "", "extra" in (match[3] or "")
        before, was_extra = found.get(name, ("", True))
        found[name] = (max(before, least, key=_numbers), is_extra and was_extra)
    return found


def _package(name: str, least: str, is_extra: bool, version: str | None) -> Finding:
    wanted = f"{name}>={least}" if least else name
    purpose = f", for {PURPOSES[name]}" if name in PURPOSES else ""
    install = f'pip install "{wanted}"'
    if version is None:
        state = FindingState.NOTE if is_extra else FindingState.STOPS
        return Finding(AREA, name, f"not installed{purpose}", state, install)
    if _numbers(version) < _numbers(least):
        state = FindingState.WRONG if is_extra else FindingState.STOPS
        return Finding(AREA, name, f"{version}, khop needs {least}{purpose}", state, install)
    return Finding(AREA, name, f"{version}{purpose}")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, for comparisons."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


GPUS = "GPUs"
_BUILD = "install a build of torch for the GPU: https://pytorch.org/get-started/locally"
_TORCH = 'pip install "torch>=2.7"'  # it brings a Triton that is new enough


def gpus(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield torch's build, the driver, the cards, and Triton if there is a card."""
    try:
        torch = import_module("torch")
    except (ImportError, OSError) as error:  # OSError: one of its libraries is missing
        remedy = 'pip install --force-reinstall "torch>=2.6"'
        yield Finding(GPUS, "torch", f"cannot be imported: {error}", FindingState.STOPS, remedy)
        return
    yield from cards(
        torch, import_module("khop.kernels.card").driver_version(), environment.get("CUDA_VISIBLE_DEVICES")
    )


def cards(torch: ModuleType, driver: str | None, visible: str | None) -> Iterator[Finding]:
    """Yield the findings on a torch module and a driver of this version; None: there is no driver."""
    build = torch.version.cuda or torch.version.hip
    kind = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    yield Finding(GPUS, "driver", driver or "no driver of NVIDIA")
    if not build:
        found = "torch is a build for the CPU"
        if driver is None:
            yield Finding(GPUS, "cards", f"none; {found}; training runs on the CPU")
        else:
            yield Finding(GPUS, "cards", f"{found}, although there is a driver", FindingState.WRONG, _BUILD)
        return
    if not torch.cuda.is_available():
        yield _unavailable(kind, driver, visible)
        return
    for number in range(torch.cuda.device_count()):
        yield _card(torch, number, kind)
    yield _triton()


def _unavailable(kind: str, driver: str | None, visible: str | None) -> Finding:
    if visible is not None and visible.strip() in ("", "-1"):
        return Finding(
            GPUS, "cards", "hidden by CUDA_VISIBLE_DEVICES", FindingState.NOTE, "unset CUDA_VISIBLE_DEVICES"
        )
    if driver is None:
        return Finding(
            GPUS, "cards", f"none; torch is a build for {kind}; training runs on the CPU", FindingState.NOTE
        )
    found = f"torch for {kind} does not reach a card with driver {driver}"
    return Finding(GPUS, "cards", found, FindingState.WRONG, "nvidia-smi (then update the driver, or torch)")


def _card(torch: ModuleType, number: int, kind: str) -> Finding:
    free, total = torch.cuda.mem_get_info(number)
    capability = torch.cuda.get_device_capability(number)
    name = f"cuda:{number}"
    found = f"{torch.cuda.get_device_name(number)}, {decimal(free)} of {decimal(total)} free, {kind}"
    too_old = _choice().why_too_old(capability) if torch.version.cuda else None
    if too_old is not None:
        remedy = "leave out --topology and --features: the CPU makes the batches"
        return Finding(GPUS, name, f"{found}; no kernels: {too_old}", FindingState.WRONG, remedy)
    return Finding(GPUS, name, f"{found}, capability {'.'.join(map(str, capability))}")


def _triton() -> Finding:
    choice = _choice()
    version = choice.triton_version()
    if version is None:
        return Finding(GPUS, "Triton", "not installed: the CPU makes the batches", FindingState.WRONG, _TORCH)
    found = ".".join(map(str, version))
    if version < choice.LEAST_TRITON:
        least = ".".join(map(str, choice.LEAST_TRITON))
        too_old = f"{found}, kernels need {least}: the CPU makes the batches"
        return Finding(GPUS, "Triton", too_old, FindingState.WRONG, _TORCH)
    return Finding(GPUS, "Triton", found)


def _choice() -> ModuleType:
    return import_module("khop.kernels.choice")  # imports torch, which may be missing


def kernels_of(number: int, reason: str | None, answers: Mapping[str, str]) -> Finding:
    """Return the finding on the kernels of a card: the reason why they make no batches, or what is proven.

    `answers` are those that are kept about the card: "" for each comparison with equal bits.
    """
    name, proven = f"kernels of cuda:{number}", ", ".join(name for name, text in answers.items() if not text)
    if reason is not None:
        again = "khop doctor --gpu (compares again, after the cause is mended)"
        return Finding(GPUS, name, f"the CPU makes the batches: {reason}", FindingState.WRONG, again)
    if not proven:
        found = "not compared with the CPU yet: the first run on the card does so"
        return Finding(GPUS, name, found, FindingState.NOTE, "khop doctor --gpu")
    return Finding(GPUS, name, f"give the CPU's bits: {proven}")


CORES = "cores"
_SPINNING = "active"


def cores(
    environment: Mapping[str, str], limit: Path = CGROUP_LIMIT, load: float | None = None
) -> Iterator[Finding]:
    """Yield the usable cores, their load, and the settings of OpenMP.

    `load` is the number of running threads of the machine, by default the mean of the last minute.
    """
    of_machine, allowed, usable = os.cpu_count() or 1, allowed_cores(), usable_cores(limit)
    reasons = [f"{of_machine} in the machine"]
    if allowed < of_machine:
        reasons.append(f"{allowed} by affinity (taskset, Slurm or a container)")
    if usable < allowed:
        reasons.append(f"{usable} by the control group's quota")
    yield Finding(CORES, "usable cores", f"{usable} ({', '.join(reasons)})")
    yield _load(os.getloadavg()[0] if load is None else load, of_machine)
    yield from _openmp(environment, usable)


def _load(load: float, of_machine: int) -> Finding:
    if load <= of_machine:
        return Finding(CORES, "load", f"{load:.1f} running threads on {of_machine} cores")
    found = f"{load:.1f} running threads on {of_machine} cores: other programs take the cores"
    return Finding(CORES, "load", found, FindingState.WRONG, "top -o %CPU (shows these programs)")


def _openmp(environment: Mapping[str, str], usable: int) -> Iterator[Finding]:
    policy = environment.get("OMP_WAIT_POLICY", "")
    if policy.lower() == _SPINNING:
        found = "OMP_WAIT_POLICY=active: idle compute threads take the cores of sampler threads"
        yield Finding(CORES, "OpenMP waiting", found, FindingState.WRONG, "unset OMP_WAIT_POLICY")
    else:
        note = "idle threads sleep: khop sets it for its command, and for a script at its first epoch"
        yield Finding(CORES, "OpenMP waiting", f"{policy or 'not set'} ({note})")
    threads = environment.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > usable:
        found = f"OMP_NUM_THREADS={threads}, more than the usable cores"
        yield Finding(CORES, "OpenMP threads", found, FindingState.WRONG, "unset OMP_NUM_THREADS")


LIMITS = "limits"
SHARED_MEMORY, INFINIBAND = Path("/dev/shm"), Path("/sys/class/infiniband")
_LEAST_FILES = 1024
_LEAST_SHARED = 1 << 28


def limits(shared: Path = SHARED_MEMORY, infiniband: Path = INFINIBAND) -> Iterator[Finding]:
    """Yield the limits that khop or a library under it can reach."""
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield _address_space(resource.getrlimit(resource.RLIMIT_AS)[0])
    yield _shared_memory(shared)
    yield locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], infiniband.exists())


def open_files(soft: int, hard: int) -> Finding:
    """Return the finding on the limits of open files."""
    name, shown = "open files", _shown(soft)
    if soft == resource.RLIM_INFINITY or soft >= _LEAST_FILES:
        return Finding(LIMITS, name, shown)
    is_free = hard == resource.RLIM_INFINITY or hard >= _LEAST_FILES
    remedy = f"ulimit -n {_LEAST_FILES}" if is_free else "raise nofile in /etc/security/limits.conf"
    return Finding(
        LIMITS, name, f"{shown}: few for graphs of many files and for servers", FindingState.WRONG, remedy
    )


def locked_memory(soft: int, has_infiniband: bool) -> Finding:
    """Return the finding on locked memory, which InfiniBand needs."""
    name = "locked memory"
    if not has_infiniband or soft == resource.RLIM_INFINITY:
        return Finding(LIMITS, name, _bytes(soft))
    found = f"{_bytes(soft)}: NCCL over InfiniBand needs more"
    return Finding(LIMITS, name, found, FindingState.WRONG, "ulimit -l unlimited")


def _address_space(soft: int) -> Finding:
    if soft == resource.RLIM_INFINITY:
        return Finding(LIMITS, "address space", "unlimited")
    found = f"{_bytes(soft)}: graphs are mapped, and mappings count"
    return Finding(LIMITS, "address space", found, FindingState.WRONG, "ulimit -v unlimited")


def _shared_memory(path: Path) -> Finding:
    try:
        size = os.statvfs(path)
    except OSError:
        return Finding(LIMITS, str(path), "missing: NCCL and Ray need it", FindingState.NOTE)
    free = size.f_bavail * size.f_frsize
    if free >= _LEAST_SHARED:
        return Finding(LIMITS, str(path), f"{decimal(free)} free")
    found = f"{decimal(free)} free: little for NCCL between GPUs of a machine, and for Ray"
    return Finding(
        LIMITS, str(path), found, FindingState.WRONG, "docker run --shm-size 8g ... (in a container)"
    )


def _shown(count: int) -> str:
    return "unlimited" if count == resource.RLIM_INFINITY else f"{count:,}"


def _bytes(count: int) -> str:
    return "unlimited" if count == resource.RLIM_INFINITY else decimal(count)


DISK = "disk"
_LEAST = 1 << 30


def disk(cache: Path, here: Path) -> Iterator[Finding]:
    """Yield the cache folder of the user, the working directory, and the folder of temporary files."""
    yield folder("cache of graphs", cache, "export KHOP_CACHE=/a/larger/disk")
    yield folder("working directory", here, "cd /a/larger/disk (runs/ is made in it)")
    yield folder("temporary files", Path(tempfile.gettempdir()), "export TMPDIR=/a/larger/disk")


def folder(name: str, path: Path, remedy: str) -> Finding:
    """Return the finding on a folder, which need not exist yet."""
    there = next(each for each in (path, *path.parents) if each.exists())
    if not os.access(there, os.W_OK):
        return Finding(DISK, name, f"{path}: no permission to write", FindingState.WRONG, remedy)
    free = shutil.disk_usage(there).free
    found = f"{path}, {decimal(free)} free"
    if free < _LEAST:
        return Finding(DISK, name, f"{found}: little space", FindingState.WRONG, remedy)
    return Finding(DISK, name, found)


NETWORK = "network"


def network(among: Sequence[Interface], host: str) -> Iterator[Finding]:
    """Yield each interface and its use, then the name of this machine."""
    if not any(each.is_loopback for each in among):
        found = "missing: several processes of one machine cannot connect"
        yield Finding(NETWORK, "loopback", found, FindingState.WRONG, "sudo ip link set lo up")
    for each in among:
        yield Finding(NETWORK, each.name, f"{each.address}, {_use(each)}")
    if all(each.is_loopback for each in among):
        yield Finding(
            NETWORK, "other machines", "no interface: runs use this machine only", FindingState.NOTE
        )
        return
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
    except OSError:
        remedy = f'echo "{_first(among)} {host}" | sudo tee -a /etc/hosts'
        yield Finding(
            NETWORK,
            "host name",
            f"{host} has no address: other machines need one",
            FindingState.WRONG,
            remedy,
        )
        return
    yield Finding(NETWORK, "host name", f"{host} is {address}")


def _use(interface: Interface) -> str:
    if interface.is_loopback:
        return "for the processes of this machine"
    if interface.is_public:
        return "public: khop listens there only with --allow-public"
    return f"for other machines (--interface {interface.name})"


def _first(among: Sequence[Interface]) -> str:
    return next(each.address for each in among if not each.is_loopback)
