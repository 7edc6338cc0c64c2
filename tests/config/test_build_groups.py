"""Samplers of groups of a run are built from their options, and its steps take groups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import khop
from khop.config.build import Run, prepare
from khop.config.read import RawRun
from khop.draw import DegreeNegatives, UniformNegatives
from khop.sampling.saint_draws import SaintDraw
from support.small_folders import write_learnable_graph

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
