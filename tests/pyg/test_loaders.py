"""Promises of NeighborLoader beside the batches that test_recorded.py compares.

Epochs of a loader: their order, seeds, workers and errors.

Seeds of several node types in one loader.
"""

from __future__ import annotations

import copy
import json
import threading
from typing import Any

import pytest
import torch
from torch_geometric import loader as pyg_loader
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ImbalancedSampler
from torch_geometric.nn import GraphSAGE, SAGEConv, to_hetero
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    NumNeighbors,
    SamplerOutput,
)

import khop.pyg
from khop.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler
from khop.pyg.keyed import Draws
from khop.pyg.outputs import EDGE, NODE, TypedData, owner_of, storages
from pyg.pyg_cases import BUYS, CASES, PAIRS, RECORDED, facts, plain, typed


def ring(num_nodes: int = 400, degree: int = 20) -> Data:
    nodes = torch.arange(num_nodes).repeat_interleave(degree)
    sources = (nodes + torch.arange(1, degree + 1).repeat(num_nodes)) % num_nodes
    return Data(x=torch.arange(num_nodes).float().view(-1, 1), edge_index=torch.stack([sources, nodes]))


def test_fanouts_are_kept_and_edges_are_the_graphs() -> None:
    data = ring()
    for batch in NeighborLoader(data, [5, 3], batch_size=64):
        degrees = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
        first, second, last = batch.num_sampled_nodes
        assert degrees.tolist() == [5] * first + [3] * second + [0] * last
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
        assert torch.equal(batch.x.view(-1).long(), batch.n_id)
        assert batch.e_id.unique().numel() == batch.e_id.numel()


def test_with_replacement_rows_are_full_and_repeat() -> None:
    batch = next(iter(NeighborLoader(ring(50, 4), [9], batch_size=50, replace=True)))
    assert batch.num_sampled_edges == [450]
    assert batch.e_id.unique().numel() < 450


def test_an_induced_disjoint_subgraph_is_refused() -> None:
    with pytest.raises(ValueError, match="disjoint"):
        NeighborLoader(ring(), [2], disjoint=True, subgraph_type="induced")


def test_transforms_see_the_output_and_the_batch() -> None:
    seen = []

    def of_output(output: Any) -> Any:
        seen.append(type(output).__name__)
        output.node, output.num_sampled_nodes = output.node.clone(), None
        return output

    def of_batch(batch: Data) -> Data:
        batch.doubled = batch.x * 2
        return batch

    settings = {"transform": of_batch, "transform_sampler_output": of_output}
    batch = next(iter(NeighborLoader(plain(), [2], batch_size=4, num_workers=1, **settings)))
    assert torch.equal(batch.doubled, batch.x * 2)
    assert "num_sampled_nodes" not in batch
    assert set(seen) == {"SamplerOutput"}


def test_one_batch_can_be_asked_for() -> None:
    loader = NeighborLoader(plain(), [-1], torch.tensor([5, 6, 7]), batch_size=2)
    batch = loader(torch.tensor([0, 2]))
    assert batch.n_id[:2].tolist() == [5, 7]
    assert batch.input_id.tolist() == [0, 2]
    loader.filter_per_worker = False
    assert torch.equal(loader([0, 2]).edge_index, batch.edge_index)


def test_sorted_edges_are_taken_as_they_lie() -> None:
    data = ring()
    loader = NeighborLoader(data, [3], batch_size=5, is_sorted=True)
    assert loader.node_sampler.edge_permutation is None
    batch = next(iter(loader))
    assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
    with pytest.raises(ValueError, match="is_sorted is set, but the destination of edge 2 is"):
        NeighborLoader(plain(), [3], is_sorted=True)
    data.time = torch.arange(data.num_nodes)
    message = r"is_sorted is set, but the time of edge \d+ is 0, after 399: sort edges .* leave is_sorted out"
    with pytest.raises(ValueError, match=message):
        NeighborLoader(data, [3], is_sorted=True, time_attr="time")


