"""The native core (csrc/bindings). Arguments are checked by khop.kernels; ids and row pointers also here."""

from torch import Tensor

def philox(key: int, counters: Tensor) -> Tensor: ...
def permutation_slice(key: int, count: int, start: int, stop: int) -> Tensor: ...
def sample_uniform(
    indptr: Tensor,
    indices: Tensor,
    nodes: Tensor,
    fanout: int,
    replacement: bool,
    key: int,
    stream: int,
    original_ids: Tensor | None,
    trees: Tensor | None,
    ranges: Tensor | None,
    edge_ids: bool,
    threads: int,
) -> tuple[Tensor, Tensor, Tensor | None]: ...
def sample_weighted(
    indptr: Tensor,
    indices: Tensor,
    sums: Tensor,
    nodes: Tensor,
    fanout: int,
    replacement: bool,
    key: int,
    stream: int,
    original_ids: Tensor | None,
    trees: Tensor | None,
    ranges: Tensor | None,
    edge_ids: bool,
    threads: int,
) -> tuple[Tensor, Tensor, Tensor | None]: ...
def weight_sums(indptr: Tensor, weights: Tensor, sums: Tensor, threads: int) -> int: ...
def time_ranges(
    indptr: Tensor,
    times: Tensor,
    nodes: Tensor,
    until: Tensor,
    before: int,
    after: int,
    most: int,
    threads: int,
) -> Tensor: ...
def first_unsorted(indptr: Tensor, times: Tensor, threads: int) -> int: ...
def sort_rows(indptr: Tensor, times: Tensor, order: Tensor, threads: int) -> None: ...

class NodeIndex:
    def __init__(self, num_nodes: int, base: int = 1) -> None: ...
    def insert(self, ids: Tensor) -> Tensor: ...
    def nodes(self, start: int) -> Tensor: ...
    def clear(self) -> None: ...
    def __len__(self) -> int: ...

def known_edges(
    index: NodeIndex, offsets: Tensor, nodes: Tensor, edges: Tensor
) -> tuple[Tensor, Tensor, Tensor]: ...

class TreeIndex:
    def __init__(self, num_nodes: int) -> None: ...
    def reset(self, num_trees: int) -> None: ...
    def insert(self, ids: Tensor, offsets: Tensor, trees: Tensor) -> Tensor: ...
    def pairs(self, start: int) -> tuple[Tensor, Tensor]: ...
    def __len__(self) -> int: ...

def dispatch_levels() -> list[str]: ...
def dispatch_level() -> str: ...
def set_dispatch_level(name: str) -> None: ...
def pooled_bytes(count: int) -> Tensor: ...
def expect_random_access(bytes: Tensor) -> None: ...
def buffer_pool_usage() -> tuple[int, int, int, int]:
    """Free bytes, lent bytes, blocks reused, blocks fresh."""

def set_buffer_pool_limit(limit_bytes: int) -> None: ...
def first_outside(ids: Tensor, limit: int, threads: int) -> int: ...
def first_wrong_offset(indptr: Tensor, edges: int) -> int: ...
def gather(table: Tensor, row_bytes: int, ids: Tensor, out: Tensor, threads: int) -> None: ...
def gather_float32(
    table: Tensor, width: int, ids: Tensor, scales: Tensor | None, out: Tensor, threads: int
) -> None: ...
def gather_columns(
    columns: list[tuple[Tensor, int, Tensor | None, int, Tensor]], ids: Tensor, threads: int
) -> None: ...
def segment_sum(x: Tensor, indptr: Tensor, indices: Tensor, out: Tensor, threads: int) -> None: ...
def segment_mean(x: Tensor, indptr: Tensor, indices: Tensor, out: Tensor, threads: int) -> None: ...
def segment_mean_gradient(
    gradient: Tensor,
    indptr: Tensor,
    transposed_indptr: Tensor,
    transposed_indices: Tensor,
    out: Tensor,
    threads: int,
) -> None: ...
def segment_max(
    x: Tensor, indptr: Tensor, indices: Tensor, out: Tensor, winners: Tensor | None, threads: int
) -> None: ...
def segment_max_gradient(
    gradient: Tensor,
    transposed_indptr: Tensor,
    transposed_indices: Tensor,
    winners: Tensor,
    out: Tensor,
    threads: int,
) -> None: ...
def segment_softmax(scores: Tensor, heads: int, indptr: Tensor, out: Tensor, threads: int) -> None: ...
def segment_softmax_gradient(
    result: Tensor, gradient: Tensor, heads: int, indptr: Tensor, out: Tensor, threads: int
) -> None: ...
def transpose(indptr: Tensor, indices: Tensor, transposed_indptr: Tensor, rows: Tensor) -> None: ...
def build_csc(
    sources: Tensor,
    destinations: Tensor,
    num_sources: int,
    indptr: Tensor,
    indices: Tensor,
    order: Tensor,
    threads: int,
) -> tuple[int, int]: ...
def cooccurrences(
    there_indptr: Tensor,
    there_indices: Tensor,
    back_indptr: Tensor,
    back_indices: Tensor,
    min_count: int,
    threads: int,
) -> tuple[Tensor, Tensor, Tensor]: ...
def exclude_edges(
    offsets: Tensor,
    sources: Tensor,
    ids: Tensor | None,
    rows: Tensor,
    excluded_sources: Tensor,
    excluded_destinations: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]: ...
def draw_negatives(
    count: int,
    weights_before: Tensor | None,
    partner_indptr: Tensor | None,
    partner_ranks: Tensor,
    partner_weights_before: Tensor | None,
    sources: Tensor,
    positions: Tensor,
    limits: Tensor | None,
    per_link: int,
    key: int,
    stream: int,
) -> tuple[Tensor, int]: ...
