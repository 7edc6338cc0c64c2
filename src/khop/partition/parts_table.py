"""The columns of the parts that a process holds, gathered by the ids of the whole graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from khop.features.store import Gathered, Rows, Wanted
from khop.features.table import FeatureTable
from khop.partition.by_owner import ByOwner, first_outside
from khop.partition.parts_folder import PartsFolder, held_parts
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True, eq=False)
class PartsTable:
    """A feature store over consecutive parts; edges are known by their positions among those of all parts.

    Gathering only reads, so threads may share a table. The result does not depend on `threads`.
    """

    folder: PartsFolder
    threads: int = 1  # of one gather
    _tables: tuple[FeatureTable, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tables = (FeatureTable.of(part.schema, part.columns(), self.threads) for part in self.folder.parts)
        object.__setattr__(self, "_tables", tuple(tables))

    @property
    def columns(self) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """Every column of every type, whole: see `PartsFolder.columns`."""
        return self.folder.columns()

    def gather(self, wanted: Wanted) -> Gathered:
        """The rows of all columns wanted, in the order of the ids; ValueError names what is missing."""
        for type_, rows in wanted.items():
            self._check(type_, rows)
        owners = {t: ByOwner.of(rows.ids, self.folder.bounds(t)) for t, rows in wanted.items()}
        shares = {t: _shares(rows, owners[t], self.folder.bounds(t)) for t, rows in wanted.items()}
        gathered = [
            table.gather({t: of_parts[number] for t, of_parts in shares.items()})
            for number, table in enumerate(self._tables)
        ]
        return {
            t: {
                name: _owners_of(name, rows, owners[t]).joined([of_part[t][name] for of_part in gathered])
                for name in rows.columns
            }
            for t, rows in wanted.items()
        }

    def __reduce__(self) -> tuple[Callable[..., PartsTable], tuple[PartsFolder, int]]:
        return PartsTable, (self.folder, self.threads)

    def _check(self, type_: NodeType | EdgeType, rows: Rows) -> None:
        there = self.folder.schema.columns
        if type_ not in there:
            raise ValueError(f"no columns of type {type_!r}; there are columns of {list(there)}")
        bounds = self.folder.bounds(type_)
        position = first_outside(rows.ids, bounds)
        if position >= 0 and rows.columns:
            raise ValueError(
                f"column {rows.columns[0]!r} of {type_!r}: row id {int(rows.ids[position])} at position "
                f"{position}: must be in [{bounds[0]}, {bounds[-1]}), the rows of {held_parts(self.folder)}"
            )


def _shares(rows: Rows, owners: ByOwner, bounds: Sequence[int]) -> list[Rows]:
    """What is wanted of each part, by its own ids."""
    counts = {name: owners.first(limit).counts for name, limit in rows.limits.items()}
    return [
        replace(
            rows,
            ids=ids - bounds[number],
            limits={name: of_parts[number] for name, of_parts in counts.items()},
        )
        for number, ids in enumerate(owners.split(rows.ids))
    ]


def _owners_of(column: str, rows: Rows, owners: ByOwner) -> ByOwner:
    return owners if column not in rows.limits else owners.first(rows.limits[column])
