"""Findings on GPUs: torch, the driver, each card, and Triton."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from rich.filesize import decimal

from khop.cli.doctor.finding import Finding, State

AREA = "GPUs"
DRIVER = Path("/proc/driver/nvidia/version")
_BUILD = "install a build of torch for the GPU: https://pytorch.org/get-started/locally"
_TORCH = 'pip install "torch>=2.7"'  # it brings a Triton that is new enough


def gpus(environment: Mapping[str, str], driver: Path = DRIVER) -> Iterator[Finding]:
    """Yield torch's build, the driver, the cards, and Triton if there is a card."""
    try:
        torch = import_module("torch")
    except (ImportError, OSError) as error:  # OSError: one of its libraries is missing
        remedy = 'pip install --force-reinstall "torch>=2.6"'
        yield Finding(AREA, "torch", f"cannot be imported: {error}", State.STOPS, remedy)
        return
    yield from cards(torch, _driver_version(driver), environment.get("CUDA_VISIBLE_DEVICES"))


def cards(torch: ModuleType, driver: str | None, visible: str | None) -> Iterator[Finding]:
    """Yield the findings on a torch module and a driver of this version; None: there is no driver."""
    build = torch.version.cuda or torch.version.hip
    kind = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    yield Finding(AREA, "driver", driver or "no driver of NVIDIA")
    if not build:
        found = "torch is a build for the CPU"
        if driver is None:
            yield Finding(AREA, "cards", f"none; {found}; training runs on the CPU")
        else:
            yield Finding(AREA, "cards", f"{found}, although there is a driver", State.WRONG, _BUILD)
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
            AREA, "cards", "hidden by CUDA_VISIBLE_DEVICES", State.NOTE, "unset CUDA_VISIBLE_DEVICES"
        )
    if driver is None:
        return Finding(
            AREA, "cards", f"none; torch is a build for {kind}; training runs on the CPU", State.NOTE
        )
    found = f"torch for {kind} does not reach a card with driver {driver}"
    return Finding(AREA, "cards", found, State.WRONG, "nvidia-smi (then update the driver, or torch)")


def _card(torch: ModuleType, number: int, kind: str) -> Finding:
    free, total = torch.cuda.mem_get_info(number)
    capability = torch.cuda.get_device_capability(number)
    name = f"cuda:{number}"
    found = f"{torch.cuda.get_device_name(number)}, {decimal(free)} of {decimal(total)} free, {kind}"
    too_old = _choice().why_too_old(capability) if torch.version.cuda else None
    if too_old is not None:
        remedy = "leave out --topology and --features: the CPU makes the batches"
        return Finding(AREA, name, f"{found}; no kernels: {too_old}", State.WRONG, remedy)
    return Finding(AREA, name, f"{found}, capability {'.'.join(map(str, capability))}")


def _triton() -> Finding:
    choice = _choice()
    version = choice.triton_version()
    if version is None:
        return Finding(AREA, "Triton", "not installed: the CPU makes the batches", State.WRONG, _TORCH)
    found = ".".join(map(str, version))
    if version < choice.LEAST_TRITON:
        least = ".".join(map(str, choice.LEAST_TRITON))
        too_old = f"{found}, kernels need {least}: the CPU makes the batches"
        return Finding(AREA, "Triton", too_old, State.WRONG, _TORCH)
    return Finding(AREA, "Triton", found)


def _choice() -> ModuleType:
    return import_module("khop.kernels.choice")  # imports torch, which may be missing


def _driver_version(path: Path) -> str | None:
    """Return the version of NVIDIA's driver; None without a driver."""
    try:
        words = path.read_text().split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit() and "." in word), "of an unknown version")
