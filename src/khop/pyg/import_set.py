"""Import of torch_geometric's datasets: `khop import pyg:NAME`."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

try:
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.datasets import Amazon, AmazonProducts, Coauthor, Flickr, Reddit, Yelp
except ModuleNotFoundError as error:
    raise ValueError(
        "khop import pyg:NAME needs torch_geometric: pip install torch_geometric scipy"
    ) from error

from khop.data.formats.downloads import root_folder
from khop.data.formats.raw_arrays import npz_array
from khop.data.formats.set_graph import SetGraph
from khop.data.formats.tensor_file import tensor_file
from khop.data.importers import ImportContext, Pyg
from khop.graph.atomic import ProgressCallback, refuse_existing
from khop.graph.build import edge_table, node_table
from khop.pyg.convert import graph_from_pyg
from khop.sampling.seeds import ids_here

LABEL = "y"
_PROCESSED = Path("processed", "data.pt")
_CLASSES = ("torch_geometric.data.data.Data", "torch_geometric.data.hetero_data.HeteroData")
_SHCHUR = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
_SHCHUR_ARRAYS = ("data", "indices", "indptr", "shape")
_LINE = (
    'python -c "from torch_geometric.datasets import {name}; from khop import graph_from_pyg; '
    "graph_from_pyg({name}('data')[0]).save('{name}')\""
)


@dataclass(frozen=True)
class _Raw:
    """A dataset whose raw files are plain arrays."""

    files: tuple[str, ...]
    make: Callable[[str], Any]  # raw files in a root folder
    url: str | None = None  # URL of the archive or file; None: not downloadable by URL


def _shchur(file: str, make: Callable[..., Any], name: str) -> _Raw:
    return _Raw((f"{file}.npz",), lambda root: make(root, name), f"{_SHCHUR}/{file}.npz")


_SAINT = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
PYG_RAW: Mapping[str, _Raw] = {
    "Reddit": _Raw(("reddit_data.npz", "reddit_graph.npz"), Reddit, "https://data.dgl.ai/dataset/reddit.zip"),
    "Flickr": _Raw(_SAINT, Flickr),
    "Yelp": _Raw(_SAINT, Yelp),
    "AmazonProducts": _Raw(_SAINT, AmazonProducts),
    "Amazon-Computers": _shchur("amazon_electronics_computers", Amazon, "Computers"),
    "Amazon-Photo": _shchur("amazon_electronics_photo", Amazon, "Photo"),
    "Coauthor-CS": _shchur("ms_academic_cs", Coauthor, "CS"),
    "Coauthor-Physics": _shchur("ms_academic_phy", Coauthor, "Physics"),
}


@dataclass(frozen=True)
class PygImporter:
    """An import of a torch_geometric dataset."""

    options: Pyg
    context: ImportContext

    @property
    def name(self) -> str:
        """Name of the set, or of its folder."""
        return Path(self.options.name).name

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder; return its counts."""
        refuse_existing(out)
        graph = _set_of(self.name, self._read(notice))
        return graph.write(out, self.context, notice)

    def _read(self, notice: ProgressCallback | None) -> Data | HeteroData:
        root, raw = self._root(notice), PYG_RAW.get(self.name)
        for folder in (root, root / self.name, root / self.name.partition("-")[2]):
            for place in (folder, folder / "raw", folder / self.name.lower()):
                if raw is not None and (place / raw.files[0]).is_file():
                    return _made(raw, place)
            if (folder / _PROCESSED).is_file():
                return _processed(folder / _PROCESSED)
            if any((folder / "raw").glob("ind.*")):
                raise ValueError(
                    f"{folder / 'raw'}: the raw files of Planetoid are pickles, and reading them may execute "
                    f"code; if you trust them, let torch_geometric convert them once: {_line('Planetoid')}"
                )
        raise ValueError(
            f"{root}: has neither {_PROCESSED} nor raw files of {self.name}; {_way_out(self.name)}"
        )

    def _root(self, notice: ProgressCallback | None) -> Path:
        """Return the folder with the files: as named, or of a download."""
        named, raw = self.context.folder / self.options.name, PYG_RAW.get(self.name)
        if self.options.root is None and named.is_dir():
            return named
        if self.options.root is None and (raw is None or raw.url is None):
            raise ValueError(f"pyg:{self.options.name}: {_way_out(self.name)}")
        return root_folder(self.options, self.context, (raw and raw.url) or "", notice)


