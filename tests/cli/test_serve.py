"""`khop serve` and `khop servers` before anything is served; tests/processes has servers that run."""

from __future__ import annotations

import json
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from khop.cli.commands.shared import SecurityOptions, ServeOptions
from khop.cli.serve import _check_metrics, _command, _metrics_address, _shown
from khop.servers.access import Address, ServerSecurity, secret_of
from khop.servers.request_handler import QueueLimits, RequestHandler
from support.byte_service import ByteService
from support.commands import free_port
from support.resolved_names import resolve
from support.small_folders import write_learnable_graph

flight_server = pytest.importorskip("khop.servers.flight_server", reason="pip install pyarrow")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_learnable_graph(tmp_path_factory.mktemp("graph") / "shop", nodes=60)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--listen", "0.0.0.0:7311"],
            "other machines reach this address, so it needs --token-file",
        ),
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--procs", "0"], "--procs 0: must be at least 1"),
        (["--procs", "2", "--listen", "127.0.0.1:0"], "needs a port in --listen"),
        (["--on-ray", "0"], "--on-ray 0: must be at least 1"),
        (["--on-ray", "2", "--procs", "2", "--listen", "127.0.0.1:7311"], "excludes --procs"),
        (["--on-ray", "2"], "needs a port in --listen"),
        (["--on-ray", "2", "--listen", "10.0.0.5:7311", "--insecure"], "Ray chooses the machines"),
        (["--exit-idle", "0"], "--exit-idle 0: must be above 0"),
        (["--module", "missing.py"], "missing.py: is not a Python file"),
        (["--max-batch-bytes", "many"], "--max-batch-bytes 'many'"),
        (["--view-bytes", "many"], "--view-bytes 'many'"),
        (["--token-file", "missing"], "missing: No such file"),
        (["--tls-cert", "c.pem"], "one needs the other"),
        (["--metrics", "x"], "HOST:PORT"),
        (["--metrics", "10.0.0.5:9400"], "--metrics 10.0.0.5:9400: other machines reach this address"),
        (["--metrics", "0.0.0.0:9400"], "or --insecure in a network that you trust"),
        (["--part", "1"], "--part and --owners must be given together"),
        (["--part", "1", "--owners", "missing"], "write one with `khop servers token FILE --role server`"),
    ],
)
def test_a_wrong_option_is_a_sentence(
    folder: Path, khop_command: Callable[..., Any], words: list[str], sentence: str
) -> None:
    done = khop_command("serve", str(folder), "--listen", "127.0.0.1:0", *words)
    assert done.code in (1, 2)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_the_callers_signal_handlers_come_back(khop_command: Callable[..., Any], tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    khop_command("serve", str(tmp_path / "nowhere"), "--listen", "127.0.0.1:0")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_servers_on_ray_without_ray_say_what_to_install(
    folder: Path, khop_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "khop.cli.serve_on_ray", raising=False)
    done = khop_command("serve", str(folder), "--on-ray", "2")
    assert done.code == 2
    assert "--on-ray needs Ray: pip install ray" in done.stderr


def test_a_folder_that_is_no_graph_is_a_sentence(khop_command: Callable[..., Any], tmp_path: Path) -> None:
    done = khop_command("serve", str(tmp_path / "nowhere"), "--listen", "127.0.0.1:0")
    assert done.code == 2
    assert "nowhere" in done.stderr


def test_the_status_of_no_server_says_how_to_start_one(khop_command: Callable[..., Any]) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = khop_command("servers", "status", address)
    assert done.code == 1
    assert f"refused; is a server running there? (khop serve GRAPH --listen {address})" in done.stderr


def _handler() -> RequestHandler:
    return RequestHandler(ByteService(), QueueLimits())


def test_the_status_of_a_name_has_all_its_machines(
    khop_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that does not answer is named; without any, the command fails."""
    first = flight_server.served(_handler(), Address("127.0.0.1", 0), ServerSecurity())
    name = f"graphs.test:{first.port}"
    second = flight_server.served(_handler(), Address("127.0.0.2", first.port), ServerSecurity())
    resolve(monkeypatch, "graphs.test", ["127.0.0.1", "127.0.0.2"])
    keys = [f"{name} (127.0.0.1)", f"{name} (127.0.0.2)"]
    try:
        both = json.loads(khop_command("servers", "status", name, "--json").stdout)
        assert list(both) == keys
        assert all(found["graph"] == "bytes" for found in both.values())
        first.shutdown()
        left = json.loads(khop_command("servers", "status", name, "--json").stdout)
        assert "refused" in left[keys[0]]["error"]
        assert left[keys[1]]["graph"] == "bytes"
        assert "error" in khop_command("servers", "status", name).stdout
    finally:
        second.shutdown()
    none = khop_command("servers", "status", name)
    assert none.code == 1
    assert f"is a server running there? (khop serve GRAPH --listen {name})" in none.stderr


@pytest.mark.parametrize("name", ["json", "turtle", "khop", "__main__"])
def test_a_module_replaces_no_other_of_its_name(
    folder: Path, khop_command: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    before, path = sys.modules.get(name), tmp_path / f"{name}.py"
    path.write_text("raise AssertionError('it was run')")
    done = khop_command("serve", str(folder), "--listen", "127.0.0.1:0", "--module", str(path))
    assert done.code == 2
    assert f"{name} already exists" in done.stderr
    assert sys.modules.get(name) is before


def test_a_token_file_is_written_once_and_its_secret_is_not_shown(
    khop_command: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "alice"
    done = khop_command("servers", "token", str(path), "--graph", "shop")
    assert done.code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret_of(path) not in done.stdout + done.stderr
    assert khop_command("servers", "token", str(path)).code == 1


def test_several_servers_get_consecutive_ports_and_no_token_in_their_arguments(tmp_path: Path) -> None:
    security = SecurityOptions([tmp_path / "t"], tmp_path / "c", tmp_path / "k")
    options = ServeOptions(at_once=3, view_bytes="8GiB")
    words = _command(tmp_path, Address("10.0.0.5", 7312), None, security, options)
    assert words[3:] == [
        "serve", str(tmp_path), "--listen", "10.0.0.5:7312", "--token-file", str(tmp_path / "t"),
        "--tls-cert", str(tmp_path / "c"), "--tls-key", str(tmp_path / "k"), "--at-once", "3",
        "--view-bytes", "8GiB",
    ]  # fmt: skip


def test_metrics_are_on_the_loopback_unless_an_address_is_given() -> None:
    assert _metrics_address(None) is None
    assert _metrics_address("9400") == Address("127.0.0.1", 9400)
    assert _metrics_address("10.0.0.5:9400") == Address("10.0.0.5", 9400)


def test_metrics_beyond_the_loopback_need_the_option_insecure() -> None:
    _check_metrics(None, ServerSecurity())
    _check_metrics(Address("127.0.0.1", 9400), ServerSecurity())
    _check_metrics(Address("10.0.0.5", 9400), ServerSecurity(insecure=True))


def test_counters_have_separators_and_identities_have_none() -> None:
    shown = [_shown("bytes", 31579), _shown("pid", 31579), _shown("fingerprint", "350c8b015f34e232b1")]
    assert shown == ["31,579", "31579", "350c8b015f34"]
