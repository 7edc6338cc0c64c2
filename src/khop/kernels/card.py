"""Cached results of kernel checks, keyed by GPU and software, in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from khop.user_cache import cache_folder

DRIVER = Path("/proc/driver/nvidia/version")
KERNELS = Path(__file__).parent / "triton"


def card_key(index: int | None) -> str:
    """Return a text of all that kernel results on a GPU depend on: card, driver, torch, Triton, kernels."""
    name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
    return (
        f"{name}, capability {capability[0]}.{capability[1]}; driver {driver_version() or 'unknown'}; "
        f"torch {torch.__version__}; Triton {triton_text() or 'none'}; kernels {kernels_digest()}"
    )


def driver_version(path: Path = DRIVER) -> str | None:
    """Return the version of NVIDIA's driver; None without a driver."""
    try:
        words = path.read_text().split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit() and "." in word), "of an unknown version")


def triton_text() -> str | None:
    """Return the version of the installed Triton without importing it; None if it is not installed."""
    for package in ("triton", "pytorch-triton", "pytorch-triton-rocm"):
        with suppress(PackageNotFoundError):
            return version(package)
    return None


@cache
def kernels_digest(folder: Path = KERNELS) -> str:
    """Return a digest of the source of all kernels: changed kernels are checked again."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


@dataclass(frozen=True)
class CardAnswers:
    """Results of checks of the kernels of one card, by name: "" if a check passed, else the problem.

    They are stored in a file of the user's cache folder, if it is writable.
    """

    key: str
    path: Path | None

    @classmethod
    def of(cls, key: str) -> CardAnswers:
        """Return the answers for a key; see `card_key`."""
        try:
            folder = cache_folder() / "kernels"
        except RuntimeError:  # there is no home folder
            return cls(key, None)
        return cls(key, folder / f"{hashlib.sha256(key.encode()).hexdigest()[:15]}.json")

    def read(self) -> dict[str, str]:
        """Return the answers; none if the file is missing, damaged or for another key."""
        if self.path is None:
            return {}
        try:
            match json.loads(self.path.read_bytes()):
                case {"format": 1, "key": self.key, "answers": Mapping() as answers}:
                    return {str(name): str(problem) for name, problem in answers.items()}
        except (OSError, ValueError, RecursionError):
            pass
        return {}

    def keep(self, answers: Mapping[str, str]) -> None:
        """Add answers, or replace those with the same names. The file is written atomically."""
        if self.path is None:
            return
        content = {"format": 1, "key": self.key, "answers": {**self.read(), **answers}}
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            try:
                with open(descriptor, "w") as file:
                    file.write(json.dumps(content, indent=1) + "\n")
                os.replace(name, self.path)
            except OSError:
                os.unlink(name)
                raise
