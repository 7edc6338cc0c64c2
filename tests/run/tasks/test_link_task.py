"""The task of a run on links against its graph: missing items are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from khop.run.build import Run, prepare
from khop.run.read import RawRun, with_options
from support.small_link_folders import write_shop

Prepare = Callable[..., Run]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shop(tmp_path_factory.mktemp("graphs") / "shop")


@pytest.fixture
def prepared(shop: Path) -> Prepare:
    def call(**options: object) -> Run:
        values = {
            "graph": str(shop),
            "task": {"kind": "link-prediction", "target": "user buys item"},
            "links": {"eval_negatives": 10},
            "sampler": {"fanouts": [{"user sees shop": 0, "*": 5}] * 2},
            "model": {"hidden": 16},
            "training": {"batch_size": 256},
        }
        named = {name.replace("__", "."): value for name, value in options.items()}
        return prepare(with_options(RawRun(values, "run.toml"), named), shop.parent / "cache")

    return call


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"task__target": "user likes item"},
            "task.target is 'user likes item': the edge types are user buys item",
        ),
        (
            {"task__target": "user buys item, user likes item"},
            "task.target is 'user likes item': the edge types are user buys item",
        ),
        (
            {"task__target": "user buys item, user buys item"},
            "task.target is 'user buys item, user buys item': names an edge type twice; name it once (",
        ),
        (
            {"task__target": "user buys item, item bought_by user"},
            "task.target is 'user buys item, item bought_by user': item bought_by user is the reverse of "
            "user buys item; name one of them (",
        ),
        (
            {"links__hard_negatives": 2, "links__decoder": "mlp"},
            "links.hard_negatives is 2 and links.decoder is 'mlp': hard negatives need a decoder",
        ),
        (
            {"links__hard_negatives": 2, "links__decoder": "distmult", "links__relation": "r"},
            "links.hard_negatives is 2 and links.relation is 'r': hard negatives are found per source, not",
        ),
        (
            {"links__hard_negatives": 2, "links__corrupt": "both"},
            "links.hard_negatives is 2 and links.corrupt is 'both': hard negatives replace destinations;",
        ),
        (
            {"links__hard_negatives": 1 << 20},
            "links.hard_negatives is 1048576: there are ",
        ),
        (
            {"links__shared_negatives": 2, "links__negatives_group": 1},
            "links.shared_negatives is 2 and links.negatives_group 1: give the",
        ),
        ({"task__label": "x"}, "task.label is 'x': links have no label column, leave it out (--label)"),
        ({"task__metric": "accuracy"}, "task.metric 'accuracy': must be one of mrr, roc-auc"),
        ({"links__val": 0.0001}, "links.val is 0.0001: of 1101 links of user buys item that holds out none"),
        (
            {"links__val": 0.5, "links__test": 0.5},
            "links.val is 0.5 and links.test 0.5: no training links are left",
        ),
        (
            {"sampler__time": "t", "evaluation__fanouts": [5, 5]},
            "sampler.time is 't': each link needs a time, and the columns of user buys item are none (",
        ),
        ({"evaluation__fanouts": [5]}, "evaluation.fanouts has 1 entry, sampler.fanouts make 2 layers"),
        ({"evaluation__fanouts": [{"user buy item": 5}, 5]}, "evaluation.fanouts, hop 1: fanout 5 for"),
    ],
)
def test_what_the_graph_or_the_task_does_not_have_is_named(
    prepared: Prepare, options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        prepared(**options)
    assert str(caught.value).startswith(complaint)
