"""Models of a run are built from their options."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.inference.chunks import unwatched
from khop.models.gat import GAT
from khop.models.hgt import HGT
from khop.models.rgcn import RGCN
from khop.models.sage import SAGE
from support.typed_runs import BUYS, ON, prepared, write_tagged_shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tagged_shop(tmp_path_factory.mktemp("graphs") / "shop")


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
    with pytest.raises(ValueError, match=r'or encoder="linear", in a run file model\.inputs = "encoded"'):
        prepared(shop, model={**table, "embedding": 6}, **tags)


@pytest.mark.parametrize("kind", ["sage", "rgcn"])
@pytest.mark.parametrize(("in_file", "residual"), [(True, "add"), (False, "none")])
def test_residual_of_a_run_file_is_true_or_false(shop: Path, kind: str, in_file: bool, residual: str) -> None:
    model = prepared(shop, model={"kind": kind, "hidden": 8, "embedding": 6, "residual": in_file}).model
    assert isinstance(model, SAGE | RGCN)
    assert {layer.options.residual for layer in model.layers} == {residual}
