"""Links of a small shop: batches of them, and a model that scores them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.batch import Batch
from khop.draw import GivenNegatives, NegativeMode
from khop.models.decoders import DecoderKind
from khop.models.link_predictor import LinkPredictor
from khop.models.sage import SAGE
from khop.sampling.links.link_seeds import Links
from khop.sampling.links.links import LinkSampler
from support.small_graphs import shop

BUYS = ("user", "buys", "item")
ON = ("tag", "on", "item")
WIDTH = 5


def graph() -> Graph:
    """Users and items with columns, tags without."""
    made = shop(torch.float64)
    return Graph(made.store, made.features)


def links(num_negatives: int = 0) -> Links:
    """23 links of two types, with or without negatives."""
    random = torch.Generator().manual_seed(5)

    def drawn(shape: tuple[int, ...], count: int) -> Tensor:
        return torch.randint(count, shape, generator=random)

    edges = {
        BUYS: torch.stack([drawn((16,), 30), drawn((16,), 40)]),
        ON: torch.stack([drawn((7,), 5), drawn((7,), 40)]),
    }
    if not num_negatives:
        return Links(edges)
    negatives = {t: drawn((ends.shape[1], num_negatives), 40) for t, ends in edges.items()}
    return Links(edges, negatives=negatives)


@dataclass(frozen=True)
class LinkBatches:
    """What a loader of links gives in one step of all of them, over all neighbors."""

    mode: NegativeMode | None
    num_negatives: int = 3

    def batch(self) -> Batch:
        given = None if self.mode is None else GivenNegatives(self.mode)
        count = 0 if self.mode is None else self.num_negatives
        sampler = LinkSampler(graph(), [-1, -1], negatives=given)
        loader = Loader(sampler, links(count), 23, shuffle=True, columns=["x"], threads=1)
        return loader.batch(0, 0)


def predictor(decoder: DecoderKind = "mlp") -> LinkPredictor:
    """An encoder of all three types and a decoder per edge type, from the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        encoder = SAGE.for_graph(
            graph(), hidden=8, layers=2, target=["user", "item", "tag"], outputs=WIDTH, embedding=4
        )
        return LinkPredictor.of(encoder, [BUYS, ON], decoder, WIDTH).double()
