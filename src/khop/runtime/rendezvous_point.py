"""Rendezvous of one attempt's ranks in a store that may hold entries of earlier attempts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from khop.errors import PeerLost
from khop.runtime.listening_stores import POLL_S, wait_for
from khop.runtime.torch_types import PrefixStore, Store

_ROUNDS, _TOKENS, _TAKEN = "khop/rounds", "khop/tokens", "taken"


@dataclass(frozen=True)
class Rendezvous:
    """The entry of a rank that has arrived."""

    host: str
    address: str  # that the rank listens on
    attempt: int  # restarts by its launcher; launchers of two machines may count differently
    token: int = 0  # unique among the processes of this store


@dataclass(frozen=True)
class Round:
    """All ranks of one attempt, after each has seen the others."""

    number: int  # number of the attempt in this store, from 1
    ranks: Mapping[int, Rendezvous]

    @property
    def attempt(self) -> int:
        """Restarts of the group: the largest number known to the store or any launcher."""
        return max([self.number - 1, *(arrived.attempt for arrived in self.ranks.values())])


def part_of(store: Store, number: int) -> Store:
    """Return the keys of the store that belong to one round."""
    return PrefixStore(f"khop/round/{number}", store)


def arrive(store: Store, rank: int, world_size: int, own: Rendezvous, deadline_s: float) -> Round:
    """Wait for every rank; PeerLost names the ranks that did not arrive within the deadline.

    Rank 0 opens a round and admits the processes that arrive in it. The others join the newest round. A round
    left by an earlier attempt has admitted other processes, and so delays no rank.
    """
    own = replace(own, token=store.add(_TOKENS, 1))
    keys = {other: f"arrived/{other}" for other in range(world_size)}
    if rank == 0:
        return _opened(store, keys, own, deadline_s)
    return _joined(store, keys, rank, own, deadline_s)


def _opened(store: Store, keys: Mapping[int, str], own: Rendezvous, deadline_s: float) -> Round:
    number = store.add(_ROUNDS, 1)
    part = part_of(store, number)
    part.set(keys[0], json.dumps(asdict(own)))
    if wait_for(part, keys, deadline_s):
        raise _absent(part, keys, deadline_s)
    ranks = _read(part, keys)
    part.set(_TAKEN, json.dumps([arrived.token for arrived in ranks.values()]))
    return Round(number, ranks)


def _joined(store: Store, keys: Mapping[int, str], rank: int, own: Rendezvous, deadline_s: float) -> Round:
    number, part = 0, part_of(store, 0)
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        newest = store.add(_ROUNDS, 0)
        if newest > number:
            number, part = newest, part_of(store, newest)
            part.set(keys[rank], json.dumps(asdict(own)))
        if part.check([_TAKEN]) and own.token in json.loads(part.get(_TAKEN)):
            return Round(number, _read(part, keys))
        time.sleep(POLL_S)
    if not number or part.check([_TAKEN]):  # rank 0 has opened no round for this attempt
        part = part_of(store, number + 1)
        part.set(keys[rank], json.dumps(asdict(own)))
    raise _absent(part, keys, deadline_s)


def _read(part: Store, keys: Mapping[int, str]) -> dict[int, Rendezvous]:
    texts = part.multi_get(list(keys.values()))
    return {rank: Rendezvous(**json.loads(text)) for rank, text in zip(keys, texts, strict=True)}


def _absent(part: Store, keys: Mapping[int, str], deadline_s: float) -> PeerLost:
    missing = [rank for rank, key in keys.items() if not part.check([key])]
    here = _read(part, {rank: key for rank, key in keys.items() if rank not in missing})
    arrived = ", ".join(f"{rank} (host {of_rank.host})" for rank, of_rank in here.items())
    return PeerLost(
        f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} did not arrive within "
        f"{deadline_s:g} s; those of {len(keys)} that did: {arrived}"
    )
