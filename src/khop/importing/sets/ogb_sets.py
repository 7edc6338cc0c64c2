"""OGB's node and link sets: the rows of its master.csv that a reader needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ADDRESS = "http://snap.stanford.edu/ogb/data"


@dataclass(frozen=True)
class OgbSet:
    """One set, with the flags of master.csv."""

    name: str
    download_name: str
    split: str  # folder of the official split
    layout: Literal["csv", "npz"] = "csv"  # "binary" in master.csv
    kind: Literal["plain", "typed"] = "plain"  # "is hetero" in master.csv
    edges: Literal["as stored", "both directions"] = "as stored"  # "add_inverse_edge" in master.csv
    num_classes: int = 0  # 0: the labels are several answers of yes and no

    @property
    def has_links(self) -> bool:
        """True for a link set."""
        return self.name.startswith("ogbl-")

    @property
    def url(self) -> str:
        """Address of the archive."""
        return f"{ADDRESS}/{'link' if self.has_links else 'node'}proppred/{self.download_name}.zip"

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of the set's folder: in the archive, and where OGB's package puts it."""
        return self.download_name, self.name.replace("-", "_"), self.name


_BOTH: Literal["both directions"] = "both directions"
OGB_SETS: Mapping[str, OgbSet] = {
    one.name: one
    for one in (
        OgbSet("ogbn-arxiv", "arxiv", "time", num_classes=40),
        OgbSet("ogbn-products", "products", "sales_ranking", edges=_BOTH, num_classes=47),
        OgbSet("ogbn-proteins", "proteins", "species", edges=_BOTH),
        OgbSet("ogbn-mag", "mag", "time", kind="typed", num_classes=349),
        OgbSet("ogbn-papers100M", "papers100M-bin", "time", layout="npz", num_classes=172),
        OgbSet("ogbl-ppa", "ppassoc", "throughput", edges=_BOTH),
        OgbSet("ogbl-collab", "collab", "time", edges=_BOTH),
        OgbSet("ogbl-ddi", "ddi", "target", edges=_BOTH),
        OgbSet("ogbl-citation2", "citation-v2", "time"),
        OgbSet("ogbl-wikikg2", "wikikg-v2", "time"),
        OgbSet("ogbl-biokg", "biokg", "random", kind="typed"),
        OgbSet("ogbl-vessel", "vessel", "random", layout="npz"),
    )
}
