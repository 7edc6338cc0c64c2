"""The rank of a process, from the environment that torchrun, SLURM, Ray Train or Kubernetes set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PORT = 29500  # port of rank 0 unless another is set; torch's own default


@dataclass(frozen=True)
class RankInfo:
    """One process of a run, and the address of the rendezvous."""

    rank: int
    world_size: int
    local_rank: int  # index among the ranks of this machine
    local_world_size: int
    host: str  # of the store for the rendezvous
    port: int
    launcher_hosts_store: bool = False  # otherwise rank 0 hosts it
    attempt: int = 0  # restarts counted by the launcher on this machine
    run_id: str = ""  # the launcher's name of the run, the same for all attempts

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} of {self.world_size}: must be 0 to {self.world_size - 1}")


def rank_info_of(environment: Mapping[str, str]) -> RankInfo | None:
    """Return the rank that a launcher assigned to this process, or None.

    torchrun, Ray Train and Kubeflow set RANK and WORLD_SIZE. An indexed Kubernetes job sets its index; its
    manifest sets WORLD_SIZE and MASTER_ADDR. srun sets the tasks and nodes of the step. None if no launcher
    started the process, or if it is the only task of a SLURM step. ValueError if a value is missing or is not
    a number.
    """
    if "WORLD_SIZE" in environment and ("RANK" in environment or "JOB_COMPLETION_INDEX" in environment):
        return _of_torch(environment)
    if _number(environment, "SLURM_STEP_NUM_TASKS", 1) > 1 and "SLURM_PROCID" in environment:
        return _of_slurm(environment)
    return None


def _of_torch(environment: Mapping[str, str]) -> RankInfo:
    world_size = _number(environment, "WORLD_SIZE")
    if "MASTER_ADDR" not in environment and world_size > 1:
        raise ValueError(
            f"WORLD_SIZE is {world_size} but MASTER_ADDR is not set: name the host of rank 0 in it, or start "
            "with torchrun, which does"
        )
    return RankInfo(
        rank=_number(environment, "RANK" if "RANK" in environment else "JOB_COMPLETION_INDEX"),
        world_size=world_size,
        local_rank=_number(environment, "LOCAL_RANK", 0),
        local_world_size=_number(environment, "LOCAL_WORLD_SIZE", 1),
        host=environment.get("MASTER_ADDR", "127.0.0.1"),
        port=_number(environment, "MASTER_PORT", PORT),
        launcher_hosts_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
        run_id=environment.get("TORCHELASTIC_RUN_ID", ""),
    )


def _of_slurm(environment: Mapping[str, str]) -> RankInfo:
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    tasks_per_node = environment.get("SLURM_STEP_TASKS_PER_NODE", "1")
    # Ranks cannot communicate yet but need one port; the job id gives jobs on one machine different ports.
    of_the_job = 20000 + _number(environment, "SLURM_JOB_ID", 0) % 20000
    return RankInfo(
        rank=_number(environment, "SLURM_PROCID"),
        world_size=_number(environment, "SLURM_STEP_NUM_TASKS"),
        local_rank=_number(environment, "SLURM_LOCALID", 0),
        local_world_size=_tasks_here(tasks_per_node, _number(environment, "SLURM_NODEID", 0)),
        host=environment.get("MASTER_ADDR", first_host(nodes)),
        port=_number(environment, "MASTER_PORT", of_the_job),
    )


def first_host(nodes: str) -> str:
    """Return the first host of a SLURM node list: "gpu[03-05,9],login" gives gpu03."""
    found = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\]([^,]*))?", nodes)
    if found is None:
        raise ValueError(f"SLURM_STEP_NODELIST is {nodes!r}: names no host; set MASTER_ADDR to rank 0's host")
    return "".join(part or "" for part in found.groups())


def _tasks_here(tasks_per_node: str, node: int) -> int:
    """Return the number of tasks on a node by SLURM's "4(x2),3": nodes 0 and 1 have 4, node 2 has 3."""
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE is {tasks_per_node!r}: must be as 4(x2),3")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts[min(node, len(counts) - 1)]


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None:
        if default is None:
            raise ValueError(f"{name} is not set: start with torchrun, srun or khop train --procs")
        return default
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}: must be a whole number, as the launcher sets it")
    return int(text)
