"""Messages between clients and servers, and between servers of parts: one dataclass per message.

A request names its kind and the graph. Its body is the dataclass that `REQUESTS` has for the kind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from khop.batch import Adjacency, Block, LinkRows, LossWeights, Sample, Subgraph
from khop.distributed.exchange.peers import check_below
from khop.distributed.owners import MOST_EDGES
from khop.draw import RANDOMNESS, DrawKey, Purpose
from khop.graph.folder import TimeCutOffs
from khop.graph.rule_arrays import check_edge_type
from khop.kernels.id_table import Kind
from khop.loading.columns import ColumnChoice
from khop.loading.source import Drawn
from khop.sampling.links.link_split import LinkColumns, Shares
from khop.sampling.seeds import LinkSeeds, SeedLinks, Seeds, StepShare
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema, Type
from khop.servers.codec import (
    INT64,
    Array,
    Codec,
    Count,
    Ends,
    Ids,
    Octets,
    Outgoing,
    Plain,
    Range,
    Tensors,
    Word,
    json_of,
)
from khop.servers.errors import WrongGraph, WrongVersion

Time = Annotated[int, INT64]
Rows = Annotated[Tensor, Array(torch.int32)]
Floats = Annotated[Tensor, Array(torch.float32)]
Counts = Mapping[NodeType, Annotated[int, Range(0, 1 << 40)]]


@dataclass(frozen=True)
class ByColumn:
    """A split of links by the column `split`."""


@dataclass(frozen=True)
class SplitArguments:
    """The arguments of a split of links."""

    edge_types: tuple[EdgeType, ...]
    method: Shares | TimeCutOffs | ByColumn  # at random, by time, by a column
    columns: LinkColumns
    seed: Word

    @property
    def key(self) -> DrawKey:
        """The key of all draws of the split."""
        return DrawKey.of(self.seed, Purpose.SPLIT)

    def check(self, schema: Schema) -> None:
        """Raise ValueError for an edge type or a column that the graph does not have."""
        if not self.edge_types:
            raise ValueError("edge_types: is empty; name at least one edge type")
        for edge_type in self.edge_types:
            check_edge_type(edge_type, schema)
            for name in (self.columns.label, self.columns.time, self.columns.relation):
                if name is not None:
                    schema.column(edge_type, name)


@dataclass(frozen=True)
class Only:
    """A step of a view: only these edge types and their node types."""

    edge_types: tuple[EdgeType, ...]


@dataclass(frozen=True)
class EdgesBefore:
    """A step of a view: the edges before a time, and negatives among the nodes that exist before it."""

    limit: Time


@dataclass(frozen=True)
class CandidatesBefore:
    """A step of a view: all edges, and negatives among the nodes that exist before a time."""

    limit: Time


@dataclass(frozen=True)
class SplitPart:
    """A step of a view: the message graph of one part of a link split."""

    split: SplitArguments
    part: str


Step = Only | EdgesBefore | CandidatesBefore | SplitPart
View = tuple[Step, ...]  # from the whole graph to the requested edges


@dataclass(frozen=True)
class NodesOfSplit:
    """A list of seeds on every server: the nodes of a split."""

    split: str
    types: tuple[NodeType, ...]
    times: str | None = None  # column of their times


@dataclass(frozen=True)
class LinksOfPart:
    """A list of seeds on every server: the links of one part of a view's last split."""

    view: View
    part: str


ListOfSeeds = NodesOfSplit | LinksOfPart


def list_of_seeds(reference: Mapping[str, object]) -> ListOfSeeds:
    """Return the list that the seeds of a loader refer to."""
    if "part" in reference:
        return LinksOfPart(**reference)  # type: ignore[arg-type]
    return NodesOfSplit(**{**reference, "types": tuple(reference["types"])})  # type: ignore[arg-type]


