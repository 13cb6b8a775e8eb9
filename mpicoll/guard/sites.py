"""Where in the program a call is made: the innermost frame that belongs neither to mpicoll nor to torch."""

from __future__ import annotations

import sys
import sysconfig
import threading
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType

__all__ = ["Site", "known_programs", "line_of", "place_of", "site_of", "whereabouts"]

Site = tuple[CodeType, int]
"""A frame's code, and the index of the instruction that it is at. A frame itself would keep the program's arrays."""

_LIBRARIES = tuple(
    str(Path(spec.origin).parent) + "/"
    for name in ("mpicoll", "torch", "mpi4py")
    if (spec := find_spec(name)) is not None and spec.origin is not None
)
_STANDARD = (sysconfig.get_path("stdlib") + "/", "<frozen ")
_PACKAGES = ("/site-packages/", "/dist-packages/")
known_programs: set[str] = set()
"""Files that were found to belong to the program."""
_known_libraries: set[str] = set()
"""And those that were found to belong to a library."""


def site_of(frame: FrameType) -> Site:
    """The site of the program that has led to ``frame``; the frame's own where no program has."""
    inner = frame
    while True:
        code = frame.f_code
        if is_program(code.co_filename):
            return code, frame.f_lasti
        if frame.f_back is None:
            return inner.f_code, inner.f_lasti
        frame = frame.f_back


def is_program(file: str) -> bool:
    """Whether the file belongs neither to Python nor to a library through which programs call."""
    if file in known_programs:
        return True
    if file in _known_libraries:
        return False
    pythons = file.startswith(_STANDARD) and not any(folder in file for folder in _PACKAGES)
    found = not pythons and not file.startswith(_LIBRARIES)
    (known_programs if found else _known_libraries).add(file)
    return found


def place_of(site: Site) -> str:
    """The site as ``file.py:12 in function``."""
    code, _ = site
    return f"{Path(code.co_filename).name}:{line_of(site)} in {code.co_name}"


def line_of(site: Site) -> int:
    """The number of the site's line in its file."""
    code, at = site
    return next((line for start, end, line in code.co_lines() if start <= at < end), None) or code.co_firstlineno


def whereabouts(thread: int | None = None) -> str:
    """Where the thread is now (the main thread if None): the program's frames, the innermost one first."""
    frame = sys._current_frames().get(thread or threading.main_thread().ident or 0)
    places: list[str] = []
    while frame is not None and len(places) < 3:
        file = frame.f_code.co_filename
        if is_program(file):
            places.append(place_of((frame.f_code, frame.f_lasti)))
        frame = frame.f_back
    return ", from ".join(places) or "its end"
