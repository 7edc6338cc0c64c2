"""`khop plan`: what would be needed, printed and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import khop
from khop.cli import plan
from khop.run.planning.prediction import MEASURED, Constants

Command = Callable[..., Any]
ASKED = (
    "plan", "--nodes", "2449029", "--edges", "122.9e6", "--feature-bytes", "400", "--fanouts", "15,10,5",
    "--machines", "4", "--network", "10", "--cores", "2",
)  # fmt: skip


def test_it_prints_both_placements_and_what_holds_them_up(khop_command: Command) -> None:
    done = khop_command(*ASKED, "--remote-share", "0.66")
    assert (done.code, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert "2,449,029 nodes, 122,900,000 edges on 4 machines: a step of 4,096 seeds" in said
    for line in (
        "memory",
        "of these, not in the cache",
        "collectives per batch 3 12",
        "a step",
        "bottleneck",
    ):
        assert line in said
    assert "--measure" in said


def test_json_has_every_number_and_what_was_asked(khop_command: Command) -> None:
    document = json.loads(khop_command(*ASKED, "--latency", "5", "--cache", "0.5", "--json").stdout)
    assert document["graph"] == {
        "nodes": 2449029, "edges": 122_900_000, "feature_bytes": 400, "features": 100, "edge_bytes": 0,
    }  # fmt: skip
    assert document["cluster"]["latency_s"] == 0.005
    assert document["run"]["batch_size"] == 4096
    assert set(document["placements"]) == {"replicated", "partitioned"}
    for figures in document["placements"].values():
        memory = dict(figures["memory_bytes"])
        assert memory.pop("total") == pytest.approx(sum(memory.values()))
        assert figures["traffic"]["remote_rows"] > figures["traffic"]["fetched_rows"] > 0
        assert figures["seconds"]["step"] > 0


def test_servers_are_planned_beside_worker_mode(khop_command: Command) -> None:
    said = " ".join(khop_command(*ASKED, "--servers", "2").stdout.split())
    assert "2 servers with the graph, 4 trainers without it" in said
    document = json.loads(khop_command(*ASKED, "--servers", "2", "--json").stdout)
    served = document["servers"]
    assert served["sent_bytes"] == pytest.approx(2 * served["batch_bytes"])
    assert f"servers for which trainers do not wait {served['enough']}" in said
    assert "servers" not in json.loads(khop_command(*ASKED, "--json").stdout)
    assert said.endswith("khop serve GRAPH --listen HOST:7311 khop train run.toml --servers HOST:7311")


def test_a_negative_number_of_servers_is_a_sentence(khop_command: Command) -> None:
    done = khop_command(*ASKED, "--servers", "-1")
    assert done.code == 2
    assert "servers -1: must be 1 or more" in done.stderr


def test_a_hundred_billion_edges_are_printed(khop_command: Command) -> None:
    huge = ("--nodes", "1e9", "--edges", "1e11", "--machines", "64", "--cores", "32")
    done = khop_command(*ASKED, *huge, "--memory", "128")
    said = " ".join(done.stdout.split())
    assert "1,000,000,000 nodes, 100,000,000,000 edges" in said
    assert "No machines of 128 GB are enough with all edges on every machine." in said
    found = re.search(r"(\d+) machines of 128 GB are enough with edges partitioned like features\.", said)
    assert found is not None
    document = json.loads(khop_command(*ASKED, *huge, "--memory", "128", "--json").stdout)
    assert document["fewest_machines"] == {"replicated": None, "partitioned": int(found[1])}
    assert document["from_disk"] is None
    assert "One machine of 128 GB cannot train from disk: the edges do not fit in its memory." in said


def test_one_machine_that_trains_from_disk_stands_beside_the_machines_that_are_needed(
    khop_command: Command,
) -> None:
    papers = ("--nodes", "111059956", "--edges", "1615685872", "--machines", "3", "--memory", "24")
    said = " ".join(khop_command(*ASKED, *papers).stdout.split())
    found = re.search(
        r"One machine of 24 GB trains from disk at ([\d.]+) s/step: ([\d,]+) of [\d,]+ rows", said
    )
    assert found is not None
    document = json.loads(khop_command(*ASKED, *papers, "--json").stdout)
    assert document["from_disk"]["step"] == pytest.approx(float(found[1]), abs=0.006)
    assert round(document["from_disk"]["read_rows"]) == int(found[2].replace(",", ""))


def test_what_was_measured_here_replaces_the_table(
    khop_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Constants(1e3, 1e6, 1e6, 1e6, 1e-2, 1e-3, 1e4, 1e8)
    monkeypatch.setattr("khop.run.planning.measure.measured", lambda: slow)
    monkeypatch.setattr(plan, "tune_memory", lambda: False)
    here = json.loads(khop_command(*ASKED, "--measure", "--json").stdout)
    there = json.loads(khop_command(*ASKED, "--json").stdout)
    assert here["constants"]["gather_bytes_per_s"] == 1e6
    assert there["constants"]["gather_bytes_per_s"] == MEASURED.gather_bytes_per_s
    assert "The times are for this machine" in khop_command(*ASKED, "--measure").stdout


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--nodes", "many", "--nodes 'many': give a whole number, as 2449029 or 1e11"),
        ("--edges", "1.5", "--edges '1.5': give a whole number"),
        ("--edges", "inf", "--edges 'inf': give a whole number"),
        ("--fanouts", "15,a", "--fanouts 'a': give numbers as 15,10,5"),
        ("--machines", "0", "machines 0: must be 1 or more"),
        ("--network", "0", "network 0.0: must be above 0 Gbit/s"),
    ],
)
def test_bad_input_gives_one_sentence(khop_command: Command, option: str, value: str, sentence: str) -> None:
    done = khop_command(*ASKED, option, value)
    assert done.code == 2
    assert done.stderr.startswith(f"khop: {sentence}")
    assert done.stderr.count("\n") == 1


def test_a_graph_that_exists_is_counted(khop_command: Command, tmp_path: Path) -> None:
    nodes = khop.NodeTable(columns={"x": torch.rand(900, 8), "y": torch.arange(900) % 3})
    khop.write_graph(tmp_path / "g", {"n": nodes}, {"n to n": khop.EdgeTable(*torch.randint(900, (2, 5000)))})
    machine = ("--fanouts", "5,5", "--machines", "2", "--network", "10", "--memory", "4", "--json")
    done = khop_command("plan", "--graph", str(tmp_path / "g"), *machine)
    assert done.code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["graph"] == {
        "nodes": 900, "edges": 5000, "feature_bytes": 32, "features": 8, "edge_bytes": 0,
    }  # fmt: skip
    assert document["from_disk"]["nodes"] <= 900
    done = khop_command("plan", "--graph", str(tmp_path / "g"), "--nodes", "9", *machine)
    assert done.code == 2
    assert "excludes --nodes, --edges and --feature-bytes" in done.stderr
    done = khop_command("plan", "--nodes", "9", *machine)
    assert (done.code, "give --graph FOLDER, or all of --nodes" in done.stderr) == (2, True)