@dataclass(frozen=True)
class SourceSettings:
    """Settings of a batch source: sent once, then referred to by their hash."""

    graph: str  # fingerprint
    view: View
    sampler: object  # a description for `Registry.made`
    columns: ColumnChoice
    seeds: ListOfSeeds | None = None  # a list on the servers; None: requests have the seeds
    randomness: int = RANDOMNESS

    @cached_property
    def digest(self) -> str:
        """Hash that identifies the settings in requests."""
        return hashlib.sha256(json_of(CODEC.write(self, Tensors()))).hexdigest()[:32]

    def check(self, fingerprint: str) -> None:
        """Raise WrongVersion or WrongGraph unless the settings are for this random stream and this graph."""
        if self.randomness != RANDOMNESS:
            raise WrongVersion(
                f"the client draws by version {self.randomness} of docs/randomness.md, and this server by "
                f"version {RANDOMNESS}; install the same khop on clients and servers"
            )
        check_graph(self.graph, fingerprint)

    def check_columns(self, schema: Schema) -> None:
        """Raise ValueError for a column that the graph does not have."""
        choice = self.columns
        for by_type in (choice.of_nodes, choice.of_edges, choice.of_seeds, choice.as_float32):
            for type_, names in by_type.items():
                for name in names:
                    schema.column(type_, name)


def check_graph(asked: str, fingerprint: str) -> None:
    """Raise WrongGraph unless a request is for this graph."""
    if asked != fingerprint:
        raise WrongGraph(
            f"the client requests the graph with fingerprint {asked[:12]}..., but this server has "
            f"{fingerprint[:12]}...; start all servers with the same graph, then connect again"
        )


@dataclass(frozen=True)
class ListedShare:
    """A rank's share of a step, as positions in a seed list on the servers."""

    order: Ids  # of the seeds of the step
    start: Count
    mine: Ids | None  # ascending places in `order`; None: all
    negative_key: DrawKey

    @classmethod
    def of(cls, share: StepShare) -> ListedShare:
        """Return the message of a share."""
        return cls(share.order, share.start, None if share.is_whole else share.mine, share.negative_key)

    def share(self) -> StepShare:
        """Return the share; ValueError if it is not of its step."""
        count = self.order.numel()
        mine = torch.arange(count) if self.mine is None else self.mine
        if mine.numel() and not (
            int(mine.min()) >= 0 and int(mine.max()) < count and bool((mine.diff() > 0).all())
        ):
            raise ValueError(f"request.body.listed.mine: must be ascending numbers below {count}")
        return StepShare(self.order, self.start, mine, self.negative_key)


@dataclass(frozen=True)
class BatchOf:
    """A request for a batch."""

    settings: str  # their hash
    given: SourceSettings | None  # the settings, for servers that may not have them
    key: DrawKey
    epoch: Count
    step: Count
    seeds: Seeds | None
    listed: ListedShare | None = None

    @classmethod
    def of(
        cls,
        settings: SourceSettings,
        seeds: Seeds,
        key: DrawKey,
        epoch: int,
        step: int,
        *,
        with_settings: bool,
    ) -> BatchOf:
        """Return the request for the batch of some seeds."""
        given = settings if with_settings else None
        listed = None if seeds.listed is None else ListedShare.of(seeds.listed)
        return cls(settings.digest, given, key, epoch, step, seeds if listed is None else None, listed)

    @property
    def stage(self) -> str:
        """Description of the batch for logs and errors."""
        return f"batch of epoch {self.epoch}, step {self.step}"

    def checked_seeds(self) -> Seeds:
        """Return the seeds; ValueError if their fields are inconsistent."""
        if self.listed is not None:
            return Seeds({}, {}, listed=self.listed.share())
        seeds = Seeds({}, {}) if self.seeds is None else self.seeds
        sizes = {t: ids.numel() for t, ids in seeds.nodes.items()}
        for name, values in (("positions", seeds.positions), ("times", seeds.times)):
            if values is not None and {t: of.numel() for t, of in values.items()} != sizes:
                raise ValueError(f"request.body.seeds.{name}: are not one for each of the seeds, {sizes}")
        for links in () if seeds.links is None else seeds.links.by_type.values():
            _check_links(links)
        return seeds


