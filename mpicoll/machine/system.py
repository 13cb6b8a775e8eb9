"""What the system gives to processes, and which packages are installed."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["huge_pages", "version_of", "write_whole"]

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def huge_pages(which: str = "enabled") -> str | None:
    """When the system gives processes huge pages: always, never, or when they ask for them (madvise). With
    ``shmem_enabled``, when it does so for memory that they share. None where it does not say."""
    try:
        said = (_HUGE_PAGES / which).read_text()
    except OSError:
        return None
    return said[said.index("[") + 1 : said.index("]")]


def version_of(package: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file so that a reader finds all of it, or what was there before. A device or a pipe is written to, and
    not replaced by a file."""
    is_file = file.is_file() or not file.exists()
    new = file.with_name(f"{file.name}.{os.getpid()}.new") if is_file else file
    try:
        new.write_bytes(content.encode() if isinstance(content, str) else content)
        if is_file:
            new.replace(file)
    except BaseException:
        if is_file:
            new.unlink(missing_ok=True)
        raise
