"""Equal settings have one hash, on every machine; all that changes a batch changes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import khop
from khop.servers.json_fields import Document, written
from khop.servers.settings import Settings, check_graph, read_columns
from khop.servers.source import described_sampler
from support.batch_kinds import TYPED


def settings(graph: khop.Graph, fanout: int = 3) -> Settings:
    sampler = khop.NeighborSampler(graph, [fanout])
    loader = khop.Loader(sampler, {"user": torch.arange(2)}, 2, columns={"user": ["x"]})
    return Settings("f" * 64, (), described_sampler(sampler), loader.columns)


def test_equal_settings_have_one_hash(typed_graph: khop.Graph) -> None:
    assert settings(typed_graph).digest == settings(typed_graph).digest


def test_every_difference_changes_the_hash(typed_graph: khop.Graph) -> None:
    given = settings(typed_graph)
    others = [
        replace(given, fingerprint="e" * 64),
        replace(given, view=({"only": []},)),
        replace(given, seeds={"split": "train"}),
        replace(given, columns=replace(given.columns, as_float32={})),
        settings(typed_graph, 4),
    ]
    assert len({each.digest for each in (given, *others)}) == 6


@pytest.mark.parametrize("kind", TYPED, ids=lambda kind: kind.__name__)
def test_columns_come_back_equal(typed_graph: khop.Graph, kind: object) -> None:
    columns = kind(typed_graph).columns  # type: ignore[operator]
    document = Document.parsed(written(Settings("", (), None, columns).document["columns"]), "columns")
    assert read_columns(document, typed_graph.schema) == columns


def test_a_column_that_is_missing_is_named(typed_graph: khop.Graph) -> None:
    given = Document({"nodes": [["user", ["nope"]]], "edges": [], "seeds": [], "float32": []}, "columns")
    with pytest.raises(ValueError, match="column 'nope' of 'user': not in the graph"):
        read_columns(given, typed_graph.schema)


def test_another_graph_is_refused_by_both_fingerprints() -> None:
    with pytest.raises(ValueError, match=r"aaaaaaaaaaaa\.\.\., and this server has bbbbbbbbbbbb"):
        check_graph("a" * 64, "b" * 64)
