"""What ranks send one another in the tests, right and wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, distributed

from khop.distributed.exchange.peers import Message, Peers, open_peers
from khop.distributed.processes.group import Group, this_group
from khop.distributed.processes.rendezvous import wait_for
from support.covered import covered

ASKING = Message("asking for rows", "id")
ANSWERING = Message("getting rows", "row")
LIMIT = 1 << 12


@contextmanager
def peers_of_the_first(count: int) -> Iterator[Peers | None]:
    """Of so many ranks: the peers of each that is one of them. All ranks come."""
    group = this_group()
    if group.rank < count:
        peers = open_peers(replace(group, world_size=count))
        yield peers
    else:
        if count > 1:
            distributed.new_group(list(range(count)), backend="gloo")  # torch wants all ranks to know of it
        yield None
    group.barrier()


def bytes_of(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def exchange_a_while(peers: Peers) -> dict[str, object]:
    """Three exchanges and answers; how much everybody sends differs, some send nothing."""
    peers.begin(2, 7, lambda: False)
    ranks = range(peers.world_size)
    for turn in range(3):
        asked = peers.exchange([bytes_of(*[peers.rank] * (turn * other)) for other in ranks], ASKING, LIMIT)
        assert [values.tolist() for values in asked] == [[other] * (turn * peers.rank) for other in ranks]
        wide = [torch.full((other + 1,), peers.rank * 1.5).double() for other in ranks]
        rows = peers.reply(
            [values.view(torch.uint8) for values in wide], [8 * (peers.rank + 1)] * len(ranks), ANSWERING
        )
        assert [values.view(torch.float64).tolist() for values in rows] == [
            [other * 1.5] * (peers.rank + 1) for other in ranks
        ]
    return dict(peers.counts)


def errors_of(peers: Peers, sent_by_rank_1: str) -> str:
    """What rank 0 says of what rank 1 has sent it."""
    peers.begin(2, 7, lambda: False)
    empty = [bytes_of()] * peers.world_size
    header = torch.tensor([[ASKING.kind, 2 << 32 | 7, 0, 0]] * peers.world_size)
    rogue = {
        "noise": torch.full_like(header, 0x5A5A5A5A5A5A),
        "another kind": header.clone().index_fill_(1, torch.tensor(0), ANSWERING.kind),
        "another step": header.clone().index_fill_(1, torch.tensor(1), 2 << 32 | 8),
        "another number": header.clone().index_fill_(1, torch.tensor(2), 3),
        "far too much": header.clone().index_fill_(1, torch.tensor(3), 1 << 60),
        "less than nothing": header.clone().index_fill_(1, torch.tensor(3), -1),
        "less than announced": header.clone().index_fill_(1, torch.tensor(3), 64),
    }
    if peers.rank == 1:
        channel = peers._channel
        found = torch.empty_like(header)
        distributed.all_to_all_single(found.view(-1), rogue[sent_by_rank_1].view(-1), group=channel)
        if sent_by_rank_1 == "less than announced":
            sizes = [24] * peers.world_size
            bytes_found = torch.empty(sum(sizes), dtype=torch.uint8)
            short = torch.zeros(sum(sizes), dtype=torch.uint8)
            distributed.all_to_all_single(bytes_found, short, sizes, sizes, group=channel)
        return ""
    try:
        peers.exchange(empty, ASKING, LIMIT)
    except ValueError as error:
        return str(error)
    return "nothing wrong"


ROGUE = (
    "noise", "another kind", "another step", "another number", "far too much", "less than nothing",
    "less than announced",
)  # fmt: skip


def gone(peers: Peers, group: Group) -> str:
    """What rank 0 says when rank 1 closes instead of answering."""
    if peers.rank == 1:
        distributed.destroy_process_group(peers._channel)
        peers._channel = None
        return ""
    try:
        peers.exchange([bytes_of()] * 2, ASKING, LIMIT)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing wrong"


def given_up(peers: Peers) -> str:
    """What rank 0 says when nobody wants any more what it waits for; rank 1 does not come while it waits."""
    store = this_group().store
    assert store is not None
    if peers.rank == 1:
        assert wait_for(store, {0: "rank 0 has given up"}, 60.0) == []
        return ""
    peers.begin(0, 3, lambda: True)
    try:
        peers.exchange([bytes_of()] * 2, ASKING, LIMIT)
    except RuntimeError as error:
        store.set("rank 0 has given up", "")
        return f"{type(error).__name__}: {error}"
    return "nothing wrong"


@covered
def exchanges(rank: int, device: torch.device, out: str) -> None:
    """Everything above, over one to four ranks of the same four processes."""
    told: dict[str, object] = {}
    for count in (1, 2, 3, 4):
        with peers_of_the_first(count) as peers:
            if peers is not None:
                told[f"counts of {count}"] = exchange_a_while(peers)
    for sent in ROGUE:
        with peers_of_the_first(2) as peers:
            if peers is not None:
                told[sent] = errors_of(peers, sent)
    with peers_of_the_first(2) as peers:
        if peers is not None:
            told["given up"] = given_up(peers)
    unwatched = replace(this_group(), watch=None)
    with peers_of_the_first(2) as peers:
        if peers is not None:
            peers._group = replace(unwatched, world_size=2)  # or the watch would end all four
            told["gone"] = gone(peers, unwatched)
    Path(out, f"{rank}.json").write_text(json.dumps(told))
