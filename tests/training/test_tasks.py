"""Node classification is cross-entropy over labels that are there.

Constant predictions are the best ones that use no input.

Losses of classes: focal loss, smoothing and weights whose mean over the split is 1.

Label propagation is the weighted mean over in-neighbors, as a loop over edges computes it.

Multi-label classification: cross-entropy of each known entry.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import khop
from khop.batch import Batch
from khop.training.tasks import (
    ClassLoss,
    Constant,
    MultiLabelClassification,
    NodeClassification,
    WithMetric,
    class_weights,
    constant_of,
    propagated,
)
from support.covered import covered
from support.small_graphs import one_type, shop
from support.small_runs import SmallRun
from support.started_ranks import StartedRanks

TASK = NodeClassification("node", "y")


def batch_with_labels(labels: list[int]) -> Batch:
    seeds = torch.arange(10, 10 + len(labels))
    batch = one_type().batch(seeds, [1], "node")
    return replace(batch, seed_columns={"node": {"y": torch.tensor(labels)}})


def test_losses_are_the_cross_entropy_of_each_seed() -> None:
    batch = shop().batch(torch.tensor([4, 2, 4]), [2], "item")
    output = torch.randn(3, 3)
    losses = NodeClassification("item", "y").losses(output, batch)
    expected = -output.log_softmax(dim=1)[torch.arange(3), batch.seed_column("y")]
    torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_may_be_of_any_integer_dtype(dtype: torch.dtype) -> None:
    batch = batch_with_labels([0, 2, 1])
    narrow = replace(batch, seed_columns={"node": {"y": batch.seed_column("y").to(dtype)}})
    output = torch.randn(3, 3)
    assert torch.equal(
        TASK.losses(output, narrow), F.cross_entropy(output, torch.tensor([0, 2, 1]), reduction="none")
    )


@pytest.mark.parametrize(("label", "shown"), [(-1, "-1"), (3, "3")])
def test_a_seed_without_a_valid_label_is_named(label: int, shown: str) -> None:
    message = (
        f"node 12 of 'node' has y {shown}: must be 0 to 2; leave it out of the seeds or correct its label"
    )
    with pytest.raises(ValueError, match=message):
        TASK.losses(torch.zeros(4, 3), batch_with_labels([0, 1, label, -1]))
    with pytest.raises(ValueError, match=message):
        TASK.score(torch.zeros(2, 3), torch.tensor([1, label]), torch.tensor([7, 12]))


def test_the_score_is_the_metric_that_was_chosen() -> None:
    output = torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]])
    labels, nodes = torch.tensor([0, 1, 1]), torch.arange(3)
    assert TASK.score(output, labels, nodes) == pytest.approx(2 / 3)
    assert NodeClassification("node", "y", "roc-auc").score(output, labels, nodes) == 1.0


def test_another_metric_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"metric 'f1': must be one of \['accuracy', .*'f1-macro', .*'roc-auc'\]"
    ):
        NodeClassification("node", "y", "f1")  # type: ignore[arg-type]


def test_gradients_flow_to_the_output() -> None:
    output: Tensor = torch.zeros(2, 3, requires_grad=True)
    TASK.losses(output, batch_with_labels([0, 1])).sum().backward()
    assert output.grad is not None
    assert output.grad.abs().sum() > 0


@given(st.lists(st.integers(-1, 5), max_size=30))
def test_the_majority_is_the_most_frequent_known_class_and_the_lowest_of_several(labels: list[int]) -> None:
    counts = Counter(label for label in labels if 0 <= label < 4)
    found = Constant.majority(torch.tensor(labels, dtype=torch.int64), 4)
    if not counts:
        assert found is None
        return
    assert found is not None
    assert int(found.output.argmax()) == min(counts, key=lambda label: (-counts[label], label))


def test_no_constant_class_is_more_often_right() -> None:
    labels, task = torch.tensor([2, 0, 2, 1, 2, 0]), NodeClassification("node", "y")
    constant = Constant.majority(labels, 3)
    assert constant is not None
    nodes = torch.arange(6)
    scores = [task.score(torch.eye(3)[number].expand(6, -1), labels, nodes) for number in (0, 1, 2)]
    assert task.score(constant.output.expand(6, -1), labels, nodes) == max(scores) == 0.5


def test_the_mean_leaves_unknown_labels_out() -> None:
    found = Constant.mean(torch.tensor([1.0, float("nan"), 4.0]))
    assert found is not None
    assert (found.name, found.output.tolist()) == ("mean", [2.5])
    wide = Constant.mean(torch.tensor([[1.0, 3.0], [3.0, 5.0]]))
    assert wide is not None
    assert wide.output.tolist() == [2, 4]
    nan = float("nan")
    columns = Constant.mean(torch.tensor([[1.0, nan], [3.0, 4.0], [nan, 6.0]]))
    assert columns is not None
    assert columns.output.tolist() == [2, 5]
    apart = Constant.mean(torch.tensor([[1.0, nan], [nan, 4.0]]))  # no row is whole
    assert apart is not None
    assert apart.output.tolist() == [1, 4]
    assert Constant.mean(torch.tensor([[1.0, nan], [3.0, nan]])) is None
    assert Constant.mean(torch.tensor([float("nan")])) is None
    assert Constant.mean(torch.empty(0)) is None


def test_an_objective_with_another_metric_keeps_its_constant() -> None:
    task, labels = NodeClassification("node", "y"), torch.tensor([1, 1, 0])
    for objective in (task, WithMetric(task, "f1-macro")):
        constant = constant_of(objective, labels, 2)
        assert constant is not None
        assert constant.output.tolist() == [0, 1]


def test_an_objective_without_a_constant_has_none() -> None:
    class Plain:
        node_type, label, metric, metrics = "node", "y", "error", ("error",)

    assert constant_of(Plain(), torch.tensor([1]), 2) is None
    assert constant_of(WithMetric(Plain(), "error"), torch.tensor([1]), 2) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["popularity", 5])
def test_other_names_are_refused(name: object) -> None:
    with pytest.raises(ValueError, match="must be one of majority, mean"):
        Constant(name, torch.ones(1))  # type: ignore[arg-type]


LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 0.0], [-3.0, 1.0, 4.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 1])


def test_focal_loss_weighs_cross_entropy_by_the_missing_probability() -> None:
    chosen = LOGITS.softmax(1)[torch.arange(3), LABELS]
    expected = -((1 - chosen) ** 3) * chosen.log()
    torch.testing.assert_close(ClassLoss("focal", gamma=3.0).of(LOGITS, LABELS), expected)
    plain = F.cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(ClassLoss("focal", gamma=0.0).of(LOGITS, LABELS), plain)


def test_a_certain_label_has_no_focal_loss_and_a_finite_gradient() -> None:
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    loss = ClassLoss("focal", gamma=0.5).of(logits, torch.tensor([0]))
    loss.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert float(loss.detach()) < 1e-6


def test_smoothing_spreads_a_share_of_the_target_over_all_classes() -> None:
    logs = LOGITS.log_softmax(1)
    expected = -(0.7 * logs[torch.arange(3), LABELS] + 0.3 * logs.mean(1))
    torch.testing.assert_close(ClassLoss(smoothing=0.3).of(LOGITS, LABELS), expected)


def test_weights_multiply_the_losses_of_their_class_and_nothing_is_divided() -> None:
    losses = ClassLoss(weights=(0.5, 3.0, 1.0)).of(LOGITS, LABELS)
    plain = F.cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(losses, plain * torch.tensor([0.5, 3.0, 3.0]).double())
    with pytest.raises(ValueError, match="there are 3 classes; give one weight for each"):
        ClassLoss(weights=(1.0,)).of(LOGITS, LABELS)


@given(st.lists(st.integers(-1, 4), min_size=1).filter(lambda labels: max(labels) >= 0))
def test_weights_have_mean_one_over_the_labels(labels: list[int]) -> None:
    known = [label for label in labels if label >= 0]
    balanced = class_weights(torch.tensor(labels), 5)
    assert sum(balanced[label] for label in known) / len(known) == pytest.approx(1)
    shares = {balanced[label] * known.count(label) for label in known}
    assert max(shares) == pytest.approx(min(shares))
    given_weights = class_weights(torch.tensor(labels), 5, [1, 2, 3, 4, 5])
    assert sum(given_weights[label] for label in known) / len(known) == pytest.approx(1)
    assert given_weights[4] == pytest.approx(5 * given_weights[0])


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match="smoothing 1: must be at least 0 and below 1"):
        ClassLoss(smoothing=1)
    with pytest.raises(ValueError, match="gamma -1: must be at least 0"):
        ClassLoss("focal", gamma=-1)
    with pytest.raises(ValueError, match="class weight -1: must be 0 or more"):
        ClassLoss(weights=(-1, 1))
    with pytest.raises(ValueError, match="labels: 3 must be below the number of classes, 2"):
        class_weights(torch.tensor([0, 3]), 2)
    with pytest.raises(ValueError, match="give 2 numbers of 0 or more"):
        class_weights(torch.tensor([0]), 2, [1])
    with pytest.raises(ValueError, match="no label of the split has a weight above 0"):
        class_weights(torch.tensor([0]), 2, [0, 1])


@given(st.integers(0, 2**31), st.integers(0, 4))
def test_rows_are_those_of_a_loop_over_edges(seed: int, rounds: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    nodes = 7
    edges, lists = [], []
    for _ in range(2):
        degrees = torch.randint(4, (nodes,), generator=draw)
        indptr = torch.nn.functional.pad(degrees.cumsum(0), (1, 0))
        indices = torch.randint(nodes, (int(indptr[-1]),), generator=draw)
        edges.append((indptr, indices))
        lists.append([indices[indptr[i] : indptr[i + 1]].tolist() for i in range(nodes)])
    values = torch.randn(nodes, 2, generator=draw)
    known = torch.rand(nodes, generator=draw) < 0.4
    state = [(values[i].double(), 1.0) if known[i] else (torch.zeros(2).double(), 0.0) for i in range(nodes)]
    start = list(state)
    for _ in range(rounds):
        following = []
        for i in range(nodes):
            near = [state[j] for of_type in lists for j in of_type[i]]
            count = max(1, len(near))
            rows = sum((row for row, _ in near), torch.zeros(2).double()) / count
            following.append(start[i] if known[i] else (rows, sum(mass for _, mass in near) / count))
        state = following
    found, reached = propagated(edges, values, known, rounds)
    assert reached.tolist() == [mass > 0 for _, mass in state]
    for i, (row, mass) in enumerate(state):
        if mass > 0:
            torch.testing.assert_close(found[i], row / mass)


MULTI_LABEL_TASK = MultiLabelClassification("node", "y")
MULTI_LABEL_LABELS = torch.tensor([[1, 0, 255], [255, 255, 255], [0, 1, 1]], dtype=torch.uint8)


def batch_of(labels: torch.Tensor) -> Batch:
    batch = one_type().batch(torch.arange(labels.shape[0]), [1], "node")
    return replace(batch, seed_columns={"node": {"y": labels}})


def test_losses_are_means_over_the_known_entries_of_each_seed() -> None:
    output = torch.randn(3, 3, requires_grad=True)
    losses = MULTI_LABEL_TASK.losses(output, batch_of(MULTI_LABEL_LABELS))
    known = F.binary_cross_entropy_with_logits(output[0, :2], torch.tensor([1.0, 0.0]))
    whole = F.binary_cross_entropy_with_logits(output[2], torch.tensor([0.0, 1.0, 1.0]))
    torch.testing.assert_close(losses, torch.stack([known, torch.zeros(()), whole]))
    losses.sum().backward()
    assert output.grad is not None
    assert output.grad[1].tolist() == [0.0, 0.0, 0.0]
    assert output.grad[0, 2] == 0


def test_scores_are_of_known_entries() -> None:
    output, nodes = torch.tensor([[1.0, -1.0, 5.0], [1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]]), torch.arange(3)
    assert MULTI_LABEL_TASK.score(output, MULTI_LABEL_LABELS, nodes) == 1.0
    assert MULTI_LABEL_TASK.score(output, MULTI_LABEL_LABELS, nodes, "roc-auc") == 1.0
    with pytest.raises(ValueError, match="f1-micro: no node of 'node' has a known y"):
        MULTI_LABEL_TASK.score(output[:1], MULTI_LABEL_LABELS[1:2], nodes[:1])


def test_the_constant_prediction_has_the_labels_of_most_known_entries() -> None:
    labels = torch.tensor([[1, 0, 255], [1, 1, 255], [255, 0, 255], [0, 1, 255]], dtype=torch.uint8)
    constant = MULTI_LABEL_TASK.constant(labels, 3)
    assert constant is not None
    assert (constant.name, constant.output.tolist()) == ("majority", [1, -1, -1])  # a tie is no majority
    outputs, nodes = constant.output.expand(4, -1), torch.arange(4)
    assert MULTI_LABEL_TASK.score(outputs, labels, nodes) == pytest.approx(2 * 2 / (3 + 4))
    assert MULTI_LABEL_TASK.score(outputs, labels, nodes, "roc-auc") == 0.5
    numbers = torch.tensor([[1.0, float("nan")], [1.0, 0.0]])
    of_numbers = MULTI_LABEL_TASK.constant(numbers, 2)
    assert of_numbers is not None
    assert of_numbers.output.tolist() == [1, -1]
    assert MULTI_LABEL_TASK.constant(torch.full((2, 3), -1), 3) is None
    assert MULTI_LABEL_TASK.constant(torch.empty(0, 3), 3) is None


def test_wrong_shapes_and_metrics_are_named() -> None:
    with pytest.raises(ValueError, match="give the model one output per label"):
        MULTI_LABEL_TASK.losses(torch.zeros(3, 2), batch_of(MULTI_LABEL_LABELS))
    with pytest.raises(ValueError, match="metric 'accuracy': must be one of f1-micro"):
        MultiLabelClassification("node", "y", "accuracy")  # type: ignore[arg-type]


# A sampler's loss weights train to the same losses on any number of ranks.


STEPS = [(epoch, step) for epoch in range(2) for step in range(5)]


class WeightedSeeds(khop.SamplerBase):
    """Neighborhoods of khop, and a loss weight for each seed; the total is that of the step's seeds."""

    def __init__(self, graph: khop.Graph) -> None:
        super().__init__(graph)
        self.inner = khop.NeighborSampler(graph, [3, 3])

    def sample(self, seeds: khop.Seeds, key: khop.DrawKey) -> khop.Sample:
        assert seeds.batch_nodes is not None
        weights = {t: self.weights(ids) for t, ids in seeds.nodes.items()}
        total = sum(float(self.weights(ids).sum()) for ids in seeds.batch_nodes.values())
        return replace(self.inner.sample(seeds, key), loss_weights=khop.LossWeights(weights, total))

    def weights(self, nodes: torch.Tensor) -> torch.Tensor:
        return 0.25 + (nodes % 7).double()


