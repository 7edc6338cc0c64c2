"""Two machines as network namespaces of this one, and the link between them, which may be bad. Needs root.

Each has a name, an address and a /dev/shm of its own. Kernels without netem serve as well: delay is made by
link_delay.py, loss by a rule of nft, a rate by tbf.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

LINK = "link0"  # the interface of either host
_FORWARDER = Path(__file__).with_name("link_delay.py")
_PREFIX = "khop"
_number = count()
# What a process on a host begins with: its machine's name and shared memory. Mounts are seen by it alone.
_AS_HOST = 'hostname "$0" && mount -t tmpfs -o "size=$1" tmpfs /dev/shm && shift && exec "$@"'


@dataclass(frozen=True)
class Host:
    """One machine."""

    name: str
    address: str
    namespace: str
    shm_bytes: int = 1 << 30

    def command(self, *command: str | Path) -> list[str]:
        """The command as it runs on this host."""
        entering = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--mount"]
        return [*entering, "sh", "-c", _AS_HOST, self.name, str(self.shm_bytes), *map(str, command)]

    def start(self, *command: str | Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Begin it; what it prints is in its pipes."""
        return subprocess.Popen(
            self.command(*command),
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str) -> str:
        """What a command prints that has to end well."""
        return system("ip", "netns", "exec", self.namespace, *command)

    def processes(self, *, but: str) -> list[int]:
        """Those that run here, and do not have the word in their command."""
        pids = [int(pid) for pid in system("ip", "netns", "pids", self.namespace).split()]
        return [pid for pid in pids if but not in _command_of(pid)]

    def refuse(self, packets: str) -> None:
        """Drop packets that arrive, as nft names them."""
        self.run("nft", "add table inet faults")
        self.run("nft", "add chain inet faults in { type filter hook input priority 0; }")
        self.run("nft", f'add rule inet faults in iifname "{LINK}" {packets} drop')

    def lose(self, percent: int) -> None:
        """Drop so many of all packets that arrive."""
        self.refuse(f"numgen random mod 100 < {percent}")

    def limit(self, megabits_s: int) -> None:
        """Let no more leave."""
        shape = ["tbf", "rate", f"{megabits_s}mbit", "burst", "64kb", "latency", "400ms"]
        self.run("tc", "qdisc", "add", "dev", LINK, "root", *shape)

    def give_up_after(self, retries: int) -> None:
        """Let the kernel repeat so often what is not answered, before it takes a connection for lost."""
        self.run("sysctl", "-w", f"net.ipv4.tcp_retries2={retries}")

    def set_link(self, state: str) -> None:
        """The link goes up or down."""
        self.run("ip", "link", "set", LINK, state)

    def add_interface(self, name: str, address: str) -> None:
        """Another network that only this host is in."""
        self.run("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}-far")
        for end in (name, f"{name}-far"):
            self.run("ip", "link", "set", end, "up")
        self.run("ip", "address", "add", address, "dev", name)

    def listening(self) -> dict[int, set[str]]:
        """The addresses that the processes of this host wait on for others, by process."""
        found: dict[int, set[str]] = {}
        for line in self.run("ss", "-H", "-l", "-t", "-n", "-p").splitlines():
            address = line.split()[3].rpartition(":")[0]
            for user in line.split("pid=")[1:]:
                found.setdefault(int(user.split(",")[0]), set()).add(address)
        return found


def system(*command: str) -> str:
    """What a command of the system prints; an error with its words where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


@contextmanager
def two_hosts(delay_s: float = 0.0, networks: str = "10.77.0") -> Iterator[tuple[Host, Host]]:
    """Two hosts, node-a and node-b, that reach each other and nobody else; `delay_s` passes on every way.

    When the block is left nothing remains of them, neither processes nor namespaces.
    """
    _remove_forsaken()
    with ExitStack() as stack:
        hosts = [stack.enter_context(_host(letter, f"{networks}.{n}")) for n, letter in enumerate("ab", 1)]
        names = "".join(f"{host.address} {host.name}\n" for host in hosts)
        for host in hosts:
            _settings_of(host.namespace).joinpath("hosts").write_text(f"127.0.0.1 localhost\n{names}")
        _delayed_link(stack, hosts, delay_s) if delay_s else _link(hosts)
        for host in hosts:
            host.run("ip", "address", "add", f"{host.address}/24", "dev", LINK)
            host.set_link("up")
        yield hosts[0], hosts[1]


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """An empty folder that holds so many bytes and no more."""
    folder.mkdir()
    system("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        system("umount", "--lazy", str(folder))


def filled(folder: Path) -> Path:
    """A new file there that takes all the room which is left."""
    rest = folder / "rest"
    with rest.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            continue
    return rest


@contextmanager
def _host(letter: str, address: str) -> Iterator[Host]:
    host = Host(f"node-{letter}", address, f"{_PREFIX}-{os.getpid()}-{next(_number)}-{letter}")
    try:
        _settings_of(host.namespace).mkdir(parents=True)
        system("ip", "netns", "add", host.namespace)
        host.run("ip", "link", "set", "lo", "up")
        yield host
    finally:
        _remove(host.namespace)


def _settings_of(namespace: str) -> Path:
    """What lies here stands in /etc for the processes of the namespace."""
    return Path("/etc/netns", namespace)


def _link(hosts: list[Host]) -> None:
    ends = [["name", LINK, "netns", host.namespace] for host in hosts]
    system("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])


def _delayed_link(stack: ExitStack, hosts: list[Host], delay_s: float) -> None:
    for host in hosts:
        host.run("ip", "tuntap", "add", "dev", LINK, "mode", "tun")
        host.run("ip", "link", "set", LINK, "mtu", "9000")
    forwarder = subprocess.Popen(
        [sys.executable, _FORWARDER, LINK, str(delay_s), *(host.namespace for host in hosts)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal's Ctrl-C is for the tests, which end it
    )
    stack.callback(forwarder.wait, 60)
    stack.callback(forwarder.kill)
    assert forwarder.stdout is not None
    assert forwarder.stdout.readline() == "forwarding\n"
    stack.callback(forwarder.stdout.close)


def _remove(namespace: str) -> None:
    """End what runs in the namespace, then the namespace with its interfaces."""
    if Path("/run/netns", namespace).exists():
        end = time.monotonic() + 60
        while pids := system("ip", "netns", "pids", namespace).split():
            assert time.monotonic() < end, f"{namespace}: processes {pids} do not end"
            for pid in pids:
                _kill(int(pid))
            time.sleep(0.05)
        system("ip", "netns", "delete", namespace)
    settings = _settings_of(namespace)
    settings.joinpath("hosts").unlink(missing_ok=True)
    if settings.exists():
        settings.rmdir()


def _command_of(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "cmdline").read_text()
    except OSError:  # it has ended since it was listed
        return ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has ended by itself since it was listed
        return


def _remove_forsaken() -> None:
    """Remove what tests have left that were killed themselves; one process of tests after the other."""
    with Path(tempfile.gettempdir(), f"{_PREFIX}-forsaken.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for folder in (Path("/run/netns"), Path("/etc/netns")):
            for path in list(folder.glob(f"{_PREFIX}-*-*")):
                if not Path("/proc", path.name.split("-")[1]).exists():
                    _remove(path.name)