class _Fixed(BaseSampler):
    """A sampler from outside, which gives the edge of node 1 to node 0 and leaves all other types out."""

    edge_permutation = None

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        raise NotImplementedError

    def sample_from_nodes(self, index: NodeSamplerInput) -> SamplerOutput | HeteroSamplerOutput:
        ends = torch.tensor([1]), torch.tensor([0]), torch.tensor([0])
        metadata = (index.input_id, index.time)
        if index.input_type is None:
            output = SamplerOutput(index.node, *ends, metadata=metadata)
        else:
            by_type = ({("a", "to", "a"): end} for end in ends)
            output = HeteroSamplerOutput({"a": index.node}, *by_type, metadata=metadata)
        return output.to_bidirectional(keep_orig_edges=True)


def test_batches_of_a_sampler_from_outside_are_those_of_torch_geometric() -> None:
    data = HeteroData({"a": {"x": torch.rand(3, 2)}, "b": {"x": torch.rand(4, 2)}})
    for edge_type in (("a", "to", "a"), ("a", "at", "b")):
        data[edge_type].edge_index = torch.tensor([[1, 0], [0, 1]])
        data[edge_type].edge_attr = torch.rand(2, 3)
    seeds = torch.tensor([0, 1])
    for given, nodes in ((data, ("a", seeds)), (ring(4, 2), seeds)):
        settings = {"input_nodes": nodes, "neighbor_sampler": _Fixed(), "batch_size": 2}
        loaders = NeighborLoader, pyg_loader.NeighborLoader
        ours, theirs = (next(iter(of(given, [1], **settings))) for of in loaders)
        for batch, expected in zip(ours.stores, theirs.stores, strict=True):
            assert str(batch.to_dict()) == str(expected.to_dict())
            edges = [getattr(each, "_orig_edge_index", None) for each in (batch, expected)]
            assert str(edges[0]) == str(edges[1])
    assert ours._orig_edge_index.tolist() == [[1], [0]]


def test_a_sampler_is_shared_and_changed_as_data_modules_do() -> None:
    data = ring()
    sampler = NeighborSampler(data, [2, 2])
    again = copy.copy(sampler)
    again.num_neighbors, again.replace = [3], True
    assert next(iter(NeighborLoader(data, None, neighbor_sampler=sampler))).num_sampled_edges == [2, 4]
    assert next(iter(NeighborLoader(data, None, neighbor_sampler=again))).num_sampled_edges == [3]
    torch.manual_seed(0)
    output = sampler.sample_from_nodes(NeighborLoader(data, None, neighbor_sampler=sampler).input_data[[5]])
    assert output.node[0] == 5


def test_the_layers_of_torch_geometric_work_on_batches() -> None:
    """GraphSAGE, trimmed to what a layer needs: the seeds' rows are the same."""
    torch.manual_seed(0)
    data = ring()
    model = GraphSAGE(1, 8, num_layers=2, out_channels=3)
    batch = next(iter(NeighborLoader(data, [4, 4], batch_size=16)))
    whole = model(batch.x, batch.edge_index)[:16]
    trimmed = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )[:16]
    torch.testing.assert_close(whole, trimmed)


def test_basic_models_infer_layer_by_layer() -> None:
    torch.manual_seed(0)
    data = ring()
    model = GraphSAGE(1, 8, num_layers=2, out_channels=3).eval()
    found = model.inference(NeighborLoader(data, [-1], batch_size=64, num_workers=2))
    torch.testing.assert_close(found, model(data.x, data.edge_index).detach(), rtol=1e-4, atol=1e-4)


class _Sage(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 3)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def connected() -> HeteroData:
    data = typed()
    del data["tag"], data["tag", "on", "item"], data["user", "likes", "tag"]
    return data


@pytest.mark.filterwarnings("ignore")  # to_hetero's own use of torch.fx
def test_typed_models_work_on_batches() -> None:
    """to_hetero over every neighbor gives the rows of the full graph."""
    torch.manual_seed(0)
    data = connected()
    model = to_hetero(_Sage(), data.metadata())
    with torch.no_grad():
        expected = model(data.x_dict, data.edge_index_dict)["item"]
        for batch in NeighborLoader(data, [-1, -1], "item", batch_size=5):
            found = model(batch.x_dict, batch.edge_index_dict)["item"][: batch["item"].batch_size]
            torch.testing.assert_close(found, expected[batch["item"].input_id])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_neighbors": [2], "input_time": torch.arange(3)}, "conflicting 'input_time' and 'time_attr'"),
        ({"num_neighbors": [2], "time_attr": "when"}, "The time attribute 'when' is neither a node-level"),
        ({"num_neighbors": [2], "temporal_strategy": "first"}, "No valid temporal strategy found"),
        ({"num_neighbors": [2], "subgraph_type": "round"}, "'round' is not a valid SubgraphType"),
        ({"num_neighbors": [2], "weight_attr": "w"}, "'w' is not an edge-level attribute"),
        ({"num_neighbors": [-2]}, "fanout -2"),
        ({"num_neighbors": [2], "prefetch_factor": 2}, "prefetch_factor option could only be specified"),
    ],
)
def test_bad_arguments_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborLoader(plain(), **settings)


