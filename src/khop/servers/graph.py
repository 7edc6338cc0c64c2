"""A graph on servers: its types, counts and splits are here, its edges and columns are not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NoReturn, TypeVar

import torch
from torch import Tensor

from khop.draw import DrawKey, DrawnNegatives, FrontierByType, NeighborsByType, Positives
from khop.errors import Unsupported
from khop.features.store import FeatureStoreBase, Gathered, Rows, Wanted
from khop.graph.edge_draws import check_edge_type
from khop.graph.folder import ORIGINAL_ID
from khop.graph.import_record import TimeCutOffs
from khop.graph.needs import Need
from khop.graph.store import BatchServers, NumberedGraph, NumberedNodes
from khop.rules.rule import Hop
from khop.sampling.listed import ListedLinks, ListedNodes, Reference
from khop.sampling.sampler import SeedLinks
from khop.schema import EdgeType, NodeType, Schema, Specs, Type
from khop.servers.counts import checked_counts, written_nodes
from khop.servers.description import Description
from khop.servers.errors import InvalidAnswer, ServerError
from khop.servers.frame import Frame, Tensors, received, whole
from khop.servers.json_fields import Plain
from khop.servers.lists import FACTS, IDS, IN_DEGREES, LINKS, LIST, MOST_NODES, ROWS
from khop.servers.request_wire import type_plain
from khop.servers.settings import View
from khop.servers.split_arguments import SplitArguments
from khop.servers.transport import Buffer, CallContext, Exchange

MOST_ANSWER = 1 << 40  # bytes
_IDS_AT_ONCE = 1 << 20
_BYTES_AT_ONCE = 1 << 26
Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class RemoteView:
    """A view of the graph on servers, and the way to ask them."""

    exchange: Exchange
    description: Description
    view: View = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the servers."""
        return self.exchange.addresses

    @property
    def name(self) -> str:
        """Name of the graph on the servers."""
        return self.description.name

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the graph."""
        return self.description.fingerprint

    @property
    def cut_offs(self) -> TimeCutOffs | None:
        """Cut-offs of a split by time, as the graph's import recorded them; None if it records none."""
        return self.description.cut_offs

    def after(self, step: Plain) -> RemoteView:
        """Return the view after one more step."""
        return replace(self, view=(*self.view, step))

    def ask(
        self, kind: str, fields: Mapping[str, Plain], tensors: Tensors, read: Callable[[Frame], Value]
    ) -> Value:
        """Ask any server for something but a batch, and return what `read` makes of the answer."""
        request = whole({"kind": kind, "graph": self.fingerprint, **fields}, tensors.all)
        return self.exchange.ask(
            CallContext(kind), request, lambda pieces: self.read(pieces, kind, read)
        ).value

    def read(self, pieces: Iterator[Buffer], kind: str, read: Callable[[Frame], Value]) -> Value:
        """Read an answer; InvalidAnswer if it is for another graph, or not what its header says."""
        try:
            frame = received(pieces, MOST_ANSWER, "answer")
            if (frame.document["kind"].text(), frame.document["graph"].text()) != (kind, self.fingerprint):
                raise ValueError(f"answer: is not about {kind} of this graph")
            return read(frame)
        except ServerError:
            raise
        except ValueError as error:
            raise InvalidAnswer(f"a server of {', '.join(self.addresses)}: {error}") from error

    def digest(self, reference: Reference) -> str:
        """Return the digest of a list of seeds."""
        return self.ask(
            LIST, {"list": dict(reference)}, Tensors(), lambda frame: frame.document["digest"].text()
        )

    def ids(self, reference: Reference, count: int) -> Tensor:
        """Return the ids of a split of one type, int64 (count), fetched in pieces."""
        pieces = []
        for first in range(0, count, _IDS_AT_ONCE):
            last = min(count, first + _IDS_AT_ONCE)
            fields: dict[str, Plain] = {"list": dict(reference), "first": first, "last": last}
            pieces.append(self.ask(IDS, fields, Tensors(), partial(_ids, last - first)))
        return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False, repr=False)
