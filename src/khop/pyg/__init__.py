"""Drop-in replacements for torch_geometric's `NeighborLoader` and `LinkNeighborLoader`: change one import.

They need torch_geometric, but not its compiled extras. docs/pyg-arguments.md compares every argument.

The public names are in `khop.pyg.__all__`. The modules of this package are internal: their names may change
in any version.

Example:
    >>> from torch_geometric.data import Data
    >>> from khop.pyg import NeighborLoader  # instead of torch_geometric.loader
    >>> data = Data(x=torch.randn(100, 8), edge_index=torch.randint(100, (2, 500)))
    >>> len(NeighborLoader(data, num_neighbors=[10, 5], batch_size=20))
    5
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from khop.pyg.loaders import LinkNeighborLoader as LinkNeighborLoader
    from khop.pyg.loaders import NeighborLoader as NeighborLoader
    from khop.pyg.sampler import BidirectionalNeighborSampler as BidirectionalNeighborSampler
    from khop.pyg.sampler import NeighborSampler as NeighborSampler

# As in khop itself, torch_geometric is imported when a name that needs it is used.
_PUBLIC = {
    "BidirectionalNeighborSampler": "khop.pyg.sampler",
    "LinkNeighborLoader": "khop.pyg.loaders",
    "NeighborLoader": "khop.pyg.loaders",
    "NeighborSampler": "khop.pyg.sampler",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> object:
    """Import an attribute on first use; ImportError with the remedy without torch_geometric."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'khop.pyg' has no attribute {name!r}")
    try:
        value = getattr(import_module(_PUBLIC[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch_geometric":
            raise
        raise ImportError(f"khop.pyg.{name} needs torch_geometric: pip install torch_geometric") from error
    globals()[name] = value
    return value
