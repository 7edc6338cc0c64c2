"""Package lists as apt keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent

import pytest

from khop.datasets.debian.packages import Package, parse_packages


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
