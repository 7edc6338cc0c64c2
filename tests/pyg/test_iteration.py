"""Epochs of a loader: their order, seeds, workers and errors."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import ImbalancedSampler

from khop.pyg import NeighborLoader
from pyg.pyg_cases import facts


def ring(num_nodes: int = 400, degree: int = 20) -> Data:
    nodes = torch.arange(num_nodes).repeat_interleave(degree)
    sources = (nodes + torch.arange(1, degree + 1).repeat(num_nodes)) % num_nodes
    return Data(x=torch.arange(num_nodes).float().view(-1, 1), edge_index=torch.stack([sources, nodes]))


def epoch(seed: int, **settings: Any) -> list[dict[str, Any]]:
    torch.manual_seed(seed)
    return [facts(batch) for batch in NeighborLoader(ring(), [5, 3], batch_size=64, **settings)]


def test_manual_seed_makes_an_epoch_again() -> None:
    assert epoch(1, shuffle=True) == epoch(1, shuffle=True)
    assert epoch(1, shuffle=True) != epoch(2, shuffle=True)
    assert epoch(1) != epoch(2)


def test_the_number_of_workers_changes_nothing() -> None:
    alone = epoch(1, shuffle=True)
    for settings in ({"num_workers": 1}, {"num_workers": 2, "prefetch_factor": 5}):
        assert epoch(1, shuffle=True, **settings) == alone
        assert epoch(1, shuffle=True, filter_per_worker=False, **settings) == alone


def test_the_order_of_seeds_is_torchs() -> None:
    """A DataLoader of torch's own, seeded alike, shuffles alike."""
    loader = NeighborLoader(ring(), [2], batch_size=64, shuffle=True)
    torch.manual_seed(5)
    ours = [batch.input_id.tolist() for batch in loader]
    torch.manual_seed(5)
    theirs = torch.utils.data.DataLoader(range(400), batch_size=64, shuffle=True)
    assert ours == [ids.tolist() for ids in theirs]


def test_two_epochs_draw_differently_and_a_given_generator_is_used() -> None:
    loader = NeighborLoader(ring(), [5], batch_size=400, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, second = (next(iter(loader)).e_id.tolist() for _ in range(2))
    assert first != second
    assert torch.equal(torch.get_rng_state(), state)


def test_the_worker_function_runs_once_on_every_thread() -> None:
    started = []
    loader = NeighborLoader(
        ring(), [2], batch_size=8, num_workers=2, persistent_workers=True, pin_memory=True,
        worker_init_fn=lambda number: started.append((number, threading.current_thread().name)),
    )  # fmt: skip
    assert len(list(loader)) == len(loader) == 50
    assert sorted(number for number, _ in started) in ([0], [0, 1])
    assert len({name for _, name in started}) == len(started)
    assert not [t for t in threading.enumerate() if t.name.startswith("khop-worker")]


def test_an_error_in_a_transform_arrives_as_it_is() -> None:
    def fail(_: Data) -> Data:
        raise KeyError("missing column")

    for workers in (0, 2):
        with pytest.raises(KeyError, match="missing column"):
            next(iter(NeighborLoader(ring(), [2], batch_size=8, num_workers=workers, transform=fail)))


def test_samplers_of_torch_are_used() -> None:
    data = ring()
    data.y = (torch.arange(400) < 10).long()
    sampler = ImbalancedSampler(data)
    loader = NeighborLoader(data, [2], batch_size=100, sampler=sampler)
    share = torch.cat([batch.y[: batch.batch_size] for batch in loader]).float().mean()
    assert 0.3 < float(share) < 0.7
    batches = [[1, 2, 3], [7]]
    loader = NeighborLoader(data, [2], batch_sampler=batches, num_workers=2)
    assert [batch.n_id[: batch.batch_size].tolist() for batch in loader] == batches
