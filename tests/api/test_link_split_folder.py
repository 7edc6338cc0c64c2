"""A split as a folder: what is read back is what was split, mapped, and holds no link that is held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import khop
from khop import EdgeTable, Graph, LinkSplit, NodeTable, open_graph, split_links, write_graph
from khop.graph.verify import verify_folder
from khop.schema import EdgeType

BUYS, BOUGHT_BY, TO = ("user", "buys", "item"), ("item", "bought_by", "user"), ("user", "to", "user")
PARTS = ("train", "val", "test")
Pair = tuple[int, int]


def written(path: Path, pairs: list[Pair]) -> Graph:
    """Purchases, some more than once, both ways; and friendships, which are their own reverse."""
    users, items = torch.tensor(pairs).T
    both = torch.cat([users, items]), torch.cat([items, users])
    facts = {"stars": users * 10 + items, "day": (items * 3).int()}
    nodes = {"user": NodeTable(10), "item": NodeTable(columns={"x": torch.randn(10, 500)})}
    edges = {
        BUYS: EdgeTable(users, items, facts, reverse_of=BOUGHT_BY),
        BOUGHT_BY: EdgeTable(items.flip(0), users.flip(0)),
        TO: EdgeTable(*both, reverse_of=TO),
    }
    return open_graph(write_graph(path, nodes, edges))


def pairs_on_disk(folder: Path, edge_type: EdgeType) -> set[Pair]:
    """The edges of a graph folder, read without khop."""
    home = folder / "edges" / "__".join(edge_type)
    indptr, indices = np.load(home / "indptr.npy"), np.load(home / "indices.npy")
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return set(zip(indices.tolist(), rows.tolist(), strict=True))


@pytest.mark.parametrize("disjoint", [0.0, 0.5])
def test_on_disk_no_link_that_is_held_out_is_left_in_either_direction(
    tmp_path: Path, disjoint: float
) -> None:
    """Nor any of the edges that stand beside it: every pair here is bought one to four times."""
    random = torch.Generator().manual_seed(2)
    pairs = [(u, v) for u in range(10) for v in range(10) if (u + 2 * v) % 3]
    bought = [pair for pair in pairs for _ in range(int(torch.randint(1, 5, (1,), generator=random)))]
    graph = written(tmp_path / "shop", bought)
    split = split_links(graph, [BUYS, TO], 0.2, 0.2, disjoint_share=disjoint, negatives=0)
    out = split.save(tmp_path / "split")
    asked = {p: {t: pairs_on_disk(out / f"{p}_links", t) for t in (BUYS, TO)} for p in PARTS}
    for hears, later in (("train", ("val", "test")), ("val", ("val", "test")), ("test", ("test",))):
        for part in (*later, "train") if disjoint and hears == "train" else later:
            for edge_type, reverse in ((BUYS, BOUGHT_BY), (TO, TO)):
                held_out = asked[part][edge_type]
                turned = {(v, u) for u, v in held_out}
                assert held_out
                assert not held_out & pairs_on_disk(out / hears, edge_type)
                assert not turned & pairs_on_disk(out / hears, reverse)
    heard = pairs_on_disk(out / "test", BUYS)
    assert heard | asked["test"][BUYS] == set(pairs)


@pytest.fixture
def split(tmp_path: Path) -> LinkSplit:
    pairs = [(u, v) for u in range(10) for v in range(10) if (u + v) % 3]
    graph = written(tmp_path / "shop", pairs)
    return split_links(graph, BUYS, label="stars", time="day", negatives=3)


def assert_equal(first: LinkSplit, second: LinkSplit) -> None:
    for part in PARTS:
        ours, theirs = getattr(first, part), getattr(second, part)
        assert ours.schema == theirs.schema
        for edge_type in ours.schema.edge_types:
            assert torch.equal(ours.csc(edge_type).indptr, theirs.csc(edge_type).indptr)
            assert torch.equal(ours.csc(edge_type).indices, theirs.csc(edge_type).indices)
        assert torch.equal(ours.columns[BUYS]["stars"], theirs.columns[BUYS]["stars"])
        ours, theirs = getattr(first, f"{part}_links"), getattr(second, f"{part}_links")
        for fact in ("edges", "labels", "times", "negatives"):
            left, right = getattr(ours, fact), getattr(theirs, fact)
            assert (left is None) == (right is None)
            assert left is None or (set(left) == set(right) and torch.equal(left[BUYS], right[BUYS]))


def test_a_split_is_read_as_it_was_made_and_trained_on(split: LinkSplit, tmp_path: Path) -> None:
    opened = LinkSplit.open(split.save(tmp_path / "split"))
    assert_equal(opened, split)
    sampler = khop.LinkSampler(opened.train, [3, 2], exclude="edge+reverse")
    links = replace(opened.train_links, times=None)
    batches = list(khop.Loader(sampler, links, 10, columns={"item": ["x"]}).epoch(0))
    assert sum(batch.links[BUYS].num_links for batch in batches) == split.train_links.counts[BUYS]


def test_links_in_any_order_keep_it(split: LinkSplit, tmp_path: Path) -> None:
    order = torch.randperm(split.val_links.counts[BUYS], generator=torch.Generator().manual_seed(1))
    shuffled = khop.Links({BUYS: split.val_links.edges[BUYS][:, order]}, {BUYS: order.float()})
    opened = LinkSplit.open(replace(split, val_links=shuffled).save(tmp_path / "split"))
    assert torch.equal(opened.val_links.edges[BUYS], shuffled.edges[BUYS])
    assert opened.val_links.labels is not None
    assert opened.val_links.labels[BUYS].tolist() == order.tolist()


def mapped_file(tensor: torch.Tensor) -> str:
    """The file whose pages a tensor lies in; "" where it is memory of the process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return line[line.index("/") :] if "/" in line else ""
    return ""