class Weighted(SmallRun):
    """The small run with loss weights, in float64, evaluated as it is."""

    def trainer(self) -> khop.Trainer:
        trainer = super().trainer()
        graph = khop.Graph(self.graph.store, self.graph.features)
        trainer.loader = khop.Loader(
            WeightedSeeds(graph),
            torch.arange(38),
            8,
            shuffle=True,
            seed=1,
            columns=["x"],
            seed_columns=["y"],
        )
        return trainer


def losses(folder: Path) -> list[float]:
    lines = (folder / "steps.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [(record["epoch"], record["step"]) for record in records] == STEPS
    return [record["loss"] for record in records]


@covered
def train(rank: int, device: torch.device, out: str, weighted: bool) -> None:
    kind = Weighted if weighted else SmallRun
    run = kind(Path(out), graph=one_type(torch.float64), dropout=0.0)
    run.with_(epochs=2, precision="float64").trainer().fit()


def test_one_process_and_two_ranks_have_the_same_losses(tmp_path: Path, ranks: StartedRanks) -> None:
    """To 1e-12 in float64: the ranks' sums are added in another order."""
    for name, procs, weighted in (("one", 1, True), ("two", 2, True), ("plain", 1, False)):
        ranks.launch(train, procs, (str(tmp_path / name), weighted))
    one, two, plain = (losses(tmp_path / name) for name in ("one", "two", "plain"))
    assert one == pytest.approx(two, rel=1e-12)
    assert all(abs(weighted - even) > 1e-4 for weighted, even in zip(one, plain, strict=True))


def test_the_first_loss_is_the_weighted_mean_over_its_seeds(tmp_path: Path) -> None:
    run = Weighted(tmp_path, graph=one_type(torch.float64), dropout=0.0).with_(epochs=2, precision="float64")
    trainer = run.trainer()
    (first, *_) = trainer.loader.epoch(0)
    with torch.no_grad():
        each = trainer.task.losses(trainer.model(first), first)
    weights = 0.25 + (first.seeds % 7).double()
    trainer.fit()
    assert losses(tmp_path)[0] == pytest.approx(float((each * weights).sum() / weights.sum()), rel=1e-12)
