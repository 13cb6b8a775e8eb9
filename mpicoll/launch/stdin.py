"""What a program reads from stdin under ``mpicoll run``.

Open MPI's launcher passes stdin on without its end, so that rank 0 waits for ever (openpmix/prrte#2373), and may repeat
parts of a long one (#2579). MPICH's lets the other ranks wait for ever. So rank 0 opens the stdin of ``mpicoll run``
itself, if both are on one node, and that of the others is empty.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

_VARIABLE = "MPICOLL_STDIN"


def give() -> dict[str, str]:
    """What rank 0 must find in its environment to read this process's stdin. Empty if the launcher reads it."""
    try:
        found = os.fstat(0)
    except OSError:  # it is closed: the next file that is opened would be taken for it
        os.open(os.devnull, os.O_RDONLY)
        found = os.fstat(0)
    by_launcher = os.isatty(0) or stat.S_ISSOCK(found.st_mode)  # what no other process can open
    return {} if by_launcher else {_VARIABLE: f"{os.getpid()}:{found.st_dev}:{found.st_ino}"}


def take(rank: int | None) -> None:
    """In a rank: let rank 0's stdin be that of ``mpicoll run``, and let the others' be empty."""
    given = os.environ.pop(_VARIABLE, "")
    if not given:
        return
    pid, device, inode = map(int, given.split(":"))
    with suppress(OSError):  # as in another container
        file = os.open(os.devnull if rank else f"/proc/{pid}/fd/0", os.O_RDONLY)
        found = os.fstat(file)
        if rank or (found.st_dev, found.st_ino) == (device, inode):
            if stat.S_ISREG(found.st_mode):
                with open(f"/proc/{pid}/fdinfo/0") as told:
                    os.lseek(file, int(told.readline().split()[1]), os.SEEK_SET)  # "pos: 123"
            os.dup2(file, 0)
        os.close(file)
