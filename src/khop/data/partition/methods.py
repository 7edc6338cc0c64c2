"""Registry of partitioning methods.

This module imports none of them.
"""

from __future__ import annotations

from khop.components import Family

PARTITIONERS = Family(
    "khop.partitioners",
    {
        "ldg": "khop.data.partition.partitioners:Ldg",
        "fennel": "khop.data.partition.partitioners:Fennel",
        "metis": "khop.data.partition.partitioners:Metis",
        "random": "khop.data.partition.partitioners:RandomParts",
        "range": "khop.data.partition.partitioners:RangeParts",
        "hash": "khop.data.partition.partitioners:HashParts",
    },
)