def _check_links(links: SeedLinks) -> None:
    count = links.positions.numel()
    for name in ("edges", "batch_edges"):
        ends = getattr(links, name)
        if ends.shape[0] != 2:
            raise ValueError(f"links.{name}: is {ends.dtype} {tuple(ends.shape)}, must be int64 (2, n)")
    if links.edges.shape[1] != count:
        raise ValueError(f"links: {links.edges.shape[1]} links with {count} positions")
    for name in ("labels", "times", "negatives", "relations"):
        fact = getattr(links, name)
        if fact is not None and fact.shape[:1] != (count,):
            raise ValueError(f"links.{name}: is {fact.dtype} {tuple(fact.shape)}, of {count} links")
    of_all = links.batch_relations
    if (of_all is None) != (links.relations is None) or (
        of_all is not None and of_all.numel() != links.batch_edges.shape[1]
    ):
        raise ValueError("links.batch_relations: are not one for each of the links of the step")


@dataclass(frozen=True)
class BatchAnswer:
    """The answer to a request for a batch."""

    settings: str
    epoch: Count
    step: Count
    seconds: float  # duration of the work; spans are relative to its start
    batch: Drawn


@dataclass(frozen=True)
class NodeSpan:
    """A range of consecutive nodes."""

    first: Count
    end: Count


@dataclass(frozen=True)
class NodeList:
    """A list of nodes."""

    ids: Ids


SomeNodes = NodeSpan | NodeList


def some_nodes(nodes: Tensor) -> SomeNodes:
    """Return the message for nodes, int64 (n): a range if they are consecutive."""
    count = nodes.numel()
    if count and bool((nodes.diff() == 1).all()):
        return NodeSpan(int(nodes[0]), int(nodes[0]) + count)
    return NodeList(nodes)


def read_nodes(given: SomeNodes, limit: int, most: int) -> Tensor:
    """Return the requested nodes, int64 (n); ValueError for more than `most`, or ids of `limit` or more."""
    count = given.end - given.first if isinstance(given, NodeSpan) else given.ids.numel()
    if count < 0:
        raise ValueError(f"nodes: {given} ends before it starts")
    if count > most:
        raise ValueError(f"request: {count:,} nodes are requested at once; request at most {most:,}")
    nodes = torch.arange(given.first, given.end) if isinstance(given, NodeSpan) else given.ids
    check_numbers(nodes, limit, "node")
    return nodes


def check_numbers(numbers: Tensor, count: int, what: str) -> None:
    """Raise ValueError unless all `numbers` are from 0 to `count` - 1; `what` names them."""
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
        raise ValueError(f"{what}s {int(numbers.min())} to {int(numbers.max())}: there are {count}")


@dataclass(frozen=True)
class ListOf:
    """A request for the description of a list of seeds."""

    list: ListOfSeeds


@dataclass(frozen=True)
class ListAnswer:
    """Description of a seed list: counts by type, names of link columns, and digest."""

    counts: Mapping[Type, Count]
    facts: tuple[str, ...]
    digest: str


@dataclass(frozen=True)
class IdsOf:
    """A request for a range of the node ids of one type in a split."""

    list: NodesOfSplit
    first: Count
    last: Count


@dataclass(frozen=True)
class IdsAnswer:
    """Ids of nodes."""

    ids: Ids


@dataclass(frozen=True)
class LinksOf:
    """A request for links of a list by position."""

    list: LinksOfPart
    edge_type: EdgeType
    numbers: Ids


@dataclass(frozen=True)
class LinksAnswer:
    """Links with their columns."""

    edges: Ends
    labels: Tensor | None
    times: Ids | None
    negatives: Ends | None
    relations: Ids | None


@dataclass(frozen=True)
class RowsOf:
    """A request for rows of one type's columns, by id."""

    view: View
    type: Type
    columns: tuple[str, ...]
    float32: tuple[str, ...]  # columns to widen
    ids: Ids


@dataclass(frozen=True)
class RowsAnswer:
    """Column rows."""

    rows: Mapping[str, Tensor]


@dataclass(frozen=True)
class DegreesOf:
    """A request for the in-degrees of nodes."""

    view: View
    edge_type: EdgeType
    nodes: SomeNodes


