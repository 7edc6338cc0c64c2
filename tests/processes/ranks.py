"""What ranks do in the tests: functions at the top of a module, so that a spawned process finds them."""

from __future__ import annotations

import json
import os
import signal
import time
import warnings
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

import khop
from khop.batch import Batch
from khop.distributed.processes.group import Group, enter, this_group
from khop.distributed.processes.watch import BEAT_S
from khop.errors import Unsupported

LONG_S = 3600.0  # a deadline that no test waits for
DEADLINE_S = 4.0  # one that is waited for, once all ranks are where they have to be
BATCH_SIZE = 10
TAKEN = 2  # steps before the state of the loader is written down


def misbehaves(rank: int, device: torch.device, how: str, graph: khop.Graph | None = None) -> None:
    """Exchange something every few moments; rank 1 does not come to the fourth time."""
    group = this_group()
    for step in range(1000 if how == "endless" else 6):
        group.at("computing", 2, step)
        if (rank, step) == (1, 3):
            _misbehave(how, group)
        if how == "evaluates alone" and (rank, step) == (0, 3):
            replace(group, deadline_s=DEADLINE_S).meet("evaluating")
        if how == "stop" and (rank, step) == (0, 3):
            _wait_until_stopped(group)
        time.sleep(0.02)
        with group.exchanging("exchanging losses", 2, step):
            group.gather(torch.tensor([float(rank)]))


def _misbehave(how: str, group: Group) -> None:
    if how == "raise":
        raise KeyError("mine")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        assert group.store is not None
        while json.loads(group.store.get("status/1"))["step"] != 3:  # the others know where it stands
            time.sleep(BEAT_S / 4)
        print(f"rank 1 is {os.getpid()}", flush=True)
        group.store.set("stopped", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)


def _wait_until_stopped(group: Group) -> None:
    """Rank 1 stands still; from now on a wait of this one is over soon, as no other was on a slow machine."""
    assert group.store is not None
    status = Path(f"/proc/{int(group.store.get('stopped'))}/status")
    while "State:\tT" not in status.read_text():
        time.sleep(0.01)
    gloo = distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert gloo.options._timeout.total_seconds() == group.deadline_s == LONG_S
    distributed_c10d._set_pg_timeout(timedelta(seconds=DEADLINE_S))


class Convolution(nn.Module):
    """A user's own module over a batch, which learns its sizes from the first one; it has no dropout."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        widths = [8] * (layers - 1) + [4]
        self.layers = nn.ModuleList([nn.LazyLinear(width) for width in widths])

    def forward(self, batch: Batch) -> Tensor:
        h = batch["x"].double()
        for layer, block in zip(self.layers, batch.blocks, strict=True):
            sources, destinations = block.edge_index
            total = torch.zeros(block.num_dst, h.shape[1], dtype=h.dtype)
            total.index_add_(0, destinations, h[sources])
            h = layer(torch.cat([h[: block.num_dst], total], dim=1)).tanh()
        return h[batch.seed_index]


def loader_of(graph: khop.Graph, train: Tensor) -> khop.Loader:
    """Shuffled batches of ten."""
    return khop.Loader(
        khop.NeighborSampler(graph, fanouts=[3, 3]),
        seeds=train,
        batch_size=BATCH_SIZE,
        shuffle=True,
        columns=["x"],
        seed_columns=["category"],
    )


def learnt(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """One step of a user's own loop; the loss of all ranks' seeds, summed up."""
    each = F.cross_entropy(model(batch), batch.seed_column("category"), reduction="none")
    optimizer.zero_grad()
    batch.global_mean(each).backward()
    optimizer.step()
    return float(this_group().gather(each.detach().sum()).sum())


def own_loop(rank: int, device: torch.device, graph: khop.Graph, train: Tensor, out: str) -> None:
    """A loop of a user's own, with plain DDP and fewer seeds than ranks in each last step."""
    loader = loader_of(graph, train)
    model = Convolution().double()
    khop.initialize(model, loader, seed=3)
    parallel = DistributedDataParallel(model) if torch.distributed.is_initialized() else model
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    losses, seeds, states = [], [], []
    for epoch in range(2):
        for batch in loader.epoch(epoch):
            losses.append(learnt(parallel, optimizer, batch) / batch.num_global_seeds)
            seeds.append(batch.seeds.tolist())
            states.append(loader.state_dict())
    left = next(islice(loader, rank % 2, None))  # the next epoch, left early by each rank where it likes
    plain = [(left.epoch, left.step), *((batch.epoch, batch.step) for batch in loader)]
    parallel.train()
    score = khop.evaluate(parallel, graph, split="val", fanouts=[-1, -1])
    result = {
        "losses": losses,
        "score": score,
        "is_training": parallel.training,
        "seeds": seeds,
        "plain": plain,
        "state": states[TAKEN - 1],
    }
    Path(out, f"{rank}.json").write_text(json.dumps(result))


