"""Simulated devices with an MPI library that does wrong: it lies, crashes or hangs on one of the paths."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from mpi4py import MPI

from mpicoll.devices.device import Device
from mpicoll.probe import tries
from tests.devices.simulated import Simulated

WRONGS = ("lies", "crashes", "hangs")


class Faulty(Simulated):
    """A device whose memory MPI mistakes. What it does with it on ``path`` is one of ``WRONGS``; nothing else is wrong
    with it."""

    def __init__(self, path: str, wrong: str) -> None:
        super().__init__()
        self.path, self.wrong = path, wrong
        self.on_path = False
        self._elsewhere: list[Any] = []

    @property
    def model(self) -> str:
        return f"one whose {self.path}: {self.wrong}"

    def again(self) -> Callable[[], Faulty]:
        return partial(made, self.path, self.wrong)

    def for_mpi(self, address: int, nbytes: int) -> int:
        if not self.on_path:
            return super().for_mpi(address, nbytes)
        if self.wrong == "hangs":
            time.sleep(1000)
        if self.wrong == "lies":  # the data goes elsewhere, as to a copy that nobody brings back
            self._elsewhere.append(self.pinned(nbytes))
            return MPI.Get_address(self._elsewhere[-1])
        return address  # whoever touches it is ended


def made(path: str, wrong: str) -> Faulty:
    """The device in a rank of a test job, which is at the path when it tries it."""
    device, right = Faulty(path, wrong), tries.TRIES[path]

    def at_path(world: MPI.Intracomm, on: Device, rows: tries.Array) -> bool:
        device.on_path = True
        try:
            return right(world, on, rows)
        finally:
            device.on_path = False

    tries.TRIES[path] = at_path
    return device
