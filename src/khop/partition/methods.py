"""The family of partitioning methods. Loads none of them."""

from __future__ import annotations

from khop.components import Family

PARTITIONERS = Family(
    "khop.partitioners",
    {
        "ldg": "khop.partition.streaming:Ldg",
        "fennel": "khop.partition.streaming:Fennel",
        "metis": "khop.partition.metis:Metis",
        "random": "khop.partition.plain:RandomParts",
        "range": "khop.partition.plain:RangeParts",
        "hash": "khop.partition.plain:HashParts",
    },
)