@dataclass(frozen=True)
class CountsAnswer:
    """Numbers of edges."""

    counts: Ids

    def checked(self, count: int) -> Tensor:
        """Return the counts, int64 (count); ValueError if they are not valid edge counts."""
        if self.counts.numel() != count:
            raise ValueError(f"counts: got {self.counts.numel()} counts for {count} nodes")
        check_below(self.counts, MOST_EDGES, "number of edges")
        return self.counts


@dataclass(frozen=True)
class NodeIdsOf:
    """A request for the users' ids of nodes."""

    node_type: NodeType
    nodes: SomeNodes


@dataclass(frozen=True)
class NumberIdsAnswer:
    """Numeric ids, up to the server's limit per answer."""

    ids: Ids


@dataclass(frozen=True)
class TextIdsAnswer:
    """Text ids, concatenated as UTF-8, up to the server's limit per answer."""

    offsets: Ids
    text: Octets


@dataclass(frozen=True)
class NodeIdsAnswer:
    """The users' ids of nodes."""

    keys: NumberIdsAnswer | TextIdsAnswer


@dataclass(frozen=True)
class LabelsOf:
    """A request for the label names of a node type."""

    node_type: NodeType


@dataclass(frozen=True)
class LabelsAnswer:
    """Class names and the unit of labels, as the graph's import recorded them."""

    classes: tuple[str, ...] | None
    unit: str | None


@dataclass(frozen=True)
class HopOf:
    """A server's request for a hop from nodes of another part."""

    view: View
    number: Count
    fanouts: Mapping[EdgeType, Annotated[int, Range(-1)]]
    rule: object  # a description for `Registry.made`
    edge_ids: bool
    key: DrawKey
    sent: Mapping[NodeType, tuple[str, ...]]  # fields of the frontier
    frontier: Octets  # in the format of `HopWire`


@dataclass(frozen=True)
class NegativesOf:
    """A server's request for exact negatives of links whose sources are in another part."""

    view: View
    edge_type: EdgeType
    negatives: object  # a description for `Registry.made`
    until: bool
    time_column: str | None
    key: DrawKey
    links: Octets  # in the format of `NegativeWire`


@dataclass(frozen=True)
class PartRowsOf:
    """A server's request for rows of another part: graph columns, or columns of the view's links."""

    links: View
    rows: Octets  # in the format of `row_wire`


@dataclass(frozen=True)
class NodeDegreesOf:
    """A server's request for the in-degrees of nodes of another part."""

    view: View
    edge_type: EdgeType
    nodes: Octets  # int64


@dataclass(frozen=True)
class OctetsAnswer:
    """An answer in the format that the request names."""

    content: Octets


@dataclass(frozen=True)
class PartDegreesOf:
    """A server's request for the in-degrees of all nodes of another part."""

    view: View
    edge_type: EdgeType


@dataclass(frozen=True)
class EdgesOf:
    """A server's request for edges of another part whose sources are in this server's part."""

    view: View
    edge_type: EdgeType
    begin: Count  # position of the first edge to read
    sources: Count  # part of the sources


@dataclass(frozen=True)
class SplitCountsOf:
    """A server's request for link counts by random number."""

    view: View
    split: SplitArguments
    edge_type: EdgeType
    shift: Annotated[int, Range(0, 64)]
    prefix: Word
    above: Time


@dataclass(frozen=True)
class LinkCountsOf:
    """A server's request for the number of links to each node of another part."""

    links: View  # ends with the part of the split
    edge_type: EdgeType


@dataclass(frozen=True)
class TouchedOf:
    """A server's request for the nodes that have edges before a time."""

    view: View
    limit: Time


@dataclass(frozen=True)
class PartAnswer:
    """Rows of another part."""

    rows: Tensor


