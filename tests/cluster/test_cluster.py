"""The emulated cluster itself: nothing of it is left, however its user ends."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.cluster import cluster
from tests.jobs.jobs import until
from tests.processes import job

pytestmark = pytest.mark.skipif(bool(cluster.missing()), reason=cluster.missing())


def outside() -> list[str]:
    """What the machine shows of the mounts, networks and run-time files that a cluster makes."""
    places = [*map(str, (cluster.STATE, cluster.PMIX)), "/run/munge", "/run/netns", "/etc/hosts"]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1].startswith((*places,))]
    devices = [name for name in os.listdir("/sys/class/net") if re.fullmatch(r"switch|node\d+", name)]
    names = [str(p) for place in places if place.startswith("/run") for p in Path(place).rglob("*")]
    return sorted([*mounts, *devices, *names])


def by_hand(*command: str) -> list[str]:
    return [sys.executable, "-m", "tests.cluster.cluster", "--", *command]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left(tmp_path: Path, end: signal.Signals) -> None:
    before = outside()
    command = by_hand("sh", "-c", "sinfo -hNp main -o %N; echo up; sleep 1000")
    with job(command, tmp_path / "log", dict(os.environ), cluster.REPOSITORY) as started:
        until(lambda: "up" in (tmp_path / "log").read_text(), "the cluster is up", tmp_path / "log")
        assert (tmp_path / "log").read_text().split() == ["node1", "node2", "up"]
        assert len(started.running()) > 5
        assert outside() == before
        started.process.send_signal(end)
        until(lambda: not started.running(), "all its processes end")
        assert started.process.wait() in (-end, 128 + end)
    assert outside() == before
