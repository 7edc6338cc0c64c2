"""A split of links as a folder of graph folders: the graph and the links of each part."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from khop.api.open_graph import Graph, open_graph, save_sound
from khop.graph import layout
from khop.graph.atomic import new_folder, refuse_existing
from khop.graph.build import write_graph
from khop.graph.damage import refuse_damage
from khop.graph.derived import Derived
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.manifest import read_manifest
from khop.graph.progress import ProgressCallback
from khop.graph.tables import EdgeTable, NodeTable
from khop.sampling.link_seeds import Links
from khop.schema import EdgeType

PARTS = ("train", "val", "test")
# column -> field of Links
_FACTS = {"label": "labels", "time": "times", "negatives": "negatives", "relation": "relations"}
_POSITION = "position"  # the column of input positions, for links that are not sorted by destination


def save_parts(
    target: Path, graphs: Mapping[str, Graph], links: Mapping[str, Links], notice: ProgressCallback | None
) -> Path:
    """Write the parts' graphs as `<part>`, and their links, as edges with columns, as `<part>_links`."""
    refuse_existing(target)
    origins = {id(graph.origin): graph.origin for graph in graphs.values() if graph.origin is not None}
    for origin in origins.values():
        refuse_damage(origin, notice)  # once, not for each part
    with new_folder(target) as folder:
        written: dict[str, Path] = {}
        for part, graph in graphs.items():
            _share_files(save_sound(graph, folder / part, notice), written)
            _write_links(folder / f"{part}_links", graph, links[part], notice)
    return target


def open_parts(path: Path) -> tuple[dict[str, Graph], dict[str, Links]]:
    """Open the graphs and the links of a folder, by part."""
    for part in PARTS:
        if not (path / f"{part}_links").is_dir():
            raise ValueError(
                f"{path}: no split of links, there is no {part}_links in it; `khop graph split` writes one"
            )
    graphs = {part: open_graph(path / part) for part in PARTS}
    return graphs, {part: _links_of(open_folder(path / f"{part}_links")) for part in PARTS}


def _write_links(path: Path, graph: Graph, links: Links, notice: ProgressCallback | None) -> None:
    edges: dict[EdgeType, EdgeTable] = {}
    for edge_type, (sources, destinations) in links.edges.items():
        columns = {
            column: by_type[edge_type]
            for column, field in _FACTS.items()
            if (by_type := getattr(links, field)) is not None
        }
        if bool((destinations.diff() < 0).any()):
            columns[_POSITION] = torch.arange(destinations.numel())
        edges[edge_type] = EdgeTable(sources, destinations, columns)
    ends = dict.fromkeys(end for edge_type in links.edges for end in (edge_type[0], edge_type[2]))
    write_graph(path, {t: NodeTable(graph.num_nodes(t)) for t in ends}, edges, notice=notice)


def _links_of(folder: GraphFolder) -> Links:
    columns = folder.columns()
    orders = {
        t: of_type[_POSITION].argsort()
        for t in folder.schema.edge_types
        if _POSITION in (of_type := columns[t])
    }

    def in_order(edge_type: EdgeType, values: Tensor) -> Tensor:
        return values[orders[edge_type]] if edge_type in orders else values

    facts = {
        field: {t: in_order(t, columns[t][column]) for t in folder.schema.edge_types}
        for column, field in _FACTS.items()
        if any(column in columns[t] for t in folder.schema.edge_types)
    }
    edges = {t: in_order(t, _ends(folder, t).T).T for t in folder.schema.edge_types}
    return Links(edges, **facts)


def _ends(folder: GraphFolder, edge_type: EdgeType) -> Tensor:
    """Return int64 (2, links), cached in the folder: made once, mapped by all processes."""
    csc = folder.csc(edge_type)

    def made() -> Tensor:
        csc.check()
        return torch.cat([csc.indices.long(), csc.destinations()])

    name = layout.edge_array(edge_type, "ends").removesuffix(".npy")
    sources = [layout.edge_array(edge_type, array) for array in ("indptr", "indices")]
    derived = Derived(folder.path, folder.fingerprint, folder.manifest.arrays)
    return derived.vector(name, 2 * csc.num_edges, made, sources).view(2, -1)


def _share_files(graph: Path, written: dict[str, Path]) -> None:
    """Replace files that are equal to an earlier part's file by hard links."""
    for file, entry in read_manifest(graph)[0].arrays.items():
        earlier = written.setdefault(entry.sha256, graph / file)
        if earlier == graph / file:
            continue
        linked = graph / f"{file}.linked"
        try:
            os.link(earlier, linked)
        except OSError:  # a file system without hard links keeps a copy per part
            return
        linked.replace(graph / file)
