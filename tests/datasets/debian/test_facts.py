"""Packages to integers."""

from __future__ import annotations

import numpy as np

from khop.datasets.debian.facts import EDGE_TYPES, SECTIONS, UNKNOWN, Facts, collect
from khop.datasets.debian.packages import parse_packages

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
