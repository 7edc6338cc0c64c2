"""The graph argument: a folder as it is given, or a built-in graph in the cache.

The run argument: a file, a preset, or options alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from khop.cli.arguments import CommandWords, folder_of, written
from khop.components import ANY_NAMED, Permission
from khop.data.importers import BUILTIN_NAMES, builtin_path
from khop.run.read import preset, preset_names, read_toml


def test_other_names_are_folders_and_built_in_graphs_are_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path))
    assert folder_of("graphs/shop") == Path("graphs/shop")
    for name in BUILTIN_NAMES:
        builtin_path(name, tmp_path).mkdir()
        assert folder_of(name) == builtin_path(name, tmp_path)
        assert folder_of(f"./{name}") == Path(name)


def test_a_run_is_a_preset_a_file_or_its_options(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('graph = "shop"\n')
    assert written(str(path), {}, "khop train", ()) == replace(read_toml(path), permission=ANY_NAMED)
    assert (
        written(str(path.rename(tmp_path / "config.toml")), {}, "khop train", ()).permission == Permission()
    )
    assert written("debian", {}, "khop train", ()) == preset("debian")
    assert written(None, {"graph": "shop"}, "khop train", ()).values == {}


def test_without_a_run_the_error_says_how_to_name_one() -> None:
    with pytest.raises(ValueError, match=r"use khop train debian, khop train run\.toml"):
        written(None, {"epochs": 3}, "khop train", ())
    with pytest.raises(ValueError, match=r"missing\.toml: no such file; give a run\.toml") as raised:
        written("missing.toml", {}, "khop train", ())
    assert all(name in str(raised.value) for name in preset_names())


def test_a_name_with_a_typo_is_answered_with_the_near_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.toml").write_text("")
    for source, near in (("debain", "debian"), ("shop.tml", "shop.toml")):
        with pytest.raises(ValueError, match=rf"^{source}: no such file; did you mean {near}\?$"):
            written(source, {}, "khop train", ())
    with pytest.raises(ValueError, match=r"^debain: no such folder; did you mean debian\?$"):
        folder_of("debain")


def test_a_graph_folder_is_a_run_on_it(learnable: Path) -> None:
    assert written(str(learnable), {}, "khop train", ()).values == {"graph": str(learnable)}


@pytest.mark.parametrize(
    ("words", "operands", "options"),
    [
        ("a b", "a b", {}),
        ("--out a b", "b", {"--out": "a"}),
        ("--json a --out=b c", "a c", {"--json": "a", "--out": "b"}),
        ("--heads a b", "b a", {"--heads": "a"}),
        ("--flag --out a", "", {"--flag": "--out", "--out": "a"}),
        ("--heads=3 a", "a", {"--heads": "3"}),
        ("a --heads", "a", {"--heads": ""}),
        ("--out -1 a", "a", {"--out": "-1"}),
        ("-h -- --out", "--out", {"-h": "--"}),
    ],
)
def test_words_after_an_unknown_option_may_be_its_value_or_not(
    words: str, operands: str, options: dict[str, str]
) -> None:
    found = CommandWords.of(words.split(), {"--out": True, "--json": False, "-h": False})
    assert found.operands == tuple(operands.split())
    assert dict(found.options) == options
