"""docs/randomness*.md against everything that draws: its vectors are read from the pages."""

import json
import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

from khop.draw import DrawKey, Purpose, mix64, stream
from khop.kernels.csc import Csc
from khop.kernels.draw_negatives import (
    Candidates,
    NegativeDraw,
    Partners,
    draw_negatives,
    draw_negatives_reference,
)
from khop.kernels.draw_request import DrawRequest, Kernel, time_ranges, time_ranges_reference
from khop.kernels.edge_arrays import parallel_rows, weight_sums, weight_sums_reference
from khop.kernels.edge_times import HopRows
from khop.kernels.philox import SourceNumbers, permutation_slice, philox, philox_reference
from khop.kernels.sample_hop import sample_hop
from khop.kernels.sample_reference import (
    sample_smallest_reference,
    sample_uniform_reference,
    sample_weighted_reference,
)
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.testing import reference
from support.draws import rising, sample_uniform, sample_weighted, uniform_request, weighted_request
from support.levels import LEVELS, dispatch_level

PAGES = sorted((Path(__file__).parents[2] / "docs").glob("randomness*.md"))
VECTORS: dict[str, list[dict[str, Any]]] = {}
for page in PAGES:
    for block in re.findall(r"^```json\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        VECTORS |= json.loads(block)


def each(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", VECTORS[name], ids=str)


def number(text: str) -> int:
    return int(text, 16)


def test_the_page_has_vectors_of_every_part() -> None:
    drawn = {"picks", "whole_weights", "weighted_picks", "smallest", "allowed", "negatives", "permutation"}
    assert set(VECTORS) == {"philox", "mix64", "key", "stream"} | drawn


@each("philox")
def test_philox(vector: dict[str, Any]) -> None:
    key, counter = number(vector["key"]), tuple(map(number, vector["counter"]))
    words = [number(word) for word in vector["words"]]
    counters = torch.tensor([counter])
    assert list(reference.philox(key, counter)) == words
    assert philox(key, counters).tolist() == [words]
    keys = torch.tensor([[key & 0xFFFFFFFF, key >> 32]])
    assert philox_reference(keys, counters).tolist() == [words]


@each("mix64")
def test_mix64(vector: dict[str, Any]) -> None:
    assert mix64(number(vector["value"])) == number(vector["mixed"])
    assert reference.mix64(number(vector["value"])) == number(vector["mixed"])


@each("key")
def test_key(vector: dict[str, Any]) -> None:
    purpose = Purpose[vector["purpose"]]
    key = DrawKey.of(vector["run_seed"], purpose, vector["epoch"], vector["step"])
    assert key.value == number(vector["key"])
    words = vector["run_seed"], purpose, vector["epoch"], vector["step"]
    assert reference.draw_key(*words) == key.value
    assert f"| {purpose.name} | {purpose.value} |" in (PAGES[0].parent / "randomness.md").read_text()


@each("stream")
def test_stream(vector: dict[str, Any]) -> None:
    source, relation, destination = vector["edge_type"]
    assert stream(vector["hop"], (source, relation, destination)) == number(vector["stream"])


@each("picks")
def test_picks_of_the_reference(vector: dict[str, Any]) -> None:
    key, tree = number(vector["key"]), vector.get("tree")
    key = key if tree is None else reference.tree_key(key, tree)
    row = reference.Row(key, vector["node"], number(vector["stream"]), vector["degree"])
    assert row.picks(vector["fanout"], vector["replacement"]) == vector["picks"]


@pytest.mark.core(7)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("vector", [v for v in VECTORS["picks"] if v["degree"] <= 1 << 21], ids=str)
def test_picks_of_the_kernels(vector: dict[str, Any], level: str) -> None:
    csc = Csc(torch.tensor([0, vector["degree"]]), torch.zeros(vector["degree"], dtype=torch.int32))
    tree = vector.get("tree")
    trees = None if tree is None else torch.tensor([tree])
    rule, key, number_of_stream = (
        Uniform(vector["replacement"]),
        DrawKey(number(vector["key"])),
        number(vector["stream"]),
    )
    nodes, original_ids = torch.tensor([0]), torch.tensor([vector["node"]])
    rows = HopRows(nodes, key, number_of_stream, original_ids, trees)
    with dispatch_level(level):
        drawn = sample_uniform(csc, rows, vector["fanout"], rule, edge_ids=True)
    assert drawn.edges is not None
    assert drawn.edges.tolist() == vector["picks"]
    plain = sample_uniform_reference(uniform_request(csc, rows, vector["fanout"], rule))
    assert plain.edges is not None
    assert plain.edges.tolist() == vector["picks"]


@each("smallest")
def test_numbers_of_sources(vector: dict[str, Any]) -> None:
    sources, fanout, kappa, step = (vector[name] for name in ("sources", "fanout", "kappa", "step"))
    key = DrawKey.of(vector["run_seed"], Purpose.HOP, vector["epoch"], step)
    word, later = stream(vector["hop"], (vector["source_type"],)), kappa - step % kappa
    bases = [key.at_step(step // kappa + more).value for more in (0, 1)]
    keys = reference.labor_keys(bases[0], word, sources, kappa, bases[1], later)
    assert [hex(of_edge) for of_edge in keys] == vector["keys"]
    assert reference.smallest_picks(keys, sources, fanout) == vector["picks"]
    csc = Csc(torch.tensor([0, len(sources)]), torch.tensor(sources))
    request = DrawRequest(
        csc,
        HopRows(torch.tensor([0]), key, word),
        fanout,
        sample_smallest_reference,
        Kernel.SMALLEST,
        order=SourceNumbers.of(key, word, kappa),
        has_parallel=parallel_rows(csc),
    )
    for drawn in (sample_hop([request], edge_ids=True)[0], sample_smallest_reference(request)):
        assert drawn.edges is not None
        assert drawn.edges.tolist() == vector["picks"]


@pytest.mark.core(4)
@each("negatives")
def test_negatives(vector: dict[str, Any]) -> None:
    count, partners, per_positive = vector["candidates"], vector["partners"], vector["per_positive"]
    key, position, number_of_stream = number(vector["key"]), vector["position"], number(vector["stream"])
    weights, limit = vector.get("weights"), vector.get("limit", count)
    left = [0 if r in partners or r >= limit else w for r, w in enumerate(weights or [1] * count)]
    assert reference.negatives(key, position, number_of_stream, left, per_positive) == vector["ranks"]
    before = None if weights is None else torch.tensor([0, *accumulate(weights)])
    candidates = Candidates(count, before)
    rows = Csc(torch.tensor([0, len(partners)]), torch.tensor(partners, dtype=torch.int32))
    for kernel in (draw_negatives, draw_negatives_reference):
        drawn = kernel(
            NegativeDraw(
                candidates,
                Partners.of(rows, candidates),
                torch.tensor([0]),
                torch.tensor([position]),
                per_positive,
                DrawKey(key),
                number_of_stream,
                limits=torch.tensor([limit]),
            )
        )
        assert isinstance(drawn, torch.Tensor)
        assert drawn.tolist() == [vector["ranks"]]


def one_row(degree: int) -> Csc:
    return Csc(torch.tensor([0, degree]), torch.arange(degree, dtype=torch.int32))


@each("whole_weights")
def test_whole_weights(vector: dict[str, Any]) -> None:
    weights = torch.tensor(vector["weights"], dtype=torch.float64)
    sums = list(accumulate(vector["whole"]))
    assert reference.whole_weights(vector["weights"]) == vector["whole"]
    assert weight_sums(one_row(weights.numel()), weights).tolist() == sums
    assert weight_sums_reference(one_row(weights.numel()), weights)[0].tolist() == sums


@pytest.mark.parametrize("level", LEVELS)
@each("weighted_picks")
def test_weighted_picks(vector: dict[str, Any], level: str) -> None:
    weights, fanout, rule = vector["weights"], vector["fanout"], Weighted("weight", vector["replacement"])
    key, stream_word = 0xCE17814D13C799A3, 0x8D1C2A1B
    row = reference.Row(key, vector["node"], stream_word, len(weights))
    whole = reference.whole_weights(weights)
    assert row.weighted_picks(fanout, rule.replacement, whole) == vector["picks"]
    csc = one_row(len(weights))
    sums = weight_sums(csc, torch.tensor(weights))
    rows = HopRows(torch.tensor([0]), DrawKey(key), stream_word, torch.tensor([vector["node"]]))
    with dispatch_level(level):
        assert sample_weighted(csc, rising(csc, sums), rows, fanout, rule).nodes.tolist() == vector["picks"]
    request = weighted_request(csc, rising(csc, sums), rows, fanout, rule)
    assert sample_weighted_reference(request).nodes.tolist() == vector["picks"]


@each("allowed")
def test_allowed_range(vector: dict[str, Any]) -> None:
    times, until, node = (torch.tensor(numbers) for numbers in (vector["times"], [vector["until"]], [0]))
    window = None if vector["window"] is None else (vector["window"][0], vector["window"][1])
    csc, allowed = one_row(times.numel()), list(range(*(vector["range"] or (0, 0))))
    assert list(range(*reference.allowed_range(vector["times"], vector["until"], window))) == allowed
    assert list(range(*time_ranges(csc, rising(csc, times), node, until, window).tolist())) == allowed
    assert list(range(*time_ranges_reference(csc, times, node, until, window, -1).tolist())) == allowed


@each("permutation")
def test_permutation(vector: dict[str, Any]) -> None:
    key, count, entries = number(vector["key"]), vector["count"], vector["entries"]
    assert [reference.permutation(key, count, index) for index in range(len(entries))] == entries
    assert permutation_slice(key, count, 0, len(entries)).tolist() == entries
