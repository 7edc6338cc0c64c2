"""A file of edges as it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from khop.kernels.id_table import Keys


@dataclass(frozen=True)
class ReadEdges:
    """Nodes, numbered as they first appear, and edges between them."""

    ids: Keys  # of the nodes
    sources: npt.NDArray[np.int64]
    destinations: npt.NDArray[np.int64]
    direction: Literal["directed", "undirected"] = "directed"
    node_columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    edge_columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
