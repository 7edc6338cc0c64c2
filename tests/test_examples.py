"""The examples do what their first lines say: they learn, on one process and on two, the same thing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array, save_npz

import khop
from support.commands import free_port
from support.small_folders import ITEM, write_learnable_graph

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ON_ONE_GRAPH = ["blocks", "fsdp", "layerwise", "own_sampler"]
AS_THEY_STAND = ["taobao"]  # small already
BY_THEMSELVES = [
    "reddit",
    "distributed_products",
    "torch_geometric_layers",
    "sweep",
    "ladies",
    "mlperf_rgat",
]  # with tests of their own
# One loop each, by plain torch, accelerate and Lightning; with the options that break it off and continue it.
BREAK_OFF = {"plain_loop": ["--stop", "11"], "accelerate_loop": ["--stop", "12"], "lightning_trainer": []}
CONTINUE = {
    "plain_loop": [],
    "accelerate_loop": [],
    "lightning_trainer": ["--resume", "lightning/step=14.ckpt"],
}
CHANCE = 0.25  # of four classes


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A graph to learn from, in an empty folder; spawned processes too can import the examples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return write_learnable_graph(tmp_path / "toy", nodes=3000)


def told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str, *arguments: str
) -> list[tuple[float, ...]]:
    """The numbers that an example, called as a command, prints of each epoch."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with torch.random.fork_rng():
        import_module(name).main()
    lines = [line for line in capfd.readouterr().out.splitlines() if re.match(r"epoch \d+: ", line)]
    return [tuple(float(number) for number in re.findall(r"\d+\.\d+", line)) for line in lines]


