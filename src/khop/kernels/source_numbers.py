"""Random numbers of source nodes, which all rows of a batch share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from khop.draw import DrawKey, mix64
from khop.kernels.philox import WORD, mix64_reference, reduce_words, signed


@dataclass(frozen=True)
class SourceNumbers:
    """Random numbers of source nodes as sort keys of their edges, specified in docs/randomness.md.

    With a period above 1, a node keeps its number for `period` steps: it has that of its generation, and
    some nodes are in the next generation already.
    """

    base: int  # of the generation of most nodes
    later_base: int  # of the next generation
    period: int
    later_from: int  # offset within the period from which nodes are in the next generation

    @classmethod
    def of(cls, key: DrawKey, stream: int, period: int = 1) -> SourceNumbers:
        """Return the numbers of a stream in the step of a key."""
        generation = key.step // period
        base, later = (mix64(key.at_step(at).value ^ mix64(stream)) for at in (generation, generation + 1))
        return cls(base, later, period, period - key.step % period)

    def keys(self, ids: Tensor) -> Tensor:
        """Return the 64-bit numbers of nodes, as int64 patterns, for int64 original ids."""
        base = torch.full_like(ids, signed(self.base))
        if self.period > 1:
            offsets = reduce_words(mix64_reference(ids) >> 32 & WORD, torch.full_like(ids, self.period))
            base = torch.where(offsets >= self.later_from, signed(self.later_base), base)
        return mix64_reference(base ^ ids)
