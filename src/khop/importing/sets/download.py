"""Downloads that continue where they stopped, with progress and checksums."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from khop.graph.disk_space import check_disk
from khop.graph.progress import Meter, ProgressCallback

_BLOCK = 1 << 20
_ATTEMPTS = 5
_TIMEOUT_S = 60.0
_PARTIAL, _REST_UNKNOWN = 206, 416


@dataclass(frozen=True)
class Checksum:
    """A checksum as its publisher gives it."""

    algorithm: str  # "md5", "sha256"
    digest: str


def download(
    url: str, target: Path, checksum: Checksum | None = None, notice: ProgressCallback | None = None
) -> str:
    """Download `url` to `target` and return its sha256. A file that is there already is kept.

    An interrupted download continues at the next call, if the server still has the same file, else starts
    again. The connection is tried five times. `target` appears complete; TARGET.json beside it records url,
    size and sha256. ValueError for an error of the server and for another checksum.
    """
    record = target.with_name(f"{target.name}.json")
    if target.is_file() and record.is_file():
        found: str = json.loads(record.read_text())["sha256"]
        return found
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url}: only http and https addresses are downloaded")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    _whole(url, part, notice)
    sha256 = _checked(url, part, checksum)
    record.write_text(json.dumps({"url": url, "bytes": part.stat().st_size, "sha256": sha256}, indent=1))
    _version(part).unlink(missing_ok=True)
    part.replace(target)
    return sha256


def _whole(url: str, part: Path, notice: ProgressCallback | None) -> None:
    """Append to `part` until it is whole."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            if _more(url, part, notice):
                return
            problem = "the connection ended too early"
        except urllib.error.HTTPError as error:
            raise ValueError(
                f"{url}: the server answers {error.code} {error.reason}; download the set yourself "
                "and give its folder by --root"
            ) from None
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            if isinstance(error, OSError) and part.exists() and error.filename is not None:
                raise
            problem = str(error)
        if attempt == _ATTEMPTS:
            raise ValueError(
                f"{url}: {problem}, {_ATTEMPTS} times; import again to continue at byte {_size(part):,}, or "
                "download the set yourself and give its folder by --root"
            )


def _more(url: str, part: Path, notice: ProgressCallback | None) -> bool:
    """Make one request for what is missing; return True if `part` is whole then."""
    start, version = _size(part), _version(part)
    request = urllib.request.Request(url, headers={"User-Agent": "khop", "Accept-Encoding": "identity"})
    if start and version.is_file():
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", version.read_text())
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code != _REST_UNKNOWN:
            raise
        # `part` was whole, or the file became shorter: only the whole file can decide.
        part.unlink(missing_ok=True)
        return False
    with answer:
        if answer.status != _PARTIAL:
            start = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        check_disk(part, (total or start) - start, "the download")
        strong = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        if strong and not strong.startswith("W/"):
            version.write_text(strong)
        else:
            version.unlink(missing_ok=True)
        with part.open("r+b" if start else "wb") as file:
            file.seek(start)
            done = _copy(answer, file, Meter(max(start, total or 0), notice, start), url)
    return total is None or done >= total


def _copy(answer: IO[bytes], file: IO[bytes], meter: Meter, url: str) -> int:
    what = f"downloading {url.rpartition('/')[2]}"
    while block := answer.read(_BLOCK):
        file.write(block)
        meter.at(what, len(block))
    file.flush()
    os.fsync(file.fileno())
    return meter.done


def _checked(url: str, part: Path, checksum: Checksum | None) -> str:
    digests = {name: hashlib.new(name) for name in {"sha256", checksum.algorithm if checksum else "sha256"}}
    with part.open("rb") as file:
        while block := file.read(_BLOCK):
            for digest in digests.values():
                digest.update(block)
    if checksum is not None and digests[checksum.algorithm].hexdigest() != checksum.digest:
        part.unlink()
        found = digests[checksum.algorithm].hexdigest()
        raise ValueError(
            f"{url}: its {checksum.algorithm} is {found}, the publisher's is "
            f"{checksum.digest}: the file was changed or damaged on its way; try again later, or download it "
            "yourself and give its folder by --root"
        )
    return digests["sha256"].hexdigest()


def _version(part: Path) -> Path:
    """Return the file with the server's name of the version that `part` is of."""
    return part.with_name(f"{part.name}.version")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
