"""The sets of the Illinois Graph Benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from khop.importing.sets.download import Checksum

_ADDRESS = "https://igb-public-awsopen.s3.amazonaws.com"
NODE_TYPES = ("paper", "author", "institute", "fos", "journal", "conference")


@dataclass(frozen=True)
class IgbSet:
    """One set: `tiny`, or with all its node types `hetero-tiny`."""

    name: str
    size: str  # folder
    kind: Literal["plain", "typed"]
    md5: str | None = None  # of the archive; None: the publisher has none, or no archive
    num_labeled: Mapping[int, int] = field(
        default_factory=dict
    )  # by the number of classes, if not all papers

    @property
    def url(self) -> str | None:
        """Address of the archive; the two large sets are single files of up to 1 TB, without an archive."""
        kind = "homogeneous" if self.kind == "plain" else "heterogeneous"
        name = f"igb-{kind}/igb_{kind}_{self.size}.tar.gz"
        return None if self.md5 is None else f"{_ADDRESS}/{name}"

    @property
    def checksum(self) -> Checksum | None:
        """Checksum of the archive."""
        return None if self.md5 is None else Checksum("md5", self.md5)


_MD5 = {
    "tiny": ("34856534da55419b316d620e2d5b21be", "83fbc1091497ff92cf20afe82fae0ade"),
    "small": ("6781c699723529902ace0a95cafe6fe4", "2f42077be60a074aec24f7c60089e1bd"),
    "medium": ("4640df4ceee46851fd18c0a44ddcc622", "7f0df4296eca36553ff3a6a63abbd347"),
}
_FULL = {19: 227_130_858, 2983: 157_675_969}  # labeled papers of 269,346,174

IGB_SETS: Mapping[str, IgbSet] = {
    **{size: IgbSet(size, size, "plain", md5) for size, (md5, _) in _MD5.items()},
    "large": IgbSet("large", "large", "plain"),
    "full": IgbSet("full", "full", "plain", num_labeled=_FULL),
    **{f"hetero-{size}": IgbSet(f"hetero-{size}", size, "typed", md5) for size, (_, md5) in _MD5.items()},
    "hetero-large": IgbSet("hetero-large", "large", "typed"),
    "hetero-full": IgbSet("hetero-full", "full", "typed", num_labeled=_FULL),
}
