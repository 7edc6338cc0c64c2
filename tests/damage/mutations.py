"""Damage done to one file of a folder: a flipped bit, a file cut short or extended, two files exchanged."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Files = Mapping[str, bytes]  # by path relative to the home of all folders

KINDS = ("bit", "bit", "bit", "bit", "bit", "bit", "bit", "truncation", "extension", "exchange")
TARGETS = ("folder", "parts", "derived", "checkpoint")
HEADER_BYTES = 128
_FOLDERS = {
    "folder": ("papers", "shop"),
    "parts": ("papers-parts", "shop-parts"),
    "derived": ("papers", "shop", "papers-parts", "shop-parts"),
    "checkpoint": ("checkpoints",),
}
_WEIGHTS = {"folder": 2, "parts": 2, "derived": 1, "checkpoint": 1}


@dataclass(frozen=True)
class Mutation:
    """Files with what they hold after the damage."""

    kind: str
    target: str  # "folder", "parts", "derived" or "checkpoint"
    folder: str  # below the home of all
    changed: Files
    without_derived: bool  # nothing derived is there any more
    text: str

    @property
    def file(self) -> str:
        """The damaged file; of two that were exchanged the first."""
        return next(iter(self.changed))


def mutation(files: Files, seed: int, number: int, targets: Sequence[str] = TARGETS) -> Mutation:
    """The mutation of that number: a pure function of the files, the seed, the number and the targets."""
    choose = random.Random(f"{seed}/{number}")
    while True:
        found = _some(files, choose, targets)
        if found is not None:
            return found


def _some(files: Files, choose: random.Random, targets: Sequence[str]) -> Mutation | None:
    (target,) = choose.choices(targets, [_WEIGHTS[target] for target in targets])
    name = choose.choice(_FOLDERS[target])
    there = sorted(f for f in files if f.startswith(f"{name}/") and _is_of(f, target))
    file, kind = choose.choice(there), choose.choice(KINDS)
    content = files[file]
    changed, detail = _changed(file, content, kind, files, there, choose)
    if all(files[path] == now for path, now in changed.items()):
        return None
    without_derived = target in ("folder", "parts") and choose.random() < 0.4
    text = f"{target} {file}: {kind} {detail}{', without derived/' if without_derived else ''}"
    return Mutation(kind, target, name, changed, without_derived, text)


def _is_of(file: str, target: str) -> bool:
    if target == "checkpoint":
        return file.startswith("checkpoints/last/")
    return ("/derived/" in file) == (target == "derived")


def _changed(
    file: str, content: bytes, kind: str, files: Files, there: Sequence[str], choose: random.Random
) -> tuple[Files, str]:
    if kind == "bit":
        header = HEADER_BYTES if file.endswith(".npy") and len(content) > HEADER_BYTES else 0
        start = 0 if choose.random() < 0.15 else header
        position, bit = choose.randrange(start, len(content)), choose.randrange(8)
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        return {file: bytes(damaged)}, f"{bit} of byte {position}"
    if kind == "truncation":
        length = choose.choice((len(content) - 1, choose.randrange(len(content))))
        return {file: content[:length]}, f"to {length} of {len(content)} bytes"
    if kind == "extension":
        more = choose.choice((b"\n", b"\0", bytes(8), choose.randbytes(choose.randrange(1, 200))))
        return {file: content + more}, f"by {len(more)} bytes"
    if file.startswith("checkpoints/"):
        other = file.replace("checkpoints/last/", "checkpoints/last-1/")
        return {file: files[other], other: content}, f"with {other}"
    like = [f for f in there if f != file and len(files[f]) == len(content)]
    other = choose.choice(like if like and choose.random() < 0.7 else there)
    return {file: files[other], other: content}, f"with {other}"
