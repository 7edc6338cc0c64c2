"""Settings that need more memory than a machine has are named before anything is allocated."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.graph.folder import open_folder
from khop.run.check import checked
from khop.run.memory import check_memory, weight_bytes
from khop.run.read import RawRun
from support.typed_runs import write_tagged_shop

GB = 10**9


@pytest.mark.parametrize(
    ("tables", "field"),
    [
        ({"model": {"hidden": 1 << 27}}, "model.hidden"),
        ({"model": {"embedding": 1 << 28}}, "model.embedding"),
        (
            {
                "task": {"kind": "link-prediction", "target": "user buys item"},
                "links": {"negatives_per_positive": 1 << 24},
            },
            "links.negatives_per_positive",
        ),
        (
            {
                "task": {"kind": "link-prediction", "target": "user buys item"},
                "links": {"shared_negatives": 1 << 24, "negatives_group": 64},
            },
            "links.shared_negatives",
        ),
        (
            {
                "task": {"kind": "link-prediction", "target": "user buys item"},
                "links": {"hard_negatives": 1 << 28},
            },
            "links.hard_negatives",
        ),
    ],
)
def test_the_setting_is_named_with_its_size(tmp_path: Path, tables: dict[str, object], field: str) -> None:
    graph = open_folder(write_tagged_shop(tmp_path / "shop"))
    raw = RawRun({"graph": str(graph.path), **tables}, "run.toml")
    config = checked(raw)
    check_memory(config, graph, raw, limit=1 << 60)
    with pytest.raises(ValueError, match=rf"^{field} is .* and this machine has 1 GB; lower it \("):
        check_memory(config, graph, raw, limit=GB)


def test_negatives_of_files_need_no_memory_for_others(tmp_path: Path) -> None:
    graph = open_folder(write_tagged_shop(tmp_path / "shop"))
    task = {"kind": "link-prediction", "target": "user buys item"}
    links = {"eval_negatives": 10_000, "val_negatives": "val.parquet"}
    raw = RawRun({"graph": str(graph.path), "task": task, "links": links, "model": {"hidden": 8}}, "run.toml")
    with pytest.raises(ValueError, match=r"^links.eval_negatives is .* this machine has 1 MB"):
        check_memory(checked(raw), graph, raw, limit=10**6)
    links["test_negatives"] = "test.parquet"
    check_memory(checked(raw), graph, raw, limit=10**6)


def test_weights_have_gradients_and_two_moments(tmp_path: Path) -> None:
    graph = open_folder(write_tagged_shop(tmp_path / "shop"))
    tables = {"model": {"hidden": 8}, "sampler": {"fanouts": [2, 2]}}
    config = checked(RawRun({"graph": str(graph.path), **tables}, "run.toml"))
    assert weight_bytes(config, graph) == 4 * 4 * (3 * 8 + 8 * 1)  # users' 3 numbers are the narrowest input
