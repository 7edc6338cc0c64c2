"""Requests for batches as messages: settings by hash, key, and seeds or their numbers in a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.draw import DrawKey
from khop.sampling.sampler import LinkSeeds, SeedLinks, Seeds
from khop.sampling.seeds import StepShare
from khop.servers.draw_keys import read_key, written_key
from khop.servers.frame import Frame, Tensors, whole
from khop.servers.json_fields import Document, Plain, Type, by_type
from khop.servers.settings import Settings

BATCH = "batch"
_FACTS = ("labels", "times", "negatives", "relations")


@dataclass(frozen=True)
class BatchQuery:
    """A request for a batch, as a server reads it."""

    settings: str  # hash
    given: Document | None  # the settings, if they came with the request
    key: DrawKey
    epoch: int
    step: int
    seeds: Seeds  # with the numbers of a list, or with the seeds themselves

    @property
    def stage(self) -> str:
        """Name of the batch in logs and errors."""
        return f"batch of epoch {self.epoch}, step {self.step}"


def written_query(
    settings: Settings, seeds: Seeds, key: DrawKey, epoch: int, step: int, *, with_settings: bool
) -> bytes:
    """Return the message that asks for a batch."""
    tensors = Tensors()
    fields: dict[str, Plain] = {
        "kind": BATCH,
        "settings": settings.digest,
        "given": settings.document if with_settings else None,
        "key": written_key(key),
        "epoch": epoch,
        "step": step,
        "share": None if seeds.listed is None else _written_share(seeds.listed, tensors),
        "seeds": None if seeds.listed is not None else _written_seeds(seeds, tensors),
    }
    return whole(fields, tensors.all)


def read_query(frame: Frame) -> BatchQuery:
    """Read a request; ValueError names the field that is wrong."""
    given = frame.document
    share = given.given("share")
    seeds = _seeds(frame, given["seeds"]) if share is None else Seeds({}, {}, listed=_share(frame, share))
    return BatchQuery(
        given["settings"].text(),
        given.given("given"),
        read_key(given["key"]),
        given["epoch"].whole(),
        given["step"].whole(),
        seeds,
    )


def _written_share(share: StepShare, tensors: Tensors) -> Plain:
    return {
        "order": tensors(share.order),
        "start": share.start,
        "mine": None if share.is_whole else tensors(share.mine),
        "negative_key": written_key(share.negative_key),
    }


def _share(frame: Frame, given: Document) -> StepShare:
    order = _ids(frame, given["order"])
    count = order.numel()
    mine = torch.arange(count) if given.given("mine") is None else _ids(frame, given["mine"])
    if mine.numel() and not (
        int(mine.min()) >= 0 and int(mine.max()) < count and bool((mine.diff() > 0).all())
    ):
        raise ValueError(f"{given.where}.mine: must be ascending numbers below {count}")
    key = read_key(given["negative_key"])
    return StepShare(order, given["start"].whole(0, 1 << 62), mine, key)


def _written_seeds(seeds: Seeds, tensors: Tensors) -> Plain:
    links = seeds.links

    def all_of(values: Mapping[str, Tensor] | None) -> Plain:
        return None if values is None else by_type({t: tensors(ids) for t, ids in values.items()})

    return {
        "nodes": all_of(seeds.nodes),
        "positions": all_of(seeds.positions),
        "times": all_of(seeds.times),
        "batch_nodes": all_of(seeds.batch_nodes),
        "links": None
        if links is None
        else by_type({t: _written_links(of, tensors) for t, of in links.by_type.items()}),
        "negative_key": None if links is None else written_key(links.negative_key),
    }


def _written_links(links: SeedLinks, tensors: Tensors) -> Plain:
    facts = {name: tensors.given(getattr(links, name)) for name in _FACTS}
    ends = {"edges": links.edges, "positions": links.positions, "batch_edges": links.batch_edges}
    of_all = {"batch_relations": tensors.given(links.batch_relations)}
    return {**{name: tensors(value) for name, value in ends.items()}, **facts, **of_all}


def _seeds(frame: Frame, given: Document) -> Seeds:
    nodes, positions = _by_node_type(frame, given["nodes"]), _by_node_type(frame, given["positions"])
    times = None if given.given("times") is None else _by_node_type(frame, given["times"])
    batch = None if given.given("batch_nodes") is None else _by_node_type(frame, given["batch_nodes"])
    sizes = {t: ids.numel() for t, ids in nodes.items()}
    for name, values in (("positions", positions), ("times", times)):
        if values is not None and {t: of.numel() for t, of in values.items()} != sizes:
            raise ValueError(f"{given.where}.{name}: are not one for each of the seeds, {sizes}")
    if given.given("links") is None:
        return Seeds(nodes, positions, times, batch_nodes=batch)
    by_edge_type = {}
    for type_, of_type in given["links"].entries():
        if not isinstance(type_, tuple):
            raise ValueError(f"{of_type.where}: {type_!r} is no edge type")
        by_edge_type[type_] = _links(frame, of_type)
    return Seeds(nodes, positions, times, LinkSeeds(by_edge_type, read_key(given["negative_key"])), batch)


def _links(frame: Frame, given: Document) -> SeedLinks:
    edges, batch_edges = (frame.tensor(given[name]) for name in ("edges", "batch_edges"))
    positions = _ids(frame, given["positions"])
    for name, ends in (("edges", edges), ("batch_edges", batch_edges)):
        if ends.dtype != torch.int64 or ends.dim() != 2 or ends.shape[0] != 2:
            raise ValueError(
                f"{given.where}.{name}: is {ends.dtype} {tuple(ends.shape)}, must be int64 (2, n)"
            )
    if edges.shape[1] != positions.numel():
        raise ValueError(f"{given.where}: {edges.shape[1]} links with {positions.numel()} positions")
    facts = {}
    for name in _FACTS:
        number = given.given(name)
        if number is None:
            continue
        fact = facts[name] = frame.tensor(number)
        dimensions = {"times": 1, "negatives": 2, "relations": 1}.get(name, max(1, fact.dim()))
        is_whole = name == "labels" or fact.dtype == torch.int64
        if fact.dim() != dimensions or fact.shape[0] != positions.numel() or not is_whole:
            raise ValueError(
                f"{number.where}: is {fact.dtype} {tuple(fact.shape)}, of {positions.numel()} links"
            )
    number = given.given("batch_relations")
    of_all = None if number is None else _ids(frame, given["batch_relations"])
    if (of_all is None) != ("relations" not in facts) or (
        of_all is not None and of_all.numel() != batch_edges.shape[1]
    ):
        raise ValueError(f"{given.where}.batch_relations: are not one for each of the links of the step")
    return SeedLinks(edges, positions, batch_edges, **facts, batch_relations=of_all)


def _by_node_type(frame: Frame, given: Document) -> dict[str, Tensor]:
    found = {}
    for type_, number in given.entries():
        if not isinstance(type_, str):
            raise ValueError(f"{number.where}: {type_!r} is no node type")
        found[type_] = _ids(frame, number)
    return found


def _ids(frame: Frame, number: Document) -> Tensor:
    ids = frame.tensor(number)
    if ids.dtype != torch.int64 or ids.dim() != 1:
        raise ValueError(f"{number.where}: is {ids.dtype} {tuple(ids.shape)}, must be int64 (n)")
    return ids


def type_plain(type_: Type) -> Plain:
    """Return a type as plain values."""
    return list(type_) if isinstance(type_, tuple) else type_
