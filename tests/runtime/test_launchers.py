"""The same code finds its rank under every launcher, from the environment alone."""

from __future__ import annotations

import pytest

from khop.runtime.launchers import RankInfo, first_host, rank_info_of

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "host0",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "abc",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "1234567",
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-0.svc"}
RAY = {name: TORCHRUN[name] for name in list(TORCHRUN)[:6]}


def test_a_process_started_by_hand_has_no_placement() -> None:
    assert rank_info_of({"HOME": "/root"}) is None
    assert rank_info_of({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}) is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, RankInfo(5, 8, 1, 4, "host0", 29400, True, 2, "abc")),
        (RAY, RankInfo(5, 8, 1, 4, "host0", 29400)),
        (SRUN, RankInfo(5, 7, 1, 3, "gpu03", 20000 + 1234567 % 20000)),
        ({**SRUN, "MASTER_ADDR": "a", "MASTER_PORT": "7"}, RankInfo(5, 7, 1, 3, "a", 7)),
        (KUBERNETES, RankInfo(1, 2, 0, 1, "job-0.svc", 29500)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, RankInfo(0, 1, 0, 1, "127.0.0.1", 29500)),
    ],
    ids=["torchrun", "ray", "srun", "srun-named", "kubernetes", "alone"],
)
def test_every_launcher_is_understood(environment: dict[str, str], expected: RankInfo) -> None:
    assert rank_info_of(environment) == expected


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("node7", "node7"), ("a1,a2", "a1"), ("gpu[03-05,9],login", "gpu03"), ("n[1-2]-ib", "n1-ib")],
)
def test_the_first_host_of_a_node_list_is_rank_0s(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({**TORCHRUN, "RANK": "x"}, "RANK is 'x': must be a whole number"),
        ({**TORCHRUN, "RANK": "8"}, "rank 8 of 8: must be 0 to 7"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set: name the host of rank 0"),
        ({**SRUN, "SLURM_STEP_NODELIST": ""}, "names no host; set MASTER_ADDR"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4y"}, r"is '4y': must be as 4\(x2\),3"),
    ],
)
def test_what_is_wrong_with_an_environment_is_named(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        rank_info_of(environment)
