"""How ranks can share a partitioned graph: values that need no torch."""

from __future__ import annotations

from enum import StrEnum

LANES = 4  # batches under way at once, unless a run says otherwise


class Placement(StrEnum):
    """What of a folder of parts ranks hold part by part, asking one another for the rest."""

    WHOLE = "whole"  # nothing: each has all parts
    FEATURES = "features"  # columns; each has the edges of all parts
    ALL = "all"  # columns and edges