def _made(raw: _Raw, folder: Path) -> Data:
    """Let torch_geometric convert raw files in a separate folder; the user's files are not changed."""
    for name in raw.files:
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name}: no such file; give the folder as it was published")
    if len(raw.files) == 1:  # torch_geometric allows pickles, but only reads these arrays
        arrays = [f"{kind}_{part}" for kind in ("attr", "adj") for part in _SHCHUR_ARRAYS]
        with tempfile.TemporaryDirectory() as made:
            for name in (*arrays, "labels"):
                npz_array(folder / raw.files[0], name, Path(made))
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stderr(io.StringIO()):
        for place in {"raw", *(f"{name}/raw" for name in ("Computers", "Photo", "CS", "Physics"))}:
            (Path(root) / place).mkdir(parents=True)
            for name in raw.files:
                os.symlink((folder / name).absolute(), Path(root) / place / name)
        try:
            return raw.make(root)[0]
        except (ValueError, LookupError, TypeError, OSError, EOFError):
            names = ", ".join(raw.files)
            raise ValueError(
                f"{folder}: torch_geometric cannot read {names}; give the folder as it was published"
            ) from None


def _processed(path: Path) -> Data | HeteroData:
    """Read one graph as stored by torch_geometric, without unpickling its classes."""
    given = tensor_file(path, _CLASSES)
    data, slices = given[:2] if isinstance(given, tuple) and len(given) in (2, 3) else (given, None)
    if slices is not None:
        raise ValueError(f"{path}: contains several graphs; only datasets with one graph can be imported")
    if not isinstance(data, dict):
        kind = type(data).__name__
        raise ValueError(
            f"{path}: contains a {kind}, but the result of torch_geometric's to_dict() is expected"
        )
    return HeteroData.from_dict(data) if "_global_store" in data else Data.from_dict(data)


def _set_of(name: str, data: Data | HeteroData) -> SetGraph:
    """Return the tables of a graph. Several targets of 0 and 1 per node are multi-label targets."""
    for store in data.stores:
        labels = store.get(LABEL)
        if isinstance(labels, torch.Tensor) and labels.dim() == 2:
            if labels.shape[1] == 1:
                store[LABEL] = labels.view(-1)
            elif bool(((labels == 0) | (labels == 1)).all()):
                store[LABEL] = labels.to(torch.uint8)
    graph = graph_from_pyg(data)
    topology, columns = graph.in_one_piece("import"), graph.columns
    splits = {
        name: {t: ids_here(of) for t, of in graph.split(name).items() if len(of)}
        for name in graph.split_names
    }
    nodes = {t: node_table(topology, t, columns, splits, None) for t in graph.schema.node_types}
    edges = {t: edge_table(topology, t, columns) for t in graph.schema.edge_types}
    kinds = {
        t: "multi-label" for t in nodes if columns[t].get(LABEL, torch.empty(0)).dtype == torch.uint8
    }  # fmt: skip
    return SetGraph(name, nodes, edges, kinds)


def _way_out(name: str) -> str:
    there = ", ".join(name for name, raw in PYG_RAW.items() if raw.url is not None)
    return (
        f"khop downloads {there}; for others, give --root, the dataset's folder with its raw files or "
        f"processed/data.pt, or let torch_geometric convert it once, which may execute code: {_line(name)}"
    )


def _line(name: str) -> str:
    return _LINE.format(name=name if name.isidentifier() else "NAME")
