"""Samplers of groups of a run are built from their options, and its steps take groups.

Models of a run are built from their options.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import khop
from khop.draw import DegreeNegatives, UniformNegatives
from khop.inference.chunks import unwatched
from khop.models.gat import GAT
from khop.models.hgt import HGT
from khop.models.rgcn import RGCN
from khop.models.sage import SAGE
from khop.run.build import Run, prepare
from khop.run.read import RawRun
from khop.sampling.group_samplers import SaintDraw
from support.small_folders import write_learnable_graph
from support.typed_runs import BUYS, ON, prepared, write_tagged_shop

KINDS: Mapping[str, tuple[Mapping[str, object], SaintDraw]] = {
    "saint-node": ({"subgraph_draws": 30}, khop.SaintNodes(30)),
    "saint-edge": ({"subgraph_draws": 20}, khop.SaintEdges(20)),
    "saint-walk": ({"walk_roots": 10, "walk_length": 3}, khop.SaintWalks(10, 3)),
}


def run_of(tmp_path: Path, sampler: Mapping[str, object], **tables: object) -> Run:
    """A run of one epoch on a graph of 200 nodes in 10 clusters."""
    if not (tmp_path / "graph").exists():
        source = write_learnable_graph(tmp_path / "plain", nodes=200)
        khop.cluster_graph(source, tmp_path / "graph", 10, column="region")
    model = {"hidden": 8, "layers": 3}
    values = {"graph": str(tmp_path / "graph"), "training": {"epochs": 1}, "model": model}
    return prepare(RawRun({**values, "sampler": sampler, **tables}, "run.toml"), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_saint_samplers_have_the_draws_of_the_options(kind: str, tmp_path: Path) -> None:
    options, draw = KINDS[kind]
    sampler = {"kind": kind, "groups_per_step": 2, "groups_per_epoch": 5, "coverage": 2, **options}
    loader = run_of(tmp_path, sampler).loader()
    found = loader.graph_sampler
    assert isinstance(found, khop.SaintSampler)
    assert found.draw == draw
    assert isinstance(found.draw.first, DegreeNegatives if kind == "saint-node" else UniformNegatives)
    assert (found.num_layers, len(loader)) == (3, 3)
    assert loader.batch(0, 2).num_global_seeds == 1


def test_clusters_and_shadow_have_groups_of_the_options(tmp_path: Path) -> None:
    clusters = {"kind": "cluster", "cluster_column": "region", "clusters_per_group": 3, "groups_per_step": 2}
    loader = run_of(tmp_path, clusters).loader()
    assert isinstance(loader.graph_sampler, khop.ClusterSampler)
    assert len(loader) == 2
    shadow = {"kind": "shadow", "fanouts": [3], "seeds_per_group": 4, "groups_per_step": 10}
    loader = run_of(tmp_path, shadow).loader()
    assert isinstance(loader.graph_sampler, khop.ShadowSampler)
    assert len(loader) == 3  # of 120 seeds
    assert loader.graph_sampler.num_layers == 3


def test_runs_that_do_not_fit_are_refused_by_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="column 'cluster': 'item' nodes lack it"):
        run_of(tmp_path, {"kind": "cluster"}).loader()
    with pytest.raises(ValueError, match="groups_per_step"):
        run_of(tmp_path, {"kind": "shadow", "groups_per_step": 0})
    with pytest.raises(ValueError, match="clusters_per_group"):
        run_of(tmp_path, {"kind": "shadow", "clusters_per_group": 2})


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tagged_shop(tmp_path_factory.mktemp("graphs") / "shop")


@pytest.mark.core(3)
@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ({"kind": "sage", "embedding": 6}, SAGE),
        ({"kind": "sage", "embedding": 0, "encoder": "linear"}, SAGE),
        ({"kind": "rgcn", "embedding": 6, "bases": 2}, RGCN),
        ({"kind": "gat", "embedding": 6, "heads": 2, "attention": "gatv2"}, GAT),
        ({"kind": "sage", "embedding": 6, "embedded_types": "all"}, SAGE),
        ({"kind": "hgt", "embedding": 6, "heads": 2}, HGT),
    ],
)
def test_a_run_over_types_trains_every_parameter_and_scores_exactly(
    shop: Path, model: dict[str, object], kind: type
) -> None:
    run = prepared(shop, model={"hidden": 8, "norm": "layer", **model}, training={"batch_size": 16})
    assert isinstance(run.model, kind)
    assert run.model.num_layers == 2
    batch = run.loader().batch(0, 0)
    run.task.losses(run.model(batch), batch).sum().backward()
    assert [name for name, p in run.model.named_parameters() if p.grad is None] == []
    first_hop = batch.blocks[-1].adjacencies
    assert int(first_hop[BUYS].indptr.diff().max()) == 4
    assert int(first_hop[ON].indptr.diff().max()) <= 2
    scores = run.scores(("val", "test"), unwatched)
    assert scores.keys() == {"val", "test"}


def test_the_first_layer_of_rgcn_may_read_columns_of_one_width(shop: Path) -> None:
    tags = {"sampler": {"fanouts": [{"tag on item": 3, "*": 0}]}}  # items have 5 numbers
    table = {"kind": "rgcn", "hidden": 8, "inputs": "columns"}
    run = prepared(shop, model={**table, "embedding": 5}, **tags)
    assert isinstance(run.model, RGCN)
    assert not run.model.encoder.linear
    batch = run.loader().batch(0, 0)
    assert run.model(batch).shape == (batch.seed_column("kind").shape[0], 4)
    with pytest.raises(ValueError, match=r'or encoder="linear" \(in a run file model\.inputs = "encoded"\)'):
        prepared(shop, model={**table, "embedding": 6}, **tags)


@pytest.mark.parametrize("kind", ["sage", "rgcn"])
@pytest.mark.parametrize(("in_file", "residual"), [(True, "add"), (False, "none")])
def test_residual_of_a_run_file_is_true_or_false(shop: Path, kind: str, in_file: bool, residual: str) -> None:
    model = prepared(shop, model={"kind": kind, "hidden": 8, "embedding": 6, "residual": in_file}).model
    assert isinstance(model, SAGE | RGCN)
    assert {layer.options.residual for layer in model.layers} == {residual}
