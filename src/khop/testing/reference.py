"""Reference implementation of the draws of docs/randomness.md in plain Python integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import floor

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1


def philox(key: int, counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return the four words of Philox4x32-10."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & MASK32, key >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK32, (a >> 32) ^ c3 ^ k1, a & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def mix64(value: int) -> int:
    """Apply SplitMix64's output function."""
    value = (value + 0x9E3779B97F4A7C15) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


def draw_key(run_seed: int, purpose: int, epoch: int, step: int) -> int:
    """Return the key of a purpose in one step of one epoch."""
    value = 0
    for word in (run_seed, purpose, epoch, step):
        value = mix64(value ^ (word & MASK64))
    return value


def stream(hop: int, edge_type: tuple[str, str, str]) -> int:
    """Return the counter word of a hop and an edge type."""
    digest = 0xCBF29CE484222325
    for byte in "\x1f".join(edge_type).encode("utf-8"):
        digest = ((digest ^ byte) * 0x100000001B3) & MASK64
    return mix64(digest ^ hop) >> 32


def tree_key(key: int, tree: int) -> int:
    """Return the key of the disjoint tree of a seed."""
    return mix64(key ^ mix64(tree))


@dataclass(frozen=True)
class Row:
    """Inputs of the draws of one frontier row."""

    key: int
    node: int  # original id
    stream: int
    degree: int

    def word(self, j: int) -> int:
        """Return the j-th word of the row."""
        return philox(self.key, (self.node & MASK32, self.node >> 32, self.stream, j // 4))[j % 4]

    def draw(self, j: int, bound: int) -> int:
        """Return draw j below a bound."""
        if self.degree < 1 << 20:
            return (self.word(j) * bound) >> 32
        return ((self.word(2 * j) | self.word(2 * j + 1) << 32) * bound) >> 64

    def wide_draw(self, number: int, bound: int) -> int:
        """Return a 64-bit draw, which weighted picks use for any degree."""
        return ((self.word(2 * number) | self.word(2 * number + 1) << 32) * bound) >> 64

    def weighted_picks(self, fanout: int, replacement: bool, weights: Sequence[int]) -> list[int]:
        """Return positions within the row by integer weights, in draw order."""
        if fanout == -1 or (not replacement and self.degree <= fanout):
            return [at for at, weight in enumerate(weights) if weight > 0]
        if sum(weights) == 0:
            return []
        if replacement:
            return [covering(weights, self.wide_draw(j, sum(weights))) for j in range(fanout)]
        picked: list[int] = []
        number = repeats = 0
        while len(picked) < fanout and repeats < 64:
            pick = covering(weights, self.wide_draw(number, sum(weights)))
            number += 1
            repeats += pick in picked
            picked += [] if pick in picked else [pick]
        while len(picked) < fanout:
            left = [0 if at in picked else weight for at, weight in enumerate(weights)]
            if sum(left) == 0:
                break
            picked.append(covering(left, self.wide_draw(number, sum(left))))
            number += 1
        return picked

    def picks(self, fanout: int, replacement: bool) -> list[int]:
        """Return positions within the row, in draw order."""
        if fanout == -1 or self.degree == 0:
            return list(range(self.degree))
        if replacement:
            return [self.draw(j, self.degree) for j in range(fanout)]
        if self.degree <= fanout:
            return list(range(self.degree))
        picked: list[int] = []
        for j in range(fanout):
            last = self.degree - fanout + j
            drawn = self.draw(j, last + 1)
            picked.append(last if drawn in picked else drawn)
        return picked


def labor_keys(
    key: int, stream: int, ids: Sequence[int], period: int = 1, later_key: int = 0, later_from: int = 1
) -> list[int]:
    """Return the keys of a row's entries by the original ids of their sources, in row order."""
    seen: dict[int, int] = {}
    keys = []
    for source in ids:
        is_later = period > 1 and ((mix64(source) >> 32) * period) >> 32 >= later_from
        of_source = mix64(mix64((later_key if is_later else key) ^ mix64(stream)) ^ source)
        number = seen[source] = seen.get(source, -1) + 1
        keys.append(mix64(of_source ^ number) if number else of_source)
    return keys


def smallest_picks(keys: Sequence[int], ids: Sequence[int], fanout: int) -> list[int]:
    """Return positions of the smallest keys within a row, in row order; ties by id and position."""
    if fanout == -1 or len(keys) <= fanout:
        return list(range(len(keys)))
    return sorted(sorted(range(len(keys)), key=lambda at: (keys[at], ids[at], at))[:fanout])


def sample_hop(
    indptr: Sequence[int],
    nodes: Sequence[int],
    fanout: int,
    replacement: bool,
    key: int,
    stream: int,
    original_ids: Sequence[int] | None = None,
    trees: Sequence[int] | None = None,
) -> list[list[int]]:
    """Return for each frontier row the positions of its picked edges in CSC order."""
    rows = []
    for i, node in enumerate(nodes):
        begin, end = indptr[node], indptr[node + 1]
        row_key = key if trees is None else tree_key(key, trees[i])
        original = node if original_ids is None else original_ids[node]
        row = Row(row_key, original, stream, end - begin)
        rows.append([begin + pick for pick in row.picks(fanout, replacement)])
    return rows


def covering(weights: Sequence[int], height: int) -> int:
    """Return the first position at which the prefix sum of weights exceeds `height`."""
    return next(at for at, total in enumerate(accumulate(weights)) if total > height)


def whole_weights(weights: Sequence[float]) -> list[int]:
    """Return a row's weights as integers, by exact fractions."""
    exact = [Fraction(weight) for weight in weights]
    scale = Fraction(1)
    if (largest := max(exact, default=Fraction(0))) > 0:
        while largest * scale < 1 << 31:
            scale *= 2
        while largest * scale >= 1 << 32:
            scale /= 2
    return [max(1, floor(weight * scale)) if weight > 0 else 0 for weight in exact]


def allowed_range(times: Sequence[int], until: int, window: tuple[int | None, int] | None) -> tuple[int, int]:
    """Return begin and end of the entries of a sorted row that a time limit allows."""
    earliest, latest = -(1 << 63), until
    if window is not None:
        before, after = window
        earliest = earliest if before is None else max(until - before, earliest)
        latest = max(until + after, -(1 << 63))
    allowed = [at for at, time in enumerate(times) if earliest <= time <= latest]
    return (allowed[0], allowed[-1] + 1) if allowed else (0, 0)


def permutation(key: int, count: int, index: int) -> int:
    """Return the place of `index` in a keyed permutation of [0, count)."""
    bits = max(8, (count - 1).bit_length())
    right_bits = bits - bits // 2
    left_mask, right_mask = (1 << bits // 2) - 1, (1 << right_bits) - 1
    while True:
        left, right = index >> right_bits, index & right_mask
        for turn in range(8):
            if turn % 2 == 0:
                left ^= philox(key, (right, turn, 0x5048, 0))[0] & left_mask
            else:
                right ^= philox(key, (left, turn, 0x5048, 0))[0] & right_mask
        index = left << right_bits | right
        if index < count:
            return index


def negatives(key: int, position: int, stream: int, left: Sequence[int] | int, count: int) -> list[int]:
    """Return the ranks drawn for the link at a position of the global order; none if no weight is left.

    `left` has the weight of each candidate, 0 if it is excluded; a number n means n weights of one.
    """
    total = left if isinstance(left, int) else sum(left)
    if total == 0:
        return []
    row = Row(key, position, stream, total)
    points = [row.draw(j, total) for j in range(count)]
    return points if isinstance(left, int) else [_rank_at(left, point) for point in points]


def _rank_at(weights: Sequence[int], point: int) -> int:
    for rank, weight in enumerate(weights):
        if point < weight:
            return rank
        point -= weight
    raise AssertionError("the point lies behind the last weight")
