"""Links in torch_geometric's data: `edge_label_index` and its labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from khop.arguments import instance_of
from khop.pyg.typed_data import DATA_KINDS, EDGE, storages
from khop.sampling.link_seeds import Links
from khop.schema import EdgeType

LABEL = "edge_label"
_SIGNS = ("", "pos_", "neg_")  # RandomLinkSplit(split_labels=True) stores links and negatives separately
_FACTS = ("", "_index", "_time")


def links_from_pyg(data: Data | HeteroData, key: str = LABEL) -> Links:
    """Make `khop.Links` from the links that `RandomLinkSplit` added to `data`: ends, labels and times.

    Ends are `<key>_index`, labels `<key>` and times `<key>_time`, for each edge type that has them. Links
    and negatives that `split_labels=True` stores separately (`pos_<key>`, `neg_<key>`) are concatenated in
    this order. Negatives are links with the label 0. ValueError if `data` has no such links.
    """
    instance_of("data", data, DATA_KINDS, "must be a torch_geometric Data or HeteroData")
    found = {}
    for owner, storage in storages(data):
        of_type = None if isinstance(owner, str) else _links(storage, key)
        if of_type is not None:
            edge_type: EdgeType = owner if isinstance(owner, tuple) else EDGE
            found[edge_type] = of_type
    if not found:
        raise ValueError(
            f"{key}_index: no edge type of the data has it; split the data by RandomLinkSplit(...), or make "
            "khop.Links({edge_type: ends}) from other ends"
        )
    by_fact = {
        what: {edge_type: of_type[what] for edge_type, of_type in found.items() if what in of_type}
        for what in _FACTS
    }
    return Links(by_fact["_index"], by_fact[""] or None, by_fact["_time"] or None)


def label_names(storage: Any) -> frozenset[str]:
    """Return the attributes about links. They are no columns, whatever their length.

    These are all names of `edge_label`, and all names of any `<key>` for which there are ends,
    `<key>_index`.
    """
    keys = {LABEL} | {
        name.removesuffix("_index").removeprefix(sign)
        for name, value in storage.items()
        for sign in _SIGNS
        if name.endswith("_index") and name != "edge_index" and _is_ends(value) and name.startswith(sign)
    }
    return frozenset(f"{sign}{key}{fact}" for key in keys for sign in _SIGNS for fact in _FACTS)


def _links(storage: Any, key: str) -> dict[str, Tensor] | None:
    """Return the links of one edge type, by the attributes' suffixes; None where it has no links."""
    signs = [sign for sign in _SIGNS if f"{sign}{key}_index" in storage]
    if not signs:
        return None
    parts: dict[str, list[Tensor]] = {}
    for fact in _FACTS:
        there = [storage[f"{sign}{key}{fact}"] for sign in signs if f"{sign}{key}{fact}" in storage]
        if there and len(there) < len(signs):
            raise ValueError(f"{key}{fact}: some of the links have it and others do not; give it to all")
        if there:
            parts[fact] = [torch.as_tensor(part).detach().cpu() for part in there]
    joined = {fact: torch.cat(of_fact, dim=1 if fact == "_index" else 0) for fact, of_fact in parts.items()}
    return {fact: values if fact == "" else values.long() for fact, values in joined.items()}


def _is_ends(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() == 2 and value.shape[0] == 2