def test_what_is_opened_is_mapped_and_what_parts_share_lies_on_the_disk_once(
    split: LinkSplit, tmp_path: Path
) -> None:
    out = split.save(tmp_path / "split")
    opened = LinkSplit.open(out)
    assert opened.val_links.negatives is not None
    for tensor in (
        opened.test.csc(BUYS).indices,
        opened.train.columns["item"]["x"],
        opened.train_links.edges[BUYS],
        opened.val_links.negatives[BUYS],
    ):
        assert mapped_file(tensor).startswith(str(out))
    features = {(out / part / "nodes/item/x.npy").stat().st_ino for part in PARTS}
    assert len(features) == 1
    used = {f.stat().st_ino: f.stat().st_size for f in out.rglob("*.npy")}
    assert sum(used.values()) < 1.5 * sum(f.stat().st_size for f in (tmp_path / "shop").rglob("*.npy"))
    assert [finding for path in out.iterdir() for finding in verify_folder(path)] == []


def test_a_file_system_without_hard_links_holds_copies(
    split: LinkSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no such thing here")

    monkeypatch.setattr("os.link", refuse)
    assert_equal(LinkSplit.open(split.save(tmp_path / "split")), split)


def test_a_split_that_is_interrupted_leaves_nothing(split: LinkSplit, tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if "negatives" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        split.save(tmp_path / "split", notice=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]


def test_what_is_no_split_or_stands_in_the_way_is_named(split: LinkSplit, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"shop: no split of links, there is no train_links in it; `khop gr"):
        LinkSplit.open(tmp_path / "shop")
    with pytest.raises(ValueError, match=r"nowhere: no split of links"):
        LinkSplit.open(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="shop: exists already; remove it or choose another name"):
        split.save(tmp_path / "shop")
    out = split.save(tmp_path / "split")
    (out / "val" / "edges/user__buys__item/indices.npy").unlink()
    with pytest.raises(ValueError, match=r"indices.npy: is missing"):
        LinkSplit.open(out)
