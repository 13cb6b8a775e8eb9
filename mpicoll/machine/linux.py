"""What only Linux has, and what takes its part elsewhere, as on macOS.

A process hands things to others of its user. On Linux they have no names in the file system: they are gone when the
process ends. Elsewhere they are in a folder that only this user can enter. Their names begin with the number of a
process, and whoever uses the folder removes those whose process has ended."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import socket
import stat
import struct
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

SHARES = hasattr(os, "memfd_create")
"""Whether the ranks of a node can share memory: files in memory, which others open through /proc."""
TELLS = hasattr(os, "pidfd_open")  # whether a process can be told when another one ends that it has not started


def folder() -> Path:
    """The folder of this user. Raises OSError if another user has made it, or can enter it."""
    found = Path(tempfile.gettempdir(), f"mpicoll-{os.geteuid()}")
    found.mkdir(0o700, exist_ok=True)
    said = found.lstat()
    if not stat.S_ISDIR(said.st_mode) or said.st_uid != os.geteuid() or said.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "other users can enter it", str(found))
    for file in found.iterdir():
        process = file.name.partition(".")[0]
        if process.isdecimal() and has_ended(int(process)):
            file.unlink(missing_ok=True)
    return found


def has_ended(process: int) -> bool:
    """Whether this user has no such process on this node any more."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):
        return True
    return False


def process_space() -> int:
    """The namespace in which processes have their numbers: a container has another one. 0 if the system has none."""
    return os.stat("/proc/self/ns/pid").st_ino if os.path.exists("/proc/self/ns/pid") else 0


def memory_file(name: str) -> int:
    """A file in memory, which has no name in the file system. Raises OSError if the system has none."""
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, "this system has no files in memory")
    return os.memfd_create(name)


def new_file(name: str) -> tuple[int, str]:
    """A file for other processes, which ``is_called`` this, and its path for them. Raises OSError."""
    if hasattr(os, "memfd_create"):
        file = memory_file(name)
        return file, f"/proc/{os.getpid()}/fd/{file}"
    return tempfile.mkstemp(prefix=f"{os.getpid()}.{name}.", dir=folder())


def is_called(path: str, name: str) -> bool:
    """Whether a ``new_file`` of that name has this path. To open what it is not might change something: in another
    namespace of processes, or once it is closed, the path of a file in memory means another file, or a device."""
    if hasattr(os, "memfd_create"):
        return os.readlink(path).startswith(f"/memfd:{name}")
    return os.path.basename(path).partition(".")[2].startswith(f"{name}.")


def end_of(process: int) -> int | None:
    """A file that can be read when this process of this node ends; None where the system has none, or it has ended."""
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):
            return os.pidfd_open(process)
    return None


def forget(path: str) -> None:
    """Remove the name of a ``new_file`` of this process, which is closed."""
    if not hasattr(os, "memfd_create"):
        os.unlink(path)


def files_of(process: int) -> list[Path]:
    """The files of a process, among which a ``new_file`` is. Raises OSError if they may not be seen."""
    if hasattr(os, "memfd_create"):
        return [*Path(f"/proc/{process}/fd").iterdir()]
    os.kill(process, 0)
    return [*folder().glob(f"{process}.*")]


def socket_name(what: str) -> str:
    """The name of a socket for processes that the same one has started."""
    if hasattr(socket, "SO_PEERCRED"):
        return f"\0{what}"  # an abstract one needs no file
    # The path of a socket has at most 103 bytes, of which a Mac's temporary folder takes half.
    return str(folder() / f"{os.getppid()}.{hashlib.sha256(os.fsencode(what)).hexdigest()[:16]}")


def is_own(peer: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # it has entered the folder
    ids = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", ids)[1] == os.geteuid())


def end_with_parent(number: int) -> bool:
    """Let this process get a signal when its parent ends. False if the system cannot do that."""
    c = ctypes.CDLL(None)
    return hasattr(c, "prctl") and c.prctl(1, number) == 0


def end_with(parent: int, number: int) -> None:
    """Let this process get a signal when its ``parent`` ends, or now if it has ended. Elsewhere a thread looks."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), number)

    if not end_with_parent(number):
        threading.Thread(target=look, daemon=True).start()
    elif os.getppid() != parent:
        os.kill(os.getpid(), number)


def loaded_files() -> set[str]:
    """The files that this process has mapped into its memory; empty if the system does not say it."""
    with suppress(OSError), open("/proc/self/maps") as maps:
        return {line.rstrip("\n").split(maxsplit=5)[-1] for line in maps}
    return set()


def name_of(process: int) -> str:
    """The name of a process's program; empty if the system does not say it."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def cpus() -> set[int]:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return {*range(os.cpu_count() or 1)}


def bind(to: set[int]) -> None:
    """Let this process use these CPUs alone, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, to)


# The name alone is not enough: hypervisors give different CPUs the same name, such as "AMD EPYC".
_CPUS = (
    "{model name}, family {cpu family} model {model} stepping {stepping}",
    "implementer {CPU implementer} part {CPU part} variant {CPU variant} revision {CPU revision}",
)


def cpu_name() -> str:
    """The model of the first CPU; empty if the system does not say it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return ""
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    for known in _CPUS:
        with suppress(KeyError):
            return known.format_map(fields)
    return ""
