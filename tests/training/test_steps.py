"""Keys of dropout: every rank and step has its own, the same in every run.

A trainer takes any loader of the protocol: a plain list of batches is one.

A trainer says once that an R-GCN averages drawn edges by relation, and how to train without this bias.

Equal seeds give equal first weights, and leave torch's generator alone.

Tensors go where the model is.
"""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import khop
from khop import DrawKey, Loader
from khop.models import RGCN, LinkPredictor, RelationColumn
from khop.sampling.sampler import Fanout
from khop.training.settings import TrainerSettings
from khop.training.steps import (
    BatchLoader,
    _seed_generators,
    dropout_seed,
    mover,
    notice_drawn_relations,
    seeded,
)
from khop.training.tasks import constant
from support.commands import train_here
from support.knowledge import BACK, FACT, RELATIONS, Triples, as_column
from support.small_runs import SmallRun


def test_ranks_and_steps_have_keys_of_their_own() -> None:
    keys = {dropout_seed(3, epoch, step, rank) for epoch in (0, 1) for step in (0, 1) for rank in (0, 1)}
    assert len({key.value for key in keys}) == 8
    assert dropout_seed(3, 1, 0, 1) == dropout_seed(3, 1, 0, 1)


def test_khops_loader_has_every_method_with_the_same_arguments() -> None:
    for name, of_protocol in vars(BatchLoader).items():
        if inspect.isfunction(of_protocol) and name not in ("__init__", "__subclasshook__"):
            own = inspect.signature(getattr(Loader, name))
            assert list(own.parameters) == list(inspect.signature(of_protocol).parameters)


COLUMN = RelationColumn("r", {FACT: RELATIONS, BACK: RELATIONS})
SENTENCE = (
    "R-GCN averages the drawn edges of each relation of 'r': with limited fanouts, rare relations count less "
    "in training than in exact inference; draw with rule=khop.RelationMean('r'), in a run --rule "
    "relation-mean --rule-column r"
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    return as_column(tmp_path_factory.mktemp("facts") / "graph", Triples.drawn())


def model(graph: khop.Graph, relations: RelationColumn | None = COLUMN) -> LinkPredictor:
    encoder = RGCN.for_graph(graph, 8, 1, ["entity"], outputs=4, relations=relations)
    return LinkPredictor.of(encoder, [FACT], "dot", 4)


def loader(graph: khop.Graph, fanout: Fanout, rule: khop.Rule) -> khop.Loader:
    return khop.Loader(khop.LinkSampler(graph, [fanout], rule=rule), torch.arange(9), 9)


def test_means_of_drawn_relations_are_noticed_and_others_are_not(graph: khop.Graph) -> None:
    with pytest.warns(UserWarning, match=re.escape(SENTENCE)):
        notice_drawn_relations(model(graph), loader(graph, {FACT: 0, BACK: 3}, khop.Uniform()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notice_drawn_relations(model(graph), loader(graph, 3, khop.RelationMean("r")))
        notice_drawn_relations(model(graph, None), loader(graph, 3, khop.Uniform()))
        only_back = RelationColumn("r", {BACK: RELATIONS})
        notice_drawn_relations(model(graph, only_back), loader(graph, {FACT: 3, BACK: -1}, khop.Uniform()))


@pytest.mark.long
def test_a_run_says_it_once(tmp_path: Path) -> None:
    """In two epochs of one process; the rule of the sentence ends it."""
    as_column(tmp_path / "graph", Triples.drawn())
    path = tmp_path / "run.toml"
    path.write_text(f"""
        graph = "{tmp_path / "graph"}"
        task = {{ kind = "link-prediction", target = "entity fact entity" }}
        sampler = {{ fanouts = [2] }}
        model = {{ kind = "rgcn", hidden = 8, relation = "r" }}
        training = {{ epochs = 2, batch_size = 200 }}
        links = {{ eval_negatives = 2 }}
    """)
    with pytest.warns(UserWarning, match=re.escape(SENTENCE)) as seen:
        train_here(str(path), "--out", str(tmp_path / "drawn"))
    assert len(seen) == 1
    ended = ("--rule", "relation-mean", "--rule-column", "r")
    train_here(str(path), "--out", str(tmp_path / "means"), *ended)
    losses = [(tmp_path / name / "steps.jsonl").read_text() for name in ("drawn", "means")]
    assert losses[0] != losses[1]


def test_equal_seeds_give_equal_weights_and_others_do_not() -> None:
    weights = [seeded(seed, lambda: nn.Linear(3, 2)).weight for seed in (7, 7, 8)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_global_generator_is_not_advanced() -> None:
    before = torch.get_rng_state()
    seeded(7, lambda: nn.Linear(3, 2))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_take_the_dtype_of_the_parameters_and_other_columns_stay(dtype: torch.dtype) -> None:
    move = mover(nn.Linear(2, 2).to(dtype))
    assert move(torch.ones(3, dtype=torch.float16)).dtype == dtype
    assert move(torch.ones(3, dtype=torch.uint8)).dtype == torch.uint8
    assert move(torch.ones(3, dtype=torch.int64)).dtype == torch.int64


def test_tensors_go_to_the_device_of_the_parameters() -> None:
    move = mover(nn.Linear(2, 2, device="meta"))
    assert move(torch.ones(3, dtype=torch.int64)).device.type == "meta"


def test_a_model_without_parameters_computes_in_float32_on_the_cpu() -> None:
    moved = mover(nn.Identity())(torch.ones(3, dtype=torch.float64))
    assert (moved.dtype, moved.device.type) == (torch.float32, "cpu")


# Numbers of a task are copied to a device once.


def test_equal_numbers_are_one_tensor_per_dtype() -> None:
    cpu = torch.device("cpu")
    made = constant((1.0, 2.5), torch.float32, cpu)
    assert made.tolist() == [1.0, 2.5]
    assert constant((1.0, 2.5), torch.float32, cpu) is made
    assert constant((1.0, 2.5), torch.float64, cpu).dtype == torch.float64


# Settings that cannot train are refused by name and value.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs 0: must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every 0: must be positive"),
        ({"learning_rate": 0.0}, "learning_rate 0.0: must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate nan: must be positive"),
        ({"weight_decay": -1.0}, "weight_decay -1.0: must not be negative"),
        ({"patience": 0}, "patience 0: must be at least 1, or None"),
        (
            {"precision": "float16"},
            r"precision 'float16': must be one of float32, tf32, float64, bfloat16",
        ),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainerSettings(**({"epochs": 1} | settings))  # type: ignore[arg-type]


def test_right_settings_are_kept() -> None:
    settings = TrainerSettings(3, learning_rate=0.1, patience=2, precision="bfloat16")
    assert (settings.epochs, settings.patience, settings.evaluate_every) == (3, 2, 1)


def test_a_step_seeds_the_generators_in_use_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = SmallRun(tmp_path).with_(epochs=1).trainer()
    monkeypatch.setattr(torch, "manual_seed", None)  # it seeds each GPU of the machine
    trainer.fit()
    generators = tuple(torch.Generator().manual_seed(5) for _ in range(3))
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    with torch.random.fork_rng([]):
        _seed_generators(torch.device("cuda", 1), DrawKey((1 << 64) - 3))
    assert [generator.initial_seed() for generator in generators] == [5, (1 << 64) - 3, 5]
