"""Decoders: scores of links from the rows of source and destination, also by relation."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from khop.arguments import LARGEST_WIDTH, check_word, real_number, whole_number
from khop.draw import CandidateScore
from khop.kernels.segment import accumulator


@dataclass(frozen=True, eq=False)
class CandidateSearch:
    """A query per source and a row per destination; their `score` ranks destinations as the decoder does."""

    queries: Tensor  # (sources, width)
    candidates: Tensor  # (destinations, width)
    score: CandidateScore = "dot"
    grid: int = 64  # values may be rounded to multiples of 1 / grid


class RelationDecoder(nn.Module):
    """Scores pairs of rows by relation; `relation` is the table, (relations, values per relation).

    A subclass turns a source's row into a query for destinations, and a destination's row into one for
    sources, and compares queries with rows.
    """

    score: CandidateScore = "dot"  # ranks destinations as `compared` does
    search_grid: int = 64  # a search rounds rows to multiples of 1 / search_grid

    def __init__(self, width: int, relations: int = 1, numbers: int | None = None) -> None:
        super().__init__()
        name = type(self).__name__
        self.width = whole_number(f"decoder {name}: width", width, 1, LARGEST_WIDTH)
        relations = whole_number(f"decoder {name}: relations", relations, 1)
        self.relation = nn.Parameter(torch.empty(relations, width if numbers is None else numbers))
        self.relations = relations
        self.reset()

    def reset(self) -> None:
        """Initialize the table at random, from torch's generator."""
        nn.init.xavier_uniform_(self.relation)

    def forward(self, source: Tensor, destination: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return (...): a score per pair; leading dimensions are broadcast.

        `relation` is int64 (...), below `relations`; it may be left out if there is only one.
        """
        query = self.query(self.prepared(source), _of(self, relation))
        return self.compared(query, self.prepared(destination))

    def grid(self, sources: Tensor, destinations: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return (sources, destinations): the score of each source with each destination.

        `relation` is int64 (sources).
        """
        query = self.query(self.prepared(sources), _of(self, relation))
        return self.all_compared(query, self.prepared(destinations))

    def source_grid(self, sources: Tensor, destinations: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return (destinations, sources): the score of each destination with each source.

        `relation` is int64 (destinations).
        """
        query = self.source_query(self.prepared(destinations), _of(self, relation))
        return self.all_compared(query, self.prepared(sources))

    def search(
        self, sources: Tensor, destinations: Tensor, relation: Tensor | None = None
    ) -> CandidateSearch:
        """Return the queries of the sources and the prepared rows of the destinations.

        `relation` is int64 (sources).
        """
        queries = self.query(self.prepared(sources), _of(self, relation))
        return CandidateSearch(queries, self.prepared(destinations), self.score, self.search_grid)

    def prepared(self, rows: Tensor) -> Tensor:
        """Prepare the rows of nodes for comparison; by default unchanged."""
        return rows

    @abstractmethod
    def query(self, source: Tensor, relation: Tensor) -> Tensor:
        """Return (..., width): the query for destinations, from rows of sources and of the table."""

    @abstractmethod
    def source_query(self, destination: Tensor, relation: Tensor) -> Tensor:
        """Return (..., width): the query for sources, from rows of destinations and of the table."""

    def compared(self, query: Tensor, rows: Tensor) -> Tensor:
        """Return (...): the score of each query with its row, by default the inner product."""
        return (query * rows).sum(-1)

    def all_compared(self, queries: Tensor, rows: Tensor) -> Tensor:
        """Return (queries, rows): the score of each query with each row."""
        return queries @ rows.T


class DistMult(RelationDecoder):
    """DistMult, from "Embedding Entities and Relations for Learning and Inference in Knowledge Bases" (2015).

    The score is `sum(source * relation * destination)`. It is symmetric: a link and its reverse have the same
    score.

    Args:
        width: Width of the rows of nodes.
        relations: Number of relations, each with a row in the table (default 1).
        numbers: Width of a row of the table; default: `width`.
    Raises:
        ValueError: A number is below 1.
    Example:
        >>> decoder = khop.models.DistMult(width=8, relations=3)
        >>> sources, destinations = torch.randn(4, 8), torch.randn(4, 8)
        >>> decoder(sources, destinations, relation=torch.tensor([0, 0, 1, 2])).shape
        torch.Size([4])
    """

    def query(self, source: Tensor, relation: Tensor) -> Tensor:
        """Return the product of the source's and the relation's row."""
        return source * relation

    def source_query(self, destination: Tensor, relation: Tensor) -> Tensor:
        """Return the product of the destination's and the relation's row."""
        return destination * relation


class ComplEx(RelationDecoder):
    """ComplEx, from "Complex Embeddings for Simple Link Prediction" (2016).

    The score is the real part of `sum(source * relation * conjugate(destination))`. A row has the real parts
    first, then the imaginary parts.

    Args:
        width: Width of the rows of nodes, an even number: `width` / 2 complex numbers.
        relations: Number of relations, each with a row in the table (default 1).
    Raises:
        ValueError: `width` is odd, or a number is below 1.
    Example:
        >>> decoder = khop.models.ComplEx(width=8, relations=3)
        >>> sources, destinations = torch.randn(4, 8), torch.randn(4, 8)
        >>> decoder(sources, destinations, relation=torch.tensor([0, 0, 1, 2])).shape
        torch.Size([4])
    """

    def __init__(self, width: int, relations: int = 1) -> None:
        super().__init__(_even("ComplEx", width), relations)

    def query(self, source: Tensor, relation: Tensor) -> Tensor:
        """Return the complex product of source and relation."""
        return _product(source, relation)

    def source_query(self, destination: Tensor, relation: Tensor) -> Tensor:
        """Return the complex product of the destination and the conjugate relation."""
        return _product(destination, _conjugate(relation))


class TransE(RelationDecoder):
    """TransE, from "Translating Embeddings for Modeling Multi-relational Data" (2013).

    The score is the negative distance between `source + relation` and `destination`. Rows of nodes are first
    normalized, as in the paper.

    Args:
        width: Width of the rows of nodes.
        relations: Number of relations, each with a row in the table (default 1).
        norm: Norm of the distance: 1 (default) or 2.
    Raises:
        ValueError: `norm` is neither 1 nor 2, or a number is below 1.
    Example:
        >>> decoder = khop.models.TransE(width=8, relations=3)
        >>> sources, destinations = torch.randn(4, 8), torch.randn(4, 8)
        >>> decoder(sources, destinations, relation=torch.tensor([0, 0, 1, 2])).shape
        torch.Size([4])
    """

    search_grid = 1 << 14  # the values of rows of norm 1 are small

    def __init__(self, width: int, relations: int = 1, norm: int = 1) -> None:
        if norm not in (1, 2):
            raise ValueError(f"decoder TransE: norm {norm!r} must be 1 or 2")
        self.norm = norm
        self.score = "l1" if norm == 1 else "l2"
        super().__init__(width, relations)

    def reset(self) -> None:
        """Initialize the table with random rows of norm 1."""
        bound = 6 / math.sqrt(self.width)
        nn.init.uniform_(self.relation, -bound, bound)
        with torch.no_grad():
            self.relation.copy_(F.normalize(self.relation, p=self.norm, dim=1))

    def prepared(self, rows: Tensor) -> Tensor:
        """Normalize rows to norm 1."""
        return F.normalize(rows, p=self.norm, dim=-1)

    def query(self, source: Tensor, relation: Tensor) -> Tensor:
        """Return the source's row plus the relation's."""
        return source + relation

    def source_query(self, destination: Tensor, relation: Tensor) -> Tensor:
        """Return the destination's row minus the relation's."""
        return destination - relation

    def compared(self, query: Tensor, rows: Tensor) -> Tensor:
        """Return (...): the negative distances."""
        distances: Tensor = torch.linalg.vector_norm(query - rows, self.norm, dim=-1)
        return -distances

    def all_compared(self, queries: Tensor, rows: Tensor) -> Tensor:
        """Return (queries, rows): the negative distances."""
        return -_distances(queries, rows, self.norm)


class RotatE(RelationDecoder):
    """RotatE, from "RotatE: Knowledge Graph Embedding by Relational Rotation in Complex Space" (2019).

    The score is `margin` minus the distance between the source, rotated by the relation, and the destination.
    A row has the real parts first, then the imaginary parts; a relation has an angle per complex number.

    Args:
        width: Width of the rows of nodes, an even number: `width` / 2 complex numbers.
        relations: Number of relations, each with a row in the table (default 1).
        margin: Score of a link at distance 0 (default 6).
    Raises:
        ValueError: `width` is odd, a number is below 1, or `margin` is not finite.
    Example:
        >>> decoder = khop.models.RotatE(width=8, relations=3)
        >>> sources, destinations = torch.randn(4, 8), torch.randn(4, 8)
        >>> decoder(sources, destinations, relation=torch.tensor([0, 0, 1, 2])).shape
        torch.Size([4])
    """

    score = "l2"

    def __init__(self, width: int, relations: int = 1, margin: float = 6.0) -> None:
        super().__init__(_even("RotatE", width), relations, width // 2)
        if not math.isfinite(real_number("decoder RotatE: margin", margin)):
            raise ValueError(f"decoder RotatE: margin {margin} must be finite")
        self.margin = margin

    def reset(self) -> None:
        """Initialize the table with random angles."""
        nn.init.uniform_(self.relation, 0, 2 * math.pi)

    def query(self, source: Tensor, relation: Tensor) -> Tensor:
        """Return the source, rotated."""
        return _product(source, torch.cat([relation.cos(), relation.sin()], dim=-1))

    def source_query(self, destination: Tensor, relation: Tensor) -> Tensor:
        """Return the destination, rotated back."""
        return _product(destination, torch.cat([relation.cos(), -relation.sin()], dim=-1))

    def compared(self, query: Tensor, rows: Tensor) -> Tensor:
        """Return (...): the margin minus the distances."""
        distances: Tensor = torch.linalg.vector_norm(query - rows, dim=-1)
        return self.margin - distances

    def all_compared(self, queries: Tensor, rows: Tensor) -> Tensor:
        """Return (queries, rows): the margin minus the distances."""
        return self.margin - _distances(queries, rows, 2)


def _of(decoder: RelationDecoder, relation: Tensor | None) -> Tensor:
    if relation is None and decoder.relations > 1:
        raise ValueError(
            f"decoder {type(decoder).__name__} has {decoder.relations} relations: give the relation of each "
            "pair, for example by khop.Links(relations=...)"
        )
    if relation is None:
        return decoder.relation[0]
    # index_select: its backward adds in a fixed order if a relation occurs twice.
    rows = decoder.relation.index_select(0, relation.flatten())
    return rows.view(*relation.shape, rows.shape[1])


def _even(name: str, width: int) -> int:
    if whole_number(f"decoder {name}: width", width, 1, LARGEST_WIDTH) % 2:
        raise ValueError(f"decoder {name}: width {width} must be even: half real, half imaginary parts")
    return width


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return the products of complex numbers; real parts come first."""
    (real, imaginary), (other, other_imaginary) = a.chunk(2, -1), b.chunk(2, -1)
    products = (
        real * other - imaginary * other_imaginary,
        real * other_imaginary + imaginary * other,
    )
    return torch.cat(products, dim=-1)


def _conjugate(a: Tensor) -> Tensor:
    real, imaginary = a.chunk(2, -1)
    return torch.cat([real, -imaginary], dim=-1)


def _distances(queries: Tensor, rows: Tensor, norm: int) -> Tensor:
    exactly = "donot_use_mm_for_euclid_dist"
    wide = accumulator(queries.dtype)  # torch does not support distances of half floats on the CPU
    distances = torch.cdist(queries.to(wide), rows.to(wide), p=float(norm), compute_mode=exactly)
    return distances.to(queries.dtype)


DecoderKind = Literal["dot", "mlp", "distmult", "transe", "complex", "rotate"]
_GRID_BYTES = 1 << 26  # memory limit of the hidden values of `grid`


class Decoder(Protocol):
    """Scores pairs of rows; higher is more likely a link. Leading dimensions are broadcast."""

    def __call__(self, source: Tensor, destination: Tensor, /) -> Tensor:
        """Return (...): a score per pair, from (..., width) of its source and of its destination.

        Decoders with relations also take the relation of each pair, int64 (...).
        """
        ...

    def grid(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """Return (sources, destinations): the score of each source with each destination."""
        ...


class Dot(nn.Module):
    """Inner product of the rows of source and destination, a decoder without parameters.

    Example:
        >>> decoder = khop.models.Dot()
        >>> decoder(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
        tensor([11.])
    """

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """Score pairs of rows.

        Args:
            source: Rows of the sources, (..., width).
            destination: Rows of the destinations, (..., width); leading dimensions are broadcast.
        Returns:
            A score per pair, (...).
        """
        return (source * destination).sum(-1)

    def grid(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """Score each source with each destination by one matrix product.

        Args:
            sources: Rows, (sources, width).
            destinations: Rows, (destinations, width).
        Returns:
            Scores, (sources, destinations).
        """
        return sources @ destinations.T

    def search(self, sources: Tensor, destinations: Tensor) -> CandidateSearch:
        """Return queries and candidates for a maximum inner product search: the unchanged rows."""
        return CandidateSearch(sources, destinations)


class MLP(nn.Module):
    """Multilayer perceptron over the concatenated rows of source and destination.

    It has one hidden layer of ReLU units. The score depends on the direction of a link.

    Args:
        width: Width of the rows of nodes.
        hidden: Number of hidden units; default: `width`.
    Raises:
        ValueError: A width is below 1.
    Example:
        >>> decoder = khop.models.MLP(width=8, hidden=16)
        >>> decoder(torch.randn(4, 8), torch.randn(4, 8)).shape
        torch.Size([4])
    """

    def __init__(self, width: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = width if hidden is None else hidden
        _check_width("MLP", width, hidden)
        # A linear layer over [source, destination] is a sum of two halves. Each half is computed once per
        # row, even if the row is in many pairs.
        both = nn.Linear(2 * width, hidden)
        self.source = nn.Parameter(both.weight[:, :width].detach().clone())
        self.destination = nn.Parameter(both.weight[:, width:].detach().clone())
        self.bias = nn.Parameter(both.bias.detach().clone())
        self.out = nn.Linear(hidden, 1)

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """Score pairs of rows.

        Args:
            source: Rows of the sources, (..., width).
            destination: Rows of the destinations, (..., width); leading dimensions are broadcast.
        Returns:
            A score per pair, (...).
        """
        return self._scores(source @ self.source.T + self.bias, destination @ self.destination.T)

    def grid(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """Score each source with each destination, in chunks of sources to bound the memory.

        Args:
            sources: Rows, (sources, width).
            destinations: Rows, (destinations, width).
        Returns:
            Scores, (sources, destinations).
        """
        begun, ended = sources @ self.source.T + self.bias, destinations @ self.destination.T
        row_bytes = max(1, ended.nbytes)
        chunks = torch.split(begun.unsqueeze(1), max(1, _GRID_BYTES // row_bytes))
        return torch.cat([self._scores(chunk, ended) for chunk in chunks])

    def _scores(self, source: Tensor, destination: Tensor) -> Tensor:
        scores: Tensor = self.out((source + destination).relu_()).squeeze(-1)
        return scores


RELATION_DECODERS: Mapping[DecoderKind, type[RelationDecoder]] = {
    "distmult": DistMult,
    "transe": TransE,
    "complex": ComplEx,
    "rotate": RotatE,
}


def decoder_of(kind: DecoderKind, width: int, relations: int = 1) -> nn.Module:
    """Make a decoder for rows of `width` numbers; Dot and MLP have no relations."""
    check_word("decoder", kind, DecoderKind)
    _check_width(repr(kind), width)
    if kind in RELATION_DECODERS:
        return RELATION_DECODERS[kind](width, relations)
    if relations > 1:
        raise ValueError(
            f"decoder {kind!r}: has no relations, but the links have {relations}; use one of "
            f"{list(RELATION_DECODERS)}"
        )
    return Dot() if kind == "dot" else MLP(width)


def _check_width(decoder: str, *widths: int) -> None:
    for width in widths:
        if width < 1:
            raise ValueError(f"decoder {decoder}: width {width} must be at least 1")
