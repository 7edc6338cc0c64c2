"""Self-test of the kernels on a GPU: results on small graphs are compared with the CPU, bit by bit.

Results are stored in the user's cache folder. Importing this module imports Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, cast

import torch
from torch import Tensor

from khop.batch import Sample
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.needs import Arrays, ArrayStore
from khop.graph.rule import Hop, Rule, RuleBase
from khop.graph.store import CscGraph, csc_graph_from_edges, stored_graph
from khop.kernels.card import CardAnswers, card_key
from khop.kernels.choice import distrust, kernel_errors, reason_of
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.kernels.gather import Copies, GatheredColumn, Shards, gather_columns
from khop.kernels.memory import empty_rows
from khop.kernels.sample_reference import sample_smallest_reference
from khop.kernels.segment import segment_max, segment_mean, segment_sum, sum_rows, transpose
from khop.kernels.segment_attention import segment_softmax
from khop.kernels.segment_weighted import segment_weighted_sum
from khop.kernels.triton.sample_smallest import LONG_ROW, SourceOrder
from khop.kernels.triton.transpose import RUN
from khop.sampling.links.exclusion import WithoutEdges
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_batch import DeviceBatch, exact_sample
from khop.sampling.on_device.device_draw import RowDraw, SlotDraw
from khop.sampling.on_device.device_sampler import measured_capacities
from khop.sampling.on_device.edge_arrays import EdgeArrays
from khop.sampling.on_device.type_nodes import counts_of
from khop.sampling.rules.labor import Labor
from khop.sampling.rules.temporal import Temporal
from khop.sampling.rules.uniform import UNIFORM, Uniform
from khop.sampling.rules.weighted import Weighted
from khop.sampling.sampler import KernelSampler, NeighborSampler, Trees
from khop.sampling.seeds import Seeds
from khop.schema import EdgeType, NodeType

By = Callable[[], AbstractContextManager[object]]  # in which kernels compute
Columns = dict[NodeType | EdgeType, dict[str, Tensor]]
NODE = "node"
EDGE: EdgeType = (NODE, "to", NODE)
NODES, EDGES, WIDTH = 300, 2400, 20
KEY = DrawKey(8)


@dataclass(frozen=True)
class Compared:
    """A result of a kernel, and the CPU's."""

    kernel: str  # its module in khop.kernels.triton
    found: Tensor
    wanted: Tensor

    def problem(self) -> str | None:
        """Return how the results differ; None: all bits are equal, NaN anywhere being NaN."""
        found = self.found.detach().cpu()
        if (found.dtype, found.shape) != (self.wanted.dtype, self.wanted.shape):
            wanted = f"{self.wanted.dtype} {tuple(self.wanted.shape)}"
            return f"{self.kernel}: {found.dtype} {tuple(found.shape)} instead of {wanted}"
        differ = (found != self.wanted) | (torch.signbit(found) != torch.signbit(self.wanted))
        differ &= ~(found.isnan() & self.wanted.isnan())
        count = int(differ.sum())
        return f"{self.kernel}: {count} of {differ.numel()} numbers differ" if count else None


Check = Callable[[torch.device, By], Iterator[Compared]]


def why_not_proven(
    device: torch.device,
    names: Sequence[str] | None = None,
    *,
    by: By = nullcontext,
    answers: CardAnswers | None = None,
    anew: bool = False,
) -> str | None:
    """Return the reason why kernels must not make batches on a GPU; None if they match the CPU.

    The reason names the first kernel of the checks `names` that gives other bits or cannot be built. From
    then on, this process uses torch instead of kernels on the GPU. `anew` ignores kept verdicts.
    """
    answers = CardAnswers.of(card_key(device.index)) if answers is None else answers
    known = {} if anew else answers.read()
    for name in BASE if names is None else names:
        problem = known.get(name)
        if problem is None:
            problem, is_final = _checked(CHECKS[name], device, by)
            if is_final:
                answers.keep({name: problem})
        if problem:
            reason = f"kernels do not give the CPU's bits on this card ({name}: {problem})"
            distrust(device, reason)
            return reason
    return None