BATCH = "batch"
CLIENT_REQUESTS: Mapping[str, type] = {
    BATCH: BatchOf,
    "list": ListOf,
    "ids": IdsOf,
    "links": LinksOf,
    "in-degrees": DegreesOf,
    "labels": LabelsOf,
    "rows": RowsOf,
    "node-ids": NodeIdsOf,
}
PART_REQUESTS: Mapping[str, type] = {
    "hop": HopOf,
    "part rows": PartRowsOf,
    "part negatives": NegativesOf,
    "node degrees": NodeDegreesOf,
    "part degrees": PartDegreesOf,
    "part edges": EdgesOf,
    "split counts": SplitCountsOf,
    "split links": LinkCountsOf,
    "nodes with edges": TouchedOf,
}


@dataclass(frozen=True)
class Description:
    """The metadata of a graph on servers."""

    wire: int  # version of the messages
    randomness: int  # version of the draws
    name: str
    fingerprint: str
    schema: Schema
    nodes: Mapping[NodeType, Count]
    edges: Mapping[EdgeType, Count]
    splits: Mapping[str, Mapping[NodeType, Count]]  # number of nodes
    renumbered: tuple[NodeType, ...]  # types with original ids
    bounds: Mapping[NodeType, tuple[Count, ...]]  # (partitions + 1) ids, for types with several partitions
    cut_offs: TimeCutOffs | None
    own_ids: Mapping[NodeType, Kind] = field(default_factory=dict)  # types of the users' ids
    labels: tuple[NodeType, ...] = ()  # node types whose labels the import has recorded
    max_batch_bytes: Count | None = None  # of one answer
    part: Count | None = None  # the server's part of the graph; None: the whole graph


_BY_TYPE = Mapping[NodeType, Ids]
CODEC = Codec(
    {
        DrawKey: {"value": Word, "of_epoch": Word | None, "step": Word},
        TimeCutOffs: {"val": Time, "test": Time},
        ColumnSpec: {"shape": tuple[Count, ...], "num_classes": Count | None, "sparse_width": Count | None},
        Seeds: {
            "nodes": _BY_TYPE,
            "positions": _BY_TYPE,
            "times": _BY_TYPE | None,
            "batch_nodes": _BY_TYPE | None,
            "listed": None,
            "tuple_labels": None,
            "groups": None,
            "labels": None,
            "loss_weights": None,
        },
        LinkSeeds: {},
        SeedLinks: {
            "edges": Ends,
            "positions": Ids,
            "batch_edges": Ends,
            "times": Ids | None,
            "negatives": Ends | None,
            "relations": Ids | None,
            "batch_relations": Ids | None,
        },
        Drawn: {"seed_nodes": _BY_TYPE, "cached_rows": None, "arrival": None},
        Sample: {
            "nodes": _BY_TYPE,
            "seed_index": _BY_TYPE,
            "trees": _BY_TYPE | None,
            "tuple_labels": None,
            "num_groups": None,
            "seed_positions": _BY_TYPE,
            "seed_times": _BY_TYPE,
            "seed_labels": None,
        },
        Block: {"src_counts": Counts, "dst_counts": Counts},
        Subgraph: {
            "nodes_per_hop": Mapping[NodeType, tuple[Annotated[int, Range(0, 1 << 40)], ...]],
            "edges_per_hop": Mapping[EdgeType, tuple[Annotated[int, Range(0, 1 << 40)], ...]] | None,
        },
        Adjacency: {
            "indptr": Ids,
            "indices": Rows,
            "num_src": Annotated[int, Range(0, 1 << 31)],
            "edge_ids": Ids | None,
            "reverse": Annotated[Tensor, Array(torch.bool)] | None,
            "weight": Floats | None,
            "is_padded": None,
            "elapsed": Ids | None,
        },
        LinkRows: {
            "source": Ids,
            "destination": Ids,
            "positions": Ids,
            "negatives": Ends | None,
            "pairs_per_link": Annotated[int, Range(1, 1 << 40)],
            "source_negatives": Ends | None,
            "relations": Ids | None,
            "times": Ids | None,
        },
        LossWeights: {},
    }
)


def request(kind: str, graph: str, body: object, **fields: Plain) -> bytes:
    """Return a request in one piece; `fields` are sent with its body."""
    return Outgoing(CODEC, body, {"kind": kind, "graph": graph, **fields}).whole()
