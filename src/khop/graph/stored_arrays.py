"""Arrays that draws read, in memory of a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock

from torch import Tensor

from khop.graph.rule_arrays import RuleArrays
from khop.kernels.csc import Csc
from khop.kernels.edge_times import EdgeTimes
from khop.kernels.rising import Rising
from khop.rules.rule import Need
from khop.schema import EdgeType, NodeType

Store = Callable[[Tensor], Tensor]  # copies a tensor to where kernels read it
_Made = Tensor | Rising | EdgeTimes | None


class StoredArrays:
    """Arrays for rules (`DrawArrays`), made on the host and copied on first use. Threads may share it."""

    def __init__(
        self,
        made: RuleArrays | StoredArrays,
        edges: Mapping[EdgeType, Csc],
        original_ids: Mapping[NodeType, Tensor],
        store: Store,
    ) -> None:
        self.edges = edges  # on the device, as `original_ids`
        self.original_ids = original_ids
        self._made = made
        self._store = store
        self._stored: dict[tuple[str, EdgeType, str], _Made] = {}
        self._lock = Lock()

    def prepare(self, need: Need) -> None:
        """Make an array that a rule needs, on the host."""
        self._made.prepare(need)

    def column(self, edge_type: EdgeType, name: str) -> Tensor | None:
        """Return a column of the edges; None without the column."""
        found = self._once("column", edge_type, name, self._made.column)
        assert found is None or isinstance(found, Tensor)
        return found

    def weight_sums(self, edge_type: EdgeType, column: str) -> Rising | None:
        """Return running sums of an edge type's weights; see DrawArrays."""
        found = self._once("sums", edge_type, column, self._made.weight_sums)
        assert found is None or isinstance(found, Rising)
        return found

    def times(self, edge_type: EdgeType, column: str) -> Rising | None:
        """Return the time of each edge; see DrawArrays."""
        found = self._once("times", edge_type, column, self._made.times)
        assert found is None or isinstance(found, Rising)
        return found

    def own_times(self, edge_type: EdgeType, column: str) -> EdgeTimes | None:
        """Return the times of edges and of sources as the graph stores them; see DrawArrays."""
        found = self._once("own times", edge_type, column, self._made.own_times)
        assert found is None or isinstance(found, EdgeTimes)
        return found

    def source_ids(self, edge_type: EdgeType) -> Tensor:
        """Return the original id of each edge's source, (edges)."""
        found = self._once("source ids", edge_type, "", lambda edge_type, _: self._made.source_ids(edge_type))
        assert isinstance(found, Tensor)
        return found

    def vector(self, need: Need) -> Tensor | None:
        """Return rows in which edges share a source, or the vector of a column; see DrawArrays."""
        made = self._made
        found = self._once(need.kind, need.edge_type, need.column, lambda *_: made.vector(need))
        assert found is None or isinstance(found, Tensor)
        return found

    def _once(
        self, what: str, edge_type: EdgeType, column: str, make: Callable[[EdgeType, str], _Made]
    ) -> _Made:
        key = what, edge_type, column
        with self._lock:
            if key not in self._stored:
                self._stored[key] = self._copy(make(edge_type, column))
            return self._stored[key]

    def _copy(self, made: _Made) -> _Made:
        match made:
            case Tensor():
                return self._store(made)
            case Rising(values, outline):
                return Rising(self._store(values), self._store(outline))
            case EdgeTimes(edges, sources):
                stored = (None if times is None else self._store(times) for times in (edges, sources))
                return EdgeTimes(*stored)
            case None:
                return None


def stored_csc(csc: Csc, store: Store) -> Csc:
    """Return the edges of a type on a device; ValueError if they are damaged: kernels there do not check."""
    csc.check()
    return Csc(store(csc.indptr), store(csc.indices), csc.num_sources, csc.home)