def _checked(check: Check, device: torch.device, by: By) -> tuple[str, bool]:
    """Return the problem of a check, "" without one, and whether it would be the same the next time."""
    try:
        problems = (compared.problem() for compared in check(device, by))
        return next((problem for problem in problems if problem), ""), True
    except torch.OutOfMemoryError:
        raise
    except kernel_errors() as error:  # a kernel cannot be built or started
        return reason_of(error), False


def checks_of(sampler: KernelSampler, arrays: Mapping[EdgeType, EdgeArrays], *, excludes: bool) -> list[str]:
    """Return the names of the checks for all kernels that a sampler needs; `excludes`: edges are left out."""
    fanouts = {fanout for hop in sampler.neighbors.hops for fanout in hop.fanouts.values() if fanout}
    found = dict.fromkeys(BASE)
    found |= dict.fromkeys(_draws_of(each) for each in arrays.values() if max(fanouts, default=0) > 0)
    found |= {"all neighbors": None} if min(fanouts, default=0) < 0 else {}
    found |= {"times": None} if any(each.limits is not None for each in arrays.values()) else {}
    found |= {"trees": None} if sampler.neighbors.is_disjoint else {}
    is_divided = any(isinstance(each.csc.indices, Shards) for each in arrays.values())
    found |= {"divided edges": None} if is_divided else {}
    found |= {"excluded edges": None} if excludes else {}
    return list(found)


def _draws_of(arrays: EdgeArrays) -> str:
    if arrays.order is not None:
        return (
            "smallest numbers of sources"
            if isinstance(arrays.order, SourceOrder)
            else "smallest numbers of edges"
        )
    kind = "uniform draws" if arrays.sums is None else "weighted draws"
    return f"{kind}, with replacement" if arrays.replacement else kind


def _graph() -> CscGraph:
    """Return a graph with nodes of no, few and many edges, some parallel, and columns of edges."""
    at = torch.arange(EDGES)
    sources, rows = at * 7919 % NODES, (at * at * 31 + at) % 211 % (NODES - 40)
    columns: Columns = {
        EDGE: {"weight": at * 17 % 5, "time": at * 31 % 90},
        NODE: {"time": torch.zeros(NODES).long()},
    }
    return csc_graph_from_edges({NODE: NODES}, {EDGE: (sources, rows)}, columns=columns, sort_by="time")


def _simple_graph() -> CscGraph:
    """Return a graph in which no node has two edges from the same source, and node 0 has many edges."""
    rows = torch.cat([torch.zeros(LONG_ROW).long(), torch.arange(NODES).repeat_interleave(8)])
    few = (rows[LONG_ROW:] + 1 + torch.arange(8).repeat(NODES) * 13) % NODES
    sources = torch.cat([torch.arange(LONG_ROW) + NODES, few])
    columns: Columns = {EDGE: {"weight": torch.arange(rows.numel()) * 17 % 97}}
    return csc_graph_from_edges({NODE: NODES + LONG_ROW}, {EDGE: (sources, rows)}, columns=columns)


@dataclass(frozen=True)
class _InOrder(RuleBase):
    """Rule that takes the edges with the smallest of some numbers."""

    kernel: ClassVar[Kernel] = Kernel.SMALLEST

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        """Return the draw of an edge type's rows; see `Rule`."""
        request = super().plan(edge_type, frontier, hop, key, arrays)
        return replace(request, order=torch.arange(request.csc.num_edges) * 7919 % 10_007)

    def reference(self, request: DrawRequest) -> Neighbors:
        """Carry out a draw in torch."""
        return sample_smallest_reference(request)


