"""The row of nodes without an embedding: which nodes a step drops, and what trains it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from khop.batch import Batch
from khop.kernels.dropout import dropout_key
from khop.models.encoder import Encoder
from khop.models.sizes import ModelSizes
from khop.models.unknown_row import UnknownRow
from support.small_graphs import shop

GRAPH = shop()
SIZES = ModelSizes(
    {"user": 4, "item": 6}, (), "item", 3, embedding=3, embedded={"tag": 5, "user": 30}, unknown=0.5
)
TYPES = ("user", "item", "tag")
USER, TAG = "node:user", "node:tag"


def batch_of(epoch: int = 0, step: int = 0) -> Batch:
    return replace(GRAPH.batch(torch.tensor([0, 3, 5]), [3, 2], "item"), epoch=epoch, step=step)


def test_a_step_drops_nodes_at_the_rate_and_every_step_drops_others() -> None:
    row, ids = UnknownRow(2, 0.25), torch.arange(100_000)
    steps = [row.dropped(ids, batch_of(*at)) for at in ((0, 0), (0, 1), (1, 0))]
    for dropped in steps:
        assert abs(dropped.double().mean() - 0.25) < 0.005
    assert abs((steps[0] & steps[1]).double().mean() - 0.0625) < 0.004  # independent of each other
    assert abs((steps[0] & steps[2]).double().mean() - 0.0625) < 0.004


def test_the_nodes_depend_on_their_ids_alone_and_not_on_their_places() -> None:
    row, ids = UnknownRow(2, 0.5), torch.randperm(1000)
    whole = row.dropped(ids, batch_of(2, 7))
    assert torch.equal(row.dropped(ids[400:], batch_of(2, 7)), whole[400:])
    torch.manual_seed(1)
    assert torch.equal(row.dropped(ids, batch_of(2, 7)), whole)


def test_renumbered_nodes_are_dropped_by_their_numbers_before() -> None:
    numbers = torch.randperm(1000)
    torch.manual_seed(1)
    before = UnknownRow(2, 0.5)
    torch.manual_seed(1)
    after = UnknownRow(2, 0.5, numbers).double()
    dropped = before.dropped(torch.arange(1000), batch_of(2, 7))
    assert torch.equal(after.dropped(torch.arange(1000), batch_of(2, 7)), dropped[numbers])
    assert after.state_dict().keys() == before.state_dict().keys()


def test_another_seed_or_type_drops_other_nodes_and_the_weights_keep_the_key() -> None:
    ids = torch.arange(1000)
    torch.manual_seed(3)
    first, other = UnknownRow(2, 0.5), UnknownRow(2, 0.5)
    torch.manual_seed(3)
    again = UnknownRow(2, 0.5)
    dropped = first.dropped(ids, batch_of())
    assert torch.equal(again.dropped(ids, batch_of()), dropped)
    assert 400 < int((other.dropped(ids, batch_of()) == dropped).sum()) < 600
    other.load_state_dict(first.state_dict())
    assert torch.equal(other.to(torch.float64).dropped(ids, batch_of()), dropped)


def test_a_recorded_step_takes_its_key_from_the_device() -> None:
    row, ids, at = UnknownRow(2, 0.5), torch.arange(1000), torch.tensor([5])
    with dropout_key(at):
        first = row.dropped(ids, batch_of())
        at.fill_(6)
        assert not torch.equal(row.dropped(ids, batch_of()), first)
        at.fill_(5)
        assert torch.equal(row.dropped(ids, batch_of()), first)


@pytest.mark.parametrize("update", ["dense", "sparse"])
def test_dropped_nodes_train_the_row_and_leave_their_embeddings(update: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(replace(SIZES, embedding_update=update), TYPES, "none", 8)  # type: ignore[arg-type]
    batch = batch_of(1, 1)
    ids, row, table = batch.sample.nodes["user"], encoder.unknown[USER], encoder.tables[USER]
    torch.nn.init.normal_(row.weight)
    dropped = row.dropped(ids, batch)
    count = int(dropped.sum())
    assert 0 < count < ids.numel()
    out = encoder(batch)["user"][:, 4:]  # the column comes first
    assert torch.equal(out[dropped], row.weight.expand(count, -1))
    assert torch.equal(out[~dropped], table.weight[ids[~dropped]])
    out.sum().backward()
    assert torch.equal(row.weight.grad, torch.full((3,), float(count)))
    read, gradients = (torch.arange(30), table.weight.grad) if update == "dense" else table.take_gradients()
    at = torch.searchsorted(read, ids)
    assert torch.equal(gradients[at[dropped]], torch.zeros(count, 3))
    assert torch.equal(gradients[at[~dropped]], torch.ones(ids.numel() - count, 3))


def test_evaluation_drops_nothing() -> None:
    encoder = Encoder(SIZES, TYPES, "none", 8).eval()
    batch = batch_of()
    assert torch.equal(encoder(batch)["tag"], encoder.tables[TAG].weight[batch.sample.nodes["tag"]])


def test_a_rate_that_is_no_probability_is_refused() -> None:
    for rate in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match=r"unknown .*: must be a probability above 0 and below 1"):
            UnknownRow(2, rate)
    with pytest.raises(ValueError, match=r"unknown 1\.5: must be a probability below 1"):
        ModelSizes.of(GRAPH.store, "item", outputs=2, embedding=4, unknown=1.5)
