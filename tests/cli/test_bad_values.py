"""Whatever value an option is given, the command ends in a sentence: no traceback, no bug."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import typer.main

from cli.conftest import Ran
from khop.api.partition import partition_graph
from khop.cli.main import app
from khop.cli.trained import ids_of
from support.small_link_folders import write_shop

Command = Callable[..., Ran]
_LIKE_TRAIN = {"evaluate", "infer", "predict", "profile"}  # the fields of train: one value each
_STEP = 24  # `make test` tries every 24th option of a command
VALUES = (
    "", " ", "-1", "0", "1", "2", "-9223372036854775809", "9223372036854775808", "99999999999999999999999",
    "1e300", "-1e300", "1e308", "nan", "inf", "-inf", "1.5", "0x10", "1_000", "many", "true", "None",
    "[]", "{}", "{a = 1", '{"*" = -7}', "1,2", "1,,2", ",", "-1,-1", "99999999999999999999,1",
    "\U0001f600", "a/b", "..", "/", "/dev/null", "no\nline", "'", '"', "%s", "{0}", "x" * 300, "9" * 5000,
    "-", "2147483648", "4294967296", "1e18", "1e-300", "0.999999999999999999",
)  # fmt: skip
_SIZES = "--nodes 1e6 --edges 1e7 --feature-bytes 400 --fanouts 15,10 --machines 4 --network 10"


@pytest.fixture(autouse=True)
def _no_work_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are not started: what a value that passes does to a run is tested elsewhere."""
    monkeypatch.setattr("khop.cli.ranks.launch", lambda *given, **named: None)


