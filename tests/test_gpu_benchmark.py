"""The benchmark of a GPU, as far as no GPU is needed: its stages, their limits, and notes of figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("triton")
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import gpu_bench  # noqa: E402
import gpu_epochs  # noqa: E402
import gpu_first  # noqa: E402
import gpu_graph  # noqa: E402
import gpu_roofline  # noqa: E402
import gpu_run  # noqa: E402
import gpu_stages  # noqa: E402
import gpu_training  # noqa: E402
import harness  # noqa: E402

from khop.batch import Adjacency, Block  # noqa: E402

EDGE_TYPE = ("node", "to", "node")
LINE = '{"figure": "%s", "value": 1.0, "unit": "ms"}'


def stage_of(script: str) -> list[str]:
    """A command that runs a script of the shell with the stage as $1 and the file of figures as $2."""
    return ["sh", "-c", script, "sh"]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu_run, "LEAST_S", 0.0)
    return tmp_path / "gpu.json"


def test_every_stage_has_a_limit_in_their_order() -> None:
    assert list(gpu_stages.STAGES) == list(gpu_run.LIMITS_S)
    assert next(iter(gpu_run.LIMITS_S)) == "limits"  # the ceilings that ratios are taken of
    assert gpu_run.IN_ALL_S < 7 * 60


def test_without_a_gpu_it_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", bool)
    with pytest.raises(SystemExit, match=r"^benchmarks/gpu.py needs a GPU: .*$") as error:
        gpu_run.main([])
    assert "\n" not in str(error.value)
    with pytest.raises(SystemExit, match=r"^stages warp: must be among limits,"):
        gpu_run.main(["--stages", "limits,warp"])


def test_a_stage_that_fails_or_is_stopped_keeps_its_figures(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_run, "LIMITS_S", {"slow": 3.0, "wrong": 60.0, "later": 60.0})
    script = f"""case $1 in
        slow) echo '{LINE % "before the end"}' >> $2; printf '{{"figu' >> $2; sleep 600 & wait;;
        wrong) echo '{LINE % "before the error"}' >> $2; exit 3;;
        later) grep -q 'before the end' $2 && echo '{LINE % "after both"}' >> $2;;
    esac"""
    failed = gpu_run.run_stages(stage_of(script), ["slow", "wrong", "later"], 600)
    assert failed == ["slow: stopped after 3 s", "wrong: ended with code 3"]
    kept = json.loads(results.read_text())["figures"]
    names = ["before the end", "stage slow", "before the error", "stage wrong", "after both", "stage later"]
    assert [figure["figure"] for figure in kept] == names
    assert [figure["notes"] for figure in kept if figure["figure"].startswith("stage")] == [
        {"failed": "stopped after 3 s"},
        {"failed": "ended with code 3"},
        {},
    ]


def test_a_stage_does_not_begin_without_time(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "LEAST_S", 5.0)
    assert gpu_run.run_stages(stage_of("exit 1"), ["limits"], 4.0) == ["limits: left out: no time was left"]
    assert "left out" in results.read_text()


def test_a_kernel_has_its_bytes_over_time_against_the_copy(tmp_path: Path) -> None:
    kept = tmp_path / "figures.jsonl"
    kept.touch()
    gpu_run.append(kept, harness.Figure(gpu_bench.COPY, 4000.0, "GB/s"))
    bench = gpu_bench.Bench(10, kept)
    bench.add_moved("gather", 0.1, 200_000_000, rows=5)
    found = gpu_run.figures_of(kept)[-1]
    assert (found.peer, found.ratio) == ("bandwidth of a copy", 0.5)
    assert found.notes == {"bytes": 200_000_000, "GB/s": 2000.0, "rows": 5}


def test_bytes_of_kernels_are_counted_over_the_hops() -> None:
    def block(sources: int, rows: int, edges: int) -> Block:
        edges_of = Adjacency(torch.zeros(rows + 1).long(), torch.zeros(edges).int(), sources)
        return Block({EDGE_TYPE: edges_of}, {"node": sources}, {"node": rows})

    found = gpu_roofline.bytes_by_kernel([block(40, 20, 50), block(20, 5, 30), block(5, 2, 4)])
    slots = 4 * (2 * 15 + 5 * 10 + 20 * 5)
    assert found["distinct_in_registers"] == 27 * 44 + 84 * 96 + slots
    assert found["_assign"] == slots + 2 * 8 + 86 * 32 + (38 + 2) * 40
    assert found["_to_csr"] == slots + 84 * 36 + 27 * 12


def test_the_first_batch_has_two_figures(capsys: pytest.CaptureFixture[str]) -> None:
    gpu_first.main(["--nodes", "3000", "--device", "cpu"])
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["first batch"] < found["first batch and gradients"]


def test_without_samplers_of_pyg_the_figure_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_epochs, "SAMPLERS", ("no_such_sampler", "no_other_sampler"))
    kept = tmp_path / "figures.jsonl"
    kept.touch()
    gpu_epochs.pyg(gpu_bench.Bench(10, kept))
    (found,) = gpu_run.figures_of(kept)
    assert found.value == 0
    assert "no_such_sampler" in found.notes["reason"]
    monkeypatch.setattr(gpu_epochs, "SAMPLERS", ("no_such_sampler", "json"))
    assert gpu_epochs.why_no_pyg() is None


def test_steps_of_pyg_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pytest.importorskip("torch_geometric.data")
    graphsage = pytest.importorskip("torch_geometric.nn").GraphSAGE
    from khop.pyg import NeighborLoader

    monkeypatch.setattr(gpu_epochs, "PYG_STEPS", 3)
    products = gpu_graph.products(500, device="cpu")
    owners = torch.repeat_interleave(torch.arange(500), products.csc.indptr.diff())
    whole = data.Data(
        x=products.x, y=products.y, edge_index=torch.stack([products.csc.indices.long(), owners])
    )
    loader = NeighborLoader(whole, [3, 2], input_nodes=products.train, batch_size=50)
    model: nn.Module = graphsage(gpu_graph.WIDTH, 8, num_layers=2, out_channels=gpu_graph.CLASSES)
    before = [parameter.clone() for parameter in model.parameters()]
    assert gpu_epochs.pyg_step_s(loader, model, torch.device("cpu")) > 0
    assert not torch.equal(before[0], next(model.parameters()))


def test_loaders_of_the_stage_of_waits_read_columns_of_int8() -> None:
    made = gpu_graph.products(2000, device="cpu")
    loaders = gpu_training.placed_loaders(made, gpu_graph.quantized(made))
    for what, loader in loaders.items():
        batch = next(iter(loader))
        nodes = batch.sample.nodes["node"]
        torch.testing.assert_close(batch.columns["node"]["x"], made.x[nodes], rtol=0, atol=0.1)
        assert bool(batch.links) == (what == "links")
