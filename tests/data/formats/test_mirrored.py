"""Mirrors have files of the same names."""

from khop.data.formats.downloads import mirrored


def test_the_name_of_the_file_stays() -> None:
    assert mirrored("http://a/b/c.zip", None) == "http://a/b/c.zip"
    assert mirrored("http://a/b/c.zip", "http://m/sets/") == "http://m/sets/c.zip"
