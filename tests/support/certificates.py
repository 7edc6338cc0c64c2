"""Certificates for tests, signed by an authority that lives for a test."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder."""

    folder: Path
    pair: Pair

    @classmethod
    def of(cls, folder: Path, name: str = "ca") -> Authority:
        """Make an authority."""
        folder.mkdir(parents=True, exist_ok=True)
        pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
        _openssl(
            "req", "-x509", *_new_key(pair.key), "-out", pair.cert, "-days", "2", "-subj", f"/CN={name}",
            "-addext", "basicConstraints=critical,CA:TRUE",
        )  # fmt: skip
        return cls(folder, pair)

    def signed(self, name: str, names: str = "DNS:localhost,IP:127.0.0.1") -> Pair:
        """Make a certificate for a server or a client."""
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        _openssl(
            "req", "-x509", *_new_key(pair.key), "-out", pair.cert, "-days", "2", "-subj", f"/CN={name}",
            "-addext", f"subjectAltName={names}", "-CA", self.pair.cert, "-CAkey", self.pair.key,
            "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
        return pair


def _new_key(path: Path) -> tuple[str | Path, ...]:
    return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