@pytest.mark.parametrize(
    ("num_neighbors", "message"),
    [
        ({BUYS: [2]}, "Missing number of neighbors for edge type"),
        ({("user", "eats", "item"): [2]}, "Not all edge types specified in 'num_neighbors' exist"),
        (NumNeighbors({BUYS: [2, 2]}, default=[1]), "Number of hops must be the same across all edge types"),
    ],
)
def test_bad_numbers_of_neighbors_are_named(num_neighbors: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborLoader(typed(), num_neighbors, "item")


def test_what_is_no_graph_is_named() -> None:
    with pytest.raises(ValueError, match="Expected a 'Data', 'HeteroData', or a tuple"):
        NeighborLoader([1, 2, 3], [2])


def test_directed_false_is_induced_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="'directed' argument in 'NeighborSampler' is deprecated"):
        loader = NeighborLoader(plain(), [2], batch_size=2, directed=False)
    assert "num_sampled_nodes" not in next(iter(loader))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'ImbalancedLoader'"):
        khop.pyg.ImbalancedLoader  # noqa: B018


def iteration_ring(num_nodes: int = 400, degree: int = 20) -> Data:
    nodes = torch.arange(num_nodes).repeat_interleave(degree)
    sources = (nodes + torch.arange(1, degree + 1).repeat(num_nodes)) % num_nodes
    return Data(x=torch.arange(num_nodes).float().view(-1, 1), edge_index=torch.stack([sources, nodes]))


def epoch(seed: int, **settings: Any) -> list[dict[str, Any]]:
    torch.manual_seed(seed)
    return [facts(batch) for batch in NeighborLoader(iteration_ring(), [5, 3], batch_size=64, **settings)]


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
    loader = NeighborLoader(iteration_ring(), [2], batch_size=64, shuffle=True)
    torch.manual_seed(5)
    ours = [batch.input_id.tolist() for batch in loader]
    torch.manual_seed(5)
    theirs = torch.utils.data.DataLoader(range(400), batch_size=64, shuffle=True)
    assert ours == [ids.tolist() for ids in theirs]


