"""What the system gives to processes, and which packages are installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["huge_pages", "version_of"]

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
