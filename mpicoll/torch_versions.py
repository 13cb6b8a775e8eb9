"""The oldest and the newest version of torch that mpicoll was tested with.

The tests and setup.cfg follow these two. This module does not import torch: it can be read where torch is missing."""

from __future__ import annotations

import re
import warnings

OLDEST = "2.11.0"
NEWEST = "2.15.0"


def check(version: str, speaks: bool) -> None:
    """Raise ImportError if ``version``, torch's, is older than OLDEST.

    Warn if its minor version is newer than NEWEST's, in the one process of a job that ``speaks``."""
    if _minor(version) < _minor(OLDEST):
        raise ImportError(f"mpicoll needs torch {OLDEST} or newer, and this is torch {version}: pip install -U torch")
    if _minor(version) > _minor(NEWEST) and speaks:
        warnings.warn(f"mpicoll was tested with torch {OLDEST} to {NEWEST}, and this is torch {version}", stacklevel=2)


def _minor(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    assert found, version
    return int(found[1]), int(found[2])
