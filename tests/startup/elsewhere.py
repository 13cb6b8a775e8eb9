"""Takes away from this process what only Linux has, as on a system that never had it.

``sitecustomize`` imports this first where MPICOLL_TESTS_ELSEWHERE is set. What remains of Linux is what libraries do in
C: MPI, torch and the C library."""

import fcntl
import mmap
import os
import select
import selectors
import signal
import socket
import sys

GONE = {
    fcntl: ("F_SETSIG",),
    mmap: ("MADV_DONTFORK", "MADV_HUGEPAGE", "MADV_POPULATE_WRITE"),
    os: (
        *("eventfd", "eventfd_read", "eventfd_write", "memfd_create", "pidfd_open", "pipe2", "posix_fallocate"),
        *("sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "waitid", "O_PATH", "O_TMPFILE"),
    ),
    select: ("epoll",),
    signal: ("SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT", "pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
    socket: ("SO_PEERCRED", "SCM_CREDENTIALS", "TCP_USER_TIMEOUT"),
}
C_FUNCTIONS = {"fallocate", "memfd_create", "pidfd_open", "prctl", "process_vm_readv"}
FOLDERS = "/proc", "/sys", "/dev/shm"
READS = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.chdir", "glob.glob"}
"""Events whose first argument is a path."""
LONGEST_ADDRESS = 103
"""Bytes of the path of a socket on macOS."""


def is_gone(path: object) -> bool:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    name = os.fsdecode(path)
    return any(name == folder or name.startswith(f"{folder}/") for folder in FOLDERS)


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in READS and is_gone(arguments[0]):
        raise FileNotFoundError(2, "not on this system", arguments[0])
    if event == "ctypes.dlsym" and arguments[1] in C_FUNCTIONS:
        raise AttributeError(arguments[1])
    if event in {"socket.bind", "socket.connect"} and isinstance(arguments[1], (str, bytes)):
        address = os.fsencode(arguments[1])
        if address.startswith(b"\0") or len(address) > LONGEST_ADDRESS:
            raise OSError(22, "no address of this system")


def without(name: str) -> None:
    real = getattr(os, name)

    def on_another_system(path, *arguments, **named):  # type: ignore[no-untyped-def]
        if is_gone(path):
            raise FileNotFoundError(2, "not on this system", path)
        return real(path, *arguments, **named)

    setattr(os, name, on_another_system)


for module, names in GONE.items():
    for each in names:
        if hasattr(module, each):
            delattr(module, each)
vars(selectors)["DefaultSelector"] = selectors.PollSelector
for each in ("access", "lstat", "readlink", "stat", "statvfs", "unlink"):
    without(each)
sys.addaudithook(refuse)
