"""Processes of a machine get disjoint cores and their memory node, of the cores that they may run on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop import process_tuning
from khop.cli.doctor import memory_nodes
from khop.process_tuning import Bind, CoreTopology, RankCores, places_of_ranks
from processes.ranks import writes_cores
from support.commands import ENVIRONMENT, TORCHRUN, free_port, records
from support.small_folders import write_learnable_graph

CORES = sorted(os.sched_getaffinity(0))
several_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def machine(folder: Path, nodes: Sequence[str], siblings: Sequence[str]) -> CoreTopology:
    """Write the files that Linux has below /sys/devices/system, and read them."""
    for number, cores in enumerate(nodes):
        place = folder / "node" / f"node{number}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(f"{cores}\n")
    for core, together in enumerate(siblings):
        place = folder / "cpu" / f"cpu{core}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{together}\n")
    (folder / "cpu" / "cpufreq").mkdir(parents=True, exist_ok=True)
    return CoreTopology.read(folder)


def two_nodes(folder: Path) -> CoreTopology:
    """Two memory nodes of four physical cores with two threads each; the second threads are 8 to 15."""
    return machine(folder, ["0-3,8-11", "4-7,12-15"], [f"{n % 8},{n % 8 + 8}" for n in range(16)])


def words(places: Sequence[RankCores]) -> list[str]:
    return [str(place) for place in places]


def test_ranks_get_physical_cores_of_one_memory_node(tmp_path: Path) -> None:
    topology = two_nodes(tmp_path)
    assert words(topology.places(range(16), 2, "numa")) == [
        "cores 0-3,8-11 on memory node 0",
        "cores 4-7,12-15 on memory node 1",
    ]
    assert words(topology.places(range(16), 3, "numa")) == [
        "cores 0-1,8-9 on memory node 0",
        "cores 2-3,10-11 on memory node 0",
        "cores 4-7,12-15 on memory node 1",
    ]
    assert words(topology.places(range(16), 1, "numa")) == ["cores 0-15"]


def test_cores_alone_may_span_memory_nodes(tmp_path: Path) -> None:
    topology = two_nodes(tmp_path)
    middle = topology.places(range(16), 3, "cores")[1]
    assert middle == RankCores((2, 3, 4, 10, 11, 12), None)


def test_only_allowed_cores_are_divided(tmp_path: Path) -> None:
    topology = two_nodes(tmp_path)
    assert words(topology.places([1, 2, 9, 10, 5], 3, "numa")) == [
        "cores 1,9 on memory node 0",
        "cores 2,10 on memory node 0",
        "cores 5 on memory node 1",
    ]


def test_more_ranks_than_physical_cores_share_them_but_no_thread(tmp_path: Path) -> None:
    found = two_nodes(tmp_path).places([0, 8, 4, 12], 4, "numa")
    assert [place.cores for place in found] == [(0,), (8,), (4,), (12,)]
    with pytest.raises(ValueError, match=r"bind numa: 5 processes.*4 cores.*bind none"):
        two_nodes(tmp_path / "again").places([0, 8, 4, 12], 5, "numa")


def test_the_default_is_numa_where_there_are_several_nodes(tmp_path: Path) -> None:
    topology = two_nodes(tmp_path / "two")
    assert topology.default_bind(range(16), 4) == "numa"
    assert topology.default_bind(range(4), 4) == "none"  # allowed on one node alone
    assert topology.default_bind([0, 4], 4) == "none"  # more ranks than cores
    one = machine(tmp_path / "one", ["0-3"], ["0", "1", "2", "3"])
    assert one.default_bind(range(4), 2) == "none"
    assert CoreTopology.read(tmp_path / "nothing").default_bind(range(4), 2) == "none"


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=4),
    st.sampled_from([1, 2]),
    st.sampled_from(["cores", "numa"]),
    st.data(),
)
def test_places_are_disjoint_allowed_and_of_one_node(
    sizes: list[int], threads: int, bind: Bind, data: st.DataObject
) -> None:
    bounds = [sum(sizes[:n]) * threads for n in range(len(sizes) + 1)]
    nodes = {n: frozenset(range(bounds[n], bounds[n + 1])) for n in range(len(sizes)) if sizes[n]}
    count = bounds[-1]
    siblings = {n: frozenset(range(n - n % threads, n - n % threads + threads)) for n in range(count)}
    topology = CoreTopology(nodes, siblings)
    allowed = data.draw(st.sets(st.sampled_from(range(count)), min_size=1)) if count else {0}
    ranks = data.draw(st.integers(1, len(allowed)))
    places = topology.places(allowed, ranks, bind)
    cores = [core for place in places for core in place.cores]
    assert len(places) == ranks
    assert len(cores) == len(set(cores))
    assert set(cores) == set(allowed)
    assert all(place.cores for place in places)
    used = {topology.node_of(core) for core in allowed}
    if bind == "numa" and ranks >= len(used):
        assert all(len({topology.node_of(core) for core in place.cores}) == 1 for place in places)
    for place in places:
        assert place.node in (None, *(topology.node_of(core) for core in place.cores))


def reports(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@pytest.mark.long
@several_cores
@pytest.mark.real_start
def test_launched_ranks_run_on_disjoint_cores_with_all_their_threads(tmp_path: Path) -> None:
    khop.launch(writes_cores, procs=2, device="cpu", arguments=[str(tmp_path)], bind="cores")
    first, second = reports(tmp_path)
    expected = [list(place.cores) for place in places_of_ranks(2, "cores")]
    assert [first["cores"], second["cores"]] == [[expected[0]], [expected[1]]]  # of every thread
    assert not set(expected[0]) & set(expected[1])
    assert [each["torch_threads"] for each in (first, second)] == [len(cores) for cores in expected]
    assert sorted(os.sched_getaffinity(0)) == CORES  # of this process, as before


@pytest.mark.long
@pytest.mark.real_start
@pytest.mark.timeout(900)  # ten real starts on a busy machine
def test_four_ranks_of_a_larger_machine_have_disjoint_cores_and_equal_losses(tmp_path: Path) -> None:
    """Two memory nodes, each of two physical cores with two threads: the kernel does not know them."""
    machine(tmp_path / "system", ["0-1,4-5", "2-3,6-7"], [f"{n % 4},{n % 4 + 4}" for n in range(8)])
    made_up = f"from support import made_up_cores\nmade_up_cores.use({str(tmp_path / 'system')!r}, range(8))"
    bound, unbound = (trained_ranks(tmp_path, made_up, bind) for bind in (None, "none"))
    assert [cores for cores, _ in bound] == [[[n, n + 4]] for n in range(4)]
    assert [cores for cores, _ in unbound] == [[[*range(8)]]] * 4
    assert [run for _, run in bound] == [run for _, run in unbound]


def trained_ranks(folder: Path, made_up: str, bind: Bind | None) -> list[tuple[object, object]]:
    """Train on four ranks that a script starts; of each, the cores of its threads, and what it computed."""
    graph, out = folder / "toy", folder / f"bind-{bind}"
    out.mkdir()
    if not graph.exists():
        write_learnable_graph(graph, nodes=200)
    script = out / "script.py"
    script.write_text(
        f"{made_up}\nimport khop\nfrom processes.ranks import trains_and_writes_cores\n"
        "if __name__ == '__main__':\n    khop.launch(trains_and_writes_cores, procs=4, device='cpu', "
        f"arguments=[{str(graph)!r}, {str(out)!r}], bind={bind!r}, allow=['oversubscribe'])\n"
    )
    done = subprocess.run(
        [sys.executable, script], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    cores, runs = (
        [json.loads((out / kind / f"{rank}.json").read_text()) for rank in range(4)]
        for kind in ("cores", "run")
    )
    return [(of_rank["cores"], run) for of_rank, run in zip(cores, runs, strict=True)]


@several_cores
@pytest.mark.real_start
@pytest.mark.long
def test_ranks_of_torchrun_are_bound_when_asked(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, khop\nfrom processes.ranks import writes_cores\n"
        "khop.launch(writes_cores, device='cpu', arguments=[sys.argv[1]], bind='cores')\n"
    )
    environment = {**ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([*TORCHRUN, "2", script, tmp_path], check=True, env=environment, capture_output=True)
    first, second = reports(tmp_path)
    assert [first["cores"], second["cores"]] == [[list(p.cores)] for p in places_of_ranks(2, "cores")]


@pytest.mark.long
def test_machines_may_have_different_numbers_of_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, khop\nfrom processes.ranks import writes_cores\n"
        "khop.launch(writes_cores, device='cpu', arguments=[sys.argv[1]], deadline=60)\n"
    )
    common = {**ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[1])}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "3"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, tmp_path],
            env={**common, "RANK": str(n), "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": there},
        )
        for n, (local, there) in enumerate([("0", "2"), ("1", "2"), ("0", "1")])  # of two machines
    ]
    assert [rank.wait() for rank in ranks] == [0, 0, 0]
    assert len(reports(tmp_path)) == 3


@several_cores
def test_a_process_reads_back_its_memory_policy() -> None:
    number = {"x86_64": 239, "aarch64": 236}.get(os.uname().machine)
    node = CoreTopology.read().node_of(CORES[0])
    if number is None or node is None:
        pytest.skip("the kernel shows no memory nodes")
    program = (
        "import ctypes, os\nfrom khop.process_tuning import RankCores\n"
        f"RankCores(({CORES[0]},), {node}).bind_process()\n"
        "mode, mask = ctypes.c_int(), (ctypes.c_ulong * 16)()\n"
        f"code = ctypes.CDLL(None).syscall(ctypes.c_long({number}), ctypes.byref(mode), mask, "
        "ctypes.c_ulong(1024), None, ctypes.c_ulong(0))\n"
        "print(code, mode.value, mask[0], *os.sched_getaffinity(0))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    code, mode, mask, core = map(int, done.stdout.split())
    if code != 0:
        pytest.skip("this container forbids get_mempolicy")
    assert (mode, mask, core) == (process_tuning._PREFERRED, 1 << node, CORES[0])


@several_cores
@pytest.mark.real_start
@pytest.mark.long
def test_servers_run_on_disjoint_cores(tmp_path: Path) -> None:
    folder, port = write_learnable_graph(tmp_path / "toy"), free_port()
    command = [sys.executable, "-m", "khop", "serve", folder, "--listen", f"127.0.0.1:{port}"]
    command += ["--procs", "2", "--bind", "cores"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as parent:
        assert parent.stdout is not None
        try:
            for _ in range(2):
                parent.stdout.readline()
            task = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
            found = sorted(sorted(os.sched_getaffinity(int(pid))) for pid in task.read_text().split())
        finally:
            parent.terminate()
    assert found == [list(place.cores) for place in places_of_ranks(2, "cores")]


@several_cores
@pytest.mark.real_start
@pytest.mark.long
def test_train_says_to_which_cores_its_processes_are_bound(tmp_path: Path) -> None:
    folder = write_learnable_graph(tmp_path / "toy")
    command = [sys.executable, "-m", "khop", "train", "--graph", folder, "--epochs", "1", "--procs", "2"]
    printed = {}
    for bind in ("cores", "none"):
        words = [*command, "--bind", bind, "--out", tmp_path / bind]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=ENVIRONMENT)
        printed[bind] = done.stdout
    first, second = places_of_ranks(2, "cores")
    assert f"processes are bound: 0 to {first}, 1 to {second}" in printed["cores"]
    assert "bound" not in printed["none"]
    assert records(str(tmp_path / "cores"), "steps") == records(str(tmp_path / "none"), "steps")


def test_doctor_names_the_memory_nodes_and_the_default(tmp_path: Path) -> None:
    found = memory_nodes(two_nodes(tmp_path), range(16)).found
    assert found == (
        "node 0: cores 0-3,8-11; node 1: cores 4-7,12-15; processes of a run have --bind numa by default"
    )


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="bind 'all'"):
        khop.launch(print, procs=2, device="cpu", bind="all")  # type: ignore[arg-type]
