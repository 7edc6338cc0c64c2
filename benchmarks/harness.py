"""What every benchmark shares: contenders side by side, interleaved rounds, figures as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = Path(os.environ.get("KHOP_BENCHMARK_RESULTS", HERE / "results"))
GRAPHS = Path(os.environ.get("KHOP_BENCHMARK_GRAPHS", ROOT / "build" / "benchmark-graphs"))
PEERS = Path(os.environ.get("KHOP_BENCHMARK_PEERS", ROOT / "build" / "peers"))

# Spares every large tensor its page faults: worth 1.2 to 1.4 x to a training step on a CPU.
TUNED_MALLOC = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592"
)

Settings = Mapping[str, Any]
Answer = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One measured number. `ratio` is peer over khop for times: how many times faster khop is."""

    figure: str
    value: float
    unit: str
    peer: str | None = None
    ratio: float | None = None
    spread: tuple[float, float] | None = None  # quartiles of `value` over the rounds
    notes: Mapping[str, Any] = field(default_factory=dict)


class Contender:
    """A library in a process (and, for peers, an environment) of its own, that answers one JSON line per
    task."""

    def __init__(
        self,
        name: str,
        script: str,
        python: Path | str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [str(python), str(HERE / "contenders" / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )

    def run(self, task: str, settings: Settings) -> Answer:
        """Do one task and give the answer; RuntimeError if the contender ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"task": task, **settings}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"contender {self.name} ended with code {self._process.wait()} in task {task}")
        answer: Answer = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def peer_python(name: str) -> Path | None:
    """The interpreter of a peer's environment, made by `benchmarks/set-up-peers`; None if it is not there."""
    python = PEERS / name / "bin" / "python"
    return python if python.exists() else None


def contenders(names: Iterable[str]) -> list[Contender]:
    """khop, then those peers among `names` whose environment exists; a line on stderr for each that does not.

    `<peer>-tuned` is the peer with the allocator told to keep large blocks and to ask for huge pages.
    """
    found = [Contender("khop", "khop_contender.py", environment={"OMP_WAIT_POLICY": "passive"})]
    for name in names:
        peer = name.removesuffix("-tuned")
        python = peer_python(peer)
        if python is None:
            print(f"{name}: no environment, left out; make it with benchmarks/set-up-peers", file=sys.stderr)
            continue
        environment = {"GLIBC_TUNABLES": TUNED_MALLOC} if name != peer else None
        found.append(Contender(name, f"{peer}_contender.py", python, environment))
    return found


def interleaved(
    runners: Sequence[Contender], task: str, settings: Settings, rounds: int
) -> dict[str, list[Answer]]:
    """Rounds of A, B, A, B, ... so that a slow minute of the machine hits all alike."""
    answers: dict[str, list[Answer]] = {runner.name: [] for runner in runners}
    for number in range(rounds):
        for runner in runners:
            answer = runner.run(task, {**settings, "round": number})
            if "skipped" in answer:
                print(f"{runner.name}: {answer['skipped']}", file=sys.stderr)
                continue
            answers[runner.name].append(answer)
            print(
                f"round {number} {runner.name:<12} {answer['value']:10.3f} {answer['unit']}", file=sys.stderr
            )
    return {name: found for name, found in answers.items() if found}


def compare(figure: str, answers: Mapping[str, Sequence[Answer]]) -> list[Figure]:
    """khop's figure, and one per peer with the ratio of medians."""
    own = statistics.median(answer["value"] for answer in answers["khop"])
    figures = []
    for name, found in answers.items():
        values = sorted(answer["value"] for answer in found)
        notes = {key: value for key, value in found[-1].items() if key not in ("value", "unit")}
        figures.append(
            Figure(
                figure=figure if name == "khop" else f"{figure} ({name})",
                value=round(statistics.median(values), 4),
                unit=found[-1]["unit"],
                peer=None if name == "khop" else name,
                ratio=None if name == "khop" else round(statistics.median(values) / own, 3),
                spread=quartiles(values),
                notes=notes,
            )
        )
    return figures


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the lower and the upper quartile."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return round(low, 4), round(high, 4)


def machine() -> dict[str, Any]:
    """The hardware and software that figures belong to."""
    facts = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            facts["processor"] = line.partition(":")[2].strip()
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip()
    return {
        **facts,
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "transparent_hugepages": huge,
    }


def report(name: str, figures: Sequence[Figure]) -> None:
    """Keep the figures under results/ and print one JSON object per figure, last of all."""
    RESULTS.mkdir(exist_ok=True)
    kept = {"benchmark": name, "machine": machine(), "figures": [asdict(figure) for figure in figures]}
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    for figure in figures:
        line = asdict(figure)
        print(
            json.dumps({key: line[key] for key in ("figure", "value", "unit", "peer", "ratio")}), flush=True
        )
