"""What the system says of its memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpicoll.machine import shared_memory, system

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
    ("tree", "named", "folder", "limit"),
    [
        ("0::/job/step\n", "cpu.max", "job", "150000 100000"),
        ("0::/\n", "cpu.max", ".", "150000 100000"),
        ("3:memory:/job\n4:cpu,cpuacct:/job\n", "cpu.cfs_quota_us", "cpu/job", "150000"),
    ],
)
def test_a_control_group_may_limit_time(
    said: Path, monkeypatch: pytest.MonkeyPatch, tree: str, named: str, folder: str, limit: str
) -> None:
    """Also that of a group above. A limit of more than the process's cores is none."""
    monkeypatch.setattr(system, "_OWN_GROUPS", said / "groups")
    monkeypatch.setattr("os.getloadavg", lambda: (2.0, 2.0, 2.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(system, "cpus", lambda: {0, 1})
    assert system.overload() == ""
    (said / "groups").write_text(tree)
    (said / folder).mkdir(parents=True, exist_ok=True)
    assert system.overload() == ""
    (said / folder / "cpu.cfs_period_us").write_text("100000\n")
    (said / folder / named).write_text(f"{limit}\n")
    assert system.overload() == "a control group limits all processes together to the time of 1.5 cores"
    (said / folder / named).write_text(limit.replace("150000", "300000"))
    assert system.overload() == ""
    (said / folder / named).write_text(limit.replace("150000", "max" if named == "cpu.max" else "-1"))
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
