"""A run is compared with its graph before anything long starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.graph.build import write_graph
from khop.graph.folder import open_folder
from khop.graph.tables import EdgeTable, NodeTable
from khop.loading.device.streams import gpu_remedy
from khop.process_tuning import sampler_threads, usable_cores
from khop.run.build import graph_folder, notes_of, resolve
from khop.run.check import checked
from khop.run.read import RawRun, with_options
from khop.run.values import RunConfig
from support.small_labeled import write_two_labels


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_labels(tmp_path_factory.mktemp("graphs") / "shop")


def resolved(shop: Path, options: dict[str, object]) -> RunConfig:
    task = {"label": "color", "test_split": "val", "val_split": "val"}
    raw = with_options(RawRun({"graph": str(shop), "task": task}, "run.toml"), options)
    config = checked(raw)
    return resolve(config, graph_folder(config, raw, shop.parent / "cache"), raw)


def test_what_a_run_leaves_open_is_filled_in(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.parent)
    run = resolved(Path("shop"), {"sampler.fanouts": [3, 2, 1]})
    assert (run.task.target, run.task.label) == ("item", "color")
    assert run.model.layers == 3
    assert run.compute_threads == usable_cores()
    assert run.threads == sampler_threads(usable_cores())
    assert run.graph == str(shop)
    assert resolved(shop, {"compute_threads": 3}).compute_threads == 3
    assert resolved(shop, {"threads": 5}).threads == 5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"task.target": "itme"}, "task.target is 'itme': the node types with labels are item (--target)"),
        (
            {"task.label": "size"},
            "task.label is 'size': the label columns of item are color, shape (--label)",
        ),
        (
            {"task.train_split": "trian"},
            "task.train_split is 'trian': the splits of item are train, val, test (--train-split)",
        ),
        (
            {"task.val_split": "open"},
            "task.val_split is 'open': the splits of item are train, val, test (--val-split)",
        ),
        (
            {"task.test_split": "test"},
            "task.test_split is 'test': node 2 of item in it has no color (its label is -1); "
            "remove such nodes from the split (--test-split)",
        ),
        (
            {"model.column": "y"},
            "model.column is 'y': no node type has it, the columns are color, shape, x (--column)",
        ),
        (
            {"sampler.time": "when"},
            "sampler.time is 'when': no edge or node type has the column 'when', the columns are color, "
            "shape, x; name the column of times by --time, or import the graph with time = ... (--time)",
        ),
        (
            {"sampler.temporal_limit": "edge"},
            "sampler.temporal_limit is 'edge': no edge or node type has the column 'time', the columns are "
            "color, shape, x; name the column of times by --time, or import the graph with time = ... "
            "(--temporal-limit)",
        ),
        (
            {"sampler.fanouts": [5, {"shop sells item": 3}]},
            "sampler.fanouts, hop 2: fanout 3 for 'shop sells item': fits no edge type of "
            '"item in shop"; leave it out or correct it (--fanouts)',
        ),
        (
            {"evaluation.fanouts": [{}, 3]},
            "evaluation.fanouts, hop 1: no fanout for ('item', 'in', 'shop'): name it (0 draws none of it), "
            "or give '*' a number, which is for all that are not named (--evaluation-fanouts)",
        ),
        (
            {"device": "cuda:9"},
            f"device is 'cuda:9': torch finds no CUDA device; use cpu, or {gpu_remedy()} (--device)",
        ),
        (
            {"graph": "debain"},
            "graph is 'debain': no such folder; did you mean debian? (--graph)",
        ),
        (
            {"graph": "graphs/nowhere"},
            "graph is 'graphs/nowhere': no such folder; built-in graphs are debian, debian-typed (--graph)",
        ),
    ],
)
def test_what_the_graph_or_machine_does_not_have_is_named_with_what_there_is(
    shop: Path, options: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=r"\w") as caught:
        resolved(shop, options)
    assert str(caught.value) == sentence


def test_a_note_on_the_width_of_embeddings_has_one_reason(shop: Path) -> None:
    task = {"label": "color", "test_split": "val", "val_split": "val"}
    raw = RawRun({"graph": str(shop), "task": task, "model": {"embedded_types": "all"}}, "run.toml")
    config = checked(raw)
    run = resolve(config, graph_folder(config, raw, shop.parent / "cache"), raw)
    notes = [note for note in notes_of(run, open_folder(shop).schema, raw) if "model.embedding " in note]
    assert notes == ["model.embedding is 32, the default width with model.embedded_types"]


@pytest.mark.parametrize(
    ("columns", "model", "note"),
    [
        ({"size": torch.zeros(4, 2)}, {"column": "size"}, "model.column is 'size': it is the only column"),
        (
            {},
            {"embedding": 32},
            "model.embedding is 32: no node type has a column, so embeddings are trained",
        ),
    ],
)
def test_the_only_possible_input_is_taken(
    tmp_path: Path, columns: dict[str, torch.Tensor], model: dict[str, object], note: str
) -> None:
    tables = {"item": NodeTable(count=4, columns=columns)}
    edges = {("item", "in", "item"): EdgeTable(torch.arange(4), torch.zeros(4, dtype=torch.int64))}
    folder = write_graph(tmp_path / "graph", tables, edges)
    links = {"val": 0.25, "test": 0.25}
    raw = RawRun({"graph": str(folder), "task": {"kind": "link-prediction"}, "links": links}, "run.toml")
    config = checked(raw)
    run = resolve(config, graph_folder(config, raw, tmp_path), raw)
    assert run.model.model_dump(include=set(model)) == model
    assert notes_of(run, open_folder(folder).schema, raw)[0].startswith(note)
    named = with_options(raw, {"model.column": "x"})
    with pytest.raises(ValueError, match=r"model\.column is 'x': no node type has it"):
        resolve(checked(named), graph_folder(config, raw, tmp_path), named)
