"""What the system gives to processes, and which packages are installed."""

from __future__ import annotations

import os
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_EXITING = 4
"""The kernel's flag of a process that is about to end."""
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def free_memory() -> int | None:
    """Bytes that processes may still take: what the machine has, or the control group that this process sees as its
    own, if that is less. Files that are kept in memory count as free. None where the system does not say it."""
    try:
        [available] = [line.split()[1] for line in _MEMORY.read_text().splitlines() if line.startswith("MemAvailable:")]
        free = int(available) << 10
    except (OSError, ValueError):
        return None
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        taken = int((_CGROUP / "memory.current").read_text())
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
    except OSError:  # no limit, or the first version of control groups
        return free
    kept = sum(int(n) for name, n in map(str.split, lines) if name in ("active_file", "inactive_file"))
    return free if limit == "max" else max(0, min(free, int(limit) - taken + kept))


def huge_pages(which: str = "enabled") -> str | None:
    """When the system gives processes huge pages: always, never, or when they ask for them (madvise). With
    ``shmem_enabled``, when it does so for memory that they share. None where it does not say."""
    try:
        said = (_HUGE_PAGES / which).read_text()
    except OSError:
        return None
    return said[said.index("[") + 1 : said.index("]")]


def exit_code(process: int) -> int | None:
    """The exit code of a process of this node that has ended or is about to; that of SIGKILL is -9. None if it goes on.
    Raises OSError where its parent knows already that it has ended."""
    # After the name, which may hold anything: the state, the flags, and last how it ended, as waitpid says it.
    state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return os.waitstatus_to_exitcode(int(state[-1])) if int(state[6]) & _EXITING else None


def version_of(package: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # to import it takes 20 ms, and every program would

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file so that a reader finds all of it, or what was there before. A device or a pipe is written to, and
    not replaced by a file. A symbolic link stays, and what it points to is written."""
    is_file = file.is_file() or not file.exists()
    if is_file:
        file = Path(os.path.realpath(file))
    new = file.with_name(f"{file.name}.{os.getpid()}.new") if is_file else file
    try:
        new.write_bytes(content.encode() if isinstance(content, str) else content)
        if is_file:
            new.replace(file)
    except BaseException:
        if is_file:
            new.unlink(missing_ok=True)
        raise
