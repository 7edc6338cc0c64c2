"""Inputs of a model: columns, linear layers of them, or embeddings by node id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import khop
from khop.models.encoder import Encoder
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.sizes import ModelSizes
from khop.training.initial import seeded
from support.small_graphs import shop

GRAPH = shop()
TYPES = ("user", "item", "tag")
SIZES = ModelSizes(
    inputs={"user": 4, "item": 6},
    edge_types=(),
    targets="item",
    outputs=3,
    embedding=3,
    embedded={"tag": 5},
)


def test_columns_come_as_they_are_and_embeddings_by_id() -> None:
    batch = GRAPH.batch(torch.tensor([0, 3, 5]), [3, 2], "item")
    encoder = Encoder(SIZES, TYPES, "none", 8)
    out = encoder(batch)
    assert encoder.widths == {"user": 4, "item": 6, "tag": 3}
    for node_type in ("user", "item"):
        assert torch.equal(out[node_type], batch.columns[node_type]["x"])
    (table,) = encoder.tables.values()
    assert torch.equal(out["tag"], table.weight[batch.sample.nodes["tag"]])


@pytest.mark.parametrize("update", ["dense", "sparse"])
def test_nodes_of_a_partitioned_graph_begin_with_the_rows_that_they_had_before(
    tmp_path: Path, update: EmbeddingUpdate
) -> None:
    ends, nodes = torch.arange(12), {"node": khop.NodeTable(12)}
    edges = {("node", "to", "node"): khop.EdgeTable(ends, ends.flip(0))}
    graph = khop.open_graph(khop.write_graph(tmp_path / "g", nodes, edges))
    khop.partition_graph(tmp_path / "g", tmp_path / "p", 3, method="random")
    parts = khop.open_graph(tmp_path / "p")
    originals = parts.original_ids("node")
    assert originals is not None
    assert not torch.equal(originals, torch.arange(12))
    tables = []
    for each in (graph, parts):
        sizes = ModelSizes.of(each, ["node"], outputs=2, embedding=4, embedding_update=update, unknown=0.5)
        encoder = seeded(3, lambda sizes=sizes: Encoder(sizes, ["node"], "none", 4))
        tables.append(encoder.tables["node:node"].weight)
    assert torch.equal(tables[1], tables[0][originals])


def test_linear_makes_every_type_as_wide() -> None:
    batch = GRAPH.batch(torch.tensor([0, 3, 5]), [3, 2], "item")
    encoder = Encoder(SIZES, TYPES, "linear", 8)
    out = encoder(batch)
    assert {t: rows.shape for t, rows in out.items()} == {
        t: (ids.numel(), 8) for t, ids in batch.sample.nodes.items()
    }
    assert encoder.widths == dict.fromkeys(TYPES, 8)


def test_without_embeddings_a_type_without_the_column_has_no_input() -> None:
    batch = GRAPH.batch(torch.tensor([0]), [2], "item")
    assert "tag" not in Encoder(replace(SIZES, embedded={}, embedding=0), TYPES, "none", 8)(batch)


def test_a_column_that_the_batch_lacks_is_named_with_the_remedy() -> None:
    batch = GRAPH.batch(torch.tensor([0]), [2], "item")
    with pytest.raises(ValueError, match=r"column 'z' of 'user': .* give the loader columns=\['z'\]"):
        Encoder(replace(SIZES, column="z"), TYPES, "none", 8)(batch)
    with pytest.raises(ValueError, match="encoder 'mlp': must be one of"):
        Encoder(SIZES, TYPES, "mlp", 8)  # type: ignore[arg-type]
