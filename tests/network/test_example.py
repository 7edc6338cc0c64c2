"""The example of worker mode as on a cluster: two hosts of two processes, each host with its part."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from network.hosts import Host
from network.runs import ended, torchrun
from support.commands import ENVIRONMENT
from support.small_folders import write_learnable_graph

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = ["--graph", "toy", "--epochs", "2"]


def told(out: str) -> list[float]:
    """Loss and accuracy of each epoch."""
    lines = [line for line in out.splitlines() if re.match(r"epoch \d+: ", line)]
    return [float(number) for line in lines for number in re.findall(r"\d+\.\d+", line)]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("placement", ["features", "all"])
def test_two_hosts_of_two_processes_learn_what_one_process_does(
    placement: str, hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_learnable_graph(tmp_path / "toy", nodes=3000)
    one = [sys.executable, EXAMPLES / "distributed_products.py", *SETTINGS, "--procs", "1"]
    alone = subprocess.run(one, capture_output=True, text=True, check=True, timeout=300, env=ENVIRONMENT)
    path = os.pathsep.join([str(EXAMPLES), ENVIRONMENT.get("PYTHONPATH", "")])
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [*torchrun(procs=2), "distributed_products", *SETTINGS, "--placement", placement]
    outcomes = ended([host.start(*command, environment=environment) for host in hosts])
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    shared = [numbers for outcome in outcomes if (numbers := told(outcome.out))]
    assert shared == [pytest.approx(told(alone.stdout), abs=1e-3)]  # rank 0 alone talks
