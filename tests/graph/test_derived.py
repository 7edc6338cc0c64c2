"""What is derived from a graph is made once, and kept in its folder where that is possible."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from khop.graph import derived
from khop.graph.derived import Derived
from khop.graph.npy import ArrayEntry

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
        found = list(pool.map(lambda _: store.vector("a/b", 5, make), range(20)))
    assert make.calls == 1
    assert all(vector is found[0] for vector in found)


def test_the_next_process_maps_what_this_one_made(tmp_path: Path) -> None:
    first, second = Maker(), Maker()
    assert torch.equal(Derived(tmp_path, "f" * 64).vector("a/b", 5, first), VECTOR)
    assert torch.equal(Derived(tmp_path, "f" * 64).vector("a/b", 5, second), VECTOR)
    assert (first.calls, second.calls) == (1, 0)


def test_another_graph_in_the_same_place_has_its_own(tmp_path: Path) -> None:
    Derived(tmp_path, "a" * 64).vector("x", 5, Maker())
    other = Maker()
    Derived(tmp_path, "b" * 64).vector("x", 5, other)
    assert other.calls == 1


def test_a_damaged_array_is_made_again(tmp_path: Path) -> None:
    Derived(tmp_path, "f" * 64).vector("x", 5, Maker())
    (kept,) = tmp_path.rglob("*.npy")
    kept.write_bytes(kept.read_bytes()[:-1])
    again = Maker()
    assert torch.equal(Derived(tmp_path, "f" * 64).vector("x", 5, again), VECTOR)
    assert again.calls == 1


def test_what_is_written_piece_by_piece_is_what_is_had_in_memory(tmp_path: Path) -> None:
    pieces = [torch.arange(4), torch.empty(0, dtype=torch.int64), torch.tensor([9])]
    for store in (Derived(), Derived(tmp_path, "f" * 64), Derived(tmp_path, "f" * 64)):
        assert store.joined("x", 5, lambda: pieces).tolist() == [0, 1, 2, 3, 9]


def test_who_comes_second_waits_for_the_first_and_makes_nothing(tmp_path: Path) -> None:
    """Two stores, as two processes have them."""
    made = Maker()

    def make_while_another_asks() -> torch.Tensor:
        other = threading.Thread(
            target=lambda: found.append(Derived(tmp_path, "f" * 64).vector("x", 5, made))
        )
        waiting.append(other)
        other.start()
        return VECTOR

    found: list[torch.Tensor] = []
    waiting: list[threading.Thread] = []
    first = Derived(tmp_path, "f" * 64).vector("x", 5, make_while_another_asks)
    waiting[0].join()
    assert made.calls == 0
    assert torch.equal(found[0], first)


def full(file: Path, entry: ArrayEntry, pieces: Sequence[torch.Tensor]) -> None:
    raise OSError(28, "No space left on device")


def overtaken(file: Path, entry: ArrayEntry, pieces: Sequence[torch.Tensor]) -> None:
    raise ValueError(f"{file.parent}: was written by another process meanwhile; this one's work is dropped")


@pytest.mark.parametrize("write", [full, overtaken])
def test_where_it_cannot_be_kept_it_stays_in_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Path, ArrayEntry, Sequence[torch.Tensor]], None],
) -> None:
    monkeypatch.setattr(derived, "_write", write)
    store, make = Derived(tmp_path, "f" * 64), Maker()
    assert torch.equal(store.vector("x", 5, make), VECTOR)
    assert torch.equal(store.vector("x", 5, make), VECTOR)
    assert make.calls == 1
    assert list(tmp_path.rglob("*.npy")) == []


def test_what_cannot_be_made_may_be_asked_for_again(tmp_path: Path) -> None:
    def fail() -> torch.Tensor:
        raise ValueError("a weight is negative")

    store = Derived(tmp_path, "f" * 64)
    for _ in range(2):
        with pytest.raises(ValueError, match="negative"):
            store.vector("x", 5, fail)
