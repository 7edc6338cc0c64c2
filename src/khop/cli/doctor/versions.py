"""Findings on versions: Python, khop, and the packages that khop requires or can use."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module, metadata

import khop
from khop.cli.doctor.finding import Finding, State

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
        return Finding(AREA, "compiled core", f"cannot be loaded: {error}", State.STOPS, remedy)
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
        state = State.NOTE if is_extra else State.STOPS
        return Finding(AREA, name, f"not installed{purpose}", state, install)
    if _numbers(version) < _numbers(least):
        state = State.WRONG if is_extra else State.STOPS
        return Finding(AREA, name, f"{version}, khop needs {least}{purpose}", state, install)
    return Finding(AREA, name, f"{version}{purpose}")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, for comparisons."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
