"""Links of a batch that are also messages: counted, or excluded."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput

from khop.sampling.exclusion import Exclude, excluded_edges
from khop.sampling.sampler import LinkSeeds
from khop.schema import EdgeType


def named_reverse(edge_type: EdgeType, edge_types: Collection[EdgeType]) -> EdgeType | None:
    """Return the reverse by the names of `ToUndirected`; within one node type, the edge type itself."""
    source, relation, destination = edge_type
    names = [f"rev_{relation}", relation.removeprefix("rev_")]
    named = next((t for name in names if (t := (destination, name, source)) in edge_types), None)
    return named if named is not None or source != destination else edge_type


def excluded_pairs(
    links: LinkSeeds, exclude: Exclude | None, edge_types: Collection[EdgeType]
) -> dict[EdgeType, Tensor]:
    """Return ends (2, pairs) of the edges to leave out, by edge type of the data."""
    reverses = {}
    if exclude is Exclude.EDGE_AND_REVERSE:
        for edge_type in links.by_type:
            reverses[edge_type] = checked_reverse(edge_type, edge_types)
    found = excluded_edges(links, exclude, reverses)
    return {edge_type: pairs for edge_type, pairs in found.items() if edge_type in edge_types}


def checked_reverse(edge_type: EdgeType, edge_types: Collection[EdgeType]) -> EdgeType:
    """Return the reverse type; ValueError if no edge type has the name of a reverse."""
    reverse = named_reverse(edge_type, edge_types)
    if reverse is None:
        raise ValueError(
            f'exclude="edge+reverse": no edge type has the name of the reverse of {edge_type}, '
            f'"rev_{edge_type[1]}"; take exclude="edge", or name it so'
        )
    return reverse


def warn_of_supervision(output: HeteroSamplerOutput, edge_type: EdgeType, links: Tensor) -> None:
    """Warn once with the number of links (2, links) that are edges of the output, or their reverses."""
    carried = torch.zeros(links.shape[1], dtype=torch.bool)
    for messages in _messages(output, edge_type):
        carried |= among(links, messages)
    if bool(carried.any()):
        warnings.warn(
            f"{int(carried.sum()):,} of the {links.shape[1]:,} links of the first batch are among its "
            "messages, as edges or as their reverses: a model can see the answer. Leave them out by "
            'exclude="edge+reverse" or "edge", or split by RandomLinkSplit(disjoint_train_ratio=...); '
            "torch_geometric leaves them in",
            stacklevel=2,
        )


class SupervisionWarning:
    """The warning of `warn_of_supervision`, given for the first batch that is checked."""

    def __init__(self, *, is_needed: bool) -> None:
        self._is_needed = is_needed

    def check(self, output: HeteroSamplerOutput, edge_type: EdgeType, links: Tensor) -> None:
        """Check a batch, unless one has been checked before."""
        if self._is_needed:
            self._is_needed = False
            warn_of_supervision(output, edge_type, links)


def _messages(output: HeteroSamplerOutput, edge_type: EdgeType) -> Iterator[Tensor]:
    """Yield ends (2, edges) of the messages along an edge type, and reversed ends along its reverse."""
    for t in dict.fromkeys([edge_type, named_reverse(edge_type, output.row)]):
        if t is not None and t in output.row:
            ends = torch.stack([output.node[t[0]][output.row[t]], output.node[t[2]][output.col[t]]])
            if t == edge_type:
                yield ends
            if t != edge_type or t[0] == t[2]:
                yield ends.flip(0)


def among(pairs: Tensor, others: Tensor) -> Tensor:
    """Return bool (pairs), true for pairs that are among the others; both are (2, ...) of global ids."""
    width = int(torch.cat([pairs[1], others[1]]).max()) + 1 if pairs.shape[1] and others.shape[1] else 1
    return torch.isin(pairs[0] * width + pairs[1], others[0] * width + others[1])
