"""What ranks have open of each other's memory, and when they give it up. Each rank here is a Peers of one process."""

from __future__ import annotations

from typing import Any

import pytest

from mpicoll.devices.device import Handle
from mpicoll.fabrics.routes.devices import ipc
from mpicoll.fabrics.routes.devices.ipc import Peers


class Memory:
    """A device of which each allocation has 1000 addresses. ``numbers`` has the allocations that there are."""

    def __init__(self, name: str, process: int) -> None:
        self.name, self.process = name, process
        self.numbers: dict[int, int] = {}
        self.opened: list[int] = []

    def export(self, address: int) -> Handle | None:
        number = self.numbers.get(address // 1000)
        return None if number is None else Handle(self.process, b"%d" % number, address % 1000)

    def open(self, handle: Handle) -> int | None:
        if handle.allocation == b"666":
            return None
        self.opened.append(start := 1_000_000 + 1000 * int(handle.allocation))
        return start

    def close(self, start: int) -> None:
        self.opened.remove(start)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(ipc, "open_here", {})
    return [Memory("a:0", 70), Memory("a:0", 71)]


def made(rank: int, devices: list[Any], *, all_can: bool = True) -> Peers:
    return Peers(rank, 2, devices[rank], lambda possible: [possible, all_can])


def test_memory_that_is_no_more_is_closed(devices: list[Any]) -> None:
    owner, other = made(0, devices), made(1, devices)
    devices[0].numbers = {5: 50, 6: 60}
    handles = [owner.lend(5007), owner.lend(6000)]
    for handle in handles:
        assert other.opened([handle, None], None) is not None
    assert other.opened([handles[0], None], None) == [1_050_007, None]
    assert len(devices[1].opened) == 2  # once each
    assert owner.ended() == []
    devices[0].numbers[5] = 51  # new memory at the same address
    ended = owner.ended()
    assert ended == [b"50"]
    assert owner.ended() == []
    other.close(70, ended)
    assert devices[1].opened == [1_060_000]
    other.close(71, [b"60"])  # another rank's
    assert devices[1].opened == [1_060_000]
    assert other.opened([owner.lend(5007), None], None) == [1_051_007, None]


def test_communicators_share_what_is_open(devices: list[Any]) -> None:
    devices[0].numbers = {5: 50}
    owner, one, two = made(0, devices), made(1, devices), made(1, devices)
    handle = owner.lend(5000)
    for each in (one, two):
        assert each.opened([handle, None], None) == [1_050_000, None]
    assert devices[1].opened == [1_050_000]
    one.close(70, [b"50"])
    assert devices[1].opened == [1_050_000]
    two.free()
    two.free()
    assert devices[1].opened == []