def test_two_epochs_draw_differently_and_a_given_generator_is_used() -> None:
    loader = NeighborLoader(iteration_ring(), [5], batch_size=400, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, second = (next(iter(loader)).e_id.tolist() for _ in range(2))
    assert first != second
    assert torch.equal(torch.get_rng_state(), state)


def test_the_worker_function_runs_once_on_every_thread() -> None:
    started = []
    loader = NeighborLoader(
        iteration_ring(), [2], batch_size=8, num_workers=2, persistent_workers=True, pin_memory=True,
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
            next(
                iter(NeighborLoader(iteration_ring(), [2], batch_size=8, num_workers=workers, transform=fail))
            )


def test_samplers_of_torch_are_used() -> None:
    data = iteration_ring()
    data.y = (torch.arange(400) < 10).long()
    sampler = ImbalancedSampler(data)
    loader = NeighborLoader(data, [2], batch_size=100, sampler=sampler)
    share = torch.cat([batch.y[: batch.batch_size] for batch in loader]).float().mean()
    assert 0.3 < float(share) < 0.7
    batches = [[1, 2, 3], [7]]
    loader = NeighborLoader(data, [2], batch_sampler=batches, num_workers=2)
    assert [batch.n_id[: batch.batch_size].tolist() for batch in loader] == batches


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_mapping_gives_seeds_of_several_types(shuffle: bool, workers: int) -> None:
    data = typed()
    users, items = torch.tensor([4, 0, 7]), torch.arange(12) % 3 == 0
    loader = NeighborLoader(
        data,
        [2],
        {"user": users, "item": items, "tag": None},
        batch_size=4,
        shuffle=shuffle,
        num_workers=workers,
    )
    assert len(loader) == 3  # 3 + 4 + 4 seeds
    seen: dict[str, list[int]] = {"user": [], "item": [], "tag": []}
    for batch in loader:
        assert sum(batch[t].batch_size for t in seen) in (4, 3)
        for t, found in seen.items():
            ids = batch[t].n_id[: batch[t].batch_size]
            expected = users[batch[t].input_id] if t == "user" else batch[t].input_id
            assert ids.tolist() == expected.tolist()
            found += ids.tolist()
        assert torch.equal(batch["user"].x, data["user"].x[batch["user"].n_id])
    assert {t: sorted(ids) for t, ids in seen.items()} == {
        "user": [0, 4, 7], "item": [0, 3, 6, 9], "tag": [0, 1, 2, 3],
    }  # fmt: skip


def test_seeds_by_type_have_input_ids_by_type() -> None:
    data, seeds = typed(), {"user": [8, 1], "item": [2, 3]}
    (batch,) = NeighborLoader(data, [-1], seeds, input_id={"user": [100, 200]}, batch_size=4)
    assert batch["user"].input_id.tolist() == [100, 200]
    assert batch["item"].input_id.tolist() == [0, 1]
    for wrong in ([100, 200, 3, 4], {"tag": [1]}):
        with pytest.raises(ValueError, match=r"input_id: give a mapping"):
            NeighborLoader(data, [-1], seeds, input_id=wrong)
    with pytest.raises(ValueError, match=r"input_id of 'user' has 1 ids, and there are 2 input nodes"):
        NeighborLoader(data, [-1], seeds, input_id={"user": [1]})


def test_seeds_by_type_have_times_by_type() -> None:
    data = typed()
    data["user"].time, data["item"].time = torch.arange(9), torch.arange(12)
    data["tag"].time = torch.zeros(4, dtype=torch.int64)
    seeds, times = {"user": [8], "item": [2, 3]}, {"user": torch.tensor([5]), "item": torch.tensor([4, 9])}
    (batch,) = NeighborLoader(data, [-1], seeds, times, time_attr="time", batch_size=3)
    assert batch["user"].seed_time.tolist() == [5]
    assert batch["item"].seed_time.tolist() == [4, 9]
    limits = torch.tensor([5, 4, 9])
    for t in ("user", "item"):
        later = batch[t].time > limits[batch[t].batch]
        assert not bool(later[batch[t].batch_size :].any())


def test_seeds_by_type_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="input_nodes by node type are for a HeteroData"):
        NeighborLoader(plain(), [2], {"user": [1]})
    with pytest.raises(ValueError, match="empty mapping"):
        NeighborLoader(typed(), [2], {})
    with pytest.raises(ValueError, match="input_time: give a mapping"):
        NeighborLoader(typed(), [2], {"user": [1]}, torch.tensor([1]))
    with pytest.raises(ValueError, match="there is no node 90"):
        NeighborLoader(typed(), [2], {"user": [1], "item": [90]})


# Promises of LinkNeighborLoader beside the batches that test_recorded.py compares.


def first(data: Data | HeteroData, **settings: Any) -> Any:
    torch.manual_seed(0)
    return next(iter(LinkNeighborLoader(data, [2], **{"batch_size": 5, **settings})))


def test_negatives_belong_to_links() -> None:
    """What a link's negatives are depends on its place in the epoch, and not on the links beside it."""
    sampler = NeighborSampler(plain(), [0], disjoint=True)
    inputs = EdgeSamplerInput(None, PAIRS[0], PAIRS[1])

    def negatives(index: torch.Tensor, position: int) -> torch.Tensor:
        draws = Draws(3, position=position)
        out = sampler.keyed().sample_edges(inputs[index], NegativeSampling("triplet", 4), draws)
        return out.node[out.metadata[3]]

    whole = negatives(torch.arange(5), 0)
    assert torch.equal(negatives(torch.arange(2, 5), 2), whole[2:])
    assert not torch.equal(negatives(torch.arange(2, 5), 3), whole[2:])


def test_workers_change_nothing() -> None:
    def epoch(workers: int) -> list[dict[str, Any]]:
        torch.manual_seed(3)
        settings = {"neg_sampling": "binary", "batch_size": 7, "shuffle": True, "num_workers": workers}
        return [facts(batch) for batch in LinkNeighborLoader(plain(), [2, 2], **settings)]

    assert epoch(2) == epoch(0)


def test_one_batch_can_be_asked_for_link_neighbor_loader() -> None:
    loader = LinkNeighborLoader(plain(), [-1], PAIRS, batch_size=2)
    batch = loader(torch.tensor([0, 3]))
    assert torch.equal(batch.n_id[batch.edge_label_index], PAIRS[:, [0, 3]])
    loader.filter_per_worker = False
    assert torch.equal(loader([0, 3]).n_id, batch.n_id)


def test_a_transform_sees_the_batch() -> None:
    settings = {"transform": lambda batch: batch.num_nodes, "transform_sampler_output": lambda output: output}
    assert first(plain(), edge_label_index=PAIRS, **settings) > 0


def test_bad_arguments_are_named_link_neighbor_loader() -> None:
    with pytest.raises(ValueError, match="'edge_label' needs to be undefined for 'triplet'"):
        LinkNeighborLoader(plain(), [2], PAIRS, torch.ones(5), neg_sampling="triplet")
    with pytest.raises(ValueError, match="conflicting 'edge_label_time' and 'time_attr'"):
        LinkNeighborLoader(plain(), [2], PAIRS, edge_label_time=torch.arange(5))


# Both kinds of data objects are storages by type.


ENDS = torch.tensor([[0, 1], [1, 2]])


def test_data_without_types_has_one_type_of_each_kind() -> None:
    data = Data(x=torch.zeros(3, 2), edge_index=ENDS)
    typed = TypedData.of(data)
    assert typed is not None
    assert not typed.is_typed
    assert typed.nodes[NODE].num_nodes == 3
    assert torch.equal(typed.edges[EDGE].edge_index, ENDS)
    ((owner, storage),) = storages(data)
    assert owner is None
    assert owner_of(data, owner).x is storage["x"]


def test_data_with_types_keeps_them() -> None:
    data = HeteroData({"user": {"x": torch.zeros(3, 2)}, ("user", "knows", "user"): {"edge_index": ENDS}})
    typed = TypedData.of(data)
    assert typed is not None
    assert typed.is_typed
    assert list(typed.nodes) == ["user"]
    assert list(typed.edges) == [("user", "knows", "user")]
    assert {owner: owner_of(data, owner) for owner, _ in storages(data)} == typed.nodes | typed.edges


def test_other_objects_have_no_storages() -> None:
    assert TypedData.of((object(), object())) is None


# Batches are what torch_geometric's own loaders give, compared with what those gave and was recorded.


THEIRS = json.loads(RECORDED.read_text())
ONLY_PYG_LIB = ("num_sampled_nodes", "num_sampled_edges")  # torch-sparse, which recorded, does not count


def batches(name: str, **changed: Any) -> list[Any]:
    case = CASES[name]
    return list(getattr(khop.pyg, case.loader)(case.data(), **{**case.arguments, **changed}))


def compared(batch: Any) -> dict[str, Any]:
    return {key: value for key, value in facts(batch).items() if not key.endswith(ONLY_PYG_LIB)}


@pytest.mark.core(5)
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_torch_geometric(name: str, workers: int) -> None:
    """The same attributes in the same order, with the same shapes, dtypes and values."""
    ours = [compared(batch) for batch in batches(name, num_workers=workers)]
    assert ours == THEIRS[name]
    assert [list(batch) for batch in ours] == [list(batch) for batch in THEIRS[name]]


@pytest.mark.core(2)
@pytest.mark.parametrize(
    "name", ["two hops", "twice", "no hops", "a hop of none", "typed", "typed, by edge type"]
)
def test_hops_add_up(name: str) -> None:
    """`num_sampled_nodes` and `num_sampled_edges` say hop by hop what there is."""
    for batch in batches(name):
        for storage in batch.stores:
            if "n_id" in storage:
                assert sum(storage.num_sampled_nodes) == storage.n_id.numel()
                assert storage.get("batch_size", storage.num_sampled_nodes[0]) == storage.num_sampled_nodes[0]
            if "edge_index" in storage:
                assert sum(storage.num_sampled_edges) == storage.e_id.numel()
                reached = storage.edge_index[1, : sum(storage.num_sampled_edges[:1])]
                assert torch.equal(reached, reached.sort().values)
