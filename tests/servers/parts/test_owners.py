"""owners.toml: addresses of the servers of each part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from khop.servers.parts.owners import Owners, read_owners

PAGE = Path(__file__).parents[3] / "docs" / "servers.md"


def test_the_example_of_the_documentation_is_read(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(parts = .*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "owners.toml").write_text(example)
    found = read_owners(tmp_path / "owners.toml")
    assert found.parts == (("127.0.0.1:7311",), ("127.0.0.1:7312",))
    assert found.access.token_file == tmp_path / "between"
    assert (found.limits.attempt_s, found.limits.deadline_s) == (5.0, 60.0)
    found.check(1, 2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("parts = [", "is no TOML"),
        ("", "parts None: must be a list of addresses for each part"),
        ("parts = []", "must be a list of addresses"),
        ('parts = ["a:1"]', "must be a list of addresses"),
        ("parts = [[]]", "must be a list of addresses"),
        ('parts = [["a:1", 2]]', "must be a list of addresses"),
        ('parts = [["nowhere"]]', "HOST:PORT"),
        ('parts = [["a:1"]]\nowner = 1', "unknown key 'owner'"),
        ('parts = [["a:1"]]\ntoken_file = 1', "token_file 1: must be the path of a file"),
        ('parts = [["a:1"]]\ninsecure = 1', "insecure 1: must be true or false"),
        ('parts = [["a:1"]]\nattempt = 0', "attempt_s 0: must be a number of seconds above 0"),
    ],
)
def test_a_wrong_file_is_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "owners.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_owners(tmp_path / "owners.toml")


@pytest.mark.parametrize(
    ("part", "num_parts", "sentence"),
    [(0, 3, "lists servers of 2 parts, and the graph has 3"), (2, 2, "--part 2: the graph has parts 0 to 1")],
)
def test_a_list_that_does_not_fit_the_graph_is_a_sentence(part: int, num_parts: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Owners((("a:1",), ("b:1",))).check(part, num_parts)
    with pytest.raises(ValueError, match="the graph has one part"):
        Owners((("a:1",),)).check(0, 1)