class RemoteGraph(NumberedGraph):
    """The edges of a graph on servers, which make whole batches; single hops are refused."""

    view: RemoteView
    schema: Schema  # of the view
    nodes: NumberedNodes  # without original ids

    @property
    def servers(self) -> RemoteView:
        """The servers that make batches of this graph."""
        return self.view

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type in the whole graph, before links were split off."""
        if edge_type not in self.view.description.edges:
            raise ValueError(f"no edge type {edge_type}; there are {list(self.view.description.edges)}")
        return self.view.description.edges[edge_type]

    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Return the number of in-edges of some nodes in this view, int64 (nodes), from the servers."""
        check_edge_type(edge_type, self.schema)
        pieces = [_in_degrees(self.view, edge_type, some) for some in nodes.split(MOST_NODES)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Fetch the ids before renumbering, int64 (nodes); None if nodes were never renumbered."""
        if node_type not in self.view.description.renumbered:
            return None
        whole = replace(self.view, view=())
        features = RemoteFeatures(whole.description.schema.columns, whole)
        every = Rows(torch.arange(self.num_nodes(node_type)), (ORIGINAL_ID,))
        return features.gather({node_type: every})[node_type][ORIGINAL_ID]

    def prepare(self, needs: Collection[Need]) -> None:
        """Do nothing: servers build the arrays that draws need."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Raise Unsupported: servers make whole batches."""
        _refuse(self.view, "single hops")

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Raise Unsupported: servers draw negatives with the batch."""
        _refuse(self.view, "negatives by themselves")

    def in_one_piece(self, what: str) -> NoReturn:
        """Raise Unsupported: the edges are on the servers."""
        _refuse(self.view, what)

    def only(self, edge_types: Collection[EdgeType]) -> RemoteGraph:
        """Return the graph with only these edge types, which the servers leave out too."""
        kept: Plain = [list(t) for t in self.schema.edge_types if t in edge_types]
        return remote_graph(self.view.after({"only": kept}), self.schema.only(edge_types))

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> NoReturn:
        """Raise Unsupported: links of a graph on servers are split by khop.split_links."""
        _refuse(self.view, "some edges alone")


def remote_graph(view: RemoteView, schema: Schema) -> RemoteGraph:
    """Return the edges of a view of a graph on servers; `schema` is that of the view."""
    nodes = NumberedNodes(view.description.nodes, {}, view.description.bounds)
    return RemoteGraph(view, schema, nodes)


def _ids(count: int, frame: Frame) -> Tensor:
    ids = frame.tensor(frame.document["ids"])
    if ids.shape != (count,) or ids.dtype != torch.int64:
        raise ValueError(f"answer: has {ids.dtype} of shape {tuple(ids.shape)}, asked were {count} ids")
    return ids


def _in_degrees(view: RemoteView, edge_type: EdgeType, nodes: Tensor) -> Tensor:
    """Return the number of in-edges of as many nodes as one request may have."""
    tensors = Tensors()
    fields: dict[str, Plain] = {"view": list(view.view), "type": list(edge_type)}
    fields |= written_nodes(nodes, tensors)
    return view.ask(IN_DEGREES, fields, tensors, lambda frame: checked_counts(frame, nodes.numel()))


def _refuse(view: RemoteView, what: str) -> NoReturn:
    raise Unsupported(
        f"{what}: the graph is on servers ({', '.join(view.addresses)}), which make batches; "
        "give the sampler to a khop.Loader, or open the graph's folder with khop.open_graph"
    )


@dataclass(frozen=True, eq=False)
class RemoteFeatures(FeatureStoreBase):
    """The columns of a graph on servers. Columns of batches come with the batches, other rows by request."""

    is_on_servers: ClassVar[bool] = True

    columns: Specs
    view: RemoteView

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type."""
        return self.columns

    def local_rows(self, type_: Type) -> range:
        """Return no rows: they are on the servers."""
        return range(0)

    def gather(self, wanted: Wanted) -> Gathered:
        """Fetch rows from the servers, some at a time."""
        found: Gathered = {}
        for type_, rows in wanted.items():
            found[type_] = {}
            for name in rows.columns:
                ids = rows.ids[: rows.limits.get(name, rows.ids.numel())]
                found[type_][name] = self._column(type_, name, ids, rows.as_float32)
        return found

    def _column(self, type_: Type, name: str, ids: Tensor, as_float32: frozenset[str]) -> Tensor:
        if name not in self.columns.get(type_, {}):
            raise ValueError(
                f"no column {name!r} of {type_!r}; there are {sorted(self.columns.get(type_, {}))}"
            )
        width = 8 * max(1, torch.Size(self.columns[type_][name].shape).numel())
        at_once = min(_BYTES_AT_ONCE, self.view.description.max_batch_bytes or _BYTES_AT_ONCE)
        pieces = [self._rows(type_, name, part, as_float32) for part in ids.split(max(1, at_once // width))]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _rows(self, type_: Type, name: str, ids: Tensor, as_float32: frozenset[str]) -> Tensor:
        tensors = Tensors()
        fields: dict[str, Plain] = {
            "view": list(self.view.view),
            "type": type_plain(type_),
            "columns": [name],
            "float32": [name] if name in as_float32 else [],
            "ids": tensors(ids),
        }

        def read(frame: Frame) -> Tensor:
            rows = frame.tensor(frame.document["rows"][name])
            if rows.shape != (ids.numel(), *self.columns[type_][name].shape):
                raise ValueError(
                    f"answer: column {name!r} of shape {tuple(rows.shape)} for {ids.numel()} rows"
                )
            return rows

        return self.view.ask(ROWS, fields, tensors, read)


def listed_splits(view: RemoteView) -> dict[str, dict[NodeType, Tensor | ListedNodes]]:
    """Return the splits of a graph as lists on its servers."""

    def listed(name: str, node_type: NodeType, count: int) -> ListedNodes:
        reference: Reference = {"split": name, "types": [node_type]}
        return ListedNodes(name, node_type, count, lambda: view.ids(reference, count), view.digest)

    return {
        name: {t: listed(name, t, count) for t, count in of_types.items()}
        for name, of_types in view.description.splits.items()
    }


def view_before(servers: BatchServers, schema: Schema, limit: int) -> tuple[RemoteGraph, RemoteFeatures]:
    """Return the graph with the edges before a time, which servers leave out, and its columns."""
    assert isinstance(servers, RemoteView)
    view = servers.after({"edges_before": limit})
    return remote_graph(view, schema), RemoteFeatures(schema.columns, view)


def split_view(
    servers: BatchServers, arguments: SplitArguments
) -> dict[str, Callable[[Schema], tuple[RemoteGraph, RemoteFeatures, ListedLinks]]]:
    """Return the parts of a split of links on servers: for a schema, the graph, the columns and the links."""
    assert isinstance(servers, RemoteView)

    def part(name: str, schema: Schema) -> tuple[RemoteGraph, RemoteFeatures, ListedLinks]:
        view = servers.after({"split_links": arguments.plain, "part": name})
        links = _links(view, {"view": list(view.view), "part": name})
        return remote_graph(view, schema), RemoteFeatures(schema.columns, view), links

    return {name: partial(part, name) for name in ("train", "val", "test")}


def _links(view: RemoteView, reference: Reference) -> ListedLinks:
    """Return a list of links on the servers, which split them now if they have not."""

    def read(frame: Frame) -> ListedLinks:
        given = frame.document
        counts = {t: n.whole(0, 1 << 62) for t, n in given["counts"].entries() if isinstance(t, tuple)}
        facts = tuple(fact.text() for fact in given["facts"].each())
        return ListedLinks(counts, reference, view.digest, facts, partial(_link_rows, view))

    return view.ask(LIST, {"list": dict(reference)}, Tensors(), read)


def _link_rows(view: RemoteView, reference: Reference, edge_type: EdgeType, numbers: Tensor) -> SeedLinks:
    """Return links of a list by their numbers."""
    tensors = Tensors()
    fields: dict[str, Plain] = {
        "list": dict(reference),
        "type": list(edge_type),
        "numbers": tensors(numbers),
    }

    def read(frame: Frame) -> SeedLinks:
        facts = {
            name: frame.tensor(frame.document[name])
            for name in FACTS
            if frame.document.given(name) is not None
        }
        edges = frame.tensor(frame.document["edges"])
        if edges.shape != (2, numbers.numel()) or edges.dtype != torch.int64:
            raise ValueError(f"answer: {numbers.numel()} links of shape {tuple(edges.shape)}")
        return SeedLinks(edges, numbers, edges, **facts, batch_relations=facts.get("relations"))

    return view.ask(LINKS, fields, tensors, read)
