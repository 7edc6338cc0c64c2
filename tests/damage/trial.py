"""One mutation done, asked about and undone, and what came of it."""

from __future__ import annotations

import json
import random
import re
import resource
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from damage.as_they_lie import Described, IllFormed, expected
from damage.mutations import Mutation
from damage.questions import QUESTIONS, Answer, RowQuery, answer
from khop.data.partition.verify import verify_partition
from khop.graph.layout import is_partitioned
from khop.graph.verify import verify_folder
from khop.training.checkpoint import Checkpoint, load_checkpoint

QUESTIONS_EACH = 3
PEAK_BYTES = 24 << 20  # what a trial may take beyond what the process had: of files of kilobytes
ADDRESS_BYTES = 2 << 30  # the same of addresses, whether or not anything is written there
# The worst first. "unchanged" is the batch of before the damage, where the arrays as they lie have another.
OUTCOMES = (
    "difference", "unverified", "unclear error", "wrong exception", "memory", "error", "unchanged", "equal",
)  # fmt: skip
FAILURES = OUTCOMES[:5]
_WORDS = re.compile(r"[A-Za-z0-9_]+")


class Trials:
    """The folders of one process: files as they were, and answers and checkpoints of before any damage."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.files = {str(p.relative_to(home)): p.read_bytes() for p in home.rglob("*") if p.is_file()}
        names = ("papers", "shop", "papers-parts", "shop-parts")
        self._described = {name: Described(home / name) for name in names}
        self._sound: dict[tuple[str, str], Answer] = {}
        self._checkpoints = [load_checkpoint(home / "checkpoints" / name) for name in ("last", "last-1")]
        _limit_addresses()

    def run(self, done: Mutation, choose: random.Random) -> tuple[str, str]:
        """The outcome of a mutation, with questions that are chosen, and a sentence on it."""
        before = _restarted_peak()
        with self._damaged(done), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcomes = list(self._outcomes(done, choose))
        outcomes += [("memory", f"{taken:,} bytes")] if (taken := _peak() - before) > PEAK_BYTES else []
        outcome, detail = min(outcomes, key=lambda found: OUTCOMES.index(found[0]))
        return outcome, detail

    def _outcomes(self, done: Mutation, choose: random.Random) -> Iterator[tuple[str, str]]:
        if done.target == "checkpoint":
            yield self._checkpoint_outcome()
            return
        folder = self.home / done.folder
        try:
            verify = verify_partition if is_partitioned(folder) else verify_folder
            if not verify(folder) and not self._means_the_same(done):
                yield "unverified", "khop verify finds nothing"
        except ValueError:
            pass  # graph.json is none any more
        except Exception as error:
            yield "wrong exception", f"khop verify: {type(error).__name__}: {error}"
        for question in choose.sample(QUESTIONS[done.folder.removesuffix("-parts")], QUESTIONS_EACH):
            outcome, detail = self._outcome(done, question)
            yield outcome, f"{question.name}: {detail}"

    def _outcome(self, done: Mutation, question: RowQuery) -> tuple[str, str]:
        try:
            found = answer(self.home / done.folder, question)
        except ValueError as error:
            return "error" if _is_clear(done, str(error)) else "unclear error", str(error)
        except Exception as error:
            return "wrong exception", f"{type(error).__name__}: {error}"
        reason = "another batch"
        for kept_times in (True, False):  # a part says twice when its edges were there
            try:
                if found == expected(self._described[done.folder], question, kept_times):
                    return "equal", ""
            except IllFormed as error:
                reason = str(error)
        sound = self._sound_answer(done.folder, question)
        return ("unchanged" if found == sound else "difference"), reason

    def _means_the_same(self, done: Mutation) -> bool:
        """Whether all that changed is how JSON is set: space at its end, an exponent's letter."""
        changed = done.changed.items()
        return all(
            file.endswith(".json") and _json(content) == _json(self.files[file]) for file, content in changed
        )

    def _sound_answer(self, folder: str, question: RowQuery) -> Answer:
        key = (folder, question.name)
        if key not in self._sound:
            described = self._described[folder]
            with self._as_it_was(folder):
                self._sound[key] = expected(described, question)
        return self._sound[key]

    def _checkpoint_outcome(self) -> tuple[str, str]:
        noticed: list[str] = []
        try:
            found = load_checkpoint(self.home / "checkpoints" / "last", noticed.append)
        except ValueError as error:
            return "error", str(error)
        except Exception as error:
            return "wrong exception", f"{type(error).__name__}: {error}"
        last, before = self._checkpoints
        if noticed and _same(found, before):
            return "error", noticed[0]
        return ("equal", "") if not noticed and _same(found, last) else ("difference", "another state")

    @contextmanager
    def _damaged(self, done: Mutation) -> Iterator[None]:
        derived = self.home / done.folder
        for file, content in done.changed.items():
            _put(self.home / file, content)
        if done.without_derived:
            for path in derived.rglob("derived"):
                shutil.rmtree(path)
        try:
            yield
        finally:
            self._restore(done.folder)

    @contextmanager
    def _as_it_was(self, folder: str) -> Iterator[None]:
        """The sound files for as long as the block runs."""
        damaged = {
            str(p.relative_to(self.home)): p.read_bytes()
            for p in (self.home / folder).rglob("*")
            if p.is_file()
        }
        self._restore(folder)
        try:
            yield
        finally:
            for file, content in damaged.items():
                if content != self.files.get(file):
                    _put(self.home / file, content)

    def _restore(self, folder: str) -> None:
        wanted = {file: content for file, content in self.files.items() if file.startswith(f"{folder}/")}
        for path in (self.home / folder).rglob("*"):
            if path.is_file() and str(path.relative_to(self.home)) not in wanted:
                path.unlink()
        for file, content in wanted.items():
            path = self.home / file
            if not path.is_file() or path.read_bytes() != content:
                _put(path, content)


def _json(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return content


def _put(path: Path, content: bytes) -> None:
    """In a file of its own: what still has the old one mapped keeps it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(".beside")
    beside.write_bytes(content)
    beside.replace(path)


def _is_clear(done: Mutation, message: str) -> bool:
    """Whether an error names a damaged file: by its path, or its array and type, with a number of a row."""
    for path in map(Path, done.changed):
        relative = path.relative_to(done.folder)
        if str(relative) in message or (path.name in message and path.suffix == ".json"):
            return True
        types = [part for part in relative.parts[:-1] if part not in ("nodes", "edges", "columns", "splits")]
        words = set(_WORDS.findall(message))
        names = {word for part in types[-1:] for word in part.split("__")}
        if names <= words and path.stem in words and any(word.isdecimal() for word in words):
            return True
    return False


def _same(first: Checkpoint, second: Checkpoint) -> bool:
    tensors = ((first.model, second.model), (first.optimizer, second.optimizer))
    plain = ("groups", "training", "records")
    return all(getattr(first, name) == getattr(second, name) for name in plain) and all(
        one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in tensors
    )


def _status() -> Mapping[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines if line.startswith("Vm"))
    return {name: int(value.split()[0]) << 10 for name, value in pairs}


def _restarted_peak() -> int:
    """Bytes of memory now, from which the peak counts on."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status()["VmRSS"]


def _peak() -> int:
    return _status()["VmHWM"]


def _limit_addresses() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_status()["VmSize"] + ADDRESS_BYTES, hard))
