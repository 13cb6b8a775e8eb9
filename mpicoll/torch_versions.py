"""Which versions of torch mpicoll was tested with. The Makefile, the tests and setup.cfg follow these two.

Knows no torch, so that it can be asked before there is one.
"""

from __future__ import annotations

import re
import warnings

__all__ = ["NEWEST", "OLDEST", "check"]

OLDEST = "2.11.0"
NEWEST = "2.15.0"


def check(version: str, speaks: bool) -> None:
    """ImportError where this torch is older than OLDEST; a warning, if this process ``speaks``, where it is of a newer
    minor version than NEWEST."""
    if _minor(version) < _minor(OLDEST):
        raise ImportError(f"mpicoll needs torch {OLDEST} or newer, and this is torch {version}: pip install -U torch")
    if _minor(version) > _minor(NEWEST) and speaks:
        warnings.warn(f"mpicoll was tested with torch {OLDEST} to {NEWEST}, and this is torch {version}", stacklevel=2)


def _minor(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    assert found, version
    return int(found[1]), int(found[2])