@pytest.fixture(scope="module")
def made(learnable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with parts of a graph, a graph of links, a run.toml and a run folder."""
    home = tmp_path_factory.mktemp("values")
    write_shop(home / "shop")
    partition_graph(learnable, home / "parts", 2)
    text = f'graph = "{learnable}"\nsampler = {{ fanouts = [4, 3] }}\n'
    (home / "run.toml").write_text(text)
    (home / "run").mkdir()
    (home / "run" / "config.toml").write_text(text)
    return home


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a copy of these."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made, tmp_path, dirs_exist_ok=True))


def _bases(graph: Path) -> dict[tuple[str, ...], list[str]]:
    """Words with which each command goes through; an option of a case comes after them."""
    return {
        ("train",): ["run.toml", "--procs", "2"],
        ("evaluate",): ["run"],
        ("infer",): ["run", "--out", "e.npy"],
        ("predict",): ["run", "--graph", str(graph), "--out", "p.parquet"],
        ("recommend",): ["run", "--user", "7"],
        ("profile",): ["run.toml", "--procs", "2"],
        ("import",): ["igb:tiny", "out", "--root", "run"],
        ("append",): [str(graph), "run.toml"],
        ("compact",): [str(graph)],
        ("info",): [str(graph)],
        ("verify",): [str(graph)],
        ("partition",): [str(graph), "out", "--parts", "2"],
        ("part-files",): ["parts", "--machine", "0", "--machines", "2"],
        ("plan",): _SIZES.split(),
        ("graph", "sort"): [str(graph), "out", "--by", "x"],
        ("graph", "cluster"): [str(graph), "out", "--clusters", "4"],
        ("graph", "walks"): ["shop", "out", "--path", "user buys item, item bought_by user"],
        ("graph", "split"): ["shop", "out", "--links", "user buys item"],
        ("graph", "resplit"): [str(graph), "out", "--ratio", "0.6,0.2"],
        ("graph", "propagate"): [str(graph), "out", "--columns", "x"],
        ("init",): [str(graph)],
        ("lookup",): [str(graph), "node", "7"],
        ("serve",): ["missing", "--listen", "127.0.0.1:0"],
        ("servers", "status"): ["127.0.0.1:1"],
        ("servers", "token"): ["alice", "--graph", "shop"],
        ("report",): ["run"],
        ("runs",): ["."],
        ("compare",): ["run", "run"],
        ("doctor",): [],
        ("schema",): [],
        ("help",): [],
        ("version",): [],
    }


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


def _cases(graph: Path, command_name: str, cases_per_option: int) -> Iterator[list[str]]:
    drawn = random.Random(12)
    bases, count = _bases(graph), 1 if command_name in _LIKE_TRAIN else cases_per_option
    for path, command in _commands(typer.main.get_command(app)):
        if path[0] != command_name:
            continue
        for parameter in command.params[:: _STEP if cases_per_option == 1 else 1]:
            takes_value = not getattr(parameter, "is_flag", False)
            for value in drawn.sample(VALUES, count) if takes_value else ():
                if parameter.param_type_name == "option":
                    yield [*path, *bases[path], f"{parameter.opts[0]}={value}"]
                else:
                    yield [*path, value, *bases[path][1:]]


def check(ran: Ran, words: list[str]) -> None:
    assert ran.code in (0, 1, 2), (words, ran)
    assert "Traceback" not in ran.stderr + ran.stdout, (words, ran.stderr)
    assert "likely a bug" not in ran.stderr, (words, ran.stderr)
    if ran.code == 2:
        is_usage = "Usage: khop" in ran.stderr and "Error" in ran.stderr
        assert is_usage or ran.stderr.startswith("khop: "), (words, ran.stderr)


def test_every_command_is_tried(learnable: Path) -> None:
    assert {path for path, _ in _commands(typer.main.get_command(app))} == set(_bases(learnable))


@pytest.mark.core(9)
@pytest.mark.parametrize("cases_per_option", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("command", sorted({path[0] for path in _bases(Path())}))
def test_bad_values_of_every_option_end_in_a_sentence(
    khop_command: Command, place: Path, learnable: Path, command: str, cases_per_option: int
) -> None:
    for words in _cases(learnable, command, cases_per_option):
        check(khop_command(*words), words)


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("empty", lambda path: np.save(path, np.array([], np.int64)), "contains no ids"),
        ("none", lambda path: np.save(path, np.array([])), "contains float64 of shape (0,)"),
        ("table", lambda path: np.save(path, np.zeros((2, 2), np.int64)), "of shape (2, 2)"),
        ("number", lambda path: np.save(path, np.int64(3)), "of shape ()"),
        ("text", lambda path: np.save(path, np.array(["a"])), "contains <U1"),
        (
            "objects",
            lambda path: np.save(path, np.array([None], object), allow_pickle=True),
            "contains object",
        ),
        ("fields", lambda path: np.save(path, np.zeros(2, [("a", "i4")])), "not a .npy file"),
        ("true", lambda path: np.save(path, np.array([True])), "contains bool"),
        ("huge", lambda path: _header(path, 10**12), "its header says"),
        ("overflow", lambda path: _header(path, 10**30), "its header says"),
        ("minus", lambda path: _header(path, -5), "of shape (-5,)"),
        ("cut", lambda path: _cut(path), "its header says"),
        (
            "zip",
            lambda path: np.savez(path.with_suffix(""), a=np.arange(3)) or _renamed(path),
            "not a .npy file",
        ),
        ("nothing", lambda path: path.write_bytes(b""), "not a .npy file"),
        ("noise", lambda path: path.write_bytes(bytes(range(256)) * 9), "not a .npy file"),
        ("folder", lambda path: path.mkdir(), "no such file"),
        (
            "beyond",
            lambda path: np.save(path, np.array([2**64 - 1], np.uint64)),
            "contains 18446744073709551615",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ids_of_every_bad_kind_are_refused_in_a_sentence(
    tmp_path: Path, name: str, write: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / f"{name}.npy"
    write(path)
    with pytest.raises(ValueError, match=name) as error:
        ids_of(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def _header(path: Path, count: int) -> None:
    np.save(path, np.arange(3))
    head = path.read_bytes()[:128]
    text = head[10:].replace(b"(3,), }", b"(%d,), }" % count)
    path.write_bytes(head[:10] + text[:117] + b"\n")


def _cut(path: Path) -> None:
    np.save(path, np.arange(100))
    path.write_bytes(path.read_bytes()[:-8])


def _renamed(path: Path) -> None:
    path.with_suffix(".npz").rename(path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--hidden", "2000000000"], "model.hidden is 2000000000: the weights and their updates take "),
        (
            ["--hidden", "100000000000"],
            "model.hidden is 100000000000: must be a whole number of at least 1 and at most",
        ),
        (
            ["--embedding", "2000000000", "--column", "price"],
            "model.embedding is 2000000000: the embeddings take ",
        ),
    ],
    ids=str,
)
def test_what_cannot_fit_memory_is_known_before_anything_is_made(
    khop_command: Command, place: Path, options: list[str], sentence: str
) -> None:
    ran = khop_command("train", "run.toml", "--procs", "2", *options)
    assert ran.code == 2
    assert ran.stderr.startswith(f"khop: {sentence}"), ran.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--negatives-per-positive", "1000000000"],
            "links.negatives_per_positive is 1000000000: the pairs of a batch take ",
        ),
        (
            ["--eval-negatives", "100000"],
            "links.eval_negatives is 100000: must be a whole number of at least 1 and at most 10000",
        ),
    ],
    ids=str,
)
def test_pairs_that_cannot_fit_memory_are_known_too(
    khop_command: Command, place: Path, options: list[str], sentence: str
) -> None:
    links = ["--task", "link-prediction", "--target", "user buys item", "--embedding", "4"]
    ran = khop_command("train", "--graph", "shop", "--procs", "2", *links, *options)
    assert ran.code == 2
    assert ran.stderr.startswith(f"khop: {sentence}"), ran.stderr
