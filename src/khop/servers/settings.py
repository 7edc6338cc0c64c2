"""Settings of requests: all that stays the same from batch to batch, sent once and then named by its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from khop.draw import RANDOMNESS
from khop.loading.columns import ColumnChoice, Names
from khop.schema import Schema
from khop.servers.errors import WrongGraph, WrongVersion
from khop.servers.json_fields import Document, Plain, Type, by_type, written

View = tuple[Plain, ...]  # steps from the whole graph to the edges that a client asked for


@dataclass(frozen=True)
class Settings:
    """The settings of a source of batches."""

    fingerprint: str  # of the graph
    view: View
    sampler: Plain  # a description for `Registry.made`
    columns: ColumnChoice
    seeds: Plain = None  # reference to a list on the servers; None: requests have the seeds

    @cached_property
    def document(self) -> Mapping[str, Plain]:
        """The settings as plain values."""
        choice = self.columns
        return {
            "graph": self.fingerprint,
            "randomness": RANDOMNESS,
            "view": list(self.view),
            "sampler": self.sampler,
            "columns": {
                "nodes": _named(choice.of_nodes),
                "edges": _named(choice.of_edges),
                "seeds": _named(choice.of_seeds),
                "float32": _named({t: sorted(names) for t, names in choice.as_float32.items()}),
            },
            "seeds": self.seeds,
        }

    @cached_property
    def digest(self) -> str:
        """The hash that names the settings in requests."""
        return digest_of(self.document)


def digest_of(document: object) -> str:
    """Return the hash of settings."""
    return hashlib.sha256(written(document)).hexdigest()[:32]


def read_columns(given: Document, schema: Schema) -> ColumnChoice:
    """Return the columns of settings; ValueError names a column that the graph does not have."""

    def of(kind: str) -> dict[Type, Names]:
        found = {t: tuple(name.text() for name in names.each()) for t, names in given[kind].entries()}
        for type_, names in found.items():
            for name in names:
                schema.column(type_, name)
        return found

    of_nodes, of_edges, of_seeds = of("nodes"), of("edges"), of("seeds")
    return ColumnChoice(
        {t: names for t, names in of_nodes.items() if isinstance(t, str)},
        {t: names for t, names in of_edges.items() if isinstance(t, tuple)},
        {t: names for t, names in of_seeds.items() if isinstance(t, str)},
        {t: frozenset(names) for t, names in of("float32").items()},
    )


def check_versions(given: Document, fingerprint: str) -> None:
    """Raise WrongVersion or WrongGraph unless a request is for these draws and this graph."""
    randomness = given["randomness"].whole()
    if randomness != RANDOMNESS:
        raise WrongVersion(
            f"the client draws by version {randomness} of docs/randomness.md, and this server by version "
            f"{RANDOMNESS}; install the same khop on clients and servers"
        )
    check_graph(given["graph"].text(), fingerprint)


def check_graph(asked: str, fingerprint: str) -> None:
    """Raise WrongGraph unless a request is for this graph."""
    if asked != fingerprint:
        raise WrongGraph(
            f"the client asks for the graph with fingerprint {asked[:12]}..., and this server has "
            f"{fingerprint[:12]}...; start all servers with the same graph, then connect again"
        )


def _named(
    by: Mapping[Type, Sequence[str]] | Mapping[str, Names] | Mapping[tuple[str, str, str], Names],
) -> Plain:
    return by_type({t: list(names) for t, names in by.items()})
