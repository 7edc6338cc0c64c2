"""`khop doctor`: each line is right about this machine or about one made for the test."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import khop
from cli.conftest import Ran
from khop.cli.doctor import (
    NOTE,
    OK,
    STOPS,
    WRONG,
    Finding,
    FindingState,
    cards,
    cores,
    folder,
    kernels,
    limits,
    memory,
    network,
    open_files,
    versions,
)
from khop.distributed.processes.launchers import LOOPBACK, Interface
from khop.kernels import card, choice
from khop.loading.device import static_choice, streams

SOURCE = str(Path(khop.__file__).parents[1])
Command = Callable[..., Ran]


def by_name(found: Iterable[Finding]) -> dict[str, Finding]:
    return {each.name: each for each in found}


def test_this_machine_is_described_with_the_line_that_mends_each_problem(khop_command: Command) -> None:
    ran = khop_command("doctor", "--json")
    answer = json.loads(ran.stdout)
    found = {each["name"]: each for each in answer["findings"]}
    assert (ran.code, answer["works"]) == (0, True)
    assert found["khop"]["found"] == khop.__version__
    assert torch.__version__.split("+")[0] in found["torch"]["found"]
    assert found["usable cores"]["found"].startswith(str(len(os.sched_getaffinity(0))))
    areas = {"versions", "cores", "memory", "GPUs", "network", "limits", "disk"}
    assert {each["area"] for each in answer["findings"]} == areas
    assert {each["state"] for each in answer["findings"]} <= {"ok", "note", "wrong"}
    lines = khop_command("doctor").stdout.splitlines()
    for each in answer["findings"]:
        if each["area"] in ("cores", "memory", "disk"):  # their figures change from one call to the next
            continue
        at = next(n for n, line in enumerate(lines) if each["name"] in line and each["found"] in line)
        assert lines[at].split()[0] == each["state"]
        assert not each["remedy"] or lines[at + 1].strip() == each["remedy"]
    assert lines[-2:] == ["Next:", "khop train debian"]
    shown = khop_command("doctor", "--help").stdout
    assert [area for area in areas if area not in shown] == []
    assert khop_command("doctor", "--jsn").code == 2


def test_a_torch_that_cannot_be_imported_stops_khop(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"}
    ran = subprocess.run(
        [sys.executable, "-m", "khop", "doctor"], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert re.search(r"stops +torch +cannot be imported: libcudart.so.12", ran.stdout)
    assert "Traceback" not in ran.stderr
    assert "Next:" not in ran.stdout


def test_packages_are_missing_too_old_or_optional() -> None:
    needs = ["torch>=2.6", "rich>=13", 'ray>=2.40; extra == "ray"', 'pyarrow>=17; extra == "parquet"']
    found = by_name(versions(needs, {"torch": "2.5.1+cpu", "pyarrow": "21.0.0"}.get))
    assert (found["torch"].state, found["torch"].found) == (STOPS, "2.5.1+cpu, khop needs torch>=2.6")
    assert (found["rich"].state, found["rich"].remedy) == (STOPS, 'pip install "rich>=13"')
    assert (found["ray"].state, found["ray"].found) == (NOTE, "not installed, for the extra ray")
    assert found["pyarrow"].state is OK
    assert by_name(versions(needs, {"pyarrow": "9.0"}.get))["pyarrow"].state is WRONG
    strictest = ['pyarrow>=17; extra == "a"', "pyarrow>=18"]
    assert by_name(versions(strictest, {"pyarrow": "17.5"}.get))["pyarrow"].state is STOPS


def machine(cuda: str | None, count: int, capability: tuple[int, int] = (9, 0)) -> Any:  # noqa: ANN401
    """A torch module of a machine with cards."""
    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda, hip=None),
        cuda=SimpleNamespace(
            is_available=lambda: count > 0,
            device_count=lambda: count,
            mem_get_info=lambda number: (3 << 30, 80 << 30),
            get_device_capability=lambda number: capability,
            get_device_name=lambda number: "H200",
        ),
    )


def test_each_reason_for_a_card_out_of_reach_has_its_own_remedy() -> None:
    cases = {
        (None, None, None): OK,  # a machine for the CPU
        (None, "570.1", None): WRONG,  # another build
        ("12.8", None, None): NOTE,  # no driver
        ("12.8", "570.1", ""): NOTE,  # hidden
        ("12.8", "570.1", None): WRONG,  # too old a driver
    }
    found = {case: by_name(cards(machine(case[0], 0), case[1], case[2]))["GPU"] for case in cases}
    assert {case: each.state for case, each in found.items()} == cases
    assert len({each.remedy for each in found.values()}) == 4


@pytest.mark.parametrize(("capability", "state"), [((7, 5), WRONG), ((8, 0), OK), ((9, 0), OK)], ids=str)
def test_a_card_is_named_with_its_memory_and_needs_the_capability_of_the_kernels(
    capability: tuple[int, int], state: FindingState
) -> None:
    found = by_name(cards(machine("12.8", 2, capability), "570.1", None))["cuda:1"]
    assert (found.state, "8.0 (A100) is the least" in found.found) == (state, state is WRONG)
    assert found.found.startswith("H200, 3.2 GB of 85.9 GB free, CUDA 12.8")


@pytest.mark.parametrize(
    ("package", "version", "state"),
    [
        ("triton", "3.3.1", OK),
        ("pytorch-triton", "3.6.0+git", OK),
        ("pytorch-triton-rocm", "3.2.0", WRONG),
        ("none", "", WRONG),
    ],
)
def test_triton_has_several_names_and_a_least_version(
    package: str, version: str, state: FindingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if name != package:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(card, "version", installed)
    found = by_name(cards(machine("12.8", 1), "570.1", None))["Triton"]
    assert found.state is state
    assert found.found.startswith(version[:3] or "not installed")


@pytest.mark.parametrize("proves", [False, True])
@pytest.mark.parametrize(
    ("kept", "state", "words"),
    [
        ({}, NOTE, "not compared with the CPU yet"),
        ({"draws": "", "gathers": ""}, OK, "bit-identical to the CPU: draws, gathers"),
        (
            {"draws": "", "gathers": "gather: 1 of 9 numbers differ"},
            WRONG,
            "the CPU makes the batches: gather: 1 of 9 numbers differ",
        ),
    ],
    ids=["none", "equal", "different"],
)
def test_the_verdict_on_the_kernels_is_shown_and_made_again_on_request(
    proves: bool, kept: dict[str, str], state: FindingState, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven: list[tuple[str, bool]] = []
    monkeypatch.setattr(streams, "num_gpus", lambda: 1)
    monkeypatch.setattr(choice, "why_no_kernels", lambda number: None)
    monkeypatch.setattr(static_choice, "kept_verdict", lambda number: kept)

    def prove(device: torch.device, *, every: bool) -> None:
        proven.append((str(device), every))

    monkeypatch.setattr(static_choice, "why_no_batches", prove)
    (found,) = kernels(proves)
    assert (found.name, found.state) == ("kernels of cuda:0", state)
    assert found.found.startswith(words)
    assert proven == [("cuda:0", True)] * proves


def test_cores_are_limited_by_a_quota_and_taken_by_other_programs(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text("100000 100000")
    assert by_name(cores({}, quota, load=0.5))["load"].state is OK
    crowded = {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "4096"}
    found = by_name(cores(crowded, quota, load=1000.0))
    assert found["usable cores"].found.startswith("1 (")
    assert {found[name].state for name in ("load", "OpenMP waiting", "OpenMP threads")} == {WRONG}
    found = by_name(cores({"OMP_WAIT_POLICY": "passive"}, tmp_path / "none", 0.0))
    assert (found["OpenMP waiting"].state, "OpenMP threads" in found) == (OK, False)


@pytest.mark.parametrize(
    ("mode", "state"),
    [
        ("always [madvise] never", OK),
        ("[always] madvise never", OK),
        ("always madvise [never]", WRONG),
        (None, NOTE),
    ],
)
def test_huge_pages_are_off_on_or_not_offered(tmp_path: Path, mode: str | None, state: FindingState) -> None:
    path = tmp_path / "enabled"
    if mode is not None:
        path.write_text(mode)
    finding = by_name(memory({}, path))["huge pages"]
    assert finding.state is state
    assert (finding.remedy == f"echo madvise | sudo tee {path}") == (state is WRONG)


def test_little_memory_and_a_foreign_allocator_are_named(tmp_path: Path) -> None:
    found = by_name(memory({"LD_PRELOAD": "/lib/jemalloc.so"}, tmp_path, 1 << 30))
    assert (found["free memory"].state, found["allocator"].state) == (WRONG, NOTE)
    assert found["allocator"].remedy == "unset LD_PRELOAD"
    assert by_name(memory({}, tmp_path, 8 << 30))["free memory"].state is OK


def test_limits_and_folders_that_khop_reaches_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited = resource.RLIM_INFINITY
    assert open_files(256, 4096).remedy == "ulimit -n 1024"
    assert "limits.conf" in open_files(256, 256).remedy
    assert open_files(1024, 1024).state is open_files(unlimited, unlimited).state is OK
    assert by_name(limits(tmp_path / "none"))[str(tmp_path / "none")].state is NOTE
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 16, 1 << 16))
    found = by_name(limits(tmp_path, tmp_path))
    assert {found[name].state for name in ("locked memory", "address space")} == {WRONG}
    assert "locked memory" not in by_name(limits(tmp_path, tmp_path / "no-infiniband"))
    assert folder("x", tmp_path / "a" / "b", "y").state is OK
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    assert folder("x", tmp_path, "y").found == f"{tmp_path}: no permission to write"


def test_interfaces_say_what_they_are_for() -> None:
    among = [LOOPBACK, Interface("eth0", "10.0.0.5"), Interface("eth1", "8.8.8.8")]
    found = by_name(network(among, "localhost"))
    assert "--interface eth0" in found["eth0"].found
    assert "--allow-public" in found["eth1"].found
    assert found["host name"].state is OK
    lost = by_name(network(among, "no-such-host.invalid"))["host name"]
    assert (lost.state, lost.remedy) == (
        WRONG, 'echo "10.0.0.5 no-such-host.invalid" | sudo tee -a /etc/hosts',
    )  # fmt: skip
    assert by_name(network([LOOPBACK], "x"))["other machines"].state is NOTE
    assert by_name(network(among[1:], "localhost"))["loopback"].state is WRONG
