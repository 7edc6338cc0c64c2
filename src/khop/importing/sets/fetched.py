"""Archives of standard sets, downloaded and unpacked into the cache."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from khop.datasets.importers import ImportContext
from khop.graph.progress import ProgressCallback
from khop.importing.sets.download import Checksum, download
from khop.importing.sets.unpacked import unpacked
from khop.user_cache import cache_folder


def fetched(
    url: str,
    context: ImportContext,
    notice: ProgressCallback | None = None,
    checksum: Checksum | None = None,
) -> Path:
    """Return the folder of an unpacked archive in the cache; the first use downloads it.

    The archive is removed once it is unpacked; its size and sha256 stay recorded beside the folder.
    """
    folder, archive = _places(url, context)
    if not folder.is_dir():
        download(url, archive, checksum, notice)
        unpacked(archive, folder, notice)
    archive.unlink(missing_ok=True)
    return folder


def fetched_file(
    url: str,
    context: ImportContext,
    notice: ProgressCallback | None = None,
    checksum: Checksum | None = None,
) -> Path:
    """Return a downloaded file in the cache that is no archive."""
    _, file = _places(url, context)
    download(url, file, checksum, notice)
    return file


def _places(url: str, context: ImportContext) -> tuple[Path, Path]:
    """Return the folder of a set, and the place of its archive. They differ for each address."""
    name = url.rpartition("/")[2]
    home = (
        (context.cache or cache_folder())
        / "sets"
        / f"{Path(name).stem}-{sha256(url.encode()).hexdigest()[:8]}"
    )
    return home / "unpacked", home / name