@dataclass(frozen=True)
class _Draws:
    """Comparison of a batch: its draws, its nodes, its edges."""

    draws: str  # kernels, by their modules
    rule: Rule = UNIFORM
    fanout: int = 3
    hops: int = 2
    seeds: int = 43
    trees: Trees = "merged"
    numbers: str = "node_table"
    edges: str = "to_csr"
    is_simple: bool = False  # the graph has no parallel edges
    is_timed: bool = False  # seeds have time limits
    excludes: bool = False  # some edges are left out
    is_divided: bool = False  # kernels read the edges in two pieces

    def __call__(self, device: torch.device, by: By) -> Iterator[Compared]:
        """Yield the results of both, in the order in which kernels compute them."""
        graph = _simple_graph() if self.is_simple else _graph()
        hops = [self.fanout] * self.hops
        sampler = NeighborSampler(graph, hops, rule=self.rule, trees=self.trees)
        ids = torch.arange(self.seeds) * 7 % NODES
        times = {NODE: torch.arange(ids.numel()) * 5 % 90} if self.is_timed else None
        seeds = Seeds({NODE: ids}, {NODE: torch.arange(ids.numel())}, times)
        excluded: dict[EdgeType, Tensor] = {}
        if self.excludes:
            edges = graph.csc(EDGE)
            excluded = {EDGE: torch.stack([edges.indices.long(), edges.destinations()])[:, ::5]}
        wanted = sampler.sample(seeds, KEY, view=WithoutEdges(graph, excluded) if excluded else graph)
        capacities = measured_capacities(sampler, [(seeds, KEY)])
        capacities = replace(capacities, excluded={t: pairs.shape[1] for t, pairs in excluded.items()})
        with by():
            if self.is_divided:
                pieces = stored_graph(graph, ArrayStore(partial(Tensor.to, device=device), _in_two(device)))
                sampler = NeighborSampler(pieces, hops, rule=self.rule, trees=self.trees)
            batch = DeviceBatch(BatchPlan(sampler, capacities, device))
            batch.write(seeds, KEY, excluded)
            batch.launch()
            counts = counts_of(batch.cells.values)
            found = exact_sample(batch, counts, seeds).map(Tensor.cpu)
            drawn = _drawn(batch.hops[0].draws[EDGE], ids.numel())
        yield Compared(self.numbers, found.nodes[NODE][: ids.numel()], ids)
        yield from (Compared(self.draws, *pair) for pair in zip(drawn, _drawn_by_cpu(wanted), strict=True))
        yield Compared(self.numbers, torch.tensor(counts.overflowed), torch.tensor(0))
        yield Compared(self.numbers, found.nodes[NODE], wanted.nodes[NODE])
        for ours, theirs in zip(found.blocks, wanted.blocks, strict=True):
            yield Compared(self.edges, ours.adjacency.indptr, theirs.adjacency.indptr)
            yield Compared(self.edges, ours.adjacency.indices, theirs.adjacency.indices)