@pytest.mark.parametrize("name", ["blocks", "fsdp", pytest.param("own_sampler", marks=pytest.mark.long)])
def test_two_processes_learn_what_one_does(
    name: str, graph: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--graph", str(graph), "--epochs", "4"]
    one = told(monkeypatch, capfd, name, *arguments, "--procs", "1")
    two = told(monkeypatch, capfd, name, *arguments, "--procs", "2")
    assert len(one) == 4
    (first, _), (last, accuracy) = one[0], one[-1]
    assert last < first
    assert accuracy > 2 * CHANCE
    assert [loss for loss, _ in two] == pytest.approx([loss for loss, _ in one], abs=1e-4)
    assert two[-1][1] == pytest.approx(accuracy, abs=0.01)


def test_ladies_learns_and_its_weights_have_no_bias(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The mean over keys of the weighted sum of neighbors is the mean over all neighbors."""
    course = told(monkeypatch, capfd, "ladies", "--graph", str(graph), "--epochs", "4", "--nodes", "200")
    assert course[-1][0] < course[0][0]
    assert course[-1][1] > 2 * CHANCE
    opened, seeds, keys = khop.open_graph(graph), torch.arange(8), 300
    sampler = khop.FrontierSampler(opened, partial(import_module("ladies").edges_for, 15), 1)
    x = torch.arange(3000).double() % 7
    found = torch.zeros(keys, 8, dtype=torch.float64)
    for key in range(keys):
        sample = sampler.sample(khop.Seeds({"item": seeds}, {"item": seeds}), khop.DrawKey(key))
        adjacency = sample.blocks[0].adjacency
        source, destination = adjacency.edge_index
        assert adjacency.weight is not None
        found[key].index_add_(0, destination, adjacency.weight.double() * x[sample.nodes["item"][source]])
    csc = opened.csc("item like item")
    sums = torch.zeros(3000, dtype=torch.float64).index_add_(0, csc.destinations(), x[csc.indices.long()])
    expected = (sums / csc.indptr.diff())[:8]
    assert ((found.mean(0) - expected).abs() <= 4.5 * found.std(0) / keys**0.5 + 1e-6).all()


def test_the_best_weights_of_the_blocks_are_kept(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told(monkeypatch, capfd, "blocks", "--graph", str(graph), "--epochs", "1", "--procs", "1")
    assert Path("blocks.safetensors").stat().st_size > 0


def test_layerwise_scores_do_not_depend_on_the_processes_that_share_the_work(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--graph", str(graph), "--epochs", "6"]
    for procs in ("1", "2"):  # dropout is drawn by each rank for itself: the course is not quite the same
        scores = told(monkeypatch, capfd, "layerwise", *arguments, "--procs", procs)
        assert len(scores) == 3
        assert min(scores[-1]) > 2 * CHANCE


def test_reddit_is_read_from_the_folder_of_torch_geometric(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_as_reddit(khop.open_graph(graph), Path("data/raw"))
    two = told(monkeypatch, capfd, "reddit", "--reddit", "data", "--epochs", "3", "--procs", "2")
    one = told(monkeypatch, capfd, "reddit", "--reddit", "data", "--epochs", "3", "--procs", "1")
    assert one[-1][1] > 2 * CHANCE
    assert [loss for loss, _ in two] == pytest.approx([loss for loss, _ in one], abs=1e-4)


def test_processes_that_hold_parts_learn_what_one_does_that_has_all(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--graph", str(graph), "--epochs", "2"]
    one = told(monkeypatch, capfd, "distributed_products", *arguments, "--procs", "1")
    two = told(monkeypatch, capfd, "distributed_products", *arguments, "--procs", "2", "--placement", "all")
    assert one[-1][1] > 2 * CHANCE
    assert [loss for loss, _ in two] == pytest.approx([loss for loss, _ in one], abs=1e-4)
    assert two[-1][1] == pytest.approx(one[-1][1], abs=0.01)


@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # Lightning's own use of torch
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists")
def test_loops_by_torch_accelerate_and_lightning_take_one_course_and_continue_it_exactly(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Eight steps an epoch; each is continued from a checkpoint within the first epoch or the second."""
    arguments = ["--graph", str(graph), "--epochs", "3"]
    courses = {}
    for name in BREAK_OFF:
        own = Path(name)
        own.mkdir()
        monkeypatch.chdir(own)
        begun = told(monkeypatch, capfd, name, *arguments, *BREAK_OFF[name])
        continued = told(monkeypatch, capfd, name, *arguments, *CONTINUE[name])
        monkeypatch.chdir(graph.parent)
        assert min(len(begun), len(continued)) >= 1
        assert continued[-1][1] > 2 * CHANCE
        courses[name] = [*begun[:1], *continued[-1:]]
    losses = [[loss for loss, _ in course] for course in courses.values()]
    assert losses[0][1] < losses[0][0]
    assert losses == [pytest.approx(losses[0], abs=1e-4)] * 3


@pytest.mark.long
def test_processes_of_accelerate_and_lightning_share_every_batch(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    one = told(monkeypatch, capfd, "plain_loop", "--graph", str(graph), "--epochs", "2")
    commands = [
        ["accelerate.commands.launch", "--cpu", "--num_processes", "2", ROOT / "examples/accelerate_loop.py"],
        ["lightning_trainer", "--devices", "2"],
    ]
    for command in commands:
        printed = subprocess.run(
            [sys.executable, "-m", *command, "--graph", graph, "--epochs", "2"],
            env={**os.environ, "PYTHONPATH": str(ROOT / "examples")},
            capture_output=True,
            text=True,
            timeout=280,
            check=True,
        ).stdout
        losses = [float(loss) for loss in re.findall(r"^epoch \d+: loss ([\d.]+)", printed, re.MULTILINE)]
        assert losses == pytest.approx([loss for loss, _ in one], abs=1e-4)


def write_as_reddit(graph: khop.Graph, folder: Path) -> None:
    """The files that torch_geometric.datasets.Reddit fetches, of another graph."""
    folder.mkdir(parents=True)
    count = graph.num_nodes(ITEM)
    kinds = np.zeros(count, dtype=np.int64)
    for kind, split in enumerate(("train", "val", "test"), 1):
        kinds[graph.split(split)[ITEM].numpy()] = kind
    columns = graph.columns[ITEM]
    np.savez(
        folder / "reddit_data.npz",
        feature=columns["x"].numpy(),
        label=columns["category"].numpy(),
        node_types=kinds,
    )
    csc = graph.csc((ITEM, "like", ITEM))
    destinations = torch.repeat_interleave(csc.indptr.diff()).numpy()
    edges = coo_array((np.ones(destinations.size), (csc.indices.numpy(), destinations)), (count, count))
    save_npz(folder / "reddit_graph.npz", edges)


@pytest.mark.long  # tests/test_taobao.py trains it for an epoch
@pytest.mark.parametrize("name", AS_THEY_STAND)
def test_an_example_runs_without_arguments(name: str, tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr


def test_layers_of_torch_geometric_are_evaluated_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    ((accuracy,),) = told(monkeypatch, capfd, "torch_geometric_layers")
    assert accuracy > 0.4  # of 58 sections, after one epoch


@pytest.mark.long
@pytest.mark.parametrize("name", ["blocks", "reddit", "own_sampler", "layerwise"])
def test_an_example_runs_on_its_own_graph_under_two_launchers(name: str, tmp_path: Path) -> None:
    """As on two machines, with a process each."""
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--max-restarts", "0"]
    endpoint = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, "--rdzv-endpoint", endpoint]
    machines = [
        subprocess.Popen(
            [*command, ROOT / "examples" / f"{name}.py", "--epochs", "2"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [machine.communicate(timeout=600)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0]
    assert sum(output.count("epoch 1: ") for output in outputs) == 1  # rank 0 alone talks


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 100


def test_no_example_is_forgotten() -> None:
    assert {example.stem for example in EXAMPLES} == {
        *ON_ONE_GRAPH,
        *AS_THEY_STAND,
        *BY_THEMSELVES,
        *BREAK_OFF,
    }


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_sweep_finds_the_best_trial_of_its_runs(graph: Path) -> None:
    """Two trials in a storage, then one more; the best score is that of a run folder."""
    pytest.importorskip("optuna", reason="pip install optuna")
    text = f'graph = "{graph}"\nsampler = {{ fanouts = [4] }}\ntraining = {{ epochs = 2 }}\n'
    Path("run.toml").write_text(text)
    command = [sys.executable, str(ROOT / "examples" / "sweep.py"), "run.toml", "--storage", "sqlite:///s.db"]
    for trials in ("2", "1"):
        done = subprocess.run([*command, "--trials", trials], check=True, stdout=subprocess.PIPE, text=True)
    best = json.loads(done.stdout.splitlines()[-1])["best"]
    scores = []
    for folder in sorted(Path("runs").glob("trial-*")):
        epochs = (folder / "metrics.jsonl").read_text().splitlines()
        scores.append(max(json.loads(line)["val_accuracy"] for line in epochs))
    assert len(scores) == 3
    assert best == max(scores)
