"""Names of node types and edge types in parameters and in state dicts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from khop.schema import EdgeType, edge_type_of

_STATE = "row_names._extra_state"


def parameter_name(*names: str) -> str:
    """Return a name valid in torch's containers: no dots, and never one of their attributes ("items")."""
    for character in "%.:":
        names = tuple(name.replace(character, f"%{ord(character):02X}") for name in names)
    return ":".join(names if len(names) > 1 else ("node", *names))


def plain_name(name: str) -> str:
    """Return the name that an entry of a compiled module has in the module that `torch.compile` was given."""
    return name.replace("_orig_mod.", "")


class RowNames(nn.Module):
    """The edge types of the rows of a parameter: consecutive rows for each, in the order of `counts`.

    A module with such a parameter has this one as its attribute `row_names`. The state dict then holds the
    edge types as JSON text, a uint8 tensor. Loading a state dict puts its rows in the order of the model, and
    refuses rows of other edge types.

    Args:
        owner: The module that gets this one as an attribute.
        parameter: Path of the parameter from `owner`, such as "shares".
        counts: Number of rows of each edge type.
    """

    def __init__(self, owner: nn.Module, parameter: str, counts: Mapping[EdgeType, int]) -> None:
        super().__init__()
        self.parameter = parameter
        self.counts = dict(counts)
        owner.register_load_state_dict_pre_hook(_order_rows)

    def get_extra_state(self) -> Tensor:
        """Return the edge types and their numbers of rows, as uint8."""
        text = json.dumps([[*edge_type, count] for edge_type, count in self.counts.items()])
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Do nothing: the rows are already in the order of this model."""

    def order(self, state: Tensor) -> Tensor | None:
        """Return the number of each row in the stored parameter, int64; None if the orders are equal.

        ValueError if `state` names other edge types, or other numbers of rows.
        """
        stored = {edge_type_of(names): count for *names, count in json.loads(bytes(state.tolist()))}
        if stored != self.counts:
            raise ValueError(
                f"rows of {self.parameter} are of {_words(stored)} in the checkpoint, of "
                f"{_words(self.counts)} in the model; make the model with the same edge types and numbers of "
                "relations"
            )
        if [*stored] == [*self.counts]:
            return None
        first = dict(zip(stored, accumulate(stored.values(), initial=0), strict=False))
        return torch.cat([torch.arange(count) + first[t] for t, count in self.counts.items()])


def row_orders(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the order of each parameter whose rows have another order in a state dict, by its plain name.

    `state` has plain names. ValueError if the rows are of other edge types.
    """
    orders = {prefix + names.parameter: _order_in(names, state, prefix) for prefix, names in _named(model)}
    return {name: order for name, order in orders.items() if order is not None}


def in_order(rows: Tensor, order: Tensor) -> Tensor:
    """Return the rows in another order; unchanged if they are not as many."""
    return rows.index_select(0, order.to(rows.device)) if rows.shape[:1] == order.shape else rows


def _named(model: nn.Module) -> Iterator[tuple[str, RowNames]]:
    for name, module in model.named_modules():
        if isinstance(module, RowNames):
            yield plain_name(name).removesuffix("row_names"), module


def _order_in(names: RowNames, state: Mapping[str, Tensor], prefix: str) -> Tensor | None:
    stored = state.get(f"{prefix}{_STATE}")
    return None if stored is None else names.order(stored)


def _order_rows(
    owner: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: Mapping[str, Any],
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    """Put stored rows in the order of the model; a hook of the module that has them."""
    names = owner.row_names
    assert isinstance(names, RowNames)
    name = prefix + names.parameter
    if name not in state_dict or f"{prefix}{_STATE}" not in state_dict:
        return  # torch reports what is missing
    try:
        order = _order_in(names, state_dict, prefix)
    except ValueError as error:
        error_msgs.append(str(error))
        return
    state_dict[f"{prefix}{_STATE}"] = names.get_extra_state()
    if order is not None:
        state_dict[name] = in_order(state_dict[name], order)


def _words(counts: Mapping[EdgeType, int]) -> list[str]:
    return [" ".join(t) if count == 1 else f"{' '.join(t)} ({count} rows)" for t, count in counts.items()]
