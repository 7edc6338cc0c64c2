"""The users' names in a graph, wherever it is."""

from __future__ import annotations

from khop.api.open_graph import Graph
from khop.graph.names import Names
from khop.servers.remote_names import remote_names


def names_of(graph: Graph) -> Names:
    """Return the users' ids, class names and units in a graph: those of its folder, or of its servers.

    Ids are read when they are looked up. A graph in memory has the names of the folder that it comes from.
    """
    if graph.servers is not None:
        return remote_names(graph.servers)
    return Names.of(graph.folder or graph.origin)
