"""What is derived from a graph is made once, and kept in its folder where that is possible."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from khop.graph import derived
from khop.graph.atomic import Meter
from khop.graph.build import write_edges
from khop.graph.derived import Derived, Seal
from khop.graph.edge_runs import SOURCE, EdgeChunk, EdgePlan, EdgeRuns, Grouping, spill
from khop.graph.folder_writer import FolderWriter
from khop.graph.npy import ArrayEntry, write_array
from support.spilled_edges import (
    EDGE_TYPE,
    HOME,
    LARGE,
    SMALL,
    edges_with_hubs,
    expected,
    pieces,
    plan_of,
    written,
)

VECTOR = torch.arange(5) * 3


class Maker:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> torch.Tensor:
        self.calls += 1
        return VECTOR


def test_threads_that_ask_at_once_share_one_making() -> None:
    store, make = Derived(), Maker()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: store.vector("a/b", 5, make, ()), range(20)))
    assert make.calls == 1
    assert all(vector is found[0] for vector in found)


def test_the_next_process_maps_what_this_one_made(tmp_path: Path) -> None:
    first, second = Maker(), Maker()
    assert torch.equal(Derived(tmp_path, "f" * 64).vector("a/b", 5, first, ()), VECTOR)
    assert torch.equal(Derived(tmp_path, "f" * 64).vector("a/b", 5, second, ()), VECTOR)
    assert (first.calls, second.calls) == (1, 0)


def test_another_graph_in_the_same_place_has_its_own(tmp_path: Path) -> None:
    Derived(tmp_path, "a" * 64).vector("x", 5, Maker(), ())
    other = Maker()
    Derived(tmp_path, "b" * 64).vector("x", 5, other, ())
    assert other.calls == 1


def kept_file(folder: Path) -> Path:
    """The file of a vector that was just made."""
    Derived(folder, "f" * 64).vector("a/x", 5, Maker(), ())
    (kept,) = folder.rglob("*.npy")
    return kept


def used_after(folder: Path, kept: Path, content: bytes) -> list[int]:
    """What is used of a file with other content; it has to be made anew, in place, with a word about it."""
    good = kept.read_bytes()
    kept.write_bytes(content)
    again = Maker()
    with pytest.warns(UserWarning, match="x.npy: was damaged") as warned:
        found = Derived(folder, "f" * 64).vector("a/x", 5, again, ())
    assert (len(warned), again.calls, kept.read_bytes() == good) == (1, 1, True)
    assert [file.name for file in kept.parent.iterdir()] == [kept.name]
    return found.tolist()


def test_every_flipped_bit_of_a_file_is_found_and_the_file_made_anew(tmp_path: Path) -> None:
    kept = kept_file(tmp_path)
    good = kept.read_bytes()
    assert np.array_equal(np.load(kept), VECTOR)  # any tool can read it
    for place in [*range(0, len(good), 7), *range(128, 168), len(good) - 1]:
        flipped = bytearray(good)
        flipped[place] ^= 1 << place % 8
        assert used_after(tmp_path, kept, bytes(flipped)) == VECTOR.tolist()


def test_a_file_of_another_length_is_made_anew(tmp_path: Path) -> None:
    kept = kept_file(tmp_path)
    good = kept.read_bytes()
    for other in (b"", good[:40], good[:168], good[:-1], good + b"\n", good + good, b"\0" * len(good)):
        assert used_after(tmp_path, kept, other) == VECTOR.tolist()


def test_a_file_of_another_graph_is_made_again(tmp_path: Path) -> None:
    kept = kept_file(tmp_path / "here")
    strange: list[Path] = []
    for name, graph in (("a/y", "f" * 64), ("a/x", "f" * 16 + "e" * 48)):
        place = tmp_path / f"there-{len(strange)}"
        Derived(place, graph).vector(name, 5, lambda: VECTOR + 1, ())
        strange += place.rglob("*.npy")
    for file in strange:
        assert used_after(tmp_path / "here", kept, file.read_bytes()) == VECTOR.tolist()


def test_several_that_find_damage_at_once_make_it_anew_once(tmp_path: Path) -> None:
    kept = kept_file(tmp_path)
    kept.write_bytes(kept.read_bytes()[:-1])
    makers = [Maker() for _ in range(4)]
    with pytest.warns(UserWarning, match="was damaged") as warned, ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda make: Derived(tmp_path, "f" * 64).vector("a/x", 5, make, ()).tolist(), makers)
        )
    assert found == [VECTOR.tolist()] * 4
    assert (sum(make.calls for make in makers), len(warned)) == (1, 1)


def test_a_file_of_khop_before_seals_is_not_used_and_goes(tmp_path: Path) -> None:
    before = tmp_path / "derived" / ("f" * 16) / "a/x/array.npy"
    before.parent.mkdir(parents=True)
    np.save(before, np.full(5, 7))
    assert torch.equal(Derived(tmp_path, "f" * 64).vector("a/x", 5, Maker(), ()), VECTOR)
    assert not before.parent.exists()


def test_nothing_is_read_or_written_through_a_symbolic_link(tmp_path: Path) -> None:
    kept_file(tmp_path / "other")
    there = tmp_path / "other/derived"
    before = sorted(there.rglob("*"))
    for link, target in (("derived", there), (f"derived/{'f' * 16}", there / ("f" * 16))):
        graph = tmp_path / f"graph-{len(link)}"
        (graph / link).parent.mkdir(parents=True)
        (graph / link).symlink_to(target)
        make = Maker()
        with pytest.warns(UserWarning, match=f"{link}: is a symbolic link"):
            found = Derived(graph, "f" * 64).vector("a/x", 5, make, ())
        assert (found.tolist(), make.calls) == (VECTOR.tolist(), 1)
    assert sorted(there.rglob("*")) == before


def test_a_link_in_the_place_of_a_file_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    kept = kept_file(tmp_path)
    target = tmp_path / "elsewhere"
    kept.rename(target)
    kept.symlink_to(target)
    content = target.read_bytes()
    with pytest.warns(UserWarning, match="was damaged"):
        Derived(tmp_path, "f" * 64).vector("a/x", 5, Maker(), ())
    assert not kept.is_symlink()
    assert target.read_bytes() == content


def primary(folder: Path) -> dict[str, ArrayEntry]:
    """A file as graph.json describes it."""
    return {"a.npy": write_array(folder / "a.npy", "int64", (5,), iter([VECTOR.numpy()]), lambda _: None)}


def test_nothing_is_kept_of_primary_arrays_that_are_damaged(tmp_path: Path) -> None:
    arrays = primary(tmp_path)
    with (tmp_path / "a.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    with pytest.raises(ValueError, match=r"a.npy: checksum differs from graph.json; .* copy it again"):
        Derived(tmp_path, "f" * 64, arrays).vector("x", 5, Maker(), ("a.npy", "none.npy"))

    def fail() -> torch.Tensor:
        raise RuntimeError("offset 3 of row 2")

    with pytest.raises(ValueError, match=r"a.npy: checksum differs from graph.json: offset 3 of row 2"):
        Derived(tmp_path, "f" * 64, arrays).vector("x", 5, fail, ("a.npy",))
    assert list(tmp_path.rglob("x*")) == []


def test_a_file_made_from_other_primary_arrays_is_made_anew(tmp_path: Path) -> None:
    arrays = primary(tmp_path)
    Derived(tmp_path, "f" * 64, arrays).vector("x", 5, lambda: VECTOR + 1, ())
    with pytest.warns(UserWarning, match="made from other data"):
        found = Derived(tmp_path, "f" * 64, arrays).vector("x", 5, Maker(), ("a.npy",))
    assert torch.equal(found, VECTOR)


def test_a_sound_file_is_not_used_beside_a_primary_array_that_was_damaged_since(tmp_path: Path) -> None:
    """Sums of weights, searched by offsets of other rows, would be another draw without a word."""
    arrays = primary(tmp_path)
    assert torch.equal(Derived(tmp_path, "f" * 64, arrays).vector("x", 5, Maker(), ("a.npy",)), VECTOR)
    assert torch.equal(Derived(tmp_path, "f" * 64, arrays).vector("x", 5, Maker(), ("a.npy",)), VECTOR)
    with (tmp_path / "a.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    with pytest.raises(ValueError, match=r"a.npy: checksum differs from graph.json"):
        Derived(tmp_path, "f" * 64, arrays).vector("x", 5, Maker(), ("a.npy",))


def test_what_is_written_piece_by_piece_is_what_is_had_in_memory(tmp_path: Path) -> None:
    pieces = [torch.arange(4), torch.empty(0, dtype=torch.int64), torch.tensor([9])]
    for store in (Derived(), Derived(tmp_path, "f" * 64), Derived(tmp_path, "f" * 64)):
        assert store.joined("x", 5, lambda: pieces, ()).tolist() == [0, 1, 2, 3, 9]


def test_a_second_process_waits_for_the_first_and_makes_nothing(tmp_path: Path) -> None:
    """Two stores, as two processes have them."""
    made = Maker()

    def make_while_another_asks() -> torch.Tensor:
        other = threading.Thread(
            target=lambda: found.append(Derived(tmp_path, "f" * 64).vector("x", 5, made, ()))
        )
        waiting.append(other)
        other.start()
        return VECTOR

    found: list[torch.Tensor] = []
    waiting: list[threading.Thread] = []
    first = Derived(tmp_path, "f" * 64).vector("x", 5, make_while_another_asks, ())
    waiting[0].join()
    assert made.calls == 0
    assert torch.equal(found[0], first)


def full(file: Path, entry: ArrayEntry, pieces: Sequence[torch.Tensor], seal: Seal) -> torch.Tensor:
    raise OSError(28, "No space left on device")


def test_where_it_cannot_be_kept_it_stays_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "write_sealed", full)
    store, make = Derived(tmp_path, "f" * 64), Maker()
    assert torch.equal(store.vector("x", 5, make, ()), VECTOR)
    assert torch.equal(store.vector("x", 5, make, ()), VECTOR)
    assert make.calls == 1
    assert list(tmp_path.rglob("*.npy")) == []


def test_what_cannot_be_made_may_be_asked_for_again(tmp_path: Path) -> None:
    def fail() -> torch.Tensor:
        raise ValueError("a weight is negative")

    store = Derived(tmp_path, "f" * 64)
    for _ in range(2):
        with pytest.raises(ValueError, match="negative"):
            store.vector("x", 5, fail, ())


# Edges on their way to the disk: chunks of any size, several types in one pass, a restart.


def test_times_of_sources_sort_edges_without_columns(tmp_path: Path) -> None:
    times = np.array([3, 1, 2, 0])
    chunk = EdgeChunk(np.array([0, 1, 2, 3]), np.array([1, 1, 1, 0]), times=times)
    plan = EdgePlan(EDGE_TYPE, 4, 2, sort_by="time", times="given")
    _, arrays = written(tmp_path, chunk, plan, LARGE, 1, 2)
    assert arrays["indices"].tolist() == [3, 1, 2, 0]
    with pytest.raises(ValueError, match="are sorted by 'time': give their times"):
        written(tmp_path, replace(chunk, times=None), plan, LARGE, 1, 2)


def test_one_pass_feeds_an_edge_type_and_its_reverse(tmp_path: Path) -> None:
    chunk = edges_with_hubs(6000, 60, 3)
    there = EdgeRuns(tmp_path / "there", plan_of(chunk, 60), SMALL, 2)
    back = EdgeRuns(tmp_path / "back", replace(plan_of(chunk, 50), num_sources=60), SMALL, 2)
    turned = EdgeChunk(chunk.destinations, chunk.sources, chunk.columns)
    both = [
        partial(list, [a()[0], b()[0]]) for a, b in zip(pieces(chunk, 700), pieces(turned, 700), strict=True)
    ]
    spill([there, back], both)
    for runs, name in ((there, "there"), (back, "back")):
        writer = FolderWriter(tmp_path / f"{name}-graph", Meter(0))
        write_edges(runs, writer)
        arrays = np.load(writer.folder / HOME / "indices.npy")
        given = chunk if name == "there" else turned
        assert np.array_equal(arrays, given.sources[np.argsort(given.destinations, kind="stable")])
        runs.close()


def test_a_later_process_goes_on_from_what_was_saved(tmp_path: Path) -> None:
    chunk = edges_with_hubs(9000, 3000, 1)
    plan = plan_of(chunk, 3000, sort_by="time")
    runs = EdgeRuns(tmp_path / "runs", plan, SMALL, 2)
    spill([runs], pieces(chunk, 800))
    state = runs.save()
    again = EdgeRuns(tmp_path / "runs", plan, LARGE, 1)
    again.load(state)
    writer = FolderWriter(tmp_path / "graph", Meter(0))
    write_edges(again, writer)
    right = expected(chunk, plan)
    for name, values in right.items():
        assert np.array_equal(np.load(tmp_path / "graph" / HOME / f"{name}.npy"), values)


def test_a_failed_task_ends_the_work_with_its_error(tmp_path: Path) -> None:
    def fail() -> Sequence[EdgeChunk]:
        raise ValueError("row 7 is damaged")

    runs = EdgeRuns(tmp_path / "runs", EdgePlan(EDGE_TYPE, 1, 1), SMALL, 2)
    with pytest.raises(ValueError, match="row 7 is damaged"):
        spill([runs], [fail])
    runs.close()


@pytest.mark.parametrize("sort_by", ["", "time"])
@pytest.mark.parametrize("memory", [SMALL, LARGE])
def test_no_group_exceeds_its_size_even_with_hubs(memory: int, sort_by: str, tmp_path: Path) -> None:
    chunk = edges_with_hubs(12_000, 5000, 1)
    runs = EdgeRuns(tmp_path / "runs", plan_of(chunk, 5000, sort_by=sort_by), memory, 1)
    spill([runs], pieces(chunk, 3000))
    with ExitStack() as opened:
        grouping = Grouping.of(runs, opened)
        groups = [task() for task in grouping.tasks(runs.spill)]
    edges = [len(group.fields[SOURCE]) for group in groups if group.fields]
    assert sum(edges) == 12_000
    assert max(edges) <= grouping.most
    assert len(edges) == 1 if memory == LARGE else len(edges) >= 12
    degrees = np.concatenate([group.degrees for group in groups])
    assert np.array_equal(degrees, np.bincount(chunk.destinations, minlength=5000))
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    runs.close()
