"""Token files, tokens, and the rules about where a token travels.

Addresses of servers, as users write them and as names resolve.
"""

from __future__ import annotations

import math
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.servers.access import (
    Access,
    Address,
    Endpoint,
    Limits,
    Role,
    ServerSecurity,
    Token,
    Tokens,
    is_loopback,
    parsed_address,
    parsed_addresses,
    resolved,
    secret_of,
    token_of,
    write_token,
)
from khop.servers.errors import NotAllowed, Unauthenticated, Unavailable

LOOPBACK = Endpoint(Address("localhost", 1), "127.0.0.1")
FAR = Endpoint(Address("graphs.lan", 1), "10.0.0.5")


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_written_token_file_is_secret_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "alice"
    write_token(path, ["shop"], Role.SERVER)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = token_of(path)
    assert (token.name, token.graphs, token.role) == ("alice", ("shop",), Role.SERVER)
    assert secret_of(path) not in repr(token)
    assert repr(token.digest) not in repr(token)  # a short token could be guessed from it
    assert Tokens([token]).holder(f"Bearer {secret_of(path)}") is token
    with pytest.raises(FileExistsError):
        write_token(path)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_every_name_of_a_graph_reads_back(names: list[str]) -> None:
    with TemporaryDirectory() as folder:
        write_token(Path(folder, "t"), names)
        assert token_of(Path(folder, "t")).graphs == tuple(names)


def test_a_name_that_is_no_text_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        write_token(tmp_path / "t", ["\ud800"])
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o601])
def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "t", 'token = "0123456789abcdef"', mode)
    for read in (secret_of, token_of):
        with pytest.raises(PermissionError, match="chmod 600"):
            read(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0123456789abcdef", "is not a token file"),
        ("token = 5", "needs a line token"),
        ('token = "short"', "needs a line token"),
        ('graphs = ["a"]', "needs a line token"),
        ('token = "0123456789abcdef"\ngraph = ["a"]', "unknown key 'graph'"),
        ('token = "0123456789abcdef"\ngraphs = "a"', "list of names"),
        ('token = "0123456789abcdef"\nrole = "king"', "client or server"),
    ],
)
def test_other_files_are_refused_without_showing_them(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        token_of(written(tmp_path / "t", text))
    assert "0123456789abcdef" not in str(raised.value)


def test_wrong_and_missing_tokens_are_refused(tmp_path: Path) -> None:
    write_token(tmp_path / "a")
    tokens = Tokens([token_of(tmp_path / "a")])
    secret = secret_of(tmp_path / "a")
    for wrong in ("Bearer ", "Bearer x", f"Basic {secret}", secret, "", f"Bearer {secret} "):
        with pytest.raises(Unauthenticated, match="token_file"):
            tokens.holder(wrong)
    with pytest.raises(ValueError, match="a different token"):
        Tokens([token_of(tmp_path / "a"), token_of(tmp_path / "a")])


def test_a_token_reads_its_graphs_and_asks_requests_of_its_role() -> None:
    token = Token("alice", b"", ("shop",))
    token.check_graph("shop")
    token.check_role(Role.CLIENT)
    with pytest.raises(NotAllowed, match="may read shop"):
        token.check_graph("fraud")
    with pytest.raises(NotAllowed, match="hops and rows"):
        token.check_role(Role.SERVER)
    Token("all", b"").check_graph("fraud")


def test_off_the_loopback_clients_encrypt_unless_they_are_insecure() -> None:
    assert not Access().encrypts(LOOPBACK)
    assert Access().encrypts(FAR)
    assert Access(ca=Path("ca.pem")).encrypts(LOOPBACK)
    assert not Access(encryption="off").encrypts(FAR)
    with pytest.raises(ValueError, match="ca and client_cert have no effect"):
        Access(encryption="off", ca=Path("ca.pem"))
    with pytest.raises(ValueError, match="one needs the other"):
        Access(client_key=Path("k"))


def test_off_the_loopback_a_server_needs_certificate_and_tokens(tmp_path: Path) -> None:
    files = {"token_files": (tmp_path,), "tls_cert": tmp_path, "tls_key": tmp_path}
    ServerSecurity().check(["127.0.0.1", "::1"])
    ServerSecurity(**files).check(["10.0.0.5"])  # type: ignore[arg-type]
    ServerSecurity(insecure=True).check(["0.0.0.0"])
    for missing, option in (
        ({"token_files": ()}, "--token-file"),
        ({"tls_cert": None, "tls_key": None}, "--tls-cert"),
    ):
        with pytest.raises(ValueError, match=option):
            ServerSecurity(**(files | missing)).check(["10.0.0.5"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one needs the other"):
        ServerSecurity(tls_cert=tmp_path).check([])
    with pytest.raises(ValueError, match="--client-ca"):
        ServerSecurity(client_ca=tmp_path).check([])


def test_limits_are_seconds_above_0() -> None:
    with pytest.raises(ValueError, match="attempt_s 0"):
        Limits(attempt_s=0)
    with pytest.raises(ValueError, match=r"deadline_s inf: must be .*, at most 1e\+08"):
        Limits(deadline_s=math.inf)


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
