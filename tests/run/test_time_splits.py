"""Runs on graphs that are split by time: nothing after validation begins reaches a training batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import khop
import support.triton_rows  # noqa: F401 # corrects Triton's interpreter
from data.tables.shop import at, events, items, roomy, spec
from khop import Graph, import_tables
from khop.inference.chunks import unwatched
from khop.kernels.choice import Engine, forcing
from khop.run.build import Run
from khop.run.tasks.node_task import context_of_split
from support.delaying_streams import PromptStreams
from support.host_as_device import HostAsDevice
from support.typed_runs import prepared
from support.typed_shop import bits

EDGES = "edges.user buys item"
LABEL = {"nodes.item.label": "category", "nodes.item.split": {"column": "part"}}
NODES = {"kind": "node-classification", "target": "item", "label": "label"}
LINKS = {"kind": "link-prediction", "target": "user buys item"}


def run_on(folder: Path, task: dict[str, Any], **changes: Any) -> Run:  # noqa: ANN401
    import_tables(spec(**changes), folder)
    return prepared(
        folder,
        task=task,
        sampler={"fanouts": [5, 5]},
        model={"hidden": 4, "embedding": 4},
        training={"batch_size": 2},
    )


def with_parts(table: pa.Table) -> pa.Table:
    parts = ["train", "val", "train", "test"] + ["val"] * (len(table) - 4)
    labels = pa.array(["shoe", "shoe", "hat", "hat"] + ["boat"] * (len(table) - 4))
    return (
        table.drop_columns(["category"])
        .append_column("category", labels)
        .append_column("part", pa.array(parts))
    )


def new_item() -> pa.Table:
    """An item with a new word, category, price and class."""
    return pa.table(
        {"item_id": ["z"], "price": [1e6], "title": ["unheard"], "brand": ["new"], "category": ["boat"]},
        schema=items().schema,
    )


def more_buys(item: str) -> pa.Table:
    """The events, and two after validation begins."""
    buys = {"user_id": ["u1", "u3"], "item_id": [item, "a"], "kind": ["buy", "buy"], "ts": [at(22), at(23)]}
    return pa.concat_tables([events(), pa.table(buys, schema=events().schema)])


def again(table: pa.Table) -> pa.Table:
    """All events once more at the end of validation."""
    later = pa.array([at(24)] * len(table), table.schema.field("ts").type)
    return pa.concat_tables([table, table.set_column(table.column_names.index("ts"), "ts", later)])


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("task", "duplicates"),
    [(NODES, "keep"), (LINKS, "keep"), (NODES, "last"), (LINKS, "sum")],
    ids=["nodes", "links", "last", "sum"],
)
def test_training_batches_do_not_see_what_comes_after_validation_begins(
    tmp_path: Path, task: dict[str, Any], duplicates: str
) -> None:
    first = roomy() | {f"{EDGES}.duplicates": duplicates}
    more = first | {
        "nodes.item.rows": with_parts(pa.concat_tables([first["nodes.item.rows"], new_item()])),
        f"{EDGES}.rows": again(
            pa.concat_tables([first[f"{EDGES}.rows"], more_buys("z").slice(len(events()))])
        ),
    }
    first["nodes.item.rows"] = with_parts(first["nodes.item.rows"])
    runs = [
        run_on(tmp_path / name, task, **{**LABEL, **of}) for name, of in (("before", first), ("after", more))
    ]
    batches = [list(run.loader().epoch(0)) for run in runs]
    assert len(batches[0]) == len(batches[1]) > 0
    for one, other in zip(*batches, strict=True):
        assert one.columns.keys() == other.columns.keys()
        for node_type, columns in one.columns.items():
            for name, values in columns.items():
                assert torch.equal(values, other.columns[node_type][name])
        for left, right in zip(one.sample.blocks, other.sample.blocks, strict=True):
            for edge_type, adjacency in left.adjacencies.items():
                assert torch.equal(adjacency.indices, right.adjacencies[edge_type].indices)


def test_nodes_of_each_split_use_their_own_edges(tmp_path: Path) -> None:
    run = run_on(tmp_path / "shop", NODES, **{**LABEL, "nodes.item.rows": with_parts(items())})
    edges = {
        split: context_of_split(run.run_task.context, split).graph.num_edges(("user", "buys", "item"))  # type: ignore[attr-defined]
        for split in ("train", "val", "test")
    }
    assert edges == {"train": 5, "val": 6, "test": 7}
    assert len(run.scores(("train", "val", "test"), unwatched)) == 3


@pytest.mark.parametrize(
    ("gpu", "how"), [({"topology": "device"}, "as requested"), ({}, "as much on the card as fits")], ids=str
)
def test_edges_before_validation_are_placed_for_nodes(
    tmp_path: Path, gpu: dict[str, str], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loader(*arguments: Any, device: str, **named: Any) -> khop.Loader:  # noqa: ANN401
        return khop.Loader(*arguments, **named)  # on the device of its graph

    monkeypatch.setattr("khop.api.open_graph.memory_of", lambda device: HostAsDevice())
    monkeypatch.setattr("khop.api.open_graph.why_no_batches", lambda device: None)
    monkeypatch.setattr("khop.run.build._check_device", lambda device, raw: None)
    monkeypatch.setattr("khop.run.parts.Loader", loader)
    monkeypatch.setattr("khop.api.loader.streams_of", lambda device: PromptStreams())
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    import_tables(spec(**{**LABEL, "nodes.item.rows": with_parts(items())}), tmp_path / "shop")
    values = {"task": NODES, "sampler": {"fanouts": [5, 5]}, "model": {"hidden": 4, "embedding": 4}}
    run = prepared(tmp_path / "shop", **values, device="cuda", gpu=gpu)
    assert run.graph.placement == f"cuda: training edges, {how}"
    with forcing(Engine.TORCH):
        on_card = run.loader()
        batch = bits(on_card.batch(0, 0))
    stores = Graph.of(on_card.graph_sampler.graph).stores
    assert stores is not None
    assert stores.edges is not None
    assert stores.edges.num_edges(("user", "buys", "item")) == 5
    assert run.placement == stores.line
    assert on_card._on_device is not None
    assert batch == bits(prepared(tmp_path / "shop", **values).loader().batch(0, 0))


@pytest.mark.core(1)
@pytest.mark.parametrize(("split", "counts"), [("auto", (6, 1, 1)), ("time", (6, 1, 1))])
def test_links_follow_the_cut_offs(tmp_path: Path, split: str, counts: tuple[int, ...]) -> None:
    import_tables(spec(**roomy()), tmp_path / "shop")
    run = prepared(
        tmp_path / "shop", task=LINKS, links={"split": split, "eval_negatives": 1}, sampler={"fanouts": [2]},
        model={"hidden": 4, "embedding": 4},
    )  # fmt: skip
    split_ = run.run_task.split  # type: ignore[attr-defined]
    parts = (split_.train_links, split_.val_links, split_.test_links)  # type: ignore[attr-defined]
    assert tuple(part.edges["user", "buys", "item"].shape[1] for part in parts) == counts


def test_a_split_by_time_needs_cut_offs(tmp_path: Path) -> None:
    import_tables(spec(splits=None), tmp_path / "shop")
    with pytest.raises(ValueError, match=r'links.split is "time": the graph has no cut-offs'):
        prepared(
            tmp_path / "shop",
            task=LINKS,
            links={"split": "time"},
            sampler={"fanouts": [2]},
            model={"embedding": 4},
        )


@pytest.mark.core(2)
@pytest.mark.parametrize(
    ("split", "sampler", "words"),
    [
        ("random", {}, "map@3 with sampler.time 'time' and links that are split by random"),
        ("time", {"window": [86_400, 0]}, "over all neighbors: sampler.window is"),
        ("time", {"temporal_limit": "edge"}, "map@3 ranks all destinations over all neighbors"),
    ],
)
def test_a_metric_of_all_destinations_does_not_see_later_edges(
    tmp_path: Path, split: str, sampler: dict[str, Any], words: str
) -> None:
    """Its embeddings are those of the split's edges, so the links must be after them."""
    import_tables(spec(**roomy()), tmp_path / "shop")

    def run(metric: str, **more: Any) -> Run:  # noqa: ANN401
        return prepared(
            tmp_path / "shop",
            task={**LINKS, "metric": metric},
            links={"split": split, "val": 0.3, "test": 0.3},
            sampler={"fanouts": [5, 5], "time": "time", **more},
            evaluation={"fanouts": [5, 5]},
            model={"hidden": 4, "embedding": 4},
            training={"batch_size": 2},
        )

    made = run("map@3", **sampler)  # a trained one is opened for inference and pairs
    with pytest.raises(ValueError, match=words):
        made.loader()
    with pytest.raises(ValueError, match=words):
        made.scores(("val",), unwatched)
    with pytest.raises(ValueError, match=words):
        run("mrr", **sampler).scores(("val",), unwatched, ("map@3",))
    if split == "time":
        assert 0 <= run("map@3").scores(("val",), unwatched)["val"] <= 1
