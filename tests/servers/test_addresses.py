"""Addresses of servers, as users write them and as names resolve."""

from __future__ import annotations

import pytest

from khop.servers.addresses import Address, Endpoint, is_loopback, parsed_address, parsed_addresses, resolved
from khop.servers.errors import Unavailable


def test_addresses_are_hosts_with_ports_ranges_of_ports_or_ipv6() -> None:
    found = parsed_addresses(["10.0.0.5:7311", "graph.lan:7311-7313", "[::1]:80", "10.0.0.5:7311"])
    assert [str(each) for each in found] == [
        "10.0.0.5:7311", "graph.lan:7311", "graph.lan:7312", "graph.lan:7313", "[::1]:80",
    ]  # fmt: skip
    assert parsed_address("a:1") == Address("a", 1)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "::1:80", "host:x", "host:70000", "host:9-8", "host:-1"]
)
def test_other_texts_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parsed_address(text)


def test_no_address_and_two_for_one_are_refused() -> None:
    with pytest.raises(ValueError, match="give at least one"):
        parsed_addresses([])
    with pytest.raises(ValueError, match="needs one"):
        parsed_address("a:1-2")


def test_a_name_leads_to_endpoints_and_a_wrong_one_is_unavailable() -> None:
    found = resolved(Address("127.0.0.1", 5))
    assert found == (Endpoint(Address("127.0.0.1", 5), "127.0.0.1"),)
    assert str(found[0]) == "127.0.0.1:5"
    assert str(Endpoint(Address("a", 5), "10.1.1.1")) == "a:5 (10.1.1.1)"
    with pytest.raises(Unavailable, match=r"no\.such\.invalid: no address"):
        resolved(Address("no.such.invalid", 5))


def test_only_the_loopback_is_out_of_reach_of_other_machines() -> None:
    near, far = ("127.0.0.1", "127.9.9.9", "::1"), ("10.0.0.1", "0.0.0.0", "::", "fe80::1%eth0")
    assert all(map(is_loopback, near))
    assert not any(map(is_loopback, far))
