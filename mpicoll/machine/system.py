"""What the system gives to processes, which packages are installed, and where the user's files are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mpicoll.machine.linux import cpus

_MEMORY = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_EXITING = 4  # the kernel's flag of a process that is about to end
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


def overload() -> str:
    """What leaves programs less time than the machine's cores have: a control group's limit, or more programs that
    compute than there are cores. Empty if nothing is known of either."""
    found = []
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    limit = min(_cores_of_groups(), default=cores)
    if limit < len(cpus()):
        found.append(f"a control group limits all processes together to the time of {limit:g} cores")
    if load > cores:
        found.append(f"{load:.3g} programs compute on {cores} cores (the load average of the last minute)")
    return "; ".join(found)


def _cores_of_groups() -> Iterator[float]:
    """The limits on time, as numbers of cores, of the control groups in which this process is. Those of the first
    version of control groups are not looked at."""
    for line in _text(_OWN_GROUPS).splitlines():
        if line.startswith("0::"):
            group = _CGROUP / line.removeprefix("0::").strip("/")
            for file in (each / "cpu.max" for each in (group, *group.parents) if each.is_relative_to(_CGROUP)):
                quota, period = _text(file).split() or ("max", "")
                if quota != "max":
                    yield int(quota) / int(period)


def _text(file: Path) -> str:
    """What a file holds; nothing if it is not there, or may not be read."""
    try:
        return file.read_text()
    except OSError:
        return ""


def huge_pages(which: str = "enabled") -> str | None:
    """When the system gives processes huge pages: always, never, or when they ask for them (madvise). With
    ``shmem_enabled``, when it does so for memory that they share. None where it does not say."""
    try:
        said = (_HUGE_PAGES / which).read_text()
    except OSError:
        return None
    return said[said.index("[") + 1 : said.index("]")]


def exit_code(process: int) -> int | None:
    """The exit code of a process of this node that has ended or is about to; that of SIGKILL is -9. None if it goes on,
    or if its parent does not know yet that it has ended, and the system does not say it. Raises OSError where its
    parent knows that it has ended."""
    try:
        said = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        os.kill(process, 0)
        return None
    # After the name, which may hold anything: the state, the flags, and last how it ended, as waitpid says it.
    state = said.rpartition(")")[2].split()
    return os.waitstatus_to_exitcode(int(state[-1])) if int(state[6]) & _EXITING else None


def version_of(package: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # to import it takes 20 ms, and every program would

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def home() -> Path | None:
    """The user's home: HOME, or what the system's list of users says. None if there is neither, as in a container."""
    found = os.path.expanduser("~")
    return Path(found) if os.path.isabs(found) else None


def cache_folder() -> Path | None:
    """The folder that XDG_CACHE_HOME names, if that is absolute, or else the one in the user's home. None if there is
    none."""
    named, at_home = os.environ.get("XDG_CACHE_HOME", ""), home()
    if os.path.isabs(named):
        return Path(named)
    return at_home and at_home / ".cache"


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
