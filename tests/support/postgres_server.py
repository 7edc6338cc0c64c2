"""A Postgres server of its own for tests, with a user that needs a password."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER, PASSWORD = "shop", "s3cr%t/word"
WRITTEN = "s3cr%25t%2Fword"  # the password as a part of an address


def programs() -> Path | None:
    """Return the folder of initdb and pg_ctl; None if Postgres is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server on a free port of this machine, and yield its address with the password."""
    folder = programs()
    assert folder is not None, "install Postgres"
    is_root = os.geteuid() == 0
    user = "postgres" if is_root else None  # the server refuses to run as root
    with tempfile.TemporaryDirectory(prefix="khop-postgres-", ignore_cleanup_errors=True) as place:
        (Path(place) / "password").write_text(PASSWORD)
        if user is not None:
            entry = pwd.getpwnam(user)
            for path in (Path(place), Path(place) / "password"):
                os.chown(path, entry.pw_uid, entry.pw_gid)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]

        def run(program: str, *arguments: str) -> None:
            subprocess.run(
                [str(folder / program), "-D", f"{place}/data", *arguments],
                user=user,
                group=user,
                extra_groups=None if user is None else [],
                cwd=place,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=120,
            )

        run(
            "initdb",
            "-U",
            USER,
            "--auth=scram-sha-256",
            f"--pwfile={place}/password",
            "-E",
            "UTF8",
            "--no-sync",
        )
        run(
            "pg_ctl", "-w", "-l", f"{place}/log", "-o",
            f"-k {place} -p {port} -c listen_addresses=127.0.0.1 -c fsync=off", "start",
        )  # fmt: skip
        try:
            yield f"postgresql://{USER}:{WRITTEN}@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
