"""Placements of a partitioned graph on ranks.

This module does not import torch.
"""

from __future__ import annotations

from enum import StrEnum

LANES = 4  # default number of batches in flight


class Placement(StrEnum):
    """The data that is partitioned across ranks; remote data is fetched from other ranks."""

    WHOLE = "whole"  # nothing: each rank has all partitions
    FEATURES = "features"  # columns; each rank has the edges of all partitions
    ALL = "all"  # columns and edges
