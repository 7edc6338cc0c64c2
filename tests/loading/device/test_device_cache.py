"""Rows that a device keeps change no batch, and are neither gathered for it nor moved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.api.loader import Loader
from khop.api.open_graph import open_graph
from khop.batch import Batch
from khop.graph.features.row_cache import RowCache
from khop.graph.features.store import CachePlan, FeatureStore, FeatureStoreBase, Gathered, Wanted
from khop.graph.features.table import FeatureTable
from khop.graph.inputs import quantize
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.loading.columns import ColumnChoice, Narrow
from khop.loading.device.device_caching import visit_counts
from khop.loading.local_source import LocalSource
from khop.loading.source import Drawn, Position, finished, request_of
from khop.sampling.sampler import NeighborSampler, Trees
from khop.sampling.seeds import NodeSeeds, SeedOrder
from khop.schema import ColumnSpec, Schema, Specs
from support.small_folders import write_learnable_graph

USERS, ITEMS = 30, 20
QUANTISED = quantize(torch.arange(USERS * 4.0).view(USERS, 4).sin())
COLUMNS = {
    "user": {"x": QUANTISED.values, "age": torch.arange(USERS) * 3, "label": torch.arange(USERS) % 5},
    "item": {
        "x": torch.arange(ITEMS * 2.0).view(ITEMS, 2).cos().bfloat16(),
        "price": torch.arange(ITEMS) / 7,
    },
}


def _schema() -> Schema:
    specs = {
        t: {
            n: ColumnSpec(str(c.dtype).removeprefix("torch."), tuple(c.shape[1:])) for n, c in of_type.items()
        }
        for t, of_type in COLUMNS.items()
    }
    specs["user"]["x"] = replace(specs["user"]["x"], scales=tuple(QUANTISED.scales.tolist()))
    return Schema(tuple(COLUMNS), (), columns=specs)


SCHEMA = _schema()
TABLE = FeatureTable.of(SCHEMA, COLUMNS)


def _graph() -> CscGraph:
    random = torch.Generator().manual_seed(1)
    users, items = (torch.randint(count, (150,), generator=random) for count in (USERS, ITEMS))
    return csc_graph_from_edges(
        {"user": USERS, "item": ITEMS},
        {("user", "buys", "item"): (users, items), ("item", "bought", "user"): (items, users)},
    )


GRAPH = _graph()


@dataclass
class Noting(FeatureStoreBase):
    """A store that notes which rows it was asked for, of columns of nodes alone."""

    store: FeatureStore = TABLE
    asked: list[tuple[str, Tensor]] = field(default_factory=list)

    @property
    def specs(self) -> Specs:
        return self.store.specs

    def gather(self, wanted: Wanted) -> Gathered:
        self.asked += [(str(t), rows.ids) for t, rows in wanted.items()]
        return self.store.gather(wanted)


SEEDS = NodeSeeds({"user": torch.arange(0, USERS, 2), "item": torch.tensor([3, 3, 1])})
ORDER = SeedOrder(SEEDS, 6, shuffle=True, run_seed=4)


def source(narrow: Narrow, trees: Trees, seed_columns: list[str], device: str = "cpu") -> LocalSource:
    choice = ColumnChoice.of(SCHEMA, ["x", "age", "price"], seed_columns, ["user", "item"], narrow)
    sampler = NeighborSampler(GRAPH, [3, 2], trees=trees)
    return LocalSource(sampler, Noting(), choice, torch.device(device))


def drawn(plain: LocalSource, epoch: int, step: int) -> Drawn:
    return plain.draw(request_of(ORDER, epoch, step))


def batch_of(plain: LocalSource, epoch: int, step: int) -> Batch:
    return finished(drawn(plain, epoch, step), ORDER, Position(epoch, step), plain.device)


def with_kept(plain: LocalSource, kept: dict[str, Tensor]) -> LocalSource:
    """The same batches where the device has these rows."""
    names = {t: plain.columns.of_nodes[t] for t in kept}
    plan = CachePlan(kept, names, {"user": USERS, "item": ITEMS}, calls=2)
    return replace(plain, on_device=RowCache.filled(plan, TABLE, SCHEMA, plain.device), features=Noting())


def kept_ids(count: int) -> st.SearchStrategy[Tensor]:
    return st.sets(st.integers(0, count - 1)).map(lambda ids: torch.tensor(sorted(ids), dtype=torch.int64))


def same(found: Batch, wanted: Batch) -> bool:
    pairs = [(found.columns, wanted.columns), (found.seed_columns, wanted.seed_columns)]
    return all(
        torch.equal(ours[t][name], column) and ours[t][name].dtype == column.dtype
        for ours, theirs in pairs
        for t, of_type in theirs.items()
        for name, column in of_type.items()
    )


@given(
    users=kept_ids(USERS),
    items=kept_ids(ITEMS),
    narrow=st.sampled_from(Narrow),
    trees=st.sampled_from(get_args(Trees)),
    seed_columns=st.sampled_from([[], ["label"], ["age"], ["x", "label"]]),
    step=st.integers(0, 2),
)
def test_no_batch_changes(
    users: Tensor, items: Tensor, narrow: Narrow, trees: Trees, seed_columns: list[str], step: int
) -> None:
    plain = source(narrow, trees, seed_columns)
    keeping = with_kept(plain, {"user": users, "item": items})
    made = drawn(keeping, 1, step)
    assert same(finished(made, ORDER, Position(1, step), keeping.device), batch_of(plain, 1, step))
    features = keeping.features
    assert isinstance(features, Noting)
    for node_type, ids in features.asked:
        kept = {"user": users, "item": items}[node_type]
        index = made.sample.seed_index[node_type]
        first = int(index.max()) + 1 if index.numel() and node_type in plain.columns.of_seeds else 0
        assert not torch.isin(ids[first:], kept).any()  # rows of seeds are chosen from on the host
        places = made.cached_rows.get(node_type)
        number = 0 if places is None else places.rows.numel()
        assert ids.numel() + number == made.sample.nodes[node_type].numel()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="where there is a GPU")
@pytest.mark.parametrize("narrow", list(Narrow))
def test_no_batch_changes_on_a_gpu(narrow: Narrow) -> None:
    plain = source(narrow, "merged", ["label"], "cuda")
    keeping = with_kept(plain, {"user": torch.arange(0, USERS, 3), "item": torch.arange(ITEMS)})
    for step in range(3):
        assert same(batch_of(keeping, 0, step), batch_of(plain, 0, step))


def test_rows_are_put_together_where_the_device_is() -> None:
    plain = source(Narrow.FLOAT32, "merged", ["label"], "meta")
    keeping = with_kept(plain, {"user": torch.arange(USERS)})
    batch = batch_of(keeping, 0, 0)
    assert batch.columns["user"]["x"].is_meta
    assert batch.columns["user"]["x"].shape == (batch.sample.nodes["user"].numel(), 4)
    assert batch.seed_columns["user"]["label"].is_meta


# Visits that are counted are those of the run's own batches.


def test_a_node_counts_once_in_every_batch_that_has_it(tmp_path: Path) -> None:
    graph = open_graph(write_learnable_graph(tmp_path / "toy"))
    seeds = graph.split("train")
    sampler = NeighborSampler(graph, [4, 3], trees="disjoint")  # a node is in many trees of a batch
    order = SeedOrder(NodeSeeds(seeds), 50, shuffle=True, run_seed=3)
    positions = [Position(epoch, step) for epoch in (0, 2) for step in range(3)]
    requests = [request_of(order, position.epoch, position.step) for position in positions]
    counts = visit_counts(sampler, requests, {"item": graph.num_nodes("item")})
    loader = Loader(sampler, seeds, 50, shuffle=True, seed=3)
    expected = torch.zeros(graph.num_nodes("item"), dtype=torch.int32)
    for position in positions:
        expected[loader.batch(position.epoch, position.step).input_nodes.unique()] += 1
    assert torch.equal(counts["item"], expected)
    assert int(expected.max()) > 1
