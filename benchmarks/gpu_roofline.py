"""Bytes that the kernels of a batch move, for the note of each in gpu.py."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_bench import FANOUTS

from khop.batch import Block

SECTOR = 32  # bytes that a GPU reads for one number at a random address
ID, COUNT, LOCAL = 8, 4, 4  # bytes of a node's id, a count, and a local id or a neighbor in a slot


def bytes_by_kernel(blocks: Sequence[Block]) -> dict[str, int]:
    """Return the bytes of each kernel that samples and numbers, by name, for uniform draws of `FANOUTS`.

    They are those of the rows, edges and nodes of the batch, in sectors at random addresses; a table entry
    that is raised counts as read and written. The capacity behind the last row is left out.
    """
    rows = [block.num_dst for block in reversed(blocks)]  # by hop
    edges = [block.adjacency.indices.numel() for block in reversed(blocks)]
    fresh = sum(block.num_src - block.num_dst for block in blocks)
    seeds = rows[0]
    slots = sum(count * fanout for count, fanout in zip(rows, FANOUTS, strict=True)) * LOCAL
    found = (sum(edges) + seeds) * SECTOR  # entries of the table, at random addresses
    return {
        "distinct_in_registers": sum(rows) * (ID + SECTOR + COUNT) + sum(edges) * 3 * SECTOR + slots,
        "_mark": seeds * (ID + 2 * SECTOR),
        "_count_firsts": slots + seeds * ID + found,
        "_assign": slots + seeds * ID + found + (fresh + seeds) * (ID + SECTOR),
        "_row_sums": sum(rows) * COUNT,
        "_to_csr": slots + sum(edges) * (SECTOR + LOCAL) + sum(rows) * (COUNT + ID),
        "_look_up": seeds * (2 * ID + SECTOR),
    }