def _in_two(device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return a function that copies an array to a device in two pieces, as two ranks have it."""

    def divided(array: Tensor) -> Tensor:
        halves = [half.to(device, copy=True) for half in array.split(array.shape[0] // 2)]
        return cast("Tensor", Shards.of(halves, device))  # kernels read both

    return divided


def _drawn(draw: SlotDraw | RowDraw, rows: int) -> tuple[Tensor, Tensor]:
    """Return the number of edges of each row of a draw, and the drawn nodes, row after row."""
    if isinstance(draw, SlotDraw):
        counts = draw.slots.counts[:rows].cpu()
        ids = draw.section.ids.cpu()[: rows * draw.fanout].view(rows, draw.fanout)
        return counts.long(), ids[torch.arange(draw.fanout) < counts[:, None]].long()
    offsets = draw.expansion.offsets[: rows + 1].cpu()
    return offsets.diff(), draw.section.ids[: int(offsets[-1])].cpu().long()


def _drawn_by_cpu(sample: Sample) -> tuple[Tensor, Tensor]:
    edges = sample.blocks[-1].adjacency
    return edges.indptr.diff(), sample.nodes[NODE][edges.indices.long()]


def _numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _gathers(device: torch.device, by: By) -> Iterator[Compared]:
    """Compare rows of columns of some dtypes, converted, and with copies of some rows."""
    ids = torch.arange(0, 5 * NODES, 7) % NODES
    small = (_numbers(NODES, WIDTH) * 30).to(torch.int8)
    slots = torch.where(torch.arange(NODES) % 3 == 0, torch.arange(NODES) // 3, -1).int()
    wide = _numbers(NODES, 100)
    columns = [
        GatheredColumn(wide),
        GatheredColumn(wide, copies=Copies(slots, wide[::3].contiguous())),
        GatheredColumn(torch.arange(NODES)),
        GatheredColumn(_numbers(NODES, WIDTH).bfloat16(), as_float32=True),
        GatheredColumn(small, as_float32=True, scales=_numbers(WIDTH)),
    ]
    wanted = gather_columns(columns, ids)
    with by():
        found = gather_columns([_column_on(device, column) for column in columns], ids.to(device))
    yield from (Compared("gather", *pair) for pair in zip(found, wanted, strict=True))


def _column_on(device: torch.device, column: GatheredColumn) -> GatheredColumn:
    (table,) = column.pieces
    rows = empty_rows(table.shape[0], tuple(table.shape[1:]), table.dtype, device).copy_(table)
    scales = None if column.scales is None else column.scales.to(device)
    copies = column.copies
    if copies is not None:
        copies = Copies(copies.slots.to(device), copies.rows.to(device))
    return replace(column, table=rows, scales=scales, copies=copies)


def _of_edges(kernel: str, operation: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Check:
    """Return the comparison of an operation on rows and edges, and of its gradient."""

    def compare(device: torch.device, by: By) -> Iterator[Compared]:
        edges, x = _graph().csc(EDGE), _numbers(NODES, WIDTH)
        wanted = _with_gradient(operation, x, edges.indptr, edges.indices)
        with by():
            found = _with_gradient(operation, *(t.to(device) for t in (x, edges.indptr, edges.indices)))
        yield from (Compared(kernel, *pair) for pair in zip(found, wanted, strict=True))

    return compare


def _with_gradient(
    operation: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor, indptr: Tensor, indices: Tensor
) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = x.requires_grad_()
        out = operation(x, indptr, indices)
        weights = torch.arange(out.numel(), device=out.device).view(out.shape) % 5 - 2
        (gradient,) = torch.autograd.grad(out, x, weights.to(out.dtype))
    return out.detach().cpu(), gradient.cpu()


def _hub(device: torch.device, by: By) -> Iterator[Compared]:
    """Compare transposed edges, most of which have the same source, and sums over them."""
    indices = torch.zeros(3 * RUN, dtype=torch.int32)
    indices[::4] = torch.arange(1, indices[::4].numel() + 1, dtype=torch.int32) % NODES
    indptr = torch.arange(0, indices.numel() + 1, 3)
    x = _numbers(indptr.numel() - 1, WIDTH)
    wanted = transpose(indptr, indices, NODES)
    with by():
        found = transpose(indptr.to(device), indices.to(device), NODES)
        sums = sum_rows(x.to(device), found)
    yield Compared("transpose", found.indptr, wanted.indptr)
    yield Compared("transpose", found.indices, wanted.indices)
    yield Compared("segment", sums, sum_rows(x, wanted))


def _softmax(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    return segment_softmax(x[indices.long(), :4], indptr)


def _weighted(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    weights = torch.arange(indices.numel(), device=x.device).to(x.dtype) % 7 - 3
    return segment_weighted_sum(x, weights, indptr, indices)


CHECKS: Mapping[str, Check] = {
    "gathers": _gathers,
    "uniform draws": _Draws("sample_uniform"),
    "means of edges": _of_edges("segment", segment_mean),
    "edges of a hub": _hub,
    "sums of edges": _of_edges("segment", segment_sum),
    "maxima of edges": _of_edges("segment_max", segment_max),
    "softmax of edges": _of_edges("segment_softmax", _softmax),
    "weighted sums of edges": _of_edges("segment_weighted", _weighted),
    "uniform draws, with replacement": _Draws("sample_uniform", Uniform(replacement=True)),
    "all neighbors": _Draws("all_neighbors", fanout=-1, edges="expansion_csr"),
    "weighted draws": _Draws("sample_weighted", Weighted("weight")),
    "weighted draws, with replacement": _Draws("sample_weighted", Weighted("weight", replacement=True)),
    "smallest numbers of sources": _Draws("sample_smallest", Labor(), hops=1, seeds=5, is_simple=True),
    "smallest numbers of edges": _Draws("sample_smallest", _InOrder(), hops=1, seeds=5, is_simple=True),
    "times": _Draws("time_ranges", Temporal("time"), numbers="hash_table", is_timed=True),
    "trees": _Draws("sample_uniform", trees="disjoint", numbers="hash_table"),
    "excluded edges": _Draws("exclude_edges", excludes=True),
    "divided edges": _Draws("sample_uniform", is_divided=True),
}
BASE = ("gathers", "uniform draws", "means of edges", "edges of a hub")  # of all runs with batches of a GPU