def seeds_of(rank: int, device: torch.device, graph: khop.Graph, train: Tensor, how: str, out: str) -> None:
    """Iterate over loaders as scripts do that give ranks different ones; write the seeds, or the errors."""
    if how == "used by one rank":
        this_group().meet("making a loader")  # ranks start at different times
        enter(replace(this_group(), deadline_s=DEADLINE_S))
    loader = partial(khop.Loader, khop.NeighborSampler(graph, fanouts=[3]))
    used: list[list[int]] = []

    def use(*loaders: khop.Loader) -> None:
        used.extend([n for batch in each for n in batch.seeds.tolist()] for each in loaders)

    whole, mine = loader(train, 10), train.split(len(train) // 2)[rank]
    match how:
        case "own slice":
            use(loader(mine, 10))
        case "made by one rank" if rank == 0:
            use(loader(train, 7))
        case "used by one rank" if rank == 0:
            use(whole)
        case "different":
            makers = [partial(loader, mine, 10), partial(loader, train if rank else train.flip(0), 10)]
            makers += [partial(loader, train, 10 + rank), partial(loader, train, 10, shuffle=True, seed=rank)]
            makers += [partial(loader, train, 10, micro_batches=1 + rank)]
            for make in makers:
                with pytest.raises(ValueError, match="the ranks") as refused:
                    use(make())
                with Path(out, f"{rank}.txt").open("a") as file:
                    file.write(f"{refused.value}\n")
        case "this":
            use(whole, loader(mine, 10, ranks="this"))
            if rank == 0:
                use(loader(train, 7, ranks="this"), loader(train, 7, ranks="this", shuffle=True))
            abandoned = loader(train, 3)
            abandoned.batch(0, rank)  # one batch needs no other rank
            use(loader(train, 4), whole)
    Path(out, f"{rank}.json").write_text(json.dumps(used))


def sliced(rank: int, device: torch.device, graph: khop.Graph, where: str, out: str) -> None:
    """Give each rank its own slice of the seeds in one place of a training; write the error."""
    torch.set_num_threads(1)
    loader = partial(
        khop.Loader,
        khop.NeighborSampler(graph, [3]),
        batch_size=6,
        columns=["x"],
        seed_columns=["category"],
    )
    train, val = (graph.split(name)["item"][:24] for name in ("train", "val"))
    mine = slice(12 * rank, 12 * rank + 12)

    def trainer(of: khop.Loader, epochs: int, seeds: Tensor | None = None) -> khop.Trainer:
        """Evaluate by a custom loop over `seeds`, if there are some."""

        def evaluate() -> dict[str, float]:
            of_val = [] if seeds is None else loader(seeds)
            return {"val": float(sum(batch.seeds.numel() for batch in of_val))}

        model, task = khop.models.SAGE.for_graph(graph, 4, 1), khop.NodeClassification("item", "category")
        return khop.Trainer(model, task, of, evaluate, khop.TrainerSettings(epochs), Path(out) / "run")

    def train_on_slices() -> None:
        of_slice = loader(train[mine])
        match where:
            case "training":
                trainer(of_slice, 1).fit()
            case "resume":
                trainer(of_slice, 2).resume()
            case "evaluation":
                trainer(loader(train), 1, val[mine]).fit()
            case "restored loop":
                of_slice.load_state_dict(of_slice.state_dict())
                next(iter(of_slice))
            case "batch":
                if rank == 0:  # alone: neither waits for the other rank
                    assert of_slice.batch(0, 0).seeds.tolist() == train[:3].tolist()
                    with pytest.raises(Unsupported, match="the CPU draws"):
                        of_slice.static_batches()
                next(iter(of_slice))

    if where == "resume":
        trainer(loader(train), 1).fit()
    with pytest.raises(ValueError, match="the ranks") as refused:
        train_on_slices()
    Path(out, f"{rank}.txt").write_text(str(refused.value))


def lone_loaders(rank: int, device: torch.device, folder: str, out: str) -> None:
    """Make a loader of each rank alone over a partitioned graph; write the errors, and what is used."""
    told: dict[str, object] = {}
    for placement in ("features", "all", "whole"):
        graph = khop.open_graph(folder, placement=placement)
        train = graph.split("train")["item"][:20]
        make = partial(khop.Loader, khop.NeighborSampler(graph, [3]), train, 8, ranks="this")
        if placement == "whole":
            used = [n for batch in make() for n in batch.seeds.tolist()] if rank == 0 else train.tolist()
            told[placement] = used == train.tolist()
            continue
        with pytest.raises(ValueError, match="partitioned") as refused:
            make()
        told[placement] = str(refused.value)
    Path(out, f"{rank}.json").write_text(json.dumps(told))


def uneven_calls(rank: int, device: torch.device, folder: str, out: str) -> None:
    """Request batches of given nodes on rank 0 alone; the other rank joins with empty lists."""
    asked = [3, 5, 4] if rank == 0 else []
    found = []
    for placement in ("features", "all"):
        graph = khop.open_graph(folder, placement=placement)
        train = graph.split("train")["item"][:20]
        batch = khop.Loader(khop.NeighborSampler(graph, [3]), train, 8, columns=["x"])(asked)
        x = khop.open_graph(folder, placement="whole").columns["item"]["x"]
        assert torch.equal(batch.columns["item"]["x"], x[batch.input_nodes])
        found.append(batch.seeds.tolist())
    Path(out, f"{rank}.json").write_text(json.dumps(found))


def pyg_loaders(rank: int, device: torch.device, out: str) -> None:
    """Iterate twice over loaders of khop.pyg that are given all nodes."""
    from torch_geometric.data import Data

    from khop.pyg import NeighborLoader

    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        used = [int(n) for _ in range(2) for batch in NeighborLoader(data, [1]) for n in batch.n_id[:1]]
    told = [str(one.message) for one in found if "do not divide" in str(one.message)]
    Path(out, f"{rank}.json").write_text(json.dumps([used, told]))


def writes_cores(rank: int, device: torch.device, folder: str) -> None:
    """Write the cores of all threads of this rank, each set once, and the number of torch's threads."""
    threads = Path("/proc/self/task").iterdir()
    cores = {tuple(sorted(os.sched_getaffinity(int(thread.name)))) for thread in threads}
    found = {"cores": sorted(cores), "torch_threads": torch.get_num_threads()}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


def trains_and_writes_cores(rank: int, device: torch.device, graph: str, out: str) -> None:
    """Train a custom loop of float64; write its losses to `run`, and the cores of this rank to `cores`."""
    for kind in ("run", "cores"):
        Path(out, kind).mkdir(exist_ok=True)
    opened = khop.open_graph(graph)
    own_loop(rank, device, opened, opened.split("train")["item"], f"{out}/run")
    writes_cores(rank, device, f"{out}/cores")
