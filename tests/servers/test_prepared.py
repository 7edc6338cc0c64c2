"""Settings are prepared once, over the part of the graph that they name."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import khop
from khop.api.serve import ServedGraph
from khop.draw import DrawKey
from khop.sampling.link_split import LinkColumns, Shares
from khop.sampling.seeds import StepShare
from khop.servers.json_fields import Document, written
from khop.servers.prepared import Prepared
from khop.servers.registry import BUILTIN
from khop.servers.settings import Settings
from khop.servers.source import described_sampler
from khop.servers.split_arguments import SplitArguments
from support.small_typed_folders import LIKE


def prepared(graph: khop.Graph, *, seeds: object = None, view: tuple[object, ...] = ()) -> Prepared:
    sampler = khop.NeighborSampler(graph.only([LIKE]) if view else graph, [3])
    columns = khop.Loader(sampler, {"item": torch.arange(2)}, 2, columns={"item": ["price"]}).columns
    settings = Settings("f" * 64, view, described_sampler(sampler), columns, seeds)
    document = Document.parsed(written(settings.document), "settings")
    return Prepared.of(ServedGraph.of(graph), BUILTIN, document)


def numbers(*order: int) -> khop.Seeds:
    share = StepShare(torch.tensor(order), 0, torch.arange(len(order)), DrawKey(1))
    return khop.Seeds({}, {}, listed=share)


def test_a_source_is_made_once(typed_graph: khop.Graph) -> None:
    found = prepared(typed_graph)
    assert found.source() is found.source()
    assert found.source().sampler.graph is typed_graph


def test_a_view_leaves_edge_types_out(typed_graph: khop.Graph) -> None:
    found = prepared(typed_graph, view=({"only": [list(LIKE)]},))
    assert found.sampler.graph.schema.edge_types == (LIKE,)
    assert found.source().sampler.graph.schema.edge_types == (LIKE,)


def test_a_source_ends_with_its_view_and_is_made_again(typed_graph: khop.Graph) -> None:
    """Else settings would hold the memory of views that the server has dropped."""
    found = prepared(typed_graph, view=({"edges_before": 50}, {"only": [list(LIKE)]}))
    held = weakref.ref(found.source().sampler.graph)
    assert found.source().sampler.graph is held()
    views = found.served.views
    views._most_bytes = 0
    found.served.viewed(Document([{"edges_before": 20}], "view"))
    gc.collect()
    assert views.counts()["views_dropped"] == 2
    assert held() is None
    assert found.source().sampler.graph.schema.edge_types == (LIKE,)


def test_threads_share_settings_of_a_view(typed_graph: khop.Graph) -> None:
    found, begin = prepared(typed_graph, view=({"only": [list(LIKE)]},)), threading.Barrier(8)

    def source(_: int) -> object:
        begin.wait(60)
        return found.source()

    with ThreadPoolExecutor(8) as threads:
        first, *others = threads.map(source, range(8))
    assert all(other is first for other in others)


def test_seeds_by_number_are_looked_up(typed_graph: khop.Graph) -> None:
    found = prepared(typed_graph, seeds={"split": "train", "types": ["item"], "times": None})
    seeds = found.seeds(numbers(2, 0))
    assert seeds.nodes["item"].tolist() == [6, 0]  # the split has every third item
    assert found.listed_counts(numbers(2, 0)) == {"item": 2}


def test_negatives_of_listed_links_are_counted(typed_graph: khop.Graph) -> None:
    """Otherwise a batch could be larger than the limit that is checked before it is made."""
    split = SplitArguments((LIKE,), Shares(0.2, 0.1, 0.0), LinkColumns(7), 3)
    view = ({"only": [list(LIKE)]}, {"split_links": split.plain, "part": "val"})
    found = prepared(typed_graph, seeds={"view": list(view), "part": "val"}, view=view)
    assert found.listed_counts(numbers(2, 0)) == {"item": 2 * (2 + 7)}


def test_numbers_outside_the_list_are_refused(typed_graph: khop.Graph) -> None:
    found = prepared(typed_graph, seeds={"split": "train", "types": ["item"], "times": None})
    with pytest.raises(ValueError, match="seeds 0 to 67: the list has 67"):
        found.seeds(numbers(0, 67))
    with pytest.raises(ValueError, match="the settings name no list"):
        prepared(typed_graph).seeds(numbers(0))
