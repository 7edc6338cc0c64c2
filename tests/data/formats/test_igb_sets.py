"""Addresses of the Illinois Graph Benchmark."""

from khop.data.formats.igb import IGB_SETS


def test_addresses_and_checksums() -> None:
    one = IGB_SETS["hetero-small"]
    assert one.url is not None
    assert one.url.endswith("/igb-heterogeneous/igb_heterogeneous_small.tar.gz")
    assert one.checksum is not None
    assert one.checksum.algorithm == "md5"
    assert IGB_SETS["full"].url is None
    assert IGB_SETS["full"].checksum is None
