"""Findings on GPUs: torch, the driver, each card, and Triton."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from rich.filesize import decimal

from khop.cli.doctor.finding import Finding, State

AREA = "GPUs"
DRIVER = Path("/proc/driver/nvidia/version")
_BUILD = "install a build of torch for the GPU: https://pytorch.org/get-started/locally"
_LEAST_CAPABILITY = (7, 0)  # of Triton's kernels


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
    of = ".".join(map(str, capability))
    name = f"cuda:{number}"
    found = f"{torch.cuda.get_device_name(number)}, {decimal(free)} of {decimal(total)} free, {kind}"
    if torch.version.cuda and capability < _LEAST_CAPABILITY:
        too_old = f"{found}; compute capability {of}, sampling on the GPU needs 7.0"
        return Finding(AREA, name, too_old, State.WRONG, "khop train ... --device cpu")
    return Finding(AREA, name, f"{found}, capability {of}")


def _triton() -> Finding:
    if find_spec("triton") is None:
        found = "not installed: batches are made on the CPU"
        return Finding(AREA, "Triton", found, State.WRONG, "pip install triton")
    return Finding(AREA, "Triton", metadata.version("triton"))


def _driver_version(path: Path) -> str | None:
    """Return the version of NVIDIA's driver; None without a driver."""
    try:
        words = path.read_text().split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit() and "." in word), "of an unknown version")
