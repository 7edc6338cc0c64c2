"""A promise names itself and the difference; the suites cover every member of their protocols."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st

import khop.testing
from khop.errors import Unsupported
from khop.graph.features.store import FeatureStore
from khop.graph.features.table import FeatureTable
from khop.graph.rule import Rule
from khop.graph.store import CscGraph, GraphStore
from khop.loading.local_source import LocalSource
from khop.loading.source import BatchSource
from khop.sampling.rules.temporal import Temporal
from khop.sampling.sampler import NeighborSampler, Sampler
from khop.testing import batch_source, feature_store, graph_store, rule, sampler
from khop.testing.promises import (
    BrokenPromise,
    examples,
    expect,
    expect_equal,
    expect_refusal,
    keep_all,
    promise,
    unless_unsupported,
)


@promise
def is_even(number: int) -> None:
    """Be an even number.

    Odd ones are refused.
    """
    expect_equal("rest", number % 2, 0)


def test_a_broken_promise_names_itself_and_the_difference() -> None:
    is_even(4)
    with pytest.raises(BrokenPromise, match=r"^Be an even number\. rest: 1, must be 0$"):
        is_even(3)
    with pytest.raises(TypeError) as caught:
        is_even("three")  # type: ignore[arg-type]
    assert caught.value.__notes__ == ["The promise that was tested: Be an even number."]
    assert is_even.__name__ == "is_even"


def test_a_refusal_is_a_value_error_that_names_the_words() -> None:
    def refuses() -> None:
        raise ValueError("row 7 of 'user'")

    expect_refusal(refuses, "row 7", "7", "'user'")
    with pytest.raises(AssertionError, match=r"row 7: the error .* does not name 'item'"):
        expect_refusal(refuses, "row 7", "'item'")
    with pytest.raises(AssertionError, match="row 8: no error was raised, must be a ValueError"):
        expect_refusal(lambda: None, "row 8")


def test_unsupported_needs_a_text() -> None:
    def unsupported(*text: str) -> None:
        raise Unsupported(*text)

    assert unless_unsupported(lambda: 5) == 5
    assert unless_unsupported(lambda: unsupported("open the whole graph")) is None
    with pytest.raises(AssertionError, match="with the remedy"):
        unless_unsupported(unsupported)


@pytest.mark.parametrize("most", [2, 7000])
def test_examples_are_as_many_as_asked_for_and_no_more_than_the_profile_says(most: int) -> None:
    seen: list[int] = []

    @examples(most, number=st.integers(0, 1 << 40))
    def note(number: int) -> None:
        seen.append(number)
        expect(number >= 0, "never")

    note()
    assert len(seen) == min(most, settings().max_examples)


@pytest.mark.long
def test_the_suites_are_imported_on_first_use() -> None:
    code = (
        "import sys, khop, khop.testing; assert 'hypothesis' not in sys.modules; "
        "khop.testing.sampler.PROMISES; "
        "assert 'hypothesis' in sys.modules and 'pytest' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match=r"no attribute 'stores'; there are \['graph_store'"):
        khop.testing.stores  # noqa: B018


ASKED: set[str] = set()
SUITES = str(Path(khop.testing.__file__).parent)


def noting(kind: type) -> type:
    """A class whose instances note the names of the attributes that the suites read."""

    class Noting(kind):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> object:
            if sys._getframe(1).f_code.co_filename.startswith(SUITES):  # not what it reads of itself
                ASKED.add(name)
            return super().__getattribute__(name)

    Noting.__name__ = Noting.__qualname__ = f"Noting{kind.__name__}"
    return Noting


NotingTemporal = dataclass(frozen=True)(noting(Temporal))  # a rule is pickled by its name


def noted_graph(plain: graph_store.PlainGraph) -> CscGraph:
    graph = plain.in_memory()
    return noting(CscGraph)(graph.schema, graph.counts, graph.edges, graph.originals, graph.columns)


def noted_source(source: LocalSource) -> LocalSource:
    return noting(LocalSource)(source.sampler, source.features, source.columns, source.device)


CASES: dict[str, tuple[type, tuple[Callable[..., None], ...], object]] = {
    "graph store": (GraphStore, graph_store.PROMISES, noted_graph),
    "feature store": (FeatureStore, feature_store.PROMISES, noting(FeatureTable)),
    "sampler": (Sampler, sampler.PROMISES, lambda graph: noting(NeighborSampler)(graph, [3, 2])),
    "rule": (Rule, rule.PROMISES, NotingTemporal("time")),
    "batch source": (BatchSource, batch_source.PROMISES, noted_source),
}


@pytest.mark.core(2)
@pytest.mark.parametrize("protocol", CASES)
def test_a_suite_asks_every_member_of_its_protocol(protocol: str) -> None:
    kind, promises, made = CASES[protocol]
    before = settings()
    settings.register_profile("fewest", before, max_examples=3, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("fewest")
    ASKED.clear()
    try:
        keep_all(promises, made)
    finally:
        settings.register_profile("before fewest", before)
        settings.load_profile("before fewest")
    members = {name for each in kind.__mro__ for name in vars(each) if not name.startswith("_")}
    assert members - ASKED == set()
