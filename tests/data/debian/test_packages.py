"""Package lists as apt keeps them.

Packages to integers.

The order of versions.

Descriptions as hashed words.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import pairwise
from textwrap import dedent

import numpy as np
import pytest
from debian_graph import Package, collect, parse_packages, version_key
from hypothesis import given
from hypothesis import strategies as st

from khop.data.debian.graph import (
    BUCKETS,
    EDGE_TYPES,
    SECTIONS,
    UNKNOWN,
    Facts,
    word_buckets,
    word_counts,
)


def parse(text: str) -> list[Package]:
    return list(parse_packages(dedent(text).splitlines(keepends=True), "Packages"))


def test_a_package_is_read_whole() -> None:
    (package,) = parse(
        """\
        Package: frozen-bubble
        Source: bubbles (2.4-1)
        Version: 2.4-1+b2
        Maintainer: A Team <Team@Example.org>
        Architecture: amd64
        Depends: libc6 (>= 2.34), libsdl1
        Description: cool game: pop out the bubbles!
        Section: games
        """
    )
    assert package == Package(
        name="frozen-bubble",
        version="2.4-1+b2",
        section="games",
        description="cool game: pop out the bubbles!",
        relations={
            "depends": ("libc6", "libsdl1"),
            "built_from": ("bubbles",),
            "maintained_by": ("team@example.org",),
        },
    )


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("a | b", ("a", "b")),
        ("a|b,c", ("a", "b", "c")),
        ("a (>= 1.0~rc1), a (<< 2)", ("a",)),
        ("python3:any (>= 3.11)", ("python3",)),
        ("a(= 1)", ("a",)),
        ("a [amd64 !i386], b <!nocheck>", ("a", "b")),
        ("g++, libstdc++6, x11-utils, 0ad", ("g++", "libstdc++6", "x11-utils", "0ad")),
        ("b, a, b", ("b", "a")),
        (" a , , b, ", ("a", "b")),
    ],
)
def test_a_relation_is_the_names_in_it_each_once(field: str, names: tuple[str, ...]) -> None:
    (package,) = parse(f"Package: p\nDepends: {field}\n")
    assert package.relations["depends"] == names


def test_every_relation_field_has_its_relation_and_versions_of_what_is_provided_are_dropped() -> None:
    (package,) = parse(
        """\
        Package: p
        Pre-Depends: a
        Depends: b
        Recommends: c
        Suggests: d
        Enhances: e
        Breaks: f
        Replaces: g
        Conflicts: h
        Provides: mail-agent, libp (= 1.2)
        Built-Using: i
        """
    )
    assert package.relations == {
        "pre_depends": ("a",),
        "depends": ("b",),
        "recommends": ("c",),
        "suggests": ("d",),
        "enhances": ("e",),
        "breaks": ("f",),
        "replaces": ("g",),
        "conflicts": ("h",),
        "provides": ("mail-agent", "libp"),
        "built_from": ("p",),
    }


def test_folded_fields_are_unfolded() -> None:
    (package,) = parse(
        """\
        Package: p
        Tag: role::program,
         use::gameplaying,
        \tuse::gameplaying, game::arcade
        Section: games
        """
    )
    assert package.relations["tagged_with"] == ("role::program", "use::gameplaying", "game::arcade")
    assert package.section == "games"


def test_missing_and_empty_fields_are_missing_not_guessed() -> None:
    (package,) = parse("Package: p\nDepends:\nMaintainer:\n")
    assert package == Package("p", "", None, "", {"built_from": ("p",)})


@pytest.mark.parametrize("section", ["games", "contrib/games", "non-free/games", "universe/games"])
def test_a_section_is_without_the_area_of_the_archive(section: str) -> None:
    (package,) = parse(f"Package: p\nSection: {section}\n")
    assert package.section == "games"


def test_one_maintainer_under_two_names_is_one() -> None:
    maintainers = [
        package.relations["maintained_by"]
        for package in parse(
            """\
        Package: a
        Maintainer: A. Person <a@example.org>

        Package: b
        Maintainer: Ann Person <A@Example.org>, Somebody Else

        Package: c
        Maintainer: nobody in particular
        """
        )
    ]
    assert maintainers == [("a@example.org",), ("a@example.org",), ("nobody in particular",)]


def test_blank_lines_around_and_the_last_line_do_not_matter() -> None:
    assert [package.name for package in parse("\n\nPackage: a\n\n\nPackage: b")] == ["a", "b"]
    assert parse("") == []


def test_a_list_is_read_no_further_than_wanted() -> None:
    def lines() -> Iterator[str]:
        yield from ("Package: a\n", "\n")
        raise AssertionError("read on")

    assert next(parse_packages(lines(), "Packages")).name == "a"


def test_what_is_no_list_is_refused_with_the_line() -> None:
    with pytest.raises(ValueError, match="lists/x_Packages: line 2 is 'rubbish', not 'Field: value'"):
        list(parse_packages(["Package: a\n", "rubbish\n"], "lists/x_Packages"))
    with pytest.raises(ValueError, match="line 1 is ' folded', not 'Field: value'"):
        list(parse_packages([" folded\n"], "Packages"))
    with pytest.raises(ValueError, match="paragraph that ends at line 3 has no Package field"):
        list(parse_packages(["\n", "Version: 1\n", "Depends: a\n", "\n"], "Packages"))


LIST = """\
Package: zsnake
Source: snakes
Maintainer: A <a@example.org>
Depends: libgame (>= 1), game-data | arcade-data, long-gone
Provides: game, python3
Section: contrib/games
Tag: role::program, game::arcade
Description: zsnake is a snake game

