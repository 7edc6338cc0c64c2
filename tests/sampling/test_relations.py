"""Links with relations: exclusion and exact negatives by relation, and negatives of both ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import khop
from khop.batch import Batch
from khop.draw import DrawKey, NegativeMode, Negatives, Positives
from khop.errors import Unsupported
from support.knowledge import BACK, ENTITIES, FACT, RELATIONS, Triples, as_column

TRIPLES = Triples.drawn()
EVERY = {tuple(triple) for triple in TRIPLES.all.T.tolist()}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    return as_column(tmp_path_factory.mktemp("facts") / "graph", TRIPLES)


def links(some: slice = slice(None)) -> khop.Links:
    source, relation, destination = TRIPLES.all[:, some]
    return khop.Links({FACT: torch.stack([source, destination])}, relations={FACT: relation})


def batch_of(graph: khop.Graph, negatives: Negatives | None, exclude: str | None = None) -> Batch:
    sampler = khop.LinkSampler(
        graph, [-1, -1], negatives=negatives, exclude=exclude, relation="r", edge_ids=True
    )
    return khop.Loader(sampler, links(slice(0, 40)), 40, columns=["x"]).batch(0, 0)


def test_excluded_edges_and_reverses_have_the_relation_of_a_link(graph: khop.Graph) -> None:
    batch = batch_of(graph, None, "edge+reverse")
    excluded = {tuple(triple) for triple in TRIPLES.all[:, :40].T.tolist()}
    column = {t: graph.columns[t]["r"] for t in (FACT, BACK)}
    found, parallel = set(), 0
    for block in batch.blocks:
        nodes = batch.sample.nodes["entity"]
        for edge_type, edges in block.adjacencies.items():
            assert edges.edge_ids is not None
            source, destination = nodes[edges.edge_index]
            if edge_type == BACK:
                source, destination = destination, source
            relation = column[edge_type][edges.edge_ids]
            seen = {tuple(each) for each in torch.stack([source, relation, destination]).T.tolist()}
            assert seen <= EVERY
            assert not seen & excluded
            ends = {(s, d) for s, _, d in excluded}
            parallel += sum((s, d) in ends for s, _, d in seen)
            found |= seen
    assert parallel > 0  # edges between the same ends by another relation do carry messages
    targets = set(batch.sample.nodes["entity"][: batch.sample.seed_index["entity"].numel()].tolist())
    expected = {t for t in EVERY - excluded if t[0] in targets or t[2] in targets}
    assert expected <= found


@pytest.mark.parametrize("mode", [NegativeMode.TRIPLET, NegativeMode.BINARY])
def test_exact_negatives_exclude_the_triples_of_the_relation_alone(
    graph: khop.Graph, mode: NegativeMode
) -> None:
    batch = batch_of(graph, khop.UniformNegatives(60, mode, exact=True, corrupt="both"))
    rows, seeds = batch.links[FACT], batch.seed_nodes["entity"]
    assert rows.relations is not None
    source, destination = seeds[rows.source], seeds[rows.destination]
    if mode is NegativeMode.BINARY:
        assert rows.pairs_per_link == 121
        assert rows.labels is not None
        assert rows.labels.tolist() == [1.0] * 40 + [0.0] * 40 * 120
        pairs = torch.stack([source, rows.relations, destination])[:, 40:].T.reshape(40, 120, 3)
    else:
        assert rows.negatives is not None
        assert rows.source_negatives is not None
        tails = [
            torch.stack([own.expand(60), r.expand(60), seeds[negatives]], 1)
            for own, r, negatives in zip(source, rows.relations, rows.negatives, strict=True)
        ]
        heads = [
            torch.stack([seeds[negatives], r.expand(60), own.expand(60)], 1)
            for own, r, negatives in zip(destination, rows.relations, rows.source_negatives, strict=True)
        ]
        pairs = torch.cat([torch.stack(tails), torch.stack(heads)], dim=1)
    for link, of_link in zip(TRIPLES.all[:, :40].T.tolist(), pairs, strict=True):
        s, r, d = link
        assert (of_link[:, 1] == r).all()
        assert (of_link[:60, 0] == s).all()
        assert (of_link[60:, 2] == d).all()
        for end, own, replaced in ((2, s, of_link[:60, 2]), (0, d, of_link[60:, 0])):
            allowed = {
                node
                for node in range(ENTITIES)
                if node != own and ((own, r, node) if end == 2 else (node, r, own)) not in EVERY
            }
            assert set(replaced.tolist()) <= allowed
            assert len(set(replaced.tolist())) > len(allowed) / 2  # of 60 draws; relations alone exclude
    if mode is NegativeMode.TRIPLET:
        assert rows.negatives is not None
        partners = {(s, d) for s, _, d in EVERY}
        drawn = zip(source.tolist(), seeds[rows.negatives].tolist(), strict=True)
        assert any((s, d) in partners for s, of in drawn for d in of)  # linked, by another relation


def test_a_source_without_the_relation_has_every_other_node_as_candidate(graph: khop.Graph) -> None:
    source, relation, _ = TRIPLES.all
    missing = [(s, r) for s in range(ENTITIES) for r in range(RELATIONS + 1)]
    missing = [
        pair for pair in missing if pair not in set(zip(source.tolist(), relation.tolist(), strict=True))
    ]
    sources, relations = torch.tensor(missing).T.contiguous()
    asked = Positives(sources, torch.arange(len(missing)), None, None, relations, "r")
    drawn = graph.sample_negatives(FACT, khop.UniformNegatives(200, exact=True), asked, DrawKey(3))
    assert not (drawn == sources.unsqueeze(1)).any()
    assert set(drawn.flatten().tolist()) == set(range(ENTITIES))


def test_a_split_keeps_relations_and_its_negatives_are_none_of_the_relation(
    graph: khop.Graph, tmp_path: Path
) -> None:
    split = khop.split_links(graph, FACT, 20, 20, negatives=50, relation="r")
    for part in ("train", "val", "test"):
        of_part = getattr(split, f"{part}_links")
        found = of_part.rows(FACT, torch.arange(of_part.counts[FACT]))
        triples = torch.stack([found.edges[0], found.relations, found.edges[1]]).T.tolist()
        assert {tuple(each) for each in triples} <= EVERY
        for (s, r, _), negatives in zip(triples, [] if part == "train" else found.negatives, strict=False):
            assert all((s, r, node) not in EVERY for node in negatives.tolist())
    split.save(tmp_path / "split")
    again = khop.LinkSplit.open(tmp_path / "split")
    assert torch.equal(again.val_links.relations[FACT], split.val_links.relations[FACT])


def test_times_are_in_the_batch(tmp_path: Path) -> None:
    timed = replace_links(times=torch.arange(40))
    graph = as_column(tmp_path / "graph", TRIPLES, sort_by="r")
    sampler = khop.LinkSampler(graph, [-1], rule=khop.Temporal("r"), trees="disjoint")
    batch = khop.Loader(sampler, timed, 40).batch(0, 0)
    assert batch.links[FACT].times is not None
    assert batch.links[FACT].times.tolist() == list(range(40))


def replace_links(times: torch.Tensor) -> khop.Links:
    some = links(slice(0, 40))
    return khop.Links(some.edges, times={FACT: times}, relations=some.relations)


def test_unfit_relations_are_errors(graph: khop.Graph) -> None:
    source, relation, destination = TRIPLES.all
    ends = torch.stack([source, destination])
    with pytest.raises(ValueError, match=r"relations of \(.*below 0; number relations from 0"):
        khop.Links({FACT: ends}, relations={FACT: relation - 2})
    with pytest.raises(ValueError, match="give int64"):
        khop.Links({FACT: ends}, relations={FACT: relation.float()})
    sampler = khop.LinkSampler(graph, [1], relation="r")
    with pytest.raises(ValueError, match=r"have no relations, which relation='r' needs"):
        khop.Loader(sampler, khop.Links({FACT: ends}), 10).batch(0, 0)
    with pytest.raises(ValueError, match=r"corrupt 'head': must be"):
        khop.UniformNegatives(corrupt="head")  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="by relation 'r': a GPU can only exclude edges by their ends"):
        khop.LinkSampler(graph, [1], relation="r", exclude="edge").for_kernels()
    one_way = graph.only([FACT])
    negatives = khop.UniformNegatives(1, exact=True, corrupt="source")
    sampler = khop.LinkSampler(one_way, [1], negatives=negatives, relation="r")
    with pytest.raises(ValueError, match="sources are drawn with the reverse edge type"):
        khop.Loader(sampler, links(), 10).batch(0, 0)
    plain = khop.LinkSampler(one_way, [1], negatives=replace(negatives, exact=False), relation="r")
    assert khop.Loader(plain, links(), 10).batch(0, 0).links[FACT].relations is not None
