"""What the system says of its memory, cores and folders, and what replaces what only Linux has."""

from __future__ import annotations

import pwd
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpicoll.jobs.launcher import of_no_rank
from mpicoll.launch import cores
from mpicoll.machine import linux, shared_memory, system
from mpicoll.machine.system import cache_folder, home
from mpicoll.probe.device_memory import cached, file_of, keep
from mpicoll.units import ranges

MIB = 1 << 20


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files of a system lie, of which 1,000 MiB are free."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {1000 << 10} kB\n")
    monkeypatch.setattr(system, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(system, "_CGROUP", tmp_path)
    return tmp_path


def limited(folder: Path, limit: str, taken: int, files: int) -> None:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{taken}\n")
    half = files // 2
    (folder / "memory.stat").write_text(f"anon 5\nfile 7\ninactive_file {half}\nactive_file {files - half}\nshmem 9\n")


def test_a_machine_without_a_limit(said: Path) -> None:
    assert system.free_memory() == 1000 * MIB
    limited(said, "max", 5 * MIB, MIB)
    assert system.free_memory() == 1000 * MIB


@pytest.mark.parametrize(
    ("tree", "folder"), [("0::/job/step\n", "job"), ("0::/\n", "."), ("3:memory:/job\n0::/job\n", "job")]
)
def test_a_control_group_may_limit_time(said: Path, monkeypatch: pytest.MonkeyPatch, tree: str, folder: str) -> None:
    """Also that of a group above. A limit of more than the process's cores is none."""
    monkeypatch.setattr(system, "_OWN_GROUPS", said / "groups")
    monkeypatch.setattr("os.getloadavg", lambda: (2.0, 2.0, 2.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(system, "cpus", lambda: {0, 1})
    assert system.overload() == ""
    (said / "groups").write_text(tree)
    (said / folder).mkdir(parents=True, exist_ok=True)
    assert system.overload() == ""
    (said / folder / "cpu.max").write_text("150000 100000\n")
    assert system.overload() == "a control group limits all processes together to the time of 1.5 cores"
    (said / folder / "cpu.max").write_text("300000 100000\n")
    assert system.overload() == ""
    (said / folder / "cpu.max").write_text("max 100000\n")
    assert system.overload() == ""
    monkeypatch.setattr("os.getloadavg", lambda: (2.39, 0.0, 0.0))
    assert system.overload() == "2.39 programs compute on 2 cores (the load average of the last minute)"


def test_a_control_group(said: Path) -> None:
    """Files that are kept in memory give way to what processes take."""
    limited(said, f"{500 * MIB}", 450 * MIB, 300 * MIB)
    assert system.free_memory() == 350 * MIB
    limited(said, f"{5000 * MIB}", 450 * MIB, 300 * MIB)
    assert system.free_memory() == 1000 * MIB
    limited(said, f"{500 * MIB}", 501 * MIB, 0)
    assert system.free_memory() == 0
    (said / "meminfo").unlink()
    assert system.free_memory() is None


def test_no_file_is_longer_than_the_free_memory(said: Path) -> None:
    limited(said, f"{500 * MIB}", 490 * MIB, 0)
    assert shared_memory.new_file(11 * MIB) is None


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(Path("folder", "target"))
    for text in ("first", "second"):
        system.write_whole(link, text)
        assert link.is_symlink()
        assert target.read_text() == text
    assert [path.name for path in target.parent.iterdir()] == ["target"]


KEY = {"mpi": "an MPI"}


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without HOME whom the system does not know, as in containers."""

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_of_a_user_whom_the_system_does_not_know(nobody: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert home() is None
    assert file_of(KEY) is None
    keep(KEY, {"messages": ""})
    assert cached(KEY) is None
    assert of_no_rank()["HOME"] == "/"
    assert not [*tmp_path.iterdir()]


def test_what_the_variables_name(nobody: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/data")
    assert cache_folder() == Path("/data")
    monkeypatch.setenv("HOME", "/me")
    assert of_no_rank()["HOME"] == "/me"
    monkeypatch.delenv("HOME")  # a service of systemd has none, though the system knows its user
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_dir="/of/the/user"))
    assert of_no_rank()["HOME"] == "/of/the/user"
    monkeypatch.setenv("HOME", "/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "not absolute")
    assert cache_folder() == Path("/me/.cache")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The temporary folder of a system without files in memory."""
    monkeypatch.delattr("os.memfd_create", raising=False)
    monkeypatch.delattr("socket.SO_PEERCRED", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_no_other_user_enters_the_folder(elsewhere: Path) -> None:
    linux.folder().chmod(0o755)
    with pytest.raises(PermissionError, match="other users can enter it"):
        linux.folder()


def machine(folder: Path, numa: list[int], siblings: list[str]) -> list[list[int]]:
    """The cores of a machine whose CPU i is on the NUMA node ``numa[i]``."""
    for cpu, (node, shared) in enumerate(zip(numa, siblings, strict=True)):
        (folder / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (folder / f"cpu/cpu{cpu}/node{node}").mkdir()
        (folder / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(shared)
    return cores.physical(range(len(numa)))


def test_shares_are_equal_and_on_one_numa_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs 8 to 15 are the second threads of the cores 0 to 7, and cores alternate between the sockets."""
    monkeypatch.setattr(cores, "_SYSTEM", tmp_path)
    found = machine(tmp_path, [0, 1] * 8, [f"{i},{i + 8}" for i in range(8)] * 2)
    assert len(found) == 8
    assert [ranges(sorted(cores.share(found, rank, 2))) for rank in range(2)] == [
        "0,2,4,6,8,10,12,14",
        "1,3,5,7,9,11,13,15",
    ]
    assert [sorted(cores.share(found, rank, 8)) for rank in (0, 1, 7)] == [[0, 8], [2, 10], [7, 15]]
    thirds = [cores.share(found, rank, 3) for rank in range(3)]
    assert sorted(map(len, thirds)) == [4, 6, 6]
    assert set().union(*thirds) == {*range(16)}, "no core is left out"
    assert all(cores.share(found, rank, 9) == {*range(16)} for rank in range(9))


@pytest.mark.parametrize(
    ("flags", "variables", "places"),
    [
        ([], [], False),
        (["--bind-to", "core"], [], True),
        (["-bind-to", "core"], [], True),
        (["--map-by", "slot:PE=4"], [], True),
        (["--mca", "rmaps_default_mapping_policy", "node"], [], True),
        (["-x", "NAME", "--verbose"], ["PRTE_MCA_prte_tmpdir_base"], False),
        ([], ["PRTE_MCA_hwloc_default_binding_policy"], True),
    ],
)
def test_what_the_user_says_of_places(flags: list[str], variables: list[str], places: bool) -> None:
    assert cores.places_ranks(flags, variables) == places
