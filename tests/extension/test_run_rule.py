"""The rules of test_rule.py, and a sampler written outside khop, named by a run file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import khop
from cli.conftest import Ran
from extension.test_rule import EverySecond, TopK
from khop.components import ANY_NAMED
from khop.draw import DrawKey
from khop.run.build import prepare
from khop.run.contexts import SamplerContext, rule_of
from khop.run.read import RawRun

Command = Callable[..., Ran]


class Doubled(khop.SamplerBase):
    """Neighborhoods with `factor` times the fanouts of the run."""

    @dataclass(frozen=True)
    class Options:
        """Settings in the table `sampler` of a run."""

        factor: int = 2
        """Factor of the fanouts"""

    def __init__(self, neighbors: khop.NeighborSampler) -> None:
        super().__init__(neighbors.graph)
        self.neighbors = neighbors

    @classmethod
    def build(cls, options: Options, context: SamplerContext) -> Doubled:
        fanouts = [options.factor * fanout for fanout in context.fanouts if isinstance(fanout, int)]
        return cls(khop.NeighborSampler(context.graph, fanouts, rule=context.rule))

    @property
    def num_layers(self) -> int:
        return self.neighbors.num_layers

    def sample(self, seeds: khop.Seeds, key: DrawKey) -> khop.Sample:
        return self.neighbors.sample(seeds, key)


def run_file(folder: Path, graph: Path, sampler: str) -> str:
    path = folder / "run.toml"
    path.write_text(f"""
        graph = "{graph}"
        compute_threads = 1
        model = {{ hidden = 16, dropout = 0.0 }}
        training = {{ epochs = 2, batch_size = 64, learning_rate = 0.03 }}
        [sampler]
        fanouts = [4, 3]
        {sampler}
    """)
    return str(path)


RULE = f"""
        [sampler.rule]
        kind = "{EverySecond.__module__}:EverySecond"
        first = 1
"""
SAMPLER = f"""
        kind = "{__name__}:Doubled"
        factor = 3
"""


@pytest.mark.long
@pytest.mark.parametrize("table", [RULE, SAMPLER, SAMPLER + RULE], ids=["rule", "sampler", "both"])
def test_a_run_trains_on_one_process_and_on_two(
    khop_command: Command, learnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = run_file(tmp_path, learnable, table)
    losses = []
    for procs in ("1", "2"):
        ran = khop_command("train", file, "--out", procs, "--procs", procs)
        assert ran.code == 0, ran.stderr
        lines = Path(procs, "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    written = tomllib.loads(Path("1/config.toml").read_text())["sampler"]
    assert written.get("factor") == (3 if SAMPLER in table else None)
    assert written.get("rule", {}).get("first") == (1 if RULE in table else None)
    assert khop_command("evaluate", "1").code == 2
    assert khop_command("evaluate", "1", "--allow-code", "extension").code == 0


def test_batches_are_those_of_the_rule_and_of_the_sampler(learnable: Path, tmp_path: Path) -> None:
    values = {
        "graph": str(learnable),
        "sampler": {"fanouts": [2, 2], "kind": f"{__name__}:Doubled", "rule": {"kind": "uniform"}},
    }
    run = prepare(RawRun(values, "run.toml", permission=ANY_NAMED), tmp_path)
    assert rule_of(run.config, run.graph) == khop.Uniform()
    seeds = run.graph.split("train")
    wanted = khop.Loader(khop.NeighborSampler(run.graph, [4, 4]), seeds, 1024, shuffle=True)
    nodes = [loader.batch(0, 0).sample.nodes["item"].tolist() for loader in (run.loader(), wanted)]
    assert nodes[0] == nodes[1]


@pytest.mark.long
def test_rules_of_khop_are_options_too(
    khop_command: Command, learnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = run_file(tmp_path, learnable, "")
    ran = khop_command("train", file, "--rule", "labor", "--rule-kappa", "4", "--out", "run")
    assert ran.code == 0, ran.stderr
    written = tomllib.loads(Path("run/config.toml").read_text())["sampler"]["rule"]
    assert written == {"kind": "labor", "layer_dependent": False, "kappa": 4}
    ran = khop_command("train", file, "--rule", "labor", "--rule-kappa", "0")
    assert "kappa" in ran.stderr
    assert ran.code == 2
    ran = khop_command("train", file, "--rule", "top-k", "--rule-column", "weight")
    assert "no column 'weight'" in ran.stderr.replace("\n", " ")


def test_a_rule_is_its_own_options(
    khop_command: Command, learnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = run_file(tmp_path, learnable, "")
    top = ("--rule", f"{TopK.__module__}:TopK")
    assert "--rule-column" in khop_command("train", file, *top, "--help").stdout
    ran = khop_command("train", file, *top)
    assert "sampler.rule.column is missing: give --rule-column" in ran.stderr.replace("\n", " ")
    ran = khop_command("train", file, *top, "--rule-column", "weight")
    assert "no column 'weight'" in ran.stderr.replace("\n", " ")
    ran = khop_command("train", file, *top, "--rule-column", "weight", "--weight", "weight")
    assert "leave these out" in ran.stderr.replace("\n", " ")
