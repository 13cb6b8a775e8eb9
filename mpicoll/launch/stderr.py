"""Where a rank says why the job ends: its stderr, as it was when the rank began. A test runner puts a file of its own
in its place, and what is in that is lost when the job ends."""

from __future__ import annotations

import os
from contextlib import suppress

_file = 2


def keep() -> None:
    """Keep this process's stderr."""
    global _file
    with suppress(OSError):  # it is closed
        _file = os.dup(2)


def say(text: str) -> None:
    """Write this, though another thread may hold Python's own lock of stderr. Where the program has put another file in
    the place of stderr, write it there, too.

    If the program has closed it, nobody can read this. Then the job must end all the same."""
    for file in dict.fromkeys((_file, 2)):
        with suppress(OSError):
            if file == _file or not os.path.sameopenfile(_file, file):
                os.write(file, text.encode(errors="replace") + b"\n")


def _in_child() -> None:
    """What a rank has forked may outlive it, and a launcher waits until nobody holds the rank's stderr."""
    global _file
    if _file != 2:
        os.close(_file)
        _file = 2


os.register_at_fork(after_in_child=_in_child)
