"""Ids of nodes, looked up by node: the users' own, or those from before nodes were renumbered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from khop.kernels.id_table import Keys, Kind, StringKeys, keys_at


class IdsByNode(Protocol):
    """Implementers have an id for each node of a type, in memory, in files or on servers."""

    @property
    def kind(self) -> Kind:
        """Type of the ids: text or integers."""
        ...

    def at(self, nodes: Tensor) -> Keys:
        """Return the ids of some nodes, int64 (n), in their order. Takes memory for these alone."""
        ...


@dataclass(frozen=True, eq=False)
class IdsHere:
    """Ids in the memory of this process, or mapped from a file."""

    keys: Keys  # by node

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def kind(self) -> Kind:
        """Type of the ids."""
        return "string" if isinstance(self.keys, StringKeys) else "int64"

    def at(self, nodes: Tensor) -> Keys:
        """Return the ids of some nodes."""
        return keys_at(self.keys, nodes.numpy())