Package: libgame
Maintainer: B <b@example.org>
Breaks: zsnake (<< 2)
Suggests: game
Enhances: libgame
Section: libs
Tag: role::program
Description: library for games

Package: game-data
Source: snakes
Maintainer: A <A@example.org>
Provides: arcade-data
Section: interstellar
Description: data

Package: python3
"""


def facts_of(*lists: str) -> Facts:
    return collect(package for text in lists for package in parse_packages(text.splitlines(), "Packages"))


def edges(facts: Facts) -> dict[str, list[tuple[int, int]]]:
    """The edge types that have edges."""
    return {
        " ".join(edge_type): list(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True))
        for edge_type, pairs in facts.edges.items()
        if len(pairs)
    }


def test_packages_are_numbered_by_name_and_everything_else_as_it_first_occurs() -> None:
    # game-data 0, libgame 1, python3 2, zsnake 3; arcade-data 0, game 1; snakes 0, libgame 1, python3 2
    facts = facts_of(LIST)
    assert facts.counts == {"package": 4, "virtual": 2, "source": 3, "maintainer": 2, "tag": 2}
    assert facts.tags == ("role::program", "game::arcade")
    assert edges(facts) == {
        "package depends package": [(3, 0), (3, 1)],
        "package enhances package": [(1, 1)],
        "package breaks package": [(1, 3)],
        "package provides package": [(3, 2)],
        "package depends virtual": [(3, 0)],
        "package suggests virtual": [(1, 1)],
        "package provides virtual": [(0, 0), (3, 1)],
        "package built_from source": [(0, 0), (1, 1), (2, 2), (3, 0)],
        "package maintained_by maintainer": [(0, 0), (1, 1), (3, 0)],
        "package tagged_with tag": [(1, 0), (3, 0), (3, 1)],
    }


def test_every_edge_type_is_there_even_if_empty() -> None:
    assert tuple(facts_of("Package: a\n").edges) == EDGE_TYPES


def test_a_section_is_its_place_in_the_fixed_list_and_others_are_unknown() -> None:
    assert list(SECTIONS) == sorted(SECTIONS)
    known = [SECTIONS.index("libs"), UNKNOWN, SECTIONS.index("games")]
    assert facts_of(LIST).sections.tolist() == [UNKNOWN, *known]


def test_words_are_those_of_the_description_without_the_own_name() -> None:
    words = facts_of(LIST).words
    assert np.bincount(words.left, minlength=4).tolist() == [1, 3, 0, 4]


def test_the_newest_version_of_a_name_counts_wherever_it_stands() -> None:
    old = "Package: a\nVersion: 1.9-1\nSection: games\n"
    new = "Package: a\nVersion: 1.10-1\nSection: libs\n"
    for lists in ((old, new), (new, old)):
        facts = facts_of(*lists)
        assert facts.counts["package"] == 1
        assert facts.sections.tolist() == [SECTIONS.index("libs")]


def test_of_equal_versions_the_first_counts() -> None:
    first, second = "Package: a\nSection: games\n", "Package: a\nSection: libs\n"
    assert facts_of(first, second).sections.tolist() == [SECTIONS.index("games")]


def test_the_order_of_a_list_does_not_matter() -> None:
    turned = "\n".join(reversed([f"{paragraph.strip()}\n" for paragraph in LIST.split("\n\n")]))
    assert edges(facts_of(turned)) == edges(facts_of(LIST))


def test_no_package_makes_an_empty_graph() -> None:
    facts = facts_of("")
    assert set(facts.counts.values()) == {0}
    assert edges(facts) == {}


# Ascending; every step is one rule of Debian Policy, section 5.6.12.
ASCENDING = (
    "0~~",
    "0~~a",
    "0~",
    "0",
    "0.1",
    "0.9-1",
    "0.10-1~bpo12+1",
    "0.10-1",
    "0.10-1+b1",
    "0.10-1+deb12u1",
    "0.10-1.1",
    "0.10-2",
    "0.10a-1",
    "0.10+dfsg-1",
    "0.10.1-1",
    "1-0.9-1",
    "1:0.1",
    "1:0.1-a",
    "2:0",
)
versions = st.text("019~+.-:aZ", max_size=8)


@pytest.mark.parametrize(("older", "newer"), list(pairwise(ASCENDING)))
def test_the_newer_version_has_the_greater_key(older: str, newer: str) -> None:
    assert version_key(older) < version_key(newer)


@pytest.mark.parametrize(
    ("one", "other"), [("1.0", "0:1.0"), ("1.0", "1.0-0"), ("1.01", "1.1"), ("1.", "1.0"), ("", "0")]
)
def test_equal_versions_have_equal_keys_however_they_are_written(one: str, other: str) -> None:
    assert version_key(one) == version_key(other)


@given(versions, versions)
def test_a_tilde_at_the_end_is_older_and_a_letter_newer_than_the_end(version: str, other: str) -> None:
    assert version_key(f"{version}-1~") < version_key(f"{version}-1") < version_key(f"{version}-1a")
    assert (version_key(version) < version_key(other)) + (version_key(other) < version_key(version)) <= 1


def bucket(word: str) -> int:
    """As docs/debian.md says."""
    digest = blake2b(word.encode("utf-8"), digest_size=2).digest()
    return (digest[0] + 256 * digest[1]) % 512


def test_the_hash_is_the_documented_one() -> None:
    assert BUCKETS == 512
    assert word_buckets("library", "p") == [bucket("library")] == [340]


def test_words_are_runs_of_letters_and_digits_in_lower_case() -> None:
    text = "Real-time Strategy (3D) game_engine, naïve"
    words = ["real", "time", "strategy", "3d", "game", "engine", "naïve"]
    assert word_buckets(text, "p") == sorted(map(bucket, words))


def test_a_repeated_word_counts_as_often_as_it_stands() -> None:
    assert word_buckets("tool for tool makers", "p").count(bucket("tool")) == 2


def test_the_own_name_is_no_feature_but_words_that_resemble_it_are() -> None:
    assert word_buckets("g++", "g++") == word_buckets("Foo.", "foo") == []
    assert word_buckets("foo-bar: a bar", "foo-bar") == sorted([bucket("a"), bucket("bar")])
    assert word_buckets("(foo) food", "foo") == [bucket("food")]


@given(st.text(max_size=60), st.text("ab+-.", min_size=1, max_size=4))
def test_the_own_name_in_front_changes_nothing(text: str, name: str) -> None:
    assert word_buckets(f"{name} {text}", name) == word_buckets(text, name)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, BUCKETS - 1)), max_size=40))
def test_counts_are_how_often_a_row_has_a_bucket(pairs: list[tuple[int, int]]) -> None:
    rows, buckets = (np.array([pair[side] for pair in pairs], np.int32) for side in (0, 1))
    counts = word_counts(rows, buckets, 5)
    assert counts.shape == (5, BUCKETS)
    assert counts.sum() == len(pairs)
    assert all(counts[pair] == pairs.count(pair) for pair in pairs)


def test_counts_stop_at_255() -> None:
    same = np.zeros(300, np.int32)
    assert word_counts(same, same, 1)[0, 0] == 255
