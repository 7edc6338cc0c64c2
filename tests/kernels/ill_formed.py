"""`python -m kernels.ill_formed`: every function of the core, called with arrays that do not fit one another.

Prints the case before it is tried, so that the last line names a crash; then, as JSON, the cases that did not
end in a refusal, and the names that the table lacks.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

import khop._core as core

REFUSALS = (ValueError, TypeError, MemoryError, OverflowError)
HUGE = 2**62


class Role(Enum):
    """What an array is to a function: which changes it has to refuse."""

    OFFSETS = "offsets"  # rise from 0 to the number of entries
    IDS = "ids"  # in range of something else that is given
    SIZED = "sized"  # as long as something else that is given
    FREE = "free"  # ids of any number
    HINT = "hint"  # any content does, and some lengths


@dataclass(frozen=True)
class Array:
    """An argument that fits, and what it is."""

    role: Role
    values: Tensor


def offsets(*values: int) -> Array:
    return Array(Role.OFFSETS, torch.tensor(values))


def ids(*values: int, dtype: torch.dtype = torch.int64) -> Array:
    return Array(Role.IDS, torch.tensor(values, dtype=dtype))


def narrow(*values: int) -> Array:
    return ids(*values, dtype=torch.int32)


def free(*values: int, dtype: torch.dtype = torch.int64) -> Array:
    return Array(Role.FREE, torch.tensor(values, dtype=dtype))


def loose(*values: int, dtype: torch.dtype = torch.int64) -> Array:
    return Array(Role.HINT, torch.tensor(values, dtype=dtype))


def sized(*shape: int, dtype: torch.dtype = torch.int64) -> Array:
    return Array(Role.SIZED, torch.zeros(shape, dtype=dtype))


def hint(count: int, dtype: torch.dtype) -> Array:
    return Array(Role.HINT, torch.zeros(count, dtype=dtype))


@dataclass(frozen=True)
class Call:
    """A call that works."""

    run: Callable[..., object]
    arguments: tuple[Any, ...]
    numbers: tuple[int, ...] = ()  # positions of numbers that must not be negative


def sampled(weighted: bool, ranged: bool) -> Callable[..., object]:
    def run(
        indptr: Tensor, indices: Tensor, nodes: Tensor, original: Tensor, trees: Tensor, *rest: Tensor
    ) -> object:
        fanout, ranges, sums, outline = rest
        draw = core.DrawRequest(
            edges=core.Edges(indptr, indices, 5),
            rows=core.Rows(nodes, original, trees),
            kernel="weighted" if weighted else "uniform",
            fanout=fanout,
            replacement=False,
            key=7,
            stream=1,
            ranges=ranges if ranged else None,
            sums=sums if weighted else None,
            outline=outline if weighted else None,
        )
        return core.sample_hop([draw], True, 1)

    return run


def smallest(order: object, *rest: Tensor) -> object:
    indptr, indices, nodes = rest
    draw = core.DrawRequest(
        edges=core.Edges(indptr, indices, 5),
        rows=core.Rows(nodes, None, None),
        kernel="smallest",
        fanout=2,
        replacement=False,
        key=7,
        stream=1,
        ranges=None,
        sums=None,
        outline=None,
        order=order,
    )
    return core.sample_hop([draw], True, 1)


def smallest_by_source(source_ids: Tensor | None, has_parallel: Tensor | None, *rest: Tensor) -> object:
    return smallest(core.order_by_source(9, 8, 2, 1, source_ids, has_parallel), *rest)


def smallest_by_edge(keys: Tensor, *rest: Tensor) -> object:
    return smallest(core.order_by_edge(keys), *rest)


def parallel_rows(indptr: Tensor, indices: Tensor, rows: Tensor) -> object:
    return core.find_parallel_rows(core.Edges(indptr, indices, 5), rows, 1)


def four_rows_inserted(width: int) -> object:
    """With a width of 2^62 the bytes of four rows are 0 in 64 bits."""
    rows = torch.zeros(32 if width == 8 else 0, dtype=torch.uint8)
    return core.insert_rows(rows[:0], width, torch.zeros(4, dtype=torch.int64), rows, rows.clone())


def looked_up(nodes: Tensor) -> object:
    return core.insert([(core.NodeIndex(5), nodes)])


def in_trees(trees: Tensor, at: Tensor, nodes: Tensor) -> object:
    index = core.TreeIndex(5)
    index.reset(3)
    return index.insert(nodes, at, trees), index.pairs(0), len(index)


def known(at: Tensor, nodes: Tensor, edges: Tensor) -> object:
    return core.known_edges(core.NodeIndex(5), at, nodes, edges)


def assigned(kind: type) -> Callable[..., object]:
    def run(indptr: Tensor, indices: Tensor, members: Tensor, parts: int, begin: int, end: int) -> object:
        made = kind([0, 2, 5], [(0, 2, indptr, indices)], members, [([1, 1], 1, True, 9)], parts, False, 2)
        made.cluster(begin, end, 1)
        blocks = made.num_cluster_blocks()
        made.place_clusters(0, blocks, 1)
        made.stream(begin, end, 1)
        made.refine(begin, end, 1)
        return made.parts(), made.loads(), made.block()

    return run


def gathered(table: Tensor, wanted: Tensor, out: Tensor, count: int) -> object:
    core.gather_columns([([table[:4], table[4:]], 8, None, count, out)], wanted, 1)
    return out


def read_rows(rows: Tensor, out: Tensor, first: int, row_bytes: int, window: int) -> object:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        return core.read_file_rows(descriptor, first, row_bytes, 8, rows, window, 1, out)
    finally:
        os.close(descriptor)


def unsigned(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.view(torch.uint32)


def text_table() -> object:
    table = core.TextTable(4)
    core.append_text(table, torch.tensor([0, 2, 5]), torch.zeros(5, dtype=torch.uint8))
    return table


def integer_table() -> object:
    table = core.IntegerTable(4)
    core.append_integers(table, torch.tensor([7, -3]))
    return table


EDGES = (offsets(0, 2, 2, 5), narrow(0, 4, 1, 2, 3))  # three rows, five sources
WIDE = (offsets(0, 2, 2, 5), ids(0, 4, 1, 2, 3))
X, OUT = Array(Role.HINT, torch.zeros(5, 4)), sized(3, 4, dtype=torch.float32)
SCORES = sized(5, 4, dtype=torch.float32)
TURNED = (offsets(0, 1, 2, 3, 4, 5), narrow(0, 2, 2, 2, 0))
SIZE = core.outline_size(5, 3)
FRONTIER = (ids(0, 2, 2), sized(3), sized(3))
ALL_ROWS = (ids(0, 1, 2), sized(3), sized(3))
LOOSE = (loose(0, 2, 2, 5), loose(0, 4, 1, 2, 3, dtype=torch.int32))
SUMS = (loose(1, 3, 2, 4, 9), Array(Role.SIZED, torch.zeros(SIZE, dtype=torch.int16)))
UNUSED = (hint(6, torch.int64), hint(5, torch.int64), hint(SIZE, torch.int16))
RANGES = Array(Role.SIZED, torch.tensor([0, 2, 2, 5, 3, 4]))
BYTES = Array(Role.HINT, torch.zeros(5 * 8, dtype=torch.uint8))
TEXT = (offsets(0, 2, 5), hint(5, torch.uint8))

CALLS: dict[str, list[Call]] = {
    "Edges": [
        Call(core.Edges, (hint(4, torch.int64), hint(5, torch.int32)))
    ],  # looked at where rows are drawn
    "Rows": [],  # checked with the draws that it is given to, under sample_hop
    "DrawRequest": [],  # made and drawn under sample_hop
    "DamagedArray": [],
    "NodeIndex": [
        Call(core.NodeIndex, (5, 1), (0,)),
        Call(lambda start: core.NodeIndex(5).nodes(start), (0,), (0,)),
    ],
    "TreeIndex": [
        Call(core.TreeIndex, (5,), (0,)),
        Call(in_trees, (ids(0, 2), offsets(0, 1, 3), ids(1, 4, 0))),
    ],
    "Assigner32": [
        Call(
            assigned(core.Assigner32),
            (*EDGES[:1], narrow(0, 4, 1, 2, 3), sized(5, dtype=torch.uint8), 2, 0, 5),
            (3, 4, 5),
        )
    ],
    "Assigner64": [
        Call(
            assigned(core.Assigner64),
            (*EDGES[:1], ids(0, 4, 1, 2, 3), sized(5, dtype=torch.uint8), 2, 0, 5),
            (3, 4, 5),
        )
    ],
    "sample_hop": [  # only what is drawn is looked at
        Call(
            sampled(False, False), (EDGES[0], free(0, 4, 1, 2, 3, dtype=torch.int32), *ALL_ROWS, -1, *UNUSED)
        ),
        Call(sampled(False, True), (*LOOSE, *FRONTIER, 2, RANGES, *UNUSED[1:])),
        Call(sampled(True, False), (EDGES[0], LOOSE[1], *FRONTIER, 2, UNUSED[0], *SUMS)),
        Call(sampled(True, True), (EDGES[0], LOOSE[1], *FRONTIER, 1, RANGES, *SUMS)),
    ],
    "Order": [],  # made by the next two, and looked at with the draws that it is given to
    "order_by_source": [
        Call(lambda *given: core.order_by_source(9, 8, given[0], 1, None, None), (2,), (0,)),
        Call(smallest_by_source, (sized(5), sized(3, dtype=torch.uint8), *LOOSE, free(0, 2, 2))),
        Call(smallest_by_source, (None, None, *LOOSE, free(0, 2, 2))),
    ],
    "order_by_edge": [Call(smallest_by_edge, (sized(5), *LOOSE, free(0, 2, 2)))],
    "find_parallel_rows": [
        Call(parallel_rows, (EDGES[0], LOOSE[1], sized(3, dtype=torch.uint8))),
        Call(parallel_rows, (EDGES[0], loose(0, 4, 1, 2, 3), sized(3, dtype=torch.uint8))),
    ],
    "time_ranges": [
        Call(
            lambda indptr, times, outline, own, sources, nodes, until: core.time_ranges(
                indptr,
                times,
                outline,
                (own, torch.zeros(5, dtype=torch.int32), sources),
                nodes,
                until,
                9,
                0,
                2,
                1,
            ),
            (
                EDGES[0],
                hint(5, torch.int64),
                hint(SIZE, torch.int16),
                hint(5, torch.int16),
                LOOSE[1],
                *FRONTIER[:2],
            ),
        )
    ],
    "first_unsorted": [
        Call(
            lambda indptr, own, sources: core.first_unsorted(
                indptr, (own, torch.zeros(5, dtype=torch.int64), sources), 1
            ),
            (EDGES[0], hint(5, torch.int32), EDGES[1]),
        )
    ],
    "sort_rows": [Call(core.sort_rows, (EDGES[0], hint(5, torch.int64), hint(5, torch.int64), 1))],
    "make_outline": [Call(core.make_outline, (EDGES[0], hint(5, torch.int64), hint(SIZE, torch.int16), 1))],
    "outline_size": [Call(core.outline_size, (5, 3), (0, 1))],
    "weight_sums": [Call(core.weight_sums, (EDGES[0], hint(5, torch.float32), hint(5, torch.int64), 1))],
    "insert": [Call(looked_up, (free(1, 4, 4),)), Call(lambda x: core.insert([(None, x)]), (free(1),))],
    "known_edges": [Call(known, (offsets(0, 1, 3), ids(1, 4, 0), sized(3)))],
    "philox": [Call(core.philox, (7, Array(Role.HINT, torch.zeros(2, 4, dtype=torch.int64))))],
    "permutation_slice": [Call(core.permutation_slice, (7, 10, 2, 5), (1, 2, 3))],
    "dispatch_levels": [Call(core.dispatch_levels, ())],
    "dispatch_level": [Call(core.dispatch_level, ())],
    "set_dispatch_level": [Call(lambda: core.set_dispatch_level(core.dispatch_level()), ())],
    "pooled_bytes": [Call(core.pooled_bytes, (10,), (0,))],
    "expect_random_access": [Call(core.expect_random_access, (hint(10, torch.uint8),))],
    "read_in_background": [Call(core.read_in_background, (hint(10, torch.uint8),))],
    "expect_sparse_reads": [Call(core.expect_sparse_reads, (hint(10, torch.uint8),))],
    "forget_sparse_reads": [Call(core.forget_sparse_reads, (4096,), (0,))],
    "digest": [Call(core.digest, (hint(10, torch.uint8), 1))],
    "buffer_pool_usage": [Call(core.buffer_pool_usage, ())],
    "use_pinned_pool": [Call(core.use_pinned_pool, (False,))],
    "pinned_pool_usage": [Call(core.pinned_pool_usage, ())],
    "pin_buffer_pool": [
        Call(core.pin_buffer_pool, (0, 0, 0, 0, 0))
    ],  # addresses of functions: none, so nothing is pinned
    "set_buffer_pool_limit": [Call(core.set_buffer_pool_limit, (1 << 20,), (0,))],
    "check_rows": [Call(core.check_rows, (offsets(0, 2, 5), 5), (1,))],
    "first_outside": [Call(core.first_outside, (hint(3, torch.int64), 5, 1))],
    "first_wrong_offset": [Call(core.first_wrong_offset, (hint(3, torch.int64), 5))],
    "gather_columns": [
        Call(
            gathered,
            (
                Array(Role.HINT, torch.zeros(5, 8, dtype=torch.uint8)),
                free(0, 4, 2),
                sized(24, dtype=torch.uint8),
                3,
            ),
            (3,),
        )
    ],
    "segment_sum": [Call(core.segment_sum, (X, *EDGES, OUT, 1))],
    "segment_mean": [Call(core.segment_mean, (X, *EDGES, OUT, 1))],
    "segment_mean_gradient": [Call(core.segment_mean_gradient, (OUT, EDGES[0], *TURNED, SCORES, 1))],
    "segment_max": [Call(core.segment_max, (X, *EDGES, OUT, sized(3, 4, dtype=torch.int32), 1))],
    "segment_max_gradient": [
        Call(core.segment_max_gradient, (OUT, *TURNED, sized(3, 4, dtype=torch.int32), SCORES, 1))
    ],
    "segment_weighted_sum": [
        Call(core.segment_weighted_sum, (X, sized(5, 2, dtype=torch.float32), 2, *EDGES, OUT, 1), (2,))
    ],
    "segment_weighted_sum_gradient": [
        Call(
            core.segment_weighted_sum_gradient,
            (X, OUT, 2, *EDGES, sized(5, 2, dtype=torch.float32), 1),
            (2,),
        )
    ],
    "segment_mixture": [
        Call(
            core.segment_mixture,
            (X, sized(5, 2, dtype=torch.float32), *EDGES, sized(3, 8, dtype=torch.float32), 1),
        )
    ],
    "segment_mixture_sources": [
        Call(
            core.segment_mixture_sources,
            (
                Array(Role.HINT, torch.zeros(3, 8)),
                Array(Role.HINT, torch.zeros(5, 2)),
                *TURNED,
                hint(5, torch.int32),
                SCORES,
                1,
            ),
        )
    ],
    "segment_mixture_weights": [
        Call(
            core.segment_mixture_weights,
            (X, sized(3, 8, dtype=torch.float32), *EDGES, sized(5, 2, dtype=torch.float32), 1),
        )
    ],
    "merge_edges": [
        Call(
            lambda *of: core.merge_edges([of[0], of[2]], [of[1], of[3]], [0, 1], 6, *of[4:], 1),
            (
                *EDGES,
                *EDGES,
                hint(4, torch.int64),
                sized(10, dtype=torch.int32),
                sized(10, dtype=torch.int32),
            ),
        )
    ],
    "segment_softmax": [Call(core.segment_softmax, (SCORES, 4, offsets(0, 2, 5), SCORES, 1), (1,))],
    "segment_softmax_gradient": [
        Call(core.segment_softmax_gradient, (SCORES, SCORES, 4, offsets(0, 2, 5), SCORES, 1), (1,))
    ],
    "transpose": [Call(core.transpose, (*EDGES, hint(6, torch.int64), sized(5, dtype=torch.int32)))],
    "build_csc": [
        Call(
            core.build_csc,
            (
                hint(5, torch.int64),
                hint(5, torch.int64),
                5,
                hint(4, torch.int64),
                sized(5, dtype=torch.int32),
                sized(5),
                1,
            ),
            (2,),
        )
    ],
    "cooccurrences": [
        Call(
            core.cooccurrences,
            (offsets(0, 2, 5), ids(0, 1, 2, 2, 0), offsets(0, 1, 2, 5), ids(0, 1, 1, 0, 1), 1, 1),
            (4,),
        )
    ],
    "exclude_edges": [
        Call(
            core.exclude_edges,
            (
                offsets(0, 2, 5),
                hint(5, torch.int64),
                sized(5),
                sized(2),
                hint(3, torch.int64),
                hint(3, torch.int64),
            ),
        )
    ],
    "draw_negatives": [
        Call(
            core.draw_negatives,
            (9, None, WIDE[0], hint(5, torch.int64), None, ids(0, 2), sized(2), ids(9, 5), 3, 7, 1),
            (0, 8),
        ),
        Call(
            core.draw_negatives,
            (
                9,
                Array(Role.SIZED, torch.arange(10)),
                WIDE[0],
                hint(5, torch.int64),
                hint(5, torch.int64),
                ids(0, 2),
                sized(2),
                None,
                3,
                7,
                1,
            ),
            (0, 8),
        ),
    ],
    "read_file_rows": [
        Call(
            read_rows,
            (ids(0, 3, 7), Array(Role.SIZED, torch.zeros(24, dtype=torch.uint8)), 5, 8, 2),
            (2, 3, 4),
        )
    ],
    "expect_scattered_reads": [Call(core.expect_scattered_reads, (0,))],
    "file_system_type": [Call(core.file_system_type, (0,))],
    "remote_rows": [
        Call(
            core.remote_rows,
            (
                Array(Role.HINT, torch.tensor([1, 9, 4])),
                3,
                6,
                Array(Role.SIZED, torch.tensor([-1, 1, -1])),
                2,
            ),
            (1, 2, 4),
        )
    ],
    "owner_order": [
        Call(lambda wanted: core.owner_order(wanted, torch.tensor([0, 3, 10])), (free(1, 9, 4),)),
        Call(
            lambda bounds: core.owner_order(torch.tensor([1, 2]), bounds),
            (Array(Role.HINT, torch.tensor([0, 3, 10])),),
        ),
    ],
    "join_drawn": [
        Call(
            lambda at, nodes, edges, order, out: core.join_drawn([(at, nodes, edges)], order, out),
            (offsets(0, 1, 3), sized(3), sized(3), ids(1, 0), sized(3)),
        )
    ],
    "TextTable": [Call(core.TextTable, (4,), (0,))],
    "IntegerTable": [Call(core.IntegerTable, (4,), (0,))],
    "append_text": [Call(lambda *text: core.append_text(core.TextTable(4), *text), (free(0, 2, 5), TEXT[1]))],
    "append_integers": [
        Call(lambda keys: core.append_integers(core.IntegerTable(4), keys), (loose(7, -3, 5),))
    ],
    "add_text": [Call(lambda *given: core.add_text(core.TextTable(4), *given), (*TEXT, sized(2)))],
    "add_integers": [
        Call(lambda *given: core.add_integers(core.IntegerTable(4), *given), (loose(7, -3, 7), sized(3)))
    ],
    "find_text": [Call(lambda *given: core.find_text(text_table(), *given), (*TEXT, sized(2)))],
    "find_integers": [
        Call(lambda *given: core.find_integers(integer_table(), *given), (loose(7, 9), sized(2)))
    ],
    "text_of": [Call(lambda wanted: core.text_of(text_table(), wanted), (free(1, 0, 1),))],
    "integers_of": [Call(lambda wanted: core.integers_of(integer_table(), wanted), (free(1, 0, 1),))],
    "text_parts": [Call(core.text_parts, (*TEXT, 0, 4, sized(2, dtype=torch.uint8)), (2, 3))],
    "integer_parts": [Call(core.integer_parts, (loose(7, -3, 5), 0, 4, sized(3, dtype=torch.uint8)), (1, 2))],
    "text_buckets": [Call(core.text_buckets, (*TEXT, 3, sized(2), sized(2, dtype=torch.int16)), (2,))],
    "integer_buckets": [
        Call(core.integer_buckets, (loose(7, -3), 3, sized(2), sized(2, dtype=torch.int16)), (1,))
    ],
    "find_text_keys": [  # files that no index has are damaged: nothing is read outside of them
        Call(
            core.find_text_keys,
            (
                loose(0, 2),
                loose(1, 0),
                sized(2, dtype=torch.int16),
                loose(0, 2, 5),
                TEXT[1],
                *TEXT,
                sized(2),
            ),
        )
    ],
    "find_integer_keys": [
        Call(
            core.find_integer_keys,
            (loose(0, 2), loose(1, 0), sized(2, dtype=torch.int16), loose(7, 8), loose(7, 9), sized(2)),
        )
    ],
    "ExactSums": [Call(core.ExactSums, ())],
    "add_exactly": [
        Call(lambda numbers: core.add_exactly(core.ExactSums(), numbers), (hint(3, torch.float32),))
    ],
    "deal_edges": [
        Call(
            lambda to, first, shift, begin, order: core.deal_edges(to, first, shift, begin, unsigned(order)),
            (loose(4, 6, 5), 4, 1, hint(3, torch.int64), sized(3, dtype=torch.int32)),
            (2,),
        )
    ],
    "take_rows": [
        Call(
            lambda table, width, order, out: core.take_rows(table, width, unsigned(order), out),
            (BYTES, 8, narrow(0, 4, 2), sized(24, dtype=torch.uint8)),
            (1,),
        )
    ],
    "insert_rows": [
        Call(
            core.insert_rows,
            (BYTES, 8, offsets(0, 2, 5), sized(24, dtype=torch.uint8), sized(64, dtype=torch.uint8)),
            (1,),
        ),
        Call(  # no added row: the size of out alone tells the rows of the table
            lambda table, width, out: core.insert_rows(
                table, width, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.uint8), out
            ),
            (BYTES, 8, sized(40, dtype=torch.uint8)),
            (1,),
        ),
        Call(four_rows_inserted, (8,), (0,)),
    ],
}


def changed(array: Array) -> Iterator[tuple[str, Tensor, bool]]:
    """What becomes of an array, and whether it has to be refused."""
    values, role = array.values, array.role
    sized_ = role is not Role.FREE
    yield "empty", values[:0], role in (Role.OFFSETS, Role.SIZED, Role.IDS)
    yield "shorter", values[:-1].clone(), sized_ and role is not Role.HINT
    yield "longer", torch.cat([values, values[-1:]]), role in (Role.SIZED, Role.IDS)
    yield "dtype", values.to(torch.complex64), role is not Role.HINT
    if values.dtype.is_floating_point or values.dtype in (torch.uint8, torch.int8):
        return
    top = torch.iinfo(values.dtype).max
    bad = role in (Role.OFFSETS, Role.IDS, Role.FREE)
    for at in range(values.numel()):
        for what, number in (
            ("negative", -1),
            ("lowest", -top - 1),
            ("top", top),
            ("far", top // 2),
            ("more", 10**4),
        ):
            other = values.clone().flatten()
            other[at] = number
            yield f"{what} at {at}", other.view(values.shape), bad
    if role is Role.OFFSETS:
        yield "falling", values.flip(0), True


def variants(call: Call) -> Iterator[tuple[str, tuple[Any, ...], bool]]:
    plain = tuple(a.values.clone() if isinstance(a, Array) else a for a in call.arguments)
    yield "as it is", plain, False
    for place, argument in enumerate(call.arguments):
        if isinstance(argument, Array):
            for what, values, bad in changed(argument):
                yield f"argument {place} {what}", (*plain[:place], values, *plain[place + 1 :]), bad
        elif isinstance(argument, int) and not isinstance(argument, bool):
            for number in (-1, -HUGE, HUGE) if place in call.numbers else ():
                bad = number < 0
                yield f"argument {place} {number}", (*plain[:place], number, *plain[place + 1 :]), bad
        if not isinstance(argument, bool):
            yield f"argument {place} None", (*plain[:place], None, *plain[place + 1 :]), False


def main() -> None:
    """Try everything."""
    names = {name for name in dir(core) if not name.startswith("__") and callable(getattr(core, name))}
    wrong: list[str] = []
    for name, calls in sorted(CALLS.items()):
        for number, call in enumerate(calls):
            for what, arguments, bad in variants(call):
                case = f"{name} {number}: {what}"
                print(case, file=sys.stderr, flush=True)
                try:
                    call.run(*arguments)
                except REFUSALS as error:
                    if what == "as it is" and name != "insert":
                        wrong.append(f"{case}: {error}")
                    continue
                except IndexError as error:
                    wrong.append(f"{case}: IndexError {error}")
                    continue
                if bad:
                    wrong.append(f"{case}: was taken")
    print(
        json.dumps(
            {"wrong": wrong, "unknown": sorted(names - CALLS.keys()), "gone": sorted(CALLS.keys() - names)}
        )
    )


if __name__ == "__main__":
    main()
